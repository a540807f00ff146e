"""The confidence curve: the table against the exact one, derivatives, laws, extreme rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from calibrant.core.errors import InputError
from calibrant.predictions.rows import (
    ConfidenceCurve,
    DenseCurve,
    TabulatedCurve,
    knots_per_octave,
)

CLASSES = [2, 10, 100, 1000]
BETAS = 2.0 ** np.linspace(-5, 4, 400)
PROMISED = 2e-5


def dense(logits: np.ndarray) -> DenseCurve:
    return DenseCurve(logits, logits.max(axis=1))


def tabulated(logits: np.ndarray, reference: float = 1.0) -> TabulatedCurve:
    return TabulatedCurve.build(logits, logits.max(axis=1), reference)


def gaps_to_top(logits: np.ndarray) -> np.ndarray:
    return logits.astype(np.float64) - logits.max(axis=1, keepdims=True)


def exact(logits: np.ndarray, beta: float) -> np.ndarray:
    return logsumexp(beta * gaps_to_top(logits), axis=1)


def worst_error(logits: np.ndarray, reference: float = 1.0) -> float:
    """Largest error of the table's confidence over its promised range."""
    table, gaps = tabulated(logits, reference), gaps_to_top(logits)
    return max(
        float(np.abs(np.exp(-table.evaluate(b).value) - 1 / np.exp(b * gaps).sum(axis=1)).max())
        for b in BETAS * reference
    )


def two_levels(classes: int, near: int, gap: float, far: float) -> np.ndarray:
    """A row with one maximum, `near` classes tied at `gap` below it and the others at `far`."""
    row = np.full(classes, -far)
    row[: near + 1] = -gap
    row[0] = 0.0
    return row


# --- accuracy of the table

adversarial_rows = st.one_of(
    # one maximum, everything else in two tied levels (one, if they coincide)
    st.tuples(
        st.just("levels"),
        st.floats(0.0, 1.0),
        st.floats(-6, 6).map(lambda e: 10.0**e),
        st.floats(-6, 6).map(lambda e: 10.0**e),
    ),
    # several tied maxima
    st.tuples(
        st.just("ties"), st.floats(0.0, 1.0), st.floats(-6, 6).map(lambda e: 10.0**e), st.just(0.0)
    ),
    # noise of any scale
    st.tuples(
        st.just("noise"),
        st.integers(0, 2**31).map(float),
        st.floats(-3, 4).map(lambda e: 10.0**e),
        st.just(0.0),
    ),
)


def build_row(recipe: tuple[str, float, float, float], classes: int) -> np.ndarray:
    name, a, b, c = recipe
    if name == "levels":
        return two_levels(classes, round(a * (classes - 1)), min(b, c), max(b, c))
    if name == "ties":
        row = np.full(classes, -b)
        row[: 1 + round(a * (classes - 1))] = 0.0
        return row
    return b * np.random.default_rng(int(a)).normal(size=classes)


@settings(max_examples=60)
@given(st.sampled_from(CLASSES), st.lists(adversarial_rows, min_size=1, max_size=8))
def test_table_is_as_exact_as_promised(classes: int, recipes: list):
    rows = np.stack([build_row(recipe, classes) for recipe in recipes])
    assert worst_error(rows) <= PROMISED


