"""Many groups held against simulated honest ones: no false alarms, and something is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.groups import evaluate_by, evidence, step_down
from calibrant.evaluation.uncertainty import holm
from calibrant.predictions.predictions import Predictions


def test_steps_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    observed, honest = rng.normal(size=6) + 1, rng.normal(size=(50, 6))
    honest[:, 2] = 1.0  # ties, too
    observed[2] = 1.0
    expected = np.empty(6)
    left, least = list(range(6)), 0.0
    while left:
        worst = max(left, key=lambda i: observed[i])
        beyond = sum(max(world[i] for i in left) >= observed[worst] for world in honest)
        expected[worst] = least = max(least, (1 + beyond) / 51)
        left.remove(worst)
    np.testing.assert_allclose(step_down(observed, honest), expected)


def test_one_group_is_counted_as_ever():
    honest = np.arange(99.0)[:, None]
    assert step_down(np.array([89.0]), honest) == pytest.approx(11 / 100)
    assert step_down(np.array([1000.0]), honest) == pytest.approx(1 / 100)


def test_evidence_is_the_exponent_of_the_tail():
    # Twenty rows at .999: errors come as Poisson counts do. A normal tail would give e^-96 for two.
    c = (20, 0.999 * 0.001)
    two_errors = 2 / 20 - 0.001
    assert -evidence(two_errors, 0.0, *c) == pytest.approx(
        math.log(binom.sf(1, 20, 0.001)), abs=1.5
    )
    # Many rows at .5: nearly normal, exponent N x^2 / (2 v).
    assert evidence(0.02, 0.01, 10_000, 0.25) == pytest.approx(10_000 * 0.01**2 / 0.5, rel=0.02)
    assert evidence(0.01, 0.01, *c) == 0
    assert evidence(0.005, 0.01, *c) < 0
    values = evidence(np.linspace(0, 1, 50), 0.1, *c)
    assert (np.diff(values) > 0).all()
    assert np.isfinite(evidence(0.5, 0.0, 10, 0.0))


def groups_of(shift: float, groups: int, rows: int, seed: int) -> tuple[Predictions, FloatArray]:
    """Return groups, every fifth of which is right with c - shift only, and the column of them."""
    rng = np.random.default_rng(seed)
    column = np.repeat(np.arange(groups), rows)
    # Half of the groups are nearly sure of everything.
    c = np.where(column % 2 == 0, 1 - rng.beta(0.3, 12, len(column)), rng.uniform(0.4, 1, 1))
    wrong = rng.random(len(column)) >= c - np.where(column % 5 == 0, shift, 0.0)
    n = len(column)
    return Predictions.from_confidence(c, np.zeros(n, int), wrong.astype(int)), column


@pytest.mark.parametrize("metric", ["ece", "adaece", "ks"])
def test_some_of_100_bad_groups_are_marked_with_200_simulated_worlds(metric: str):
    predictions, column = groups_of(0.4, 100, 60, seed=1)
    found = evaluate_by(predictions, column, metrics=[metric], resamples=200)
    bad = {str(i) for i in range(0, 100, 5)}
    marked = set(found.miscalibrated)
    assert len(marked & bad) >= 18
    assert len(marked - bad) <= 1
    assert found.least_p == 1 / 201
    assert set(found.p_adjusted) == set(found.groups)
    # One by one, with Holm's correction, none could be.
    one_by_one = [g[metric].p_value or 0.0 for g in found.groups.values()]
    assert min(holm(one_by_one)) > 0.4


def test_honest_groups_are_hardly_ever_marked():
    # The whole way in small worlds; the study `many-groups` does more, and more groups.
    alarms = 0
    for world in range(50):
        predictions, column = groups_of(0.0, 15, 25, seed=1000 + world)
        found = evaluate_by(predictions, column, metrics=["ece"], resamples=39, seed=world)
        alarms += bool(found.miscalibrated)
    assert alarms <= binom.ppf(0.999, 50, 0.05)


def test_equal_groups_are_simulated_apart():
    # With one seed for all, forty equal groups would be one, and alarms twenty times as many.
    alarms = 0
    rng = np.random.default_rng(2)
    column = np.repeat(np.arange(40), 20)
    for _ in range(12):  # of which seven in eight would raise the alarm
        wrong = (rng.random(len(column)) >= 0.7).astype(int)
        c = np.full(len(column), 0.7)
        rows = Predictions.from_confidence(c, np.zeros(len(column), int), wrong)
        alarms += bool(evaluate_by(rows, column, metrics=["ece"], resamples=39).miscalibrated)
    assert alarms <= binom.ppf(0.999, 12, 0.05)


def test_too_few_resamples_to_mark_a_group_are_said_to_be():
    predictions, column = groups_of(0.4, 10, 60, seed=1)
    few = evaluate_by(predictions, column, metrics=["ece"], resamples=18)
    assert few.miscalibrated == []
    assert "With 18 resamples no group can be marked; it takes 19 or more." in " ".join(
        str(few).split()
    )
    assert evaluate_by(predictions, column, metrics=["ece"], resamples=19).miscalibrated


def test_metrics_without_a_floor_mark_nothing_and_say_so():
    predictions, column = groups_of(0.4, 5, 60, seed=1)
    found = evaluate_by(predictions, column, metrics=["accuracy"], resamples=30)
    assert found.p_adjusted == {}
    assert "accuracy has no floor, so no group is marked." in " ".join(str(found).split())
    assert "floor 95 %" not in str(found).splitlines()[2]
