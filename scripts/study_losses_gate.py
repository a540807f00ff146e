"""What FeDLaS rests on: whether the feature norm tells right from wrong, and what its gate does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from study_losses_runs import Run
from study_losses_statistics import LEVEL, lines_of, t_interval
from study_losses_tables import Table

from calibrant.files import read_predictions

Floats = NDArray[np.float64]
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
NORM_COLUMNS = (
    "correlation of norm and right",
    "correlation of norm and confidence",
    "AUROC of right by norm",
    "AUROC of right by confidence",
)


class Rows(NamedTuple):
    """(N,) values of the test images of a run."""

    norm: Floats
    confidence: Floats
    right: Floats


class Estimate(NamedTuple):
    """A value and its standard error over test images."""

    value: float
    error: float


class Gate(NamedTuple):
    """What the gate of a finished run does to the test images.

    Attributes:
        positive: share of the images with psi = 1, smoothed the more the larger their norm.
        alpha: mean smoothing.
        gap_positive: confidence less accuracy of those images; NaN without any.
        gap_negative: the same of the others.
        half: half width of the interval of the difference of the two gaps.
    """

    positive: float
    alpha: float
    gap_positive: float
    gap_negative: float
    half: float


def read_rows(run: Run) -> Rows:
    """Return L1 norm of the features, confidence and correctness of the test images."""
    test = read_predictions(run.folder / "test.npz")
    logits = np.asarray(test.logits, np.float64)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Rows(
        np.abs(np.asarray(test.features, np.float64)).sum(axis=1),
        1 / shifted.sum(axis=1),
        (logits.argmax(axis=1) == np.asarray(test.labels)).astype(np.float64),
    )


def gate_on_test_images(run: Run) -> Gate:
    """Return what the gate of a run with FeDLaS decides for its test images."""
    import torch

    from calibrant.training.losses import FeDLaS, make_loss
    from calibrant.training.run.state import read_checkpoint

    settings, test = run.settings, read_predictions(run.folder / "test.npz")
    logits, labels = (torch.as_tensor(np.asarray(x)) for x in (test.logits, test.labels))
    loss = make_loss(
        settings["loss"],
        logits.shape[1],
        dataset=settings["loss_settings_for"],
        **settings["loss_arguments"],
    ).eval()
    assert isinstance(loss, FeDLaS)
    state = read_checkpoint(_checkpoint(run))["objective"]
    prefix = "loss."
    loss.load_state_dict({k.removeprefix(prefix): state[k] for k in state if k.startswith(prefix)})
    with torch.no_grad():
        loss(logits, labels, torch.as_tensor(np.asarray(test.features)))
    rows = read_rows(run)
    return summary(loss.last.psi.numpy(), loss.last.alpha.numpy(), rows.confidence - rows.right)


def _checkpoint(run: Run) -> Path:
    from calibrant.training.run.protocols import protocol_named
    from calibrant.training.run.state import BEST, LAST

    best = protocol_named(run.settings["protocol"]).select == "best"
    return run.folder / (BEST if best else LAST)


def summary(psi: NDArray[Any], alpha: NDArray[Any], residual: Floats) -> Gate:
    """Return the gate's part in numbers.

    Args:
        psi: (N,) modes.
        alpha: (N,) smoothing.
        residual: (N,) confidence less correctness.
    """
    parts = [residual[psi == 1], residual[psi != 1]]
    gaps = [float(part.mean()) if len(part) else float("nan") for part in parts]
    variance = sum(part.var(ddof=1) / len(part) if len(part) > 1 else np.nan for part in parts)
    half = NORMAL * float(np.sqrt(variance))
    return Gate(float(np.mean(psi == 1)), float(np.mean(alpha)), gaps[0], gaps[1], half)


def correlation(x: Floats, y: Floats) -> Estimate:
    """Return Pearson's correlation of N rows; its error is that of its influence function."""
    x, y = ((z - z.mean()) / z.std() for z in (x, y))
    value = float((x * y).mean())
    influence = x * y - value * (x**2 + y**2) / 2
    return Estimate(value, float(influence.std() / np.sqrt(len(x))))