@pytest.mark.parametrize("classes", [*CLASSES, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_table_on_rows_whose_other_logits_all_tie(classes: int, dtype: type):
    # The worst rows: the bend of their curve is the sharpest, where (K - 1) exp(-beta gap) = 1.
    gaps = 2.0 ** np.linspace(-5, 6, 89)
    rows = np.stack([two_levels(classes, classes - 1, gap, gap) for gap in gaps])
    assert worst_error(rows.astype(dtype)) <= PROMISED


@pytest.mark.parametrize("reference", [0.02, 50.0])
def test_table_moves_with_its_reference(reference: float):
    rows = np.random.default_rng(0).normal(scale=3 / reference, size=(50, 100))
    assert worst_error(rows, reference) <= PROMISED
    low, high = tabulated(rows, reference).span
    assert (low, high) == (reference / 32, reference * 32)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("fill", [-1e4, -1e9, -1e30, float(np.finfo(np.float32).min)])
def test_masked_classes_leave_the_curve_finite(classes: int, fill: float):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(6, classes)).astype(np.float32)
    rows[:3, classes // 2 :] = fill
    for curve in (dense(rows), tabulated(rows)):
        for beta in (1 / 32, 1.0, 16.0):
            point = curve.evaluate(beta)
            assert all(np.isfinite(part).all() for part in point)
            assert np.abs(np.exp(-point.value) - np.exp(-exact(rows, beta))).max() <= PROMISED


# --- values and derivatives


@pytest.mark.parametrize("classes", [2, 7, 64, 65, 200])
@pytest.mark.parametrize("kind", [dense, tabulated])
def test_derivatives_are_those_of_the_value(classes: int, kind):
    rows = np.random.default_rng(2).normal(scale=3, size=(20, classes))
    curve = kind(rows)
    for beta in (0.05, 0.3, 0.9, 1.0, 1.7, 6.0):
        h = 1e-4 * beta
        point = curve.evaluate(beta)
        value = [curve.evaluate(b).value for b in (beta - h, beta + h)]
        slope = [curve.evaluate(b).slope for b in (beta - h, beta + h)]
        np.testing.assert_allclose(
            point.slope, (value[1] - value[0]) / (2 * h), rtol=2e-5, atol=2e-5
        )
        np.testing.assert_allclose(
            point.curvature, np.maximum((slope[1] - slope[0]) / (2 * h), 0), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("classes", CLASSES)
def test_derivatives_of_the_table_are_close_to_exact(classes: int):
    rows = np.random.default_rng(3).normal(scale=2, size=(40, classes))
    table, curve = tabulated(rows), dense(rows)
    for beta in BETAS[::40]:
        near, true = table.evaluate(beta), curve.evaluate(beta)
        np.testing.assert_allclose(near.value, true.value, atol=2e-5)
        np.testing.assert_allclose(beta * near.slope, beta * true.slope, atol=2e-4)
        np.testing.assert_allclose(beta**2 * near.curvature, beta**2 * true.curvature, atol=5e-3)


@given(st.integers(2, 80), st.integers(0, 1000), st.floats(0.01, 100))
def test_identities(classes: int, seed: int, beta: float):
    rows = np.random.default_rng(seed).normal(size=(5, classes))
    curve = dense(rows)
    at, twice = curve.evaluate(beta), curve.evaluate(2 * beta)
    weights = np.exp(beta * (rows - rows.max(axis=1, keepdims=True)))
    probs = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(-at.value), probs.max(axis=1), rtol=1e-10)
    np.testing.assert_allclose(
        np.exp(twice.value - 2 * at.value), (probs**2).sum(axis=1), rtol=1e-10
    )
    entropy = -(probs * np.log(np.maximum(probs, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(at.value - beta * at.slope, entropy, rtol=1e-8, atol=1e-9)
    assert (at.slope <= 0).all()
    assert (at.curvature >= 0).all()
    assert (at.value <= np.log(classes) + 1e-12).all()


def test_a_beta_for_each_row_is_as_good_as_one_for_all():
    rows = np.random.default_rng(4).normal(size=(30, 100))
    betas = np.geomspace(0.05, 10, 30)
    for curve in (dense(rows), tabulated(rows)):
        together = curve.evaluate(betas)
        for i, beta in enumerate(betas):
            alone = curve.take(np.array([i])).evaluate(float(beta))
            for part, single in zip(together, alone, strict=True):
                np.testing.assert_allclose(part[i], single[0], rtol=1e-9, atol=1e-12)


def test_beta_outside_the_table_is_clamped():
    table = tabulated(np.random.default_rng(5).normal(size=(4, 10)))
    low, high = table.span
    for outside, bound in ((low / 100, low), (high * 100, high)):
        for part, at_bound in zip(table.evaluate(outside), table.evaluate(bound), strict=True):
            np.testing.assert_array_equal(part, at_bound)


# --- laws


@given(st.integers(0, 1000), st.sampled_from([3, 10, 70, 200]))
@example(0, 65)
def test_order_of_classes_and_origin_of_rows_do_not_matter(seed: int, classes: int):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(6, classes))
    moved = rows[:, rng.permutation(classes)] + rng.normal(size=(6, 1))
    for kind in (dense, tabulated):
        for part, other in zip(kind(rows).evaluate(0.7), kind(moved).evaluate(0.7), strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [DenseCurve, TabulatedCurve])
@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_parts_joined_are_the_whole(kind: type, library):
    rows = np.random.default_rng(6).normal(size=(30, 100)).astype(np.float32)

    def make(part: np.ndarray) -> ConfidenceCurve:
        array, top = library(part), part.max(axis=1).astype(float)
        return kind(array, top) if kind is DenseCurve else kind.build(array, top)

    whole = make(rows)
    joined = kind.concatenate([make(rows[:11]), make(rows[11:12]), make(rows[12:])])
    order = np.array([29, 3, 3, 0])
    mask = np.arange(30) % 4 == 1
    for beta in (0.1, 1.0, 5.0):
        for part, other in zip(whole.evaluate(beta), joined.evaluate(beta), strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-6, atol=1e-7)
        for index in (order, mask, slice(4, 20, 3)):
            taken = whole.take(index).evaluate(beta)
            for part, other in zip(whole.evaluate(beta), taken, strict=True):
                np.testing.assert_allclose(part[index], other, rtol=1e-6, atol=1e-7)


def test_tables_with_other_knots_are_not_joined():
    rows = np.random.default_rng(7).normal(size=(3, 10))
    with pytest.raises(InputError, match="share their knots"):
        TabulatedCurve.concatenate([tabulated(rows, 1.0), tabulated(rows, 2.0)])


@pytest.mark.parametrize("classes", [100, 1000])
def test_numpy_and_torch_give_the_same_table(classes: int):
    rows = np.random.default_rng(8).normal(scale=4, size=(300, classes)).astype(np.float32)
    top = rows.max(axis=1).astype(float)
    ours, theirs = (TabulatedCurve.build(a, top).table for a in (rows, torch.tensor(rows)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_row_costs_as_many_bytes_as_documented():
    assert knots_per_octave(1000) == 4
    assert tabulated(np.zeros((1, 1000))).table.nbytes == 492
    assert "492 bytes" in (TabulatedCurve.__doc__ or "")
