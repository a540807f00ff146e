"""What FeDLaS rests on: whether the norm of an image's features goes with the confidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing
from calibrant.metrics.binned import expected_calibration_error
from calibrant.predictions.rows import softmax
from calibrant_studies import smart_figures
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure, quietly
from calibrant_studies.kinds.networks import PROGRESS, NetworkKind, at_progress
from calibrant_studies.networks.plans import NONE, PLAIN_LOSS, plan_of
from calibrant_studies.networks.sources import Source
from calibrant_studies.networks.trained import Network, Spent, locked, measured, network_of
from calibrant_studies.significance import mean_with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.training.second_stages import MaCCal

_NORM_MEASURES = (
    Measure("confidence", "confidence", 100, 2, "neither", "mean of a tenth of the test images"),
    Measure("accuracy", "accuracy", 100, 2, "neither", "of a tenth of the test images"),
    Measure("norm", "L1 norm, z-scored", 1, 2, "neither", "mean of a tenth of the test images"),
    Measure("correlation", "corr(norm, confidence)", 1, 3, "neither", "Pearson, all test images"),
)


class FeatureNorm(NetworkKind):
    """Sort the test images by the L1 norm of their features, and look at a tenth of them."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "tenth")

    own_measures: ClassVar[tuple[Measure, ...]] = _NORM_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {"tenth": int(cell.at["tenth"])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        if network.test.features is None:
            raise InputError(f"{network.plan.name}: its test predictions hold no features")
        norms = np.abs(np.asarray(network.test.features, np.float64)).sum(axis=1)
        norms = (norms - norms.mean()) / norms.std()
        rows = network.speaker(network.head())(network.test)
        probs = np.asarray(rows.probs)
        confidence = probs.max(axis=1)
        right = (probs.argmax(axis=1) == np.asarray(rows.labels)).astype(np.float64)
        part = np.array_split(np.argsort(norms, kind="stable"), 10)[int(cell.at["tenth"]) - 1]
        values = {"correlation": {"value": float(np.corrcoef(norms, confidence)[0, 1])}}
        for name, of_all in (("confidence", confidence), ("accuracy", right), ("norm", norms)):
            values[name] = mean_with_interval(of_all[part])
        return {"values": values}


# What the gate of FeDLaS does to the training images, epoch by epoch.

_GATE_MEASURES = (
    Measure("gate_positive", "psi = +1", 100, 1, "neither", "share of the training images"),
    Measure("gate_negative", "psi = -1", 100, 1, "neither", "share of the training images"),
    Measure("gate_flip_rate", "flip rate", 100, 1, "neither", "share whose psi changed"),
    Measure("gate_alpha", "mean alpha", 1, 4, "neither", "mean smoothing"),
    Measure("gate_correlation", "corr(NCI, right)", 1, 3, "neither", "Pearson, training images"),
)


class Gate(NetworkKind):
    """Read the history of a training with FeDLaS at shares of its epochs."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (
        *RESAMPLED,
        "after",
        "second_stage",
        "stage_arguments",
        "stage_epochs",
    )
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", PROGRESS)
    takes_recorded: ClassVar[bool] = True

    own_measures: ClassVar[tuple[Measure, ...]] = _GATE_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {"progress": float(cell.at[PROGRESS])}

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        assert source.recorded is not None
        if not source.recorded.epochs:
            raise InputError(f"{cell}: nothing was kept of the gate over the epochs")
        return _gate_result(at_progress(cell, source.recorded.epochs))

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        epochs = network.epochs()
        if "gate_positive" not in epochs[-1]:
            raise InputError(f"{network.plan.name}: its history holds no gate; train with FeDLaS")
        return _gate_result(at_progress(cell, epochs))


def _gate_result(row: dict[str, Any]) -> dict[str, Any]:
    values = {measure.name: {"value": row[measure.name]} for measure in _GATE_MEASURES}
    return {"values": values, "epoch": row["epoch"]}


# How the share of connections that MaC-Cal keeps moves while it trains a head.

_RETENTION_MEASURES = (
    Measure("retention", "kept", 100, 1, "neither", "share of connections that are kept"),
    Measure("accuracy", "accuracy", 100, 2, "neither", "training rows, as the epoch went on"),
    Measure("confidence", "confidence", 100, 2, "neither", "training rows, likewise"),
)


class Retention(NetworkKind):
    """Train a second stage and read its history at shares of its epochs."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", PROGRESS)

    own_measures: ClassVar[tuple[Measure, ...]] = _RETENTION_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {"progress": float(cell.at[PROGRESS])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        head = network.head()
        if head is None:
            raise InputError(f"{cell}: there is no second stage; name one, second_stage = 'maccal'")
        record = at_progress(cell, head.history)
        return {
            "values": {m.name: {"value": record[m.name]} for m in _RETENTION_MEASURES},
            "epoch": record["epoch"],
        }


# What each kappa that MaC-Cal tries leads to, on the held-out rows by which it chooses one.

_KAPPA_MEASURES = (
    Measure("retention", "last retention", 1, 2, "neither", "share of connections that are kept"),
    Measure("accuracy", "accuracy", 100, 2, "high", "held-out rows"),
    Measure("confidence", "confidence", 100, 2, "neither", "held-out rows"),
    Measure("ece", "ECE", 100, 2, "low", "held-out rows, 15 equal bins"),
    Measure("nll", "NLL", 1, 4, "low", "held-out rows"),
    Measure("chosen", "chosen", 100, 0, "neither", "whether it is the one that was chosen"),
)


class KappaCurve(NetworkKind):
    """Train MaC-Cal with a list of kappas (stage_arguments.kappas), and look at one of them."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "kappa")

    own_measures: ClassVar[tuple[Measure, ...]] = _KAPPA_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {"kappa": float(cell.at["kappa"])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        kappa, found = float(cell.at["kappa"]), _curve(network)
        for point in found["curve"]:
            if abs(point["kappa"] - kappa) < 1e-9:
                point["chosen"] = float(abs(found["chosen"] - kappa) < 1e-9)
                return {"values": {m.name: {"value": point[m.name]} for m in _KAPPA_MEASURES}}
        raise InputError(f"{cell}: kappa {kappa:g} is none of those that are tried")


def _curve(network: Network) -> dict[str, Any]:
    """Return all candidates; they are trained together, once for all cells."""
    told = [network.plan.digest(network.source.digest), network.plan.configuration()]
    name = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]
    file = network.place / f"curve-{name}.json"
    with locked(file):
        if not file.is_file():
            summary = network.fit_stage().summary()
            found = {"curve": summary["kappa_curve"], "chosen": summary["kappa"]}
            with replacing(file) as temporary:
                temporary.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


# What random masks over the classifier's connections do, with and without learning under them.

RATE = "masked"
_MASKING_MEASURES = (
    Measure("accuracy", "accuracy", 100, 2, "high"),
    Measure("confidence", "mean confidence", 100, 2, "neither"),
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins"),
)


class Masking(NetworkKind):
    """Mask a share of the last layer: at inference only, or while a new one is trained."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (
        *RESAMPLED,
        "after",
        "second_stage",
        "stage_arguments",
    )
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", RATE)
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "learns": False,  # whether a new linear head is trained under the masks
        "repeats": 5,
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _MASKING_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        names = ("learns", "repeats", "stage_epochs")
        return {RATE: float(cell.at[RATE])} | self.settings(cell, *names)

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        kept = 1 - float(cell.at[RATE]) / 100
        if self.setting(cell, "learns"):
            found = self._learnt(cell, network, kept)
        else:
            found = self._at_inference(cell, network, kept)
        return {"values": {name: {"value": value} for name, value in found.items()}}

    def _at_inference(self, cell: Cell, network: Network, kept: float) -> dict[str, float]:
        from calibrant.training.second_stages import mask_at_inference

        head = network.test.head
        if head is None or network.test.features is None:
            raise InputError(f"{network.plan.name}: its test predictions hold no last layer")
        (point,) = mask_at_inference(
            head.weight,
            head.bias,
            network.test.features,
            network.test.labels,
            (kept,),
            repeats=self.setting(cell, "repeats"),
            seed=network.plan.seed,
        )
        said = point.as_dict()
        return {measure.name: said[measure.name] for measure in _MASKING_MEASURES}

    def _learnt(self, cell: Cell, network: Network, kept: float) -> dict[str, float]:
        stage = retrained(network, self.setting(cell, "stage_epochs"), kept)
        probs = softmax(np.asarray(stage.logits(network.test.features), np.float64))
        labels = np.asarray(network.test.labels)
        return {
            "accuracy": float((probs.argmax(axis=1) == labels).mean()),
            "confidence": float(probs.max(axis=1).mean()),
            "ece": float(expected_calibration_error(probs, labels)),
        }


