"""What kinds of cells about trained networks have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arrays import FloatArray
from calibrant.core.result import Table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import interval
from calibrant.metrics.detection import auroc, fpr_at_tpr
from calibrant.predictions.predictions import Predictions
from calibrant_studies.cells import Cell, CellResults, Ran, cells_of
from calibrant_studies.declaration import METHOD, Study
from calibrant_studies.estimates import FEWEST_SEEDS
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Kind, Measure, Need, seven_digits
from calibrant_studies.kinds.posthoc import measured
from calibrant_studies.networks.images import TILES, corrupted, unknown_images
from calibrant_studies.networks.plans import DEFAULTS, Plan, plan_of
from calibrant_studies.networks.sources import (
    Source,
    check_names,
    is_trained,
    left_out,
    need_of,
    source_of,
)
from calibrant_studies.networks.trained import CalibratedNetwork, Network, network_of
from calibrant_studies.significance import paired_or_by_seeds

# Of a training: how far it has come, in percent of its epochs.
PROGRESS = "progress"


class NetworkKind(Kind):
    """A kind whose cells are about one network, which is found or trained.

    Attributes:
        takes_recorded: whether numbers that were kept of a network will do in place of it.
    """

    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method")
    defaults: ClassVar[Mapping[str, Any]] = {**DEFAULTS, "resamples": 400, "level": 0.95}
    takes_recorded: ClassVar[bool] = False

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        return (need_of(plan_of(cell), recorded=self.takes_recorded), *self.more_needs(cell))

    def own_rows(self, named: Sequence[str], study: Study, inputs: Inputs) -> list[str]:
        cells = cells_of(study)
        beside = {plan_of(cell).name for cell in cells}
        beside |= {f"{cell.input}-c" for cell in cells}  # its corrupted images
        beside |= {need.input for cell in cells for need in self.more_needs(cell)}
        return [name for name in named if name not in beside and not is_trained(inputs[name])]

    def check_inputs(self, study: Study, inputs: Inputs) -> None:
        check_names((plan_of(cell) for cell in cells_of(study)), inputs)

    def left_out(self, study: Study, inputs: Inputs) -> list[str]:
        return left_out((plan_of(cell) for cell in cells_of(study)), inputs)

    def subject(self, cell: Cell) -> Any:
        own = {axis: name for axis, name in cell.at.items() if axis in self.axes}
        own = {axis: name for axis, name in own.items() if axis not in ("network", METHOD)}
        return (
            own,
            plan_of(cell).configuration(),
            {key: of for key, of in cell.settings.items() if key not in (*DEFAULTS, METHOD)},
        )

    def more_needs(self, cell: Cell) -> tuple[Need, ...]:
        return ()

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        plan = plan_of(cell)
        source = self.source(plan, inputs)
        return plan.configuration() | {"source": source.kind} | self.measuring(cell)

    def source(self, plan: Plan, inputs: Inputs) -> Source:
        """Return where the network of a plan comes from."""
        source = source_of(plan, inputs, recorded=self.takes_recorded)
        assert source is not None  # or the cell would lack what it needs
        return source

    @abstractmethod
    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return what the numbers depend on besides the network."""

    def method_version(self, cell: Cell) -> str:
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        plan = plan_of(cell)
        source = self.source(plan, inputs)
        if source.recorded is not None:
            return self.from_recorded(cell, source)
        return self.measure(cell, network_of(plan, inputs, work), inputs)

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        raise NotImplementedError

    @abstractmethod
    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return the result of a cell, see `Kind.run`."""


def at_progress(cell: Cell, epochs: list[Any]) -> Any:
    """Return the record of the epoch at which so many percent of the training were done."""
    share = float(cell.at[PROGRESS]) / 100
    return epochs[max(0, min(len(epochs), round(share * len(epochs))) - 1)]


# A network that is trained, with a second stage and a calibrator if asked, and then measured.
# Measured in any case, so that tables of different metrics share their cells.
USUAL = (
    "ece",
    "adaece",
    "mce",
    "overconfidence",
    "underconfidence",
    "nll",
    "brier",
    "accuracy",
)


class Training(NetworkKind):
    """Train as `calibrant train` does, unless such a run is given, and measure on the test rows."""

    version: ClassVar[str] = "1"
    takes_recorded: ClassVar[bool] = True

    def measuring(self, cell: Cell) -> dict[str, Any]:
        return {
            "resamples": self.setting(cell, "resamples"),
            "level": self.setting(cell, "level"),
            "metrics": sorted(set(cell.metrics) - set(USUAL)),
        }

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        assert source.recorded is not None
        assert source.given is not None
        note = f"kept in {source.given.path.name}"
        return {"values": source.recorded.values, "notes": [note]}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        head = network.head()
        said = network.speaker(head)(network.test)
        found = evaluate(
            said,
            metrics=list(dict.fromkeys([*USUAL, *cell.metrics])),
            resamples=self.setting(cell, "resamples"),
            level=self.setting(cell, "level"),
        )
        return measured(found) | {
            # The same test images in the same order are resampled alike.
            "pairing": f"{network.plan.input} {network.test.n} {network.labels_digest}",
            "fit_rows": network.validation.n,
            "test_rows": network.test.n,
            "notes": [] if head is None else head.notes,
            "processor": None if network.spent is None else network.spent.processor,
        }


class TrainingsBeside(Training):
    """Measure as `training` does; show everything beside what one would do anyway, in one table.

    That is the first of those that the study sets its methods against. Seeds that either lacks are
    left out of a pair.
    """

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        study = result.study
        anyway = study.against[0]
        if anyway not in [value.name for value in study.axes[METHOD]]:
            return []  # left out, and with it what all are compared with
        places: dict[tuple[str, ...], dict[str, dict[int, Ran]]] = {}
        for ran in result.ran:
            place = tuple(study.word(key, ran.cell.at) for key in study.rows if key != METHOD)
            of_method = places.setdefault(place, {}).setdefault(ran.cell.at[METHOD], {})
            of_method[ran.cell.seed] = ran
        rows = [
            [*place, study.value(METHOD, name).label, *self._row(study, ours, group[anyway])]
            for place, group in places.items()
            if anyway in group
            for name, ours in group.items()
        ]
        titles = [self.measures[name].title for name in study.metrics]
        other = f"minus {study.value(METHOD, anyway).label}"
        of_metrics = [word for title in titles for word in (title, other)]
        head = [*(key for key in study.rows), "seeds", *of_metrics, "cost"]
        notes = (
            f"M{other[1:]}: paired differences, same seeds and test images, with 95 % "
            "intervals; * where the interval leaves out 0; undecided with fewer than "
            f"{FEWEST_SEEDS} seeds. Cost: seconds of the processor for training the network, over "
            "those there, of seeds in which both are known; blank where none is, or a second stage "
            "came on top."
        )
        return [("In one table", Table(head, rows, notes=notes, labels=len(study.rows)))]

    def _row(self, study: Study, ours: Mapping[int, Ran], theirs: Mapping[int, Ran]) -> list[str]:
        both = sorted(ours.keys() & theirs.keys())
        results = [[of[seed].result for seed in both] for of in (ours, theirs)]
        cells = [str(len(both))]
        for name in study.metrics:
            measure = self.measures[name]
            values = [result["values"][name]["value"] for result in results[0]]
            cells.append(measure.show(float(np.mean(values))) if both else "")
            same = not both or results[0] == results[1]
            cells.append("" if same else _apart(measure, results, name))
        if any(ran.cell.settings.get("second_stage") for ran in ours.values()):
            return [*cells, ""]
        seconds = [[float(result.get("processor") or 0) for result in of] for of in results]
        known = [pair for pair in zip(*seconds, strict=True) if all(pair)]
        own, other = (sum(part) for part in zip(*known, strict=True)) if known else (0.0, 0.0)
        return [*cells, f"{own / other:.1f}" if known else ""]


def _apart(measure: Measure, results: Sequence[Sequence[Any]], name: str) -> str:
    found = paired_or_by_seeds(results[0], results[1], name)
    if found == (0, 0, 0):  # as of accuracy, which a temperature leaves as it is
        return ""
    value = f"{measure.scale * found.value:+.{measure.digits}f}"
    if len(results[0]) < FEWEST_SEEDS:
        return f"{value}, undecided"
    ends = " to ".join(f"{measure.scale * end:+.{measure.digits}f}" for end in found[1:])
    return f"{value} ({ends}){'*' if found.clear else ''}"


# How honest a network stays on corrupted test images, severity by severity.

_CORRUPTED_MEASURES = (
    Measure("ece", "ECE", 100, 2, "low", "15 equal bins; mean over corruptions"),
    Measure("accuracy", "accuracy", 100, 2, "high", "mean over corruptions"),
)


class CorruptedImages(NetworkKind):
    """Measure on images corrupted here, or on those of an input called DATA-c as in CIFAR-10-C."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "severity")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "most": 1000,  # images that are corrupted here
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _CORRUPTED_MEASURES

    def measuring(self, cell: Cell) -> dict[str, Any]:
        names = ("most", "resamples", "level")
        settings = self.settings(cell, *names)
        return {"severity": int(cell.at["severity"])} | settings

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        found = super().configuration(cell, inputs)
        name = f"{cell.input}-c"
        return found | {"images": inputs[name].digest if name in inputs else "made here"}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return means over corruptions.

        All corruptions are of the same images, which are therefore resampled together. The spread
        between corruptions is no error of their mean.
        """
        speak = network.speaker(network.head())
        names = [measure.name for measure in _CORRUPTED_MEASURES]
        found = {
            name: evaluate(
                speak(rows),
                metrics=names,
                resamples=self.setting(cell, "resamples"),
                level=self.setting(cell, "level"),
            ).results
            for name, rows in self._said(cell, network, inputs)
        }
        values: dict[str, dict[str, float]] = {}
        replicates: dict[str, list[float]] = {}
        for name in names:
            each = [of[name] for of in found.values()]
            value = float(np.mean([result.value for result in each]))
            drawn = np.mean([result.replicates for result in each], axis=0)
            floors = [result.floor for result in each if result.floor is not None]
            ends = interval(value, drawn, self.setting(cell, "level"), biased=bool(floors))
            values[name] = {"value": value, "low": ends[0], "high": ends[1]}
            if floors:
                values[name]["floor"] = float(np.mean(floors))
            replicates[name] = seven_digits(drawn)
        return {
            "values": values,
            "replicates": replicates,
            "pairing": f"{cell.input} {cell.at['severity']} {self.setting(cell, 'most')} "
            f"{network.labels_digest}",
            "corruptions": {
                corruption: {name: result.value for name, result in of.items()}
                for corruption, of in found.items()
            },
        }

    def _said(
        self, cell: Cell, network: Network, inputs: Inputs
    ) -> Iterable[tuple[str, Predictions]]:
        """Return a network's outputs for each corruption: once for all heads on it."""
        name, severity = f"{cell.input}-c", int(cell.at["severity"])
        images = network.test_images(self.setting(cell, "most") or None)
        changed = corrupted(name, images, severity, inputs)
        said = ((corruption, network.says_of(some)) for corruption, some in changed)
        if name in inputs:
            return said  # ten thousand images a corruption are too many to be kept
        key = (network.source.digest, severity, len(images))
        if key not in _SAID:
            while len(_SAID) >= _MOST_SAID:
                _SAID.pop(next(iter(_SAID)))
            _SAID[key] = list(said)
        return _SAID[key]


