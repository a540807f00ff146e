"""Means over seeds and paired differences of the study of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.evaluation.uncertainty import PairedDifference, paired_difference
from calibrant.studies.losses.runs import AFTER, METRICS, REFERENCE, Run

LEVEL = 0.95
Side = tuple[str, str]  # a line, and the method after it


@dataclass(frozen=True)
class Mean:
    """A metric over seeds.

    Attributes:
        value: mean.
        deviation: standard deviation with n - 1; None for one seed.
        interval: of one seed, the bootstrap interval over test images; None for several.
        floor: mean of the floors; None where the metric has none.
        seeds: how many.
    """

    value: float
    deviation: float | None
    interval: tuple[float, float] | None
    floor: float | None
    seeds: int


@dataclass(frozen=True)
class Difference:
    """A paired difference, first minus second, on the seeds that both have.

    Attributes:
        value: mean over seeds.
        low, high: ends of the 95 % interval: Student's t over seeds, which says how far other seeds
            would scatter on these test images; of one seed the bootstrap over test images, which
            says how far other test images would.
        of_seeds: which of the two.
        by_seed: seed to the difference with its bootstrap interval over test images.
    """

    value: float
    low: float
    high: float
    of_seeds: bool
    by_seed: dict[int, PairedDifference]

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves out 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def agreeing(self) -> int:
        """Return for how many seeds the bootstrap interval lies on the side of the mean."""
        side = math.copysign(1, self.value)
        return sum(side * d.low > 0 and side * d.high > 0 for d in self.by_seed.values())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "interval": "t over seeds" if self.of_seeds else "bootstrap over test images",
            "by_seed": {seed: vars(found) for seed, found in self.by_seed.items()},
        }


def lines_of(runs: Sequence[Run]) -> list[str]:
    """Return the lines that have runs, in their order."""
    return list(dict.fromkeys(run.line for run in runs))


def seeds_of(runs: Sequence[Run], line: str) -> list[int]:
    """Return the seeds of a line."""
    return [run.seed for run in runs if run.line == line]


def mean(runs: Sequence[Run], side: Side, metric: str) -> Mean:
    """Return a metric of a line over its seeds."""
    line, after = side
    found = [run.scores[after, metric] for run in runs if run.line == line]
    values = [each.value for each in found]
    floors = [each.floor for each in found if each.floor is not None]
    return Mean(
        float(np.mean(values)),
        float(np.std(values, ddof=1)) if len(values) > 1 else None,
        (found[0].low, found[0].high) if len(values) == 1 else None,
        float(np.mean(floors)) if floors else None,
        len(values),
    )


def difference(runs: Sequence[Run], first: Side, second: Side, metric: str) -> Difference | None:
    """Return how far apart two lines are on the seeds that both have; None if there are none."""
    scores = {(run.line, run.seed): run.scores for run in runs}
    by_seed: dict[int, PairedDifference] = {}
    for seed in sorted(set(seeds_of(runs, first[0])) & set(seeds_of(runs, second[0]))):
        ours, theirs = (scores[line, seed][after, metric] for line, after in (first, second))
        by_seed[seed] = paired_difference(
            ours.replicates, theirs.replicates, (ours.value, theirs.value), LEVEL
        )
    if not by_seed:
        return None
    values = np.array([found.value for found in by_seed.values()])
    if len(values) == 1:
        only = next(iter(by_seed.values()))
        return Difference(only.value, only.low, only.high, False, by_seed)
    low, high = t_interval(values)
    return Difference(float(values.mean()), low, high, True, by_seed)


def t_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of Student's interval for the mean of independent values."""
    from scipy.special import stdtrit

    n = len(values)
    quantile = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    half = quantile * float(values.std(ddof=1)) / math.sqrt(n)
    return float(values.mean()) - half, float(values.mean()) + half


def as_document(runs: Sequence[Run]) -> dict[str, Any]:
    """Return means and differences as JSON takes them; fractions, and nats."""
    settings = {
        name: value
        for name, value in runs[0].settings.items()
        if name in ("net", "protocol", "epochs", "batch_size", "rate", "precision")
    }
    lines: dict[str, Any] = {}
    for line in lines_of(runs):
        one = next(run for run in runs if run.line == line)
        own = ("loss", "loss_arguments", "loss_settings_for", "mixing", "mixing_arguments")
        lines[line] = {
            "settings": {name: one.settings[name] for name in own},
            "seeds": seeds_of(runs, line),
            "after": {
                after: {metric: vars(mean(runs, (line, after), metric)) for metric in METRICS}
                for after in AFTER
            },
            "minus_" + REFERENCE.replace("-", "_"): {
                after: {
                    metric: found.as_dict()
                    for metric in METRICS
                    if (found := difference(runs, (line, after), (REFERENCE, after), metric))
                }
                for after in AFTER
            },
        }
    return {"level": LEVEL, "settings": settings, "lines": lines}
