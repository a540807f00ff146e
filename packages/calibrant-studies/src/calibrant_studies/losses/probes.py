"""What FeDLaS rests on: whether the norm of the features tells right from wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.result import Table
from calibrant.evaluation.best_set import t_interval
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant_studies.losses.statistics import LEVEL, Run

NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
NORM_COLUMNS = (
    "correlation of norm and right",
    "correlation of norm and confidence",
    "AUROC of right by norm",
    "AUROC of right by confidence",
)


class Rows(NamedTuple):
    """(N,) values of the test images of a run."""

    norm: FloatArray
    confidence: FloatArray
    right: FloatArray


class Estimate(NamedTuple):
    """A value and its standard error over test images."""

    value: float
    error: float


def read_rows(test: Predictions) -> Rows:
    """Return L1 norm of the features, confidence and correctness of the test images."""
    logits = np.asarray(test.logits, np.float64)
    return Rows(
        np.abs(np.asarray(test.features, np.float64)).sum(axis=1),
        softmax(logits).max(axis=1),
        (logits.argmax(axis=1) == np.asarray(test.labels)).astype(np.float64),
    )


def correlation(x: FloatArray, y: FloatArray) -> Estimate:
    """Return Pearson's correlation of N rows; its error is that of its influence function."""
    x, y = ((z - z.mean()) / z.std() for z in (x, y))
    value = float((x * y).mean())
    influence = x * y - value * (x**2 + y**2) / 2
    return Estimate(value, float(influence.std() / np.sqrt(len(x))))


def auroc_of_right(scores: FloatArray, right: BoolArray) -> Estimate:
    """Return how often a right row has the larger score than a wrong one, with DeLong's error."""
    better, worse = np.sort(scores[right]), np.sort(scores[~right])
    # Of each row, the share of the other side that it stands above; ties count half.
    above = _mean_rank(worse, scores[right])
    below = 1 - _mean_rank(better, scores[~right])
    variance = above.var(ddof=1) / len(better) + below.var(ddof=1) / len(worse)
    return Estimate(float(above.mean()), float(np.sqrt(variance)))


def _mean_rank(ordered: FloatArray, values: FloatArray) -> FloatArray:
    sides = [np.searchsorted(ordered, values, side) for side in ("left", "right")]
    return (sides[0] + sides[1]) / (2 * len(ordered))


def norm_estimates(test: Predictions) -> list[Estimate]:
    """Return the estimates of one network in the order of `NORM_COLUMNS`."""
    rows = read_rows(test)
    right = rows.right == 1
    return [
        correlation(rows.norm, rows.right),
        correlation(rows.norm, rows.confidence),
        *(auroc_of_right(scores, right) for scores in (rows.norm, rows.confidence)),
    ]


def key_of(column: str) -> str:
    """Return what JSON calls one of `NORM_COLUMNS`."""
    return column.replace(" ", "_")


def norms_by_line(runs: Sequence[Run]) -> dict[str, list[list[Estimate]]]:
    """Return the estimates of every run by its line."""
    found: dict[str, list[list[Estimate]]] = {}
    for run in runs:
        told = run.more.get("feature_norm")
        if told:
            estimates = [Estimate(**told[key_of(name)]) for name in NORM_COLUMNS]
            found.setdefault(run.line, []).append(estimates)
    return found


def norms(runs: Sequence[Run]) -> Table:
    """Return how the norm of the features goes with being right."""
    rows: list[list[str]] = []
    for line, found in norms_by_line(runs).items():
        cells = [_with_interval([each[i] for each in found]) for i in range(len(NORM_COLUMNS))]
        rows.append([f"{line} ({len(found)})", *cells])
    note = "" if rows else "None of the runs has the features of its test images."
    return Table(["loss (seeds)", *NORM_COLUMNS], rows, notes=note)


def _with_interval(found: Sequence[Estimate]) -> str:
    value, low, high = interval(found)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def interval(found: Sequence[Estimate]) -> tuple[float, float, float]:
    """Return mean and ends, over seeds or of one seed over test images."""
    values = np.array([each.value for each in found])
    low, high = t_interval(values, LEVEL)
    if low is None or high is None:
        half = NORMAL * found[0].error
        low, high = found[0].value - half, found[0].value + half
    return float(values.mean()), low, high


# What the gate of FeDLaS does: on the test images, and epoch by epoch.


class Gate(NamedTuple):
    """What the gate of a finished run does to the test images.

    Attributes:
        positive: share of the images with psi = 1, smoothed the more the larger their norm.
        alpha: mean smoothing.
        gap_positive: confidence minus accuracy of those images; NaN without any.
        gap_negative: the same of the others.
        half: half width of the interval of the difference of the two gaps.
    """

    positive: float
    alpha: float
    gap_positive: float
    gap_negative: float
    half: float


