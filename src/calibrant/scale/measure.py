"""Measure predictions in many files: all of them together, or within groups of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.evaluation.groups import (
    GROUP_METRICS,
    MIN_ROWS,
    QUANTILES,
    GroupedEvaluation,
    evidence_of,
    step_down,
)
from calibrant.evaluation.uncertainty import (
    DEFAULT_LEVEL,
    MOST_RESAMPLES,
    check_drawing,
    less_rounding,
)
from calibrant.predictions.scoring import score_top
from calibrant.scale.carrying import carried
from calibrant.scale.cells import added
from calibrant.scale.drawing import honest
from calibrant.scale.engines import Engine
from calibrant.scale.file_discovery import by_number
from calibrant.scale.map_reduce import Watcher, gathered, left_out, left_out_text, summed
from calibrant.scale.measuring import ShardEvaluation, evaluate_sums, evaluated
from calibrant.scale.shards import Shard, Shards
from calibrant.scale.sums import By, Plan

# Cells of a margin or a confidence, to a factor of two; groups begin at their edges.
VALUES_TO_A_FACTOR_OF_TWO = 1024
SMALLEST_VALUE = 2.0**-60


@dataclass(frozen=True, eq=False)
class ShardGroups(GroupedEvaluation):
    """What `evaluate_shards_by` found; as `GroupedEvaluation`.

    Attributes:
        shards: number of files that were read.
        broken: files that were left out, with the reason.
    """

    shards: int = 0
    broken: dict[str, str] = field(default_factory=dict[str, str])

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        return super().as_dict() | {"shards": self.shards, "shards_left_out": left_out(self.broken)}

    def __str__(self) -> str:
        return super().__str__() + left_out_text(self.broken)


def evaluate_shards(
    shards: Shards,
    *,
    metrics: Sequence[str] | str | None = None,
    cluster: str | None = None,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> ShardEvaluation:
    """Measure predictions in many files, each metric with its interval and its floor.

    One pass over the files, in bounded memory. The numbers don't hang on how rows are dealt to
    files, on the engine, or on the number of its workers.

    Args:
        shards: the files.
        metrics: names of metrics, or ``"all"``; those that sums can't carry are said by name.
        cluster: column that says which rows belong together, such as a patient's: resamples are
            then of whole clusters; of more than 512, some are put together.
        resamples: bootstrap resamples, and simulated honest data sets; 1 000 for None.
        level: nominal coverage of the intervals.
        seed: the same seed gives the same intervals.
        engine: who does the work; processes on all cores for None.
        skip_broken: leave out files that turn out broken, and say so in the result.
        watch: called with a `Progress` as shards are done.

    Raises:
        PredictionsError: a row can't be used, named by file and number.
        InputError: an argument is out of range, or no file could be read.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> for i in range(4):
        ...     part = test.take(slice(2500 * i, 2500 * (i + 1)))
        ...     np.savez(f"part-{i}.npz", logits=part.logits, labels=part.labels)
        >>> found = cb.evaluate_shards(cb.Shards("part-*.npz"), engine=cb.Engine(workers=1))
        >>> whole = cb.evaluate(test, metrics=["ece"], resamples=2)["ece"].value
        >>> abs(found["ece"].value - whole) < 1e-12
        True
    """
    check_drawing(2 if resamples is None else resamples, level, seed)
    plain = cluster is None and not shards.weighted
    whole = carried(metrics, shards.n_classes) if plain else ()
    plan = Plan(whole, column=cluster, clustered=cluster is not None, seed=seed)
    sums = summed(shards, plan, engine or Engine(), skip_broken=skip_broken, watch=watch)
    return evaluate_sums(
        sums, metrics=metrics, resamples=resamples, level=level, seed=seed, source=shards.source
    )


def evaluate_shards_by(
    shards: Shards,
    by: Literal["predicted", "label", "margin", "confidence"] | str,
    *,
    metrics: Sequence[str] | str | None = None,
    quantiles: int = QUANTILES,
    min_rows: int = MIN_ROWS,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> ShardGroups:
    """Measure predictions in many files within groups of rows, as `evaluate_by` does in one.

    Groups by margin or confidence take one pass more, to find where they begin.

    Args:
        shards: the files.
        by: ``"predicted"``, ``"label"``, ``"margin"``, ``"confidence"``, or the name of a column.
        metrics: as `evaluate_by` takes them.
        quantiles: number of groups by margin or confidence.
        min_rows: smaller groups are left out.
        resamples: bootstrap resamples in each group; 1 000 for None.
        level: nominal coverage of the intervals.
        seed: of the resamples.
        engine: who does the work; processes on all cores for None.
        skip_broken: leave out files that turn out broken.
        watch: called with a `Progress` as shards are done.

    Raises:
        PredictionsError: a row can't be used, named by file and number.
        InputError: no group that is large enough, or too many groups.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> np.savez("all.npz", logits=test.logits, labels=test.labels)
        >>> shards, one = cb.Shards("all.npz"), cb.Engine(workers=1)
        >>> found = cb.evaluate_shards_by(shards, "predicted", resamples=200, engine=one)
        >>> found.worst  # class 3 is "cat"
        '3'
    """
    check_drawing(2 if resamples is None else resamples, level, seed)
    engine = engine or Engine()
    kinds: dict[str, By] = {k: k for k in ("predicted", "label", "margin", "confidence")}
    kind: By = kinds.get(by, "column")
    cuts, names = (), list[str]()
    if kind in ("margin", "confidence"):
        counts = gathered(engine, partial(value_counts, of=kind), shards.shards, _more, watch)
        cuts, names = quantile_groups(counts, quantiles)
    plan = Plan((), kind, by if kind == "column" else None, cuts, seed=seed)
    sums = summed(shards, plan, engine, skip_broken=skip_broken, watch=watch)
    if names:
        groups = {names[int(i)]: part for i, part in sums.groups.items()}
    else:
        groups = {name: sums.groups[name] for name in sorted(sums.groups, key=by_number)}
    each = replace(sums, broken={})  # they are said once, of all groups
    found: dict[str, ShardEvaluation] = {}
    skipped: dict[str, str] = {}
    draws = MOST_RESAMPLES if resamples is None else resamples
    observed, simulated, judged = list[float](), list[FloatArray](), list[str]()
    for i, name in enumerate(sorted(groups, key=by_number)):
        rows = groups[name]
        if rows.n < min_rows:
            skipped[name] = f"{rows.n} rows are fewer than {min_rows}"
            continue
        one = evaluated(each, rows, metrics or GROUP_METRICS, draws, level, seed, shards.source)
        found[name] = one
        lead = next(iter(one.results.values()))
        if kind == "label" or lead.floor is None:
            continue
        own = int(np.random.SeedSequence([seed, 1 + i]).generate_state(1)[0])
        about = rows.of_positive() if lead.metric.of_positive else rows
        drawn = honest(about, [lead.metric], draws, own)[lead.metric.name]
        cells = about.cells.cells()
        mean, weight = cells.position, cells.count.sum(axis=0) / cells.total
        variance = float(weight @ (mean * (1 - mean)))
        value = less_rounding(lead.value)
        observed.append(float(evidence_of(value, lead.floor, rows.n, variance)))
        simulated.append(evidence_of(drawn, lead.floor, rows.n, variance))
        judged.append(name)
    if not found:
        most = max((rows.n for rows in groups.values()), default=0)
        raise InputError(
            f"no group has the {min_rows} rows that it takes (min_rows); the largest has {most}"
        )
    adjusted: dict[str, float] = {}
    if judged:
        p_values = step_down(np.array(observed), np.stack(simulated, axis=1)).tolist()
        adjusted = dict(zip(judged, p_values, strict=True))
    lead_name = next(iter(next(iter(found.values())).results))
    least = 1 / (1 + draws) if judged else 1.0
    return ShardGroups(
        shards.source,
        by,
        lead_name,
        dict(found),
        skipped,
        adjusted,
        least,
        shards=sums.shards,
        broken=sums.broken,
    )


Counts = tuple[IntArray, IntArray]


def value_counts(shard: Shard, of: str) -> Counts:
    """Return in which fine cells the margins, or confidences, of a shard lie, and how many."""
    key, count = np.empty(0, np.int64), np.empty((0, 1), np.int64)
    for batch in shard.batches():
        rows = batch.predictions
        values = rows.margins if of == "margin" else score_top(rows).confidence
        mantissa, exponent = np.frexp(np.maximum(values, SMALLEST_VALUE))
        cell = ((2 * mantissa - 1) * VALUES_TO_A_FACTOR_OF_TWO).astype(np.int64)
        found, number = np.unique(
            exponent.astype(np.int64) * VALUES_TO_A_FACTOR_OF_TWO + cell, return_counts=True
        )
        key, count = added((key, found), (count, number[:, None]))
    return key, count


def _more(first: Counts, second: Counts) -> Counts:
    return added((first[0], second[0]), (first[1], second[1]))


def quantile_groups(counts: Counts, quantiles: int) -> tuple[tuple[float, ...], list[str]]:
    """Return where groups of about equal size begin, but for the first, and their names."""
    key, number = counts[0], counts[1][:, 0]
    exponent, cell = np.divmod(key, VALUES_TO_A_FACTOR_OF_TWO)
    low = np.ldexp(0.5 + cell / (2 * VALUES_TO_A_FACTOR_OF_TWO), exponent)
    low[low <= SMALLEST_VALUE] = 0.0
    before = np.cumsum(number) - number
    wanted = np.arange(1, quantiles) * int(number.sum()) / quantiles
    starts = np.unique(np.searchsorted(before, wanted))
    starts = starts[(starts > 0) & (starts < len(key))]
    firsts, lasts = np.append(0, starts), np.append(starts, len(key)) - 1
    names = [
        f"{i + 1}: {low[a]:.4g} to {low[b]:.4g}"
        for i, (a, b) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True))
    ]
    return tuple(low[starts].tolist()), names