# What this process has said last of images corrupted here: methods with one network share it.

_SAID: dict[tuple[str, int, int], list[tuple[str, Predictions]]] = {}
_MOST_SAID = 5


# How well a network's confidence tells images that it knows from others.

UNKNOWN = "unknown"
AUROC, ENTROPY, FPR95 = "auroc", "auroc-entropy", "fpr95"
_OTHER_IMAGES = (
    "a data set of other images, whose test images the network can't know (--data NAME=PATH)"
)
_OOD_MEASURES = (
    Measure(AUROC, "AUROC", 100, 2, "high", "by the largest probability"),
    Measure(ENTROPY, "AUROC, entropy", 100, 2, "high", "by minus the entropy"),
    Measure(FPR95, "FPR95", 100, 2, "low", "unknown images above the threshold of 95 % of known"),
)


class OutOfDistribution(NetworkKind):
    """Compare the test images with unknown ones, which get the network's own normalisation."""

    version: ClassVar[str] = "2"
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", UNKNOWN)
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        UNKNOWN: [],  # names of sets, over which the numbers are averaged
        "most": 0,  # images of each set; 0 for all
    }

    own_measures: ClassVar[tuple[Measure, ...]] = _OOD_MEASURES

    def sets(self, cell: Cell) -> list[str]:
        """Return the names of the unknown sets of a cell."""
        return list(self.setting(cell, UNKNOWN)) or [cell.at[UNKNOWN]]

    def more_needs(self, cell: Cell) -> tuple[Need, ...]:
        return tuple(Need(name, _OTHER_IMAGES) for name in self.sets(cell) if name not in TILES)

    def measuring(self, cell: Cell) -> dict[str, Any]:
        read = self.settings(cell, "most", "resamples", "level")
        return {UNKNOWN: self.sets(cell), **read}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        most = self.setting(cell, "most") or None
        speak = network.speaker(network.head())
        images = network.test_images(most)
        known = _scores(speak, network.test if most is None else network.says_of(images))
        sets = self.sets(cell)
        unknown: list[Mapping[str, FloatArray]] = []
        for name in sets:
            others = unknown_images(name, images, inputs, network.place, most)
            unknown.append(_scores(speak, network.says_of(others, known=False)))
        found = detected(known, unknown, self.setting(cell, "resamples"))
        tail = (1 - self.setting(cell, "level")) / 2
        values: dict[str, dict[str, float]] = {}
        for name, (value, drawn) in found.items():
            low, high = np.quantile(drawn - drawn.mean() + value, [tail, 1 - tail])
            values[name] = {"value": value, "low": float(low), "high": float(high)}
        counts = [len(scores[AUROC]) for scores in (known, *unknown)]
        return {
            "values": values,
            "replicates": {name: drawn.tolist() for name, (_, drawn) in found.items()},
            # The same images in the same order are resampled alike.
            "pairing": f"{network.plan.input} {network.labels_digest} {sets} {counts}",
            "test_rows": sum(counts),
        }


