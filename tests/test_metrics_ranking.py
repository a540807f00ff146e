"""Out-of-distribution detection and selective prediction, against counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, softmax

from calibrant.core.errors import InputError, PredictionsError
from calibrant.metrics.detection import aupr, auroc, fpr_at_tpr, ood_scores
from calibrant.metrics.selective import (
    aurc,
    coverage_at_risk,
    eaurc,
    risk_at_coverage,
    risk_coverage,
)

scores = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=25)
Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    n = draw(st.integers(1, 25))
    values = st.one_of(st.floats(0, 1), st.sampled_from([0.25, 0.5, 1.0]))
    confidence = draw(st.lists(values, min_size=n, max_size=n))
    return np.array(confidence), np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))


# --- scores


def test_scores_are_their_definitions():
    z = np.random.default_rng(0).normal(0, 3, (50, 7))
    p, log_p = softmax(z / 2, axis=1), log_softmax(z / 2, axis=1)
    assert ood_scores(z) == pytest.approx(softmax(z, axis=1).max(axis=1))
    assert ood_scores(z, "msp", 2) == pytest.approx(p.max(axis=1))
    assert ood_scores(z, "max_logit", 2) == pytest.approx(z.max(axis=1))
    assert ood_scores(z, "entropy", 2) == pytest.approx((p * log_p).sum(axis=1))
    assert ood_scores(z, "energy", 2) == pytest.approx(2 * logsumexp(z / 2, axis=1))
    for kind in ("msp", "max_logit", "entropy", "energy"):
        value = ood_scores(z, kind)
        assert ood_scores(torch.tensor(z), kind) == pytest.approx(value)
        assert ood_scores(z.astype(np.float32), kind) == pytest.approx(value, abs=1e-5)
        assert ood_scores(z[:, ::-1], kind) == pytest.approx(value)


def test_extreme_logits_give_finite_scores():
    z = np.array([[1e4, 0.0], [-1e4, -1e4]])
    for kind in ("msp", "max_logit", "entropy", "energy"):
        assert np.isfinite(ood_scores(z, kind)).all()
    assert ood_scores(z, "entropy") == pytest.approx([0.0, -np.log(2)])


def test_bad_arguments_are_refused():
    z = np.zeros((2, 3))
    with pytest.raises(InputError, match="kind"):
        ood_scores(z, "odin")
    with pytest.raises(InputError, match="temperature"):
        ood_scores(z, temperature=0.0)
    with pytest.raises(PredictionsError):
        ood_scores(z[0])
    for bad in ([], [np.nan], [[1.0]]):
        with pytest.raises(PredictionsError, match="in_scores"):
            auroc(np.array(bad), np.array([1.0]))
    with pytest.raises(InputError, match="tpr"):
        fpr_at_tpr(np.ones(2), np.ones(2), 1.5)
    with pytest.raises(InputError, match="positive"):
        aupr(np.ones(2), np.ones(2), "both")


# --- detection


@given(scores, scores)
def test_auroc_counts_pairs(inside: list[float], outside: list[float]):
    a, b = np.array(inside), np.array(outside)
    pairs = np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b))
    assert auroc(a, b) == pytest.approx(pairs)
    # Swapping the sets with the scores negated changes nothing.
    assert auroc(-b, -a) == pytest.approx(pairs)
    assert auroc(np.exp(a), np.exp(b)) == pytest.approx(pairs)


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_fpr_tries_every_threshold(inside: list[float], outside: list[float], tpr: float):
    a, b = np.array(inside), np.array(outside)
    kept = [np.mean(b >= t) for t in a if np.mean(a >= t) >= tpr - 1e-9]
    assert fpr_at_tpr(a, b, tpr) == pytest.approx(min(kept))
    flagged = [np.mean(a <= t) for t in b if np.mean(b <= t) >= tpr - 1e-9]
    assert fpr_at_tpr(a, b, tpr, positive="out") == pytest.approx(min(flagged))


def test_the_two_conventions_of_fpr_differ():
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.normal(3, 0.1, 90), rng.normal(-3, 0.1, 10)])
    outside = rng.normal(0, 1, 100)
    assert fpr_at_tpr(inside, outside) == 1.0
    assert fpr_at_tpr(inside, outside, positive="out") == pytest.approx(0.1)


@given(scores, scores)
def test_aupr_is_average_precision(inside: list[float], outside: list[float]):
    a, b = np.array(inside), np.array(outside)
    for positive, (pos, neg) in {"in": (a, b), "out": (-b, -a)}.items():
        area, before = 0.0, 0.0
        for t in sorted(set(pos), reverse=True):
            recall = np.mean(pos >= t)
            precision = np.sum(pos >= t) / (np.sum(pos >= t) + np.sum(neg >= t))
            area, before = area + precision * (recall - before), recall
        assert aupr(a, b, positive) == pytest.approx(area)


def test_perfect_and_useless_scores():
    high, low = np.arange(10.0) + 20, np.arange(10.0)
    assert (auroc(high, low), fpr_at_tpr(high, low), aupr(high, low)) == (1.0, 0.0, 1.0)
    assert auroc(low, low) == 0.5
    assert fpr_at_tpr(np.ones(5), np.ones(5)) == 1.0


# --- risk and coverage


def aurc_by_hand(c: NDArray[np.float64], a: NDArray[np.bool_]) -> float:
    """Average over many orders of ties: each k's errors are those of a random order."""
    total = 0.0
    for k in range(1, len(c) + 1):
        last = np.sort(c)[::-1][k - 1]
        above, tied = c > last, c == last
        errors = (~a[above]).sum() + (k - above.sum()) * (~a[tied]).mean()
        total += errors / k
    return total / len(c)


