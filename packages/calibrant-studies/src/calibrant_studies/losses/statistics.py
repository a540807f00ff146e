"""The runs that the study of losses compares, and what each line is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.best_set import t_interval
from calibrant.evaluation.uncertainty import PairedDifference, paired_difference

REFERENCE = "cross-entropy"
LINES = (
    *(REFERENCE, "label-smoothing", "fedlas-ls", "mbls", "fedlas-mbls", "acls", "focal"),
    *("dual-focal", "mixup"),
)
# FeDLaS-LS smooths less than its alpha says: is it more than label smoothing with a smaller one?
SMALLER = tuple(f"label-smoothing alpha={alpha}" for alpha in (0.02, 0.03, 0.04))
# About the mean alpha that FeDLaS-LS ends with.
CONTROL = "label-smoothing alpha=0.03"
# Does it need what it takes from the features, and its gate?
ABLATIONS = tuple(
    f"fedlas-ls {change}" for change in ("indicator=constant", "indicator=random", "gate=random")
)
CONTROLS = SMALLER + ABLATIONS
AFTER = ("none", "temperature", "smart")
# How SMART is fitted today: a record keeps results of networks that are gone, and those after
# another fit of SMART aren't comparable. To be renamed when the fit changes.
SMART_FIT = "six damped steps"
METRICS = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


class Measured(NamedTuple):
    """A metric of one network on the test images; fractions, NLL in nats.

    Attributes:
        value: on the images themselves.
        low, high: ends of the bootstrap interval over test images; NaN where no record has them.
        floor: what calibrated confidences would show on average; None where there is no such thing.
        replicates: (R,) on resamples, which are the same for every network; None if the predictions
            are gone.
    """

    value: float
    low: float
    high: float
    floor: float | None
    replicates: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class Run:
    """A network that is trained.

    Attributes:
        line: its loss, or its mixing.
        seed: of the run.
        settings: of its training.
        scores: (after, metric) to what was measured.
        more: what else was found in it, by name: ``feature_norm``, ``gate_on_test_images``,
            ``gate_by_epoch``; and of a network that is gone ``differences`` to others.
        smart_fit: how the SMART behind `scores` was fitted.
        rows: tells test images apart; "" if the predictions are gone.
        again: whether it has the results of an earlier record: None if that doesn't know it.
    """

    line: str
    seed: int
    settings: Mapping[str, Any]
    scores: Mapping[tuple[str, str], Measured]
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    smart_fit: str = SMART_FIT
    rows: str = ""
    again: bool | None = None


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs by line, in the order of the tables, and seed."""
    known = [*LINES, *CONTROLS]
    places_of = {line: place for place, line in enumerate(known)}
    return sorted(runs, key=lambda run: (places_of.get(run.line, len(known)), run.line, run.seed))