def _scores(speak: CalibratedNetwork, rows: Predictions) -> dict[str, FloatArray]:
    """Return scores that are high for images that look known."""
    probs = np.asarray(speak(rows).probs, np.float64)
    logs = np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    return {AUROC: probs.max(axis=1), ENTROPY: (probs * logs).sum(axis=1)}


def detected(
    known: Mapping[str, FloatArray], unknown: Sequence[Mapping[str, FloatArray]], resamples: int
) -> dict[str, tuple[float, FloatArray]]:
    """Return each measure's mean over sets of unknown images, and the same on resamples.

    Known images and those of each set are drawn with replacement, the same ones whatever their
    scores are. All sets are held against one draw of the known images, so what they share counts.

    Args:
        known: (N,) scores of the known images, by the name of the measure.
        unknown: (M,) scores of each set.
        resamples: how many.
    """
    rng = np.random.default_rng(0)
    first = known[AUROC]
    wins = {name: [_Wins(known[name], each[name]) for each in unknown] for name in known}
    drawn: dict[str, list[float]] = {name: [] for name in (*known, FPR95)}
    for _ in range(resamples):
        of_known = _times_drawn(rng, len(first))
        of_sets = [_times_drawn(rng, len(each[AUROC])) for each in unknown]
        for name, of in wins.items():
            shares = [win.share(of_known, times) for win, times in zip(of, of_sets, strict=True)]
            drawn[name].append(float(np.mean(shares)))
        again = np.repeat(first, of_known)
        rates = [
            fpr_at_tpr(again, np.repeat(each[AUROC], times))
            for each, times in zip(unknown, of_sets, strict=True)
        ]
        drawn[FPR95].append(float(np.mean(rates)))
    values = {
        name: float(np.mean([auroc(known[name], each[name]) for each in unknown])) for name in known
    }
    values[FPR95] = float(np.mean([fpr_at_tpr(first, each[AUROC]) for each in unknown]))
    return {name: (value, np.array(drawn[name])) for name, value in values.items()}


def _times_drawn(rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
    return np.bincount(rng.integers(rows, size=rows), minlength=rows)


class _Wins:
    """How often known rows score above unknown ones; ties count half."""

    def __init__(self, known: FloatArray, unknown: FloatArray) -> None:
        self._order = np.argsort(unknown)
        ordered = unknown[self._order]
        self._below = [np.searchsorted(ordered, known, side) for side in ("left", "right")]

    def share(self, known: NDArray[np.int64], unknown: NDArray[np.int64]) -> float:
        """Return the AUROC where each row counts as often as said."""
        passed = np.concatenate([[0], np.cumsum(unknown[self._order])])
        wins = passed[self._below[0]] + passed[self._below[1]]
        return float(known @ wins / (2 * known.sum() * unknown.sum()))