@given(rows())
def test_aurc_is_its_definition(data: Rows):
    c, a = data
    assert aurc(c, a, kind="confidence") == pytest.approx(aurc_by_hand(c, a), abs=1e-9)
    wrong = int((~a).sum())
    n = len(c)
    oracle = sum(max(0, k - (n - wrong)) / k for k in range(1, n + 1)) / n
    found = eaurc(c, a, kind="confidence")
    assert found == pytest.approx(aurc_by_hand(c, a) - oracle, abs=1e-9)


def test_an_ideal_ranking_has_no_excess():
    c, a = np.linspace(0, 1, 50), np.arange(50) >= 7
    assert eaurc(c, a, kind="confidence") == pytest.approx(0.0, abs=1e-12)
    constant = aurc(np.full(50, 0.5), a, kind="confidence")
    assert constant == pytest.approx(7 / 50)


def test_the_limit_of_the_oracle():
    # The approximation r + (1 - r) log(1 - r), which other code subtracts, holds for many rows.
    c, a = np.linspace(0, 1, 20_000), np.arange(20_000) >= 5000
    r = 0.25
    assert aurc(c, a, kind="confidence") == pytest.approx(r + (1 - r) * np.log(1 - r), abs=1e-4)


@given(rows(), st.floats(0.01, 1), st.floats(0, 1))
def test_points_of_the_curve(data: Rows, coverage: float, risk: float):
    c, a = data
    curve = risk_coverage(c, a, kind="confidence")
    for t, share, error in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
        assert share == pytest.approx(np.mean(c >= t))
        assert error == pytest.approx(np.mean(~a[c >= t]), abs=1e-12)
    assert curve.coverage[-1] == 1.0
    allowed = [np.mean(c >= t) for t in c if np.mean(~a[c >= t]) <= risk + 1e-12]
    assert coverage_at_risk(c, a, risk, kind="confidence") == pytest.approx(
        max(allowed, default=0.0)
    )
    k = int(np.ceil(coverage * len(c) - 1e-9))
    last = np.sort(c)[::-1][k - 1]
    above, tied = c > last, c == last
    errors = (~a[above]).sum() + (k - above.sum()) * (~a[tied]).mean()
    assert risk_at_coverage(c, a, coverage, kind="confidence") == pytest.approx(
        errors / k, abs=1e-9
    )


def test_shares_out_of_range_are_refused():
    c, a = np.array([0.5, 0.6]), np.array([True, False])
    for bad in (0.0, 1.1, np.nan):
        with pytest.raises(InputError, match="coverage"):
            risk_at_coverage(c, a, bad)
    with pytest.raises(InputError, match="risk"):
        coverage_at_risk(c, a, -0.1)
    assert risk_at_coverage(c, a, 1.0, kind="confidence") == 0.5
    hundred = np.linspace(0, 1, 100)
    assert risk_at_coverage(hundred, hundred < 0.93, 0.07, kind="confidence") == 1.0
