"""Accuracy of all rows by outcomes of a slice: coverage, width, and slices that lie."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core.errors import PredictionsError
from calibrant.evaluation import slices
from calibrant.evaluation.slices import accuracy_of_all


def drawn(seed: int, n: int = 600, labelled: int = 150, copies: int = 1):
    """Return scores, outcomes of a random slice, and clusters; the true accuracy is one half."""
    rng = np.random.default_rng(seed)
    score = np.repeat(rng.uniform(size=n // copies), copies)
    outcome = (np.repeat(rng.uniform(size=n // copies), copies) < score).astype(float)
    clusters = np.repeat(np.arange(n // copies), copies)
    known = np.isin(clusters, rng.permutation(n // copies)[: labelled // copies])
    return score, np.where(known, outcome, np.nan), clusters


@pytest.mark.parametrize("copies", [1, 5])
def test_the_interval_covers_and_is_narrower_than_the_slices(copies, monkeypatch):
    monkeypatch.setattr(slices, "PERMUTATIONS", 9)
    covered, widths = 0, np.zeros(2)
    for seed in range(200):
        score, outcome, clusters = drawn(seed, 600 * copies, 150 * copies, copies)
        found = accuracy_of_all(score, outcome, clusters=clusters, seed=seed)
        covered += found.all_rows.low <= 0.5 <= found.all_rows.high
        for i, each in enumerate((found.all_rows, found.slice_alone)):
            widths[i] += each.high - each.low
    assert 182 <= covered <= 199  # 95 % of 200, four standard deviations
    assert widths[0] < 0.95 * widths[1]


def test_with_all_rows_labelled_it_is_their_mean():
    rng = np.random.default_rng(0)
    outcome = rng.integers(2, size=500).astype(float)
    found = accuracy_of_all(rng.uniform(size=500), outcome)
    assert found.all_rows.value == pytest.approx(outcome.mean())
    assert found.slice_alone.value == pytest.approx(outcome.mean())
    assert found.p_value is None


def test_the_interval_holds_the_shares_from_which_the_mean_is_no_further_than_t_allows():
    from scipy.optimize import brentq
    from scipy.stats import t

    outcome = np.repeat([1.0, 0.0], [194, 6])
    found = accuracy_of_all(np.zeros(200), outcome).all_rows
    alike = 200 - 1  # the variance of a sample divides by n - 1
    far = t.ppf(0.975, 199)
    for low, high, end in ((0.5, 0.97, found.low), (0.97, 1 - 1e-12, found.high)):

        def beyond(share: float) -> float:
            return (share - 0.97) ** 2 - far**2 * share * (1 - share) / alike

        assert end == pytest.approx(brentq(beyond, low, high), abs=1e-9)


def test_a_slice_drawn_by_score_is_warned_of_unless_its_probabilities_are_given():
    rng = np.random.default_rng(1)
    score = rng.uniform(size=4000)
    outcome = (rng.uniform(size=4000) < score).astype(float)
    inclusion = np.where(score < 0.5, 0.1, 0.4)
    outcome[rng.uniform(size=4000) > inclusion] = np.nan
    naive = accuracy_of_all(score, outcome)
    assert naive.suspicious
    assert "differ" in str(naive)
    assert not naive.slice_alone.low <= 0.5 <= naive.slice_alone.high
    weighted = accuracy_of_all(score, outcome, inclusion=inclusion)
    assert weighted.slice_alone.low <= 0.5 <= weighted.slice_alone.high
    assert weighted.all_rows.low <= 0.5 <= weighted.all_rows.high


def test_outcomes_that_are_all_alike_have_an_exact_interval():
    outcome = np.full(100, np.nan)
    outcome[:20] = 1.0
    found = accuracy_of_all(np.zeros(100), outcome)
    assert found.slice_alone.high == 1
    assert found.slice_alone.low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize(
    ("score", "outcome", "message"),
    [
        ([1.0, 2.0], [1.0], "one shape"),
        ([1.0, np.inf], [1.0, 0.0], "finite"),
        ([1.0, 2.0], [1.0, 3.0], "lie in"),
        ([1.0, 2.0], [1.0, np.nan], "at least two"),
    ],
)
def test_bad_slices_are_refused(score, outcome, message):
    with pytest.raises(PredictionsError, match=message):
        accuracy_of_all(score, outcome)
