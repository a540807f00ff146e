"""Fit calibrators to predictions in many files."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.evaluation.cells import CellSums, edges_of
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import ONLY_COUNTS, Calibrator, FittedForm
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.confidence.base import ConfidenceMap
from calibrant.posthoc.temperature.mixtures import LaplaceTemperatureScaling
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.temperature.summed import fit_temperature_to
from calibrant.predictions.scoring import score_top
from calibrant.scale.engines import Engine
from calibrant.scale.map_reduce import Watcher, gathered
from calibrant.scale.sampling import sample as sample_rows
from calibrant.scale.shards import Shard, Shards

# Rows of the sample at most: of so many SMART's fit costs less than 1e-5 in NLL. Methods that fit
# several take their time for half as many.
SAMPLE_ROWS, SAMPLE_ROWS_OF_SEVERAL = 2_000_000, 1_000_000
# Numbers of it at most: those of a wide vocabulary take gigabytes otherwise.
SAMPLE_NUMBERS = 1 << 26
# Even in log odds from -27.6 to 27.6: each moves odds by less than a thousandth.
FITTED_CELLS = (1, 1 << 16)
# Rows that stand for all of them where a map of the confidence is fitted.
STAND_INS = 1 << 18


def fit_shards(
    calibrator: Calibrator,
    shards: Shards,
    *,
    sample: int | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> Calibrator:
    """Fit a calibrator to predictions in many files, in bounded memory, and return it.

    One temperature (`temperature`, `temperature-laplace`) is fitted to sums over all rows, and is
    as exact as that of one file. Maps of the confidence in their top-label form are fitted to
    counts of all rows in 65 536 cells of log odds. Everything else is fitted to a uniform sample of
    the rows; the fit report says of how many. None of it hangs on how rows are dealt to files.

    Args:
        calibrator: an unfitted one.
        shards: the files.
        sample: rows of the sample; None for two million, one million for chains and `auto`, and no
            more than 67 million numbers in all.
        seed: of the sample.
        engine: who does the work; processes on all cores for None.
        skip_broken: leave out files that turn out broken, and say so in the report.
        watch: called with a `Progress` as shards are done.

    Raises:
        PredictionsError: a row can't be used, or something is missing that the method needs.
        InputError: an argument is out of range.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> for i in range(2):
        ...     half = val.take(slice(2500 * i, 2500 * (i + 1)))
        ...     np.savez(f"val-{i}.npz", logits=half.logits, labels=half.labels)
        >>> shards, one = cb.Shards("val-*.npz"), cb.Engine(workers=1)
        >>> found = cb.fit_shards(cb.TemperatureScaling(), shards, engine=one)
        >>> whole = cb.TemperatureScaling().fit_predictions(val)
        >>> abs(found.temperature_ - whole.temperature_) < 1e-6
        True
    """
    if sample is not None and sample < 1:
        raise InputError(f"sample must be at least 1 row, not {sample}")
    engine = engine or Engine()
    broken = dict(shards.broken) if skip_broken else None
    known = set(broken or ())
    wide = shards.kind != "toplabel" and not shards.binary
    if isinstance(calibrator, TemperatureScaling | LaplaceTemperatureScaling) and wide:
        fit, every = fit_temperature_to(shards, engine, watch, broken)
        rows = _rows(shards, broken)
        calibrator.beta_ = fit.beta
        if isinstance(calibrator, LaplaceTemperatureScaling):
            calibrator.uniform_ = 1 / (every + 1)
        calibrator.n_classes_, calibrator.fit_report_ = shards.n_classes or 0, fit.report(rows)
    elif _takes_counts(calibrator, shards):
        cells: CellSums = gathered(
            engine, count_cells, shards.shards, CellSums.__add__, watch, broken
        )
        if cells.n == 0:
            raise InputError(f"{shards.source}: 'weight' must be above 0 for at least one row")
        if not (cells.counts or calibrator.weighs):
            raise NotApplicableError(ONLY_COUNTS.format(calibrator.method))
        form: FittedForm = "rows" if wide else "toplabel"
        calibrator.fit_confidences(*stand_ins(cells), shards.n_classes or 2, form)
        calibrator.fit_report_ = replace(calibrator.fit_report_, n=cells.n)
        _note(calibrator, f"fitted to counts of {cells.n} rows in 65536 cells of log odds")
    else:
        most = max(1, SAMPLE_NUMBERS // (shards.n_classes or 1))
        several = isinstance(calibrator, AutoCalibrator | Chain)
        usual = SAMPLE_ROWS_OF_SEVERAL if several else SAMPLE_ROWS
        wanted = min(usual, most) if sample is None else sample
        held = sample_rows(shards, wanted, seed, engine, watch, broken)
        calibrator.fit_predictions(held)
        text = f"fitted to a uniform sample of {held.n} of {_rows(shards, broken)} rows"
        weighed = ", each with its weight" if shards.weighted else ""
        _note(calibrator, f"{text}, drawn by their places (seed {seed}){weighed}")
    for name in sorted(broken or {}):
        _note(calibrator, f"left out: {(broken or {})[name]}")
    shards.broken.update({name: why for name, why in (broken or {}).items() if name not in known})
    return calibrator


def _takes_counts(calibrator: Calibrator, shards: Shards) -> TypeGuard[ConfidenceMap]:
    of_top_label = isinstance(calibrator, ConfidenceMap) and calibrator.keeps_prediction
    return of_top_label and not shards.binary


def _rows(shards: Shards, broken: dict[str, str] | None) -> int:
    return sum(shard.rows for shard in shards if shard.where not in (broken or {}))


def _note(calibrator: Calibrator, text: str) -> None:
    report = calibrator.fit_report_
    calibrator.fit_report_ = replace(report, notes=(*report.notes, text))


def count_cells(shard: Shard) -> CellSums:
    """Return how many rows of a shard, right and wrong, lie in each cell of log odds."""
    found = CellSums.none(FITTED_CELLS, weighted=shard.weighted)
    for batch in shard.batches():
        rows = batch.predictions
        if rows.weights is not None:
            rows = rows.take(np.flatnonzero(rows.weights))
        if rows.n:
            top = score_top(rows)
            found += CellSums.of(top.confidence, top.correct, FITTED_CELLS, rows.weights)
    return found


def stand_ins(sums: CellSums, most: int = STAND_INS) -> tuple[FloatArray, FloatArray]:
    """Return rows that stand for all: as many, or `most` at equal steps through their ranks.

    With weights as many as all rows weigh, which then count alike.

    In its cell each row has a place of its own, and right rows are spread among wrong ones, so that
    running sums over the stand-ins are off from those over the rows by less than one of them.

    Returns:
        (M,) confidences, ascending, and (M,) 1.0 for right rows, else 0.0.
    """
    cells = sums.cells()
    count = cells.count.sum(axis=0)
    ends, hits = np.cumsum(count), np.cumsum(cells.count[1])
    n = float(ends[-1])
    m = min(round(n), most)
    ranks = np.arange(m + 1) * (n / m)
    reached = np.interp(ranks, np.append(0.0, ends), np.append(0.0, hits)) * (m / n)
    correct = np.diff(np.floor(reached + 1e-9))
    middle = (ranks[1:] + ranks[:-1]) / 2
    cell = np.minimum(np.searchsorted(ends, middle, side="right"), len(ends) - 1)
    within = (middle - (ends - count)[cell]) / count[cell] - 0.5
    position = cells.position[cell]
    edges = edges_of(sums.grid)
    above = edges[np.minimum(np.searchsorted(edges, position, side="left"), len(edges) - 1)]
    below = edges[np.maximum(np.searchsorted(edges, position, side="left") - 1, 0)]
    return position + 2 * within * np.minimum(position - below, above - position), correct