def retrained(network: Network, epochs: int, kept: float) -> MaCCal:
    """Return a linear head trained for some epochs under masks that keep a share of its weights."""
    from calibrant.training.second_stages import MaCCal

    rows = network.training_rows()
    stage = MaCCal(
        seed=network.plan.seed,
        epochs=epochs,
        adaptation="none",
        kappa=1.0,
        initial_retention=kept,
    )
    with quietly():
        stage.fit(rows.features, rows.labels, n_classes=network.test.n_classes)
    return stage


# What a head is like before and after it was retrained under masks: how unsure its rows are, how
# the prototypes of its classes stand to one another, and how its confidences fit.

_PROTOTYPE_MEASURES = (
    Measure("entropy", "entropy", 1, 3, "neither", "nats, mean of the test images"),
    Measure("entropy-wrong", "entropy where wrong", 1, 3, "neither", "nats, mean of these images"),
    Measure("angle", "angle of classes", 1, 1, "neither", "degrees, mean over pairs"),
    Measure("angle-spread", "spread of the angles", 1, 2, "low", "degrees, over pairs"),
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins"),
    Measure("accuracy", "accuracy", 100, 2, "high"),
)
_DRAWN_ROWS = 500


class Prototypes(NetworkKind):
    """Look at the network's own head, or at one that was retrained under masks."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after", "second_stage", "stage_arguments")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "masked": 0,  # percent of the connections of a head that is retrained; 0: the own head
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _PROTOTYPE_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return self.settings(cell, "masked", "stage_epochs")

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        test, masked = network.test, self.setting(cell, "masked")
        if masked:
            stage = retrained(network, self.setting(cell, "stage_epochs"), 1 - masked / 100)
            logits = np.asarray(stage.logits(test.features), np.float64)
            weight = cast(Any, stage.head_)[-1].weight.detach().cpu().numpy()
        else:
            if test.head is None:
                raise InputError(f"{network.plan.name}: its test predictions hold no last layer")
            logits, weight = np.asarray(test.logits, np.float64), np.asarray(test.head.weight)
        probs, labels = softmax(logits), np.asarray(test.labels)
        wrong = probs.argmax(axis=1) != labels
        entropy = -(probs * np.log(np.maximum(probs, np.finfo(np.float64).tiny))).sum(axis=1)
        angles = angles_between(weight)
        pairs = angles[np.triu_indices(len(angles), 1)]
        values = {
            "entropy": entropy.mean(),
            "entropy-wrong": entropy[wrong].mean() if wrong.any() else entropy.mean(),
            "angle": pairs.mean(),
            "angle-spread": pairs.std(),
            "ece": expected_calibration_error(probs, labels),
            "accuracy": 1 - wrong.mean(),
        }
        few = slice(_DRAWN_ROWS)
        return {
            "values": {name: {"value": float(value)} for name, value in values.items()},
            "angles": angles.round(3).tolist(),
            "curve": _reliability(probs.max(axis=1), ~wrong),
            "rows": {
                "logits": logits[few].round(4).tolist(),
                "labels": labels[few].tolist(),
                "entropy": entropy[few].round(4).tolist(),
            },
        }

    def draw(self, result: CellResults) -> Figure | None:
        first = [ran for ran in result.ran if ran.cell.seed == result.study.seeds[0]]
        return smart_figures.prototypes(result, first) if first else None


def angles_between(rows: Any) -> FloatArray:
    """Return (K, K) angles between the rows of a (K, D) matrix, in degrees."""
    weights = np.asarray(rows, np.float64)
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return np.degrees(np.arccos(np.clip(unit @ unit.T, -1, 1)))


def _reliability(confidence: FloatArray, right: BoolArray, n_bins: int = 15) -> list[list[float]]:
    """Return mean confidence and accuracy of the bins of equal width that hold rows."""
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    groups = [bins == number for number in range(n_bins)]
    return [[float(confidence[g].mean()), float(right[g].mean())] for g in groups if g.any()]


# What a method costs: seconds of training, and how many times those of plain cross-entropy.
#
# By the clock, as papers have it, and in seconds of the processor, which others on the same
# machine change less. On a GPU only the clock says anything: the processor waits for it.

_TIME_MEASURES = (
    Measure("seconds", "seconds", 1, 0, "neither", "of training, all stages together"),
    Measure("ratio", "times cross-entropy", 1, 3, "low", "seconds over those of plain training"),
    Measure(
        "processor-seconds", "seconds of the processor", 1, 0, "neither", "all stages together"
    ),
    Measure(
        "processor-ratio",
        "times, processor",
        1,
        3,
        "low",
        "seconds of the processor over those of plain training; nothing where a GPU trains",
    ),
)


class TrainingTime(NetworkKind):
    """Add what the network took, in one go, and what its second stage takes."""

    version: ClassVar[str] = "2"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")

    own_measures: ClassVar[tuple[Measure, ...]] = _TIME_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {}

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        plan = plan_of(cell)
        plain = replace(
            plan.members[0],
            line=PLAIN_LOSS,
            stage="",
            stage_arguments={},
            run={
                **plan.members[0].run,
                "protocol": plan.run["protocol"].partition("+")[0],
                "loss": PLAIN_LOSS,
                "loss_arguments": {},
                "mixing": NONE,
                "mixing_arguments": {},
            },
        )
        base = _spent(network_of(plain, inputs, work))
        network = network_of(plan, inputs, work)
        spent = _spent(network)
        if plan.stage:
            # Features of the training images are made for all second stages together, once; each
            # would have to make them.
            network.training_rows()  # for all; they are made once more below
            _ = network.images  # read and kept, so that it isn't timed
            with measured() as of_stage:
                network.make_training_rows()
                network.fit_stage()
            spent += of_stage
        values = {"seconds": spent.clock, "ratio": spent.clock / base.clock}
        if spent.processor is not None and base.processor is not None:
            values["processor-seconds"] = spent.processor
            values["processor-ratio"] = spent.processor / base.processor
        return {"values": {name: {"value": value} for name, value in values.items()}}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        raise NotImplementedError


def _spent(network: Network) -> Spent:
    spent = network.spent
    if spent is None:
        raise InputError(
            f"{network.plan.name}: nobody knows how long it was trained; a run is timed where a "
            "study trains it in one go"
        )
    return spent