def auroc_of_right(scores: Floats, right: NDArray[np.bool_]) -> Estimate:
    """Return how often a right row has the larger score than a wrong one, with DeLong's error."""
    better, worse = np.sort(scores[right]), np.sort(scores[~right])
    # Of each row, the share of the other side that it stands above; ties count half.
    above = _mean_rank(worse, scores[right])
    below = 1 - _mean_rank(better, scores[~right])
    variance = above.var(ddof=1) / len(better) + below.var(ddof=1) / len(worse)
    return Estimate(float(above.mean()), float(np.sqrt(variance)))


def _mean_rank(ordered: Floats, values: Floats) -> Floats:
    sides = [np.searchsorted(ordered, values, side) for side in ("left", "right")]
    return (sides[0] + sides[1]) / (2 * len(ordered))


def norm_estimates(run: Run) -> list[Estimate]:
    """Return the estimates of one run in the order of `NORM_COLUMNS`."""
    rows = read_rows(run)
    right = rows.right == 1
    return [
        correlation(rows.norm, rows.right),
        correlation(rows.norm, rows.confidence),
        *(auroc_of_right(scores, right) for scores in (rows.norm, rows.confidence)),
    ]


def norms_by_line(runs: Sequence[Run]) -> dict[str, list[list[Estimate]]]:
    """Return the estimates of every run by its line."""
    return {
        line: [norm_estimates(run) for run in runs if run.line == line] for line in lines_of(runs)
    }


def norms(runs: Sequence[Run]) -> Table:
    """Return how the norm of the features goes with being right."""
    rows: list[list[str]] = []
    for line, found in norms_by_line(runs).items():
        cells = [_with_interval([each[i] for each in found]) for i in range(len(NORM_COLUMNS))]
        rows.append([f"{line} ({len(found)})", *cells])
    title = "L1 norm of the features, test images"
    return Table("norms", title, ["loss (seeds)", *NORM_COLUMNS], rows)


def _with_interval(found: Sequence[Estimate]) -> str:
    value, low, high = interval(found)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def interval(found: Sequence[Estimate]) -> tuple[float, float, float]:
    """Return mean and ends, over seeds or of one seed over test images."""
    values = np.array([each.value for each in found])
    if len(values) > 1:
        low, high = t_interval(values)
    else:
        half = NORMAL * found[0].error
        low, high = found[0].value - half, found[0].value + half
    return float(values.mean()), low, high


def with_gate(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with FeDLaS whose checkpoint is there."""
    return [
        run
        for run in runs
        if run.settings["loss"].startswith("fedlas") and _checkpoint(run).is_file()
    ]


def gates(runs: Sequence[Run]) -> Table:
    """Return what the gate does to the test images in each run with FeDLaS."""
    rows: list[list[str]] = []
    for run in with_gate(runs):
        gate = gate_on_test_images(run)
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
    return Table("gates", "The gate on test images", head, rows, note)


def gate_histories(runs: Sequence[Run]) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the histories of each line whose runs have recorded the gate."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for run in runs:
        history: list[dict[str, Any]] = _history(run.folder)
        if history and "gate_positive" in history[0]:
            found.setdefault(run.line, []).append(history)
    return found


def gate_picture(line: str) -> str:
    """Return the file name of the picture of a line's gate."""
    return f"fedlas-gate-{line}.png"


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
    pictures = [
        f"![{line}: the gate by epoch](images/{gate_picture(line)})" for line in histories_of
    ]
    note = "\n\n".join(pictures) or "None of the runs here has recorded its gate by epoch."
    head = ["loss (seeds), epoch", *columns.values()]
    return Table("epochs", "The gate on the training images, by epoch", head, rows, note)


def as_document(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the norms and the gates of all runs as JSON takes them."""
    gates_of = {(run.line, run.seed): gate_on_test_images(run) for run in with_gate(runs)}
    return {
        "feature_norm": [
            {"line": run.line, "seed": run.seed}
            | {
                name.replace(" ", "_"): estimate._asdict()
                for name, estimate in zip(NORM_COLUMNS, norm_estimates(run), strict=True)
            }
            for run in runs
        ],
        "gate_on_test_images": [
            {"line": line, "seed": seed}
            | {
                name: value if np.isfinite(value) else None
                for name, value in gate._asdict().items()
            }
            for (line, seed), gate in gates_of.items()
        ],
        "gate_by_epoch": gate_histories(runs),
    }


def _history(folder: Path) -> list[dict[str, Any]]:
    file = folder / "history.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def _cell(value: float, spread: float | None, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"
