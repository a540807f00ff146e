"""Intervals over few seeds and many test rows hold a known truth as often as they promise."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.best_set import may_be_best, t_interval
from calibrant_studies.kinds.base import Measure
from calibrant_studies.results import shown
from calibrant_studies.significance import (
    Difference,
    interval_over_seeds,
    may_be_best_over_seeds,
    noise_of,
    paired,
)

LEVEL = 0.95
WORLDS = 800
# Four standard errors of a share of .95 in so many worlds.
NOISE = 4 * np.sqrt(LEVEL * (1 - LEVEL) / WORLDS)


def drawn(
    rng: np.random.Generator, seeds: int, between: float, own: float, shared: float
) -> tuple[FloatArray, FloatArray]:
    """Return (S,) differences whose truth is 0, and (S, R) resamples of the rows of each.

    Args:
        rng: of all draws.
        seeds: S.
        between: standard deviation of what a seed changes.
        own: of what test rows change for one seed alone.
        shared: of what they change for all.
    """
    rows = rng.normal(size=(seeds, 1 + 200)) * own + rng.normal(size=1 + 200) * shared
    values = rows[:, 0] + between * rng.normal(size=seeds)
    return values, values[:, None] + rows[:, 1:]


def with_replacement(values: FloatArray, replicates: FloatArray) -> tuple[float, float]:
    """Return the interval of a bootstrap that draws seeds, too."""
    seeds, resamples = replicates.shape
    chosen = np.random.default_rng(0).integers(seeds, size=(resamples, seeds))
    means = replicates[chosen, np.arange(resamples)[:, None]].mean(axis=1)
    low, high = np.quantile(means - means.mean() + values.mean(), [0.025, 0.975]).tolist()
    return low, high


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("between", "own", "shared"),
    [(1.0, 0.1, 0.1), (1.0, 0.5, 0.5), (0.5, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.2, 1.0)],
)
def test_intervals_over_seeds_and_rows_hold_the_truth(
    seeds: int, between: float, own: float, shared: float
) -> None:
    rng = np.random.default_rng(seeds)
    held, width = 0, 0.0
    for _ in range(WORLDS):
        low, high = interval_over_seeds(*drawn(rng, seeds, between, own, shared), LEVEL)
        held += low <= 0 <= high
        width += (high - low) / WORLDS
    assert held / WORLDS > LEVEL - NOISE
    # No wider than Student's t over that many seeds would be if all variance were theirs.
    spread = np.sqrt((between**2 + own**2) / seeds + shared**2)
    t_width = np.diff(np.array(t_interval(np.arange(seeds, dtype=float), LEVEL)))[0]
    student = t_width / np.arange(seeds).std(ddof=1) * np.sqrt(seeds)
    assert width < 1.1 * student * spread


def test_seeds_drawn_with_replacement_hold_it_too_rarely() -> None:
    rng = np.random.default_rng(0)
    held = {2: 0, 3: 0}
    for seeds in held:
        for _ in range(WORLDS):
            low, high = with_replacement(*drawn(rng, seeds, 1.0, 0.1, 0.1))
            held[seeds] += low <= 0 <= high
    # What the intervals above are for.
    assert held[2] / WORLDS < 0.65
    assert held[3] / WORLDS < 0.85


def test_one_seed_has_the_interval_of_its_resamples() -> None:
    rows = np.random.default_rng(0).exponential(size=(1, 500))
    low, high = interval_over_seeds(np.array([2.0]), rows, LEVEL)
    ends = np.quantile(rows[0], [0.025, 0.975]) - rows.mean() + 2
    assert (low, high) == pytest.approx(tuple(ends), rel=1e-12)


def test_without_noise_of_rows_it_is_students_interval() -> None:
    values = np.array([1.0, 1.5, 0.7])
    found = interval_over_seeds(values, np.zeros((3, 50)), LEVEL)
    assert found == pytest.approx(t_interval(values, LEVEL), rel=1e-12)


def test_seeds_that_agree_by_chance_leave_what_rows_alone_say() -> None:
    rng = np.random.default_rng(0)
    for shared in (0.0, 1.0):
        _, replicates = drawn(rng, 3, 0.0, 1.0, shared)
        means = replicates.mean(axis=0)
        ends = np.quantile(means, [0.025, 0.975]) - means.mean()
        assert interval_over_seeds(np.zeros(3), replicates, LEVEL) == pytest.approx(tuple(ends))


def test_what_rows_do_to_all_seeds_alike_is_told_from_what_they_do_to_one() -> None:
    rng = np.random.default_rng(0)
    rows = 3 * rng.normal(size=(4, 20_000)) + 2 * rng.normal(size=20_000)
    noise = noise_of(np.array([1.0, 2.0, 3.0, 4.0]), rows)
    assert float(noise.seeds) == pytest.approx(np.var([1, 2, 3, 4], ddof=1) / 4)
    assert float(noise.shared) == pytest.approx(4, rel=0.05)
    assert float(noise.rows) == pytest.approx(4 + 9 / 4, rel=0.05)


@pytest.mark.parametrize(
    ("seeds", "between", "own", "shared"),
    [(2, 1.0, 0.1, 0.1), (3, 1.0, 0.1, 0.1), (3, 0.5, 0.5, 1.0), (5, 1.0, 0.3, 0.3)],
)
def test_of_equally_good_competitors_the_first_is_among_the_best(
    seeds: int, between: float, own: float, shared: float
) -> None:
    rng, worlds, held = np.random.default_rng(seeds), 200, 0
    for _ in range(worlds):
        both = [drawn(rng, seeds, between, own, shared) for _ in range(6)]
        values, replicates = (np.array(of) for of in zip(*both, strict=True))
        found = may_be_best_over_seeds(values, replicates, LEVEL)
        assert found[values.mean(axis=1).argmin()]
        held += bool(found[0])
    assert held / worlds > LEVEL - 4 * np.sqrt(LEVEL * (1 - LEVEL) / worlds)


def test_clearly_worse_competitors_are_left_out_by_five_seeds() -> None:
    rng = np.random.default_rng(0)
    both = [drawn(rng, 5, 0.1, 0.1, 0.3) for _ in range(4)]
    values, replicates = (np.array(of) for of in zip(*both, strict=True))
    values += np.array([[0.0], [0.0], [2.0], [9.0]])
    assert may_be_best_over_seeds(values, replicates, LEVEL).tolist() == [True, True, False, False]


def test_of_one_seed_the_best_are_those_of_its_resamples() -> None:
    rng = np.random.default_rng(0)
    values, replicates = rng.normal(size=(5, 1)), rng.normal(size=(5, 1, 300))
    found = may_be_best_over_seeds(values, replicates, LEVEL)
    assert found.tolist() == may_be_best(values[:, 0], replicates[:, 0], LEVEL).tolist()


def test_competitors_that_say_the_same_are_all_the_best() -> None:
    rng = np.random.default_rng(0)
    values, replicates = rng.normal(size=(1, 3)), rng.normal(size=(1, 3, 300))
    same, drawn_same = (np.repeat(each, 2, axis=0) for each in (values, replicates))
    assert may_be_best_over_seeds(same, drawn_same, LEVEL).all()
    # Another that is worse by the same amount for every seed and row is none of them.
    worse = same + np.array([[0.0], [0.1]])
    assert may_be_best_over_seeds(worse, drawn_same, LEVEL).tolist() == [True, False]


def test_paired_differences_of_studies_reach_as_far() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (
        [
            {
                "values": {"ece": {"value": value}},
                "replicates": {"ece": rng.normal(scale=0.1, size=100).tolist()},
                "pairing": f"rows of {seed}",
            }
            for seed, value in enumerate(values)
        ]
        for values in ((1.0, 1.5, 0.7), (0.0, 0.0, 0.0))
    )
    found = paired(ours, theirs, "ece")
    assert found is not None
    both = [[np.array(each["replicates"]["ece"]) for each in of] for of in (ours, theirs)]
    rows = np.array(both[0]) - np.array(both[1])
    assert found[1:] == interval_over_seeds(np.array([1.0, 1.5, 0.7]), rows, LEVEL)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Difference(-0.0012, -0.002, -0.0001), "-0.0012 (-0.0020 to -0.0001)*"),
        (Difference(0.0012, -0.0001, 0.002), "+0.0012 (-0.0001 to +0.0020)"),
        (Difference(0.0002, 0.00001, 0.0004), "+0.0002 (+0.0000 to +0.0004)*"),
        (Difference(-3e-9, -4e-9, -2e-9), "-0.0000 (-0.0000 to -0.0000)"),
    ],
)
def test_differences_that_no_digit_shows_have_no_star(found: Difference, text: str) -> None:
    assert shown(found, Measure("nll", "NLL")) == text