def gate_on_test_images(run: Path, settings: Mapping[str, Any], test: Predictions) -> Gate | None:
    """Return what the gate of a run with FeDLaS decides for its test images.

    Args:
        run: its folder.
        settings: of its training.
        test: its predictions, with features.

    Returns:
        None without a checkpoint, and for another loss.
    """
    if not settings["loss"].startswith("fedlas"):
        return None
    import torch

    from calibrant.training.losses import FeDLaS, make_loss
    from calibrant.training.run.folder import BEST, LAST, read_checkpoint
    from calibrant.training.run.rows import seed_everything
    from calibrant.training.run.settings import protocol_named
    from calibrant.training.second_stages.sources import random_state_kept

    best = protocol_named(settings["protocol"]).select == "best"
    checkpoint = run / (BEST if best else LAST)
    if not checkpoint.is_file():
        return None
    logits, labels = (torch.as_tensor(np.asarray(x)) for x in (test.logits, test.labels))
    loss = make_loss(
        settings["loss"],
        logits.shape[1],
        dataset=settings["loss_settings_for"],
        **settings["loss_arguments"],
    ).eval()
    assert isinstance(loss, FeDLaS)
    state = read_checkpoint(checkpoint)["objective"]
    prefix = "loss."
    loss.load_state_dict({k.removeprefix(prefix): state[k] for k in state if k.startswith(prefix)})
    # A gate or an indicator that is drawn at random is drawn alike whenever a run is measured.
    with torch.no_grad(), random_state_kept():
        seed_everything(0)
        loss(logits, labels, torch.as_tensor(np.asarray(test.features)))
    rows = read_rows(test)
    return gate_summary(
        loss.last.psi.numpy(), loss.last.alpha.numpy(), rows.confidence - rows.right
    )


def gate_summary(psi: NDArray[Any], alpha: NDArray[Any], residual: FloatArray) -> Gate:
    """Return the gate's part in numbers.

    Args:
        psi: (N,) modes.
        alpha: (N,) smoothing.
        residual: (N,) confidence minus correctness.
    """
    parts = [residual[psi == 1], residual[psi != 1]]
    gaps = [float(part.mean()) if len(part) else float("nan") for part in parts]
    variance = sum(
        float(part.var(ddof=1)) / len(part) if len(part) > 1 else np.nan for part in parts
    )
    half = NORMAL * float(np.sqrt(variance))
    return Gate(float((psi == 1).mean()), float(alpha.mean()), gaps[0], gaps[1], half)


def gate_of(run: Run) -> Gate | None:
    """Return what was found of the gate of a run, if it has one."""
    found = run.more.get("gate_on_test_images")
    if found is None:
        return None
    return Gate(*(math.nan if found[name] is None else found[name] for name in Gate._fields))


def gates(runs: Sequence[Run]) -> Table:
    """Return what the gate does to the test images in each run with FeDLaS."""
    rows: list[list[str]] = []
    for run in runs:
        gate = gate_of(run)
        if gate is None:
            continue
        apart = gate.gap_positive - gate.gap_negative
        rows.append(
            [
                f"{run.line}, seed {run.seed}",
                f"{100 * gate.positive:.1f}",
                f"{gate.alpha:.4f}",
                *(
                    f"{100 * gap:+.2f}" if np.isfinite(gap) else "no image"
                    for gap in (gate.gap_positive, gate.gap_negative)
                ),
                f"{100 * apart:+.2f} ({100 * (apart - gate.half):+.2f} to "
                f"{100 * (apart + gate.half):+.2f})"
                if np.isfinite(gate.half)
                else "",
            ]
        )
    head = [
        "run",
        "psi = +1, %",
        "mean alpha",
        "confidence - accuracy, psi = +1",
        "psi = -1",
        "difference",
    ]
    note = "" if rows else "There was no checkpoint of a finished run with FeDLaS."
    return Table(head, rows, notes=note)


def gate_histories(runs: Sequence[Run]) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the histories of each line whose runs have recorded the gate."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for run in runs:
        history = run.more.get("gate_by_epoch")
        if history:
            found.setdefault(run.line, []).append(history)
    return found


def epochs(runs: Sequence[Run]) -> Table:
    """Return the recorded gate at the start, in the middle and at the end of the training."""
    columns = {
        "gate_positive": "share of psi = +1",
        "gate_flip_rate": "flip rate",
        "gate_alpha": "mean alpha",
        "gate_correlation": "correlation of NCI with right",
    }
    rows: list[list[str]] = []
    histories_of = gate_histories(runs)
    for line, histories in histories_of.items():
        last = len(histories[0]) - 1
        for epoch in sorted({min(1, last), last // 2, last}):
            cells: list[str] = []
            for name in columns:
                values = [h[epoch][name] for h in histories if h[epoch][name] is not None]
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
                cells.append(_cell(float(np.mean(values)), spread, 4) if values else "")
            rows.append([f"{line} ({len(histories)}), epoch {epoch + 1}", *cells])
    note = "" if rows else "None of the runs here has recorded its gate by epoch."
    head = ["loss (seeds), epoch", *columns.values()]
    return Table(head, rows, notes=note)


def _cell(value: float, spread: float | None, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"