# Means over seeds and paired differences of the study of losses.

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
        by_seed: seed to the difference with its bootstrap interval over test images; its ends are
            NaN where the predictions of one of the two are gone and no record has them.
        counted: of the seeds with NaN, how many agree with the mean, if that at least is on record.
    """

    value: float
    low: float
    high: float
    of_seeds: bool
    by_seed: dict[int, PairedDifference]
    counted: int | None = None

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves out 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def verdict(self) -> int:
        """The sign where most single networks show it by themselves, too, else 0.

        Of few seeds Student's interval is narrow by chance at times.
        """
        return self.sign if 2 * self.agreeing() > len(self.by_seed) else 0

    def agreeing(self) -> int:
        """Return for how many seeds the bootstrap interval lies on the side of the mean."""
        side = math.copysign(1, self.value)
        found = sum(side * d.low > 0 and side * d.high > 0 for d in self.by_seed.values())
        return found + (self.counted or 0)

    def known(self) -> int:
        """Return for how many seeds it is known whether they agree."""
        if self.counted is not None:
            return len(self.by_seed)
        return sum(not math.isnan(found.low) for found in self.by_seed.values())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "value": self.value,
            "low": None if math.isnan(self.low) else self.low,
            "high": None if math.isnan(self.high) else self.high,
            "interval": "t over seeds" if self.of_seeds else "bootstrap over test images",
            "agreeing": self.agreeing() if self.known() == len(self.by_seed) else None,
            "by_seed": {seed: _plain(found) for seed, found in self.by_seed.items()},
        }


def _plain(found: PairedDifference) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in vars(found).items()}


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
        (found[0].low, found[0].high)
        if len(values) == 1 and not math.isnan(found[0].low)
        else None,
        float(np.mean(floors)) if floors else None,
        len(values),
    )


def difference(runs: Sequence[Run], first: Side, second: Side, metric: str) -> Difference | None:
    """Return how far apart two lines are on the seeds that both have; None if there are none."""
    places = {(run.line, run.seed): run for run in runs}
    by_seed: dict[int, PairedDifference] = {}
    kept: EarlierDifference | None = None
    for seed in sorted(set(seeds_of(runs, first[0])) & set(seeds_of(runs, second[0]))):
        one, other = places[first[0], seed], places[second[0], seed]
        for run in (one, other):
            kept = run.more.get("differences", {}).get((first, second, metric), kept)
        before = None if kept is None else kept.by_seed.get(seed)
        if "smart" in (first[1], second[1]) and one.smart_fit != other.smart_fit:
            # Both were once measured after the same fit, or they can't be compared.
            if before is not None:
                by_seed[seed] = before
            continue
        scores = one.scores[first[1], metric], other.scores[second[1], metric]
        by_seed[seed] = _paired(*scores, before, alike=one.rows == other.rows)
    if not by_seed:
        return None
    counted = None if kept is None else kept.counted(by_seed)
    values = np.array([found.value for found in by_seed.values()])
    if len(values) == 1:
        only = next(iter(by_seed.values()))
        return Difference(only.value, only.low, only.high, False, by_seed, counted)
    low, high = t_interval(values, LEVEL)
    assert low is not None
    assert high is not None
    return Difference(float(values.mean()), low, high, True, by_seed, counted)


def _paired(
    ours: Measured, theirs: Measured, kept: PairedDifference | None, *, alike: bool
) -> PairedDifference:
    """Return the difference of two networks: of their predictions, or as a record has it.

    Args:
        ours, theirs: of either.
        kept: what a record has.
        alike: whether both were measured on the same test images.
    """
    if alike and ours.replicates is not None and theirs.replicates is not None:
        values = ours.value, theirs.value
        return paired_difference(ours.replicates, theirs.replicates, values, LEVEL)
    value = ours.value - theirs.value
    if kept is not None and same(kept.value, value):
        return kept
    return PairedDifference(value, math.nan, math.nan, math.nan)


def same(one: float, other: float) -> bool:
    """Whether two numbers are the same network's; runs are exact, files keep all digits."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


@dataclass(frozen=True)
class EarlierDifference:
    """A difference as an earlier page had it.

    Attributes:
        by_seed: as in `Difference`.
        agreeing: of these seeds, how many agreed with the mean; None if that isn't known.
    """

    by_seed: dict[int, PairedDifference]
    agreeing: int | None

    def counted(self, now: dict[int, PairedDifference]) -> int | None:
        """Return how many of the seeds without an interval agree with the mean, if that is known.

        It is known if they are those of the record, or if there all or none agreed.
        """
        open_ones = [seed for seed, found in now.items() if math.isnan(found.low)]
        values = [found.value for found in now.values()]
        before = [found.value for found in self.by_seed.values()]
        if not open_ones or self.agreeing is None or sum(values) * sum(before) <= 0:
            return None
        if any(
            seed not in self.by_seed or not same(now[seed].value, self.by_seed[seed].value)
            for seed in open_ones
        ):
            return None
        if self.agreeing in (0, len(self.by_seed)):
            return len(open_ones) if self.agreeing else 0
        return self.agreeing if len(open_ones) == len(self.by_seed) else None
