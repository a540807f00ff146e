"""Row summaries and the softmax: laws over array kinds, dtypes, order, origin and shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax as scipy_softmax

from calibrant.core.errors import InputError, PredictionsError
from calibrant.predictions.rows import RowSummary, softmax, summarize

SCALARS = ("top", "margin", "label_gap", "mean_gap", "predicted", "labels")


@st.composite
def labelled_rows(draw: st.DrawFn, largest: float = 50.0) -> tuple[np.ndarray, np.ndarray]:
    rows, classes = draw(st.integers(1, 12)), draw(st.integers(2, 9))
    # Halves tie often.
    halves = st.integers(-int(2 * largest), int(2 * largest)).map(lambda i: i / 2)
    elements = draw(st.sampled_from([halves, st.floats(-largest, largest)]))
    logits = draw(arrays(np.float64, (rows, classes), elements=elements))
    return logits, draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))


def assert_same_summary(ours: RowSummary, theirs: RowSummary, **tolerance: float) -> None:
    assert ours.n_classes == theirs.n_classes
    for name in SCALARS:
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), err_msg=name, **tolerance
        )
    for beta in (0.1, 1.0, 3.0):
        np.testing.assert_allclose(ours.confidence(beta), theirs.confidence(beta), **tolerance)


# --- the summary


@given(labelled_rows())
def test_summary_says_what_sorting_says(case: tuple):
    logits, labels = case
    rows = summarize(logits, labels)
    ordered = np.sort(logits, axis=1)
    np.testing.assert_array_equal(rows.top, ordered[:, -1])
    np.testing.assert_array_equal(rows.margin, ordered[:, -1] - ordered[:, -2])
    np.testing.assert_array_equal(rows.predicted, logits.argmax(axis=1))
    of_label = logits[np.arange(len(labels)), labels]
    np.testing.assert_array_equal(rows.label_gap, ordered[:, -1] - of_label)
    np.testing.assert_allclose(rows.mean_gap, ordered[:, -1] - logits.mean(axis=1), atol=1e-12)
    np.testing.assert_array_equal(rows.correct, logits.argmax(axis=1) == labels)
    assert rows.n == len(labels)
    np.testing.assert_allclose(
        rows.confidence(1.0), scipy_softmax(logits, axis=1).max(axis=1), rtol=1e-12
    )


@given(labelled_rows(), st.integers(0, 1000))
def test_order_of_classes_and_origin_of_rows_do_not_matter(case: tuple, seed: int):
    logits, labels = case
    rng = np.random.default_rng(seed)
    order = rng.permutation(logits.shape[1])
    # Whole numbers are added without rounding, so that ties stay ties.
    moved = logits[:, order] + rng.integers(-100, 100, size=(len(labels), 1))
    rows, other = summarize(logits, labels), summarize(moved, np.argsort(order)[labels])
    for name in ("margin", "label_gap", "mean_gap"):
        np.testing.assert_allclose(getattr(rows, name), getattr(other, name), atol=1e-9)
    np.testing.assert_allclose(rows.confidence(0.7), other.confidence(0.7), rtol=1e-9)


@given(labelled_rows(), st.sampled_from(["dense", "table"]), st.data())
def test_summaries_of_shards_joined_are_the_summary_of_the_whole(case, curve, data: st.DataObject):
    logits, labels = case
    cuts = sorted(data.draw(st.sets(st.integers(1, len(labels)), max_size=3)))
    whole = summarize(logits, labels, curve=curve)
    parts = [
        summarize(z, y, curve=curve)
        for z, y in zip(np.split(logits, cuts), np.split(labels, cuts), strict=True)
        if len(y)
    ]
    assert_same_summary(RowSummary.concatenate(parts), whole, rtol=1e-6, atol=1e-7)


@given(labelled_rows(), st.sampled_from(["dense", "table"]), st.data())
def test_taking_rows_and_summarising_commute(case, curve, data: st.DataObject):
    logits, labels = case
    index = np.array(data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=9)))
    taken = summarize(logits, labels, curve=curve).take(index)
    again = summarize(logits[index], labels[index], curve=curve)
    assert_same_summary(taken, again, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("curve", ["dense", "table"])
@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_many_rows_are_worked_on_in_parts(curve: str, library):
    # Wide enough for several chunks, large enough for several threads.
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6000, 200)).astype(np.float32)
    labels = rng.integers(200, size=6000)
    whole = summarize(library(logits), library(labels), curve=curve)
    np.testing.assert_array_equal(whole.predicted, logits.argmax(axis=1))
    np.testing.assert_allclose(
        whole.confidence(1.3), scipy_softmax(1.3 * logits, axis=1).max(axis=1), atol=1e-5
    )
    pick = rng.permutation(6000)[:50]
    again = summarize(library(logits[pick]), labels[pick], curve=curve)
    assert_same_summary(whole.take(pick), again, rtol=1e-6, atol=1e-7)


def test_summaries_that_do_not_fit_together_are_not_joined():
    labels = np.zeros(3, dtype=int)
    wide, narrow = np.zeros((3, 8)), np.zeros((3, 5))
    with pytest.raises(InputError, match="numbers of classes are 8, 5"):
        RowSummary.concatenate(
            [summarize(wide, labels, curve="table"), summarize(narrow, labels, curve="table")]
        )
    with pytest.raises(InputError, match="dense"):
        RowSummary.concatenate(
            [summarize(wide, labels, curve="table"), summarize(wide, labels, curve="dense")]
        )
    with pytest.raises(InputError, match="share their knots"):
        RowSummary.concatenate(
            [summarize(wide, labels, curve="table", reference=r) for r in (1.0, 2.0)]
        )


def test_the_cheaper_curve_is_chosen():
    def kind(classes: int) -> str:
        return type(summarize(np.zeros((2, classes)), [0, 1]).curve).__name__

    assert (kind(128), kind(129)) == ("DenseCurve", "TabulatedCurve")


def test_tabulating_later_is_tabulating_at_once():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(20, 100)), rng.integers(100, size=20)
    later = summarize(logits, labels, curve="dense").tabulated(2.0)
    at_once = summarize(logits, labels, curve="table", reference=2.0)
    np.testing.assert_array_equal(later.curve.table, at_once.curve.table)
    assert later.tabulated(1.0) is later


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("classes", [7, 100])
def test_numpy_and_torch_are_summarised_alike(dtype: str, classes: int):
    rng = np.random.default_rng(2)
    logits = rng.normal(scale=4, size=(40, classes)).astype(dtype)
    labels = rng.integers(classes, size=40)
    for curve in ("dense", "table"):
        ours = summarize(logits, labels, curve=curve)
        theirs = summarize(
            torch.tensor(logits, requires_grad=True), torch.tensor(labels), curve=curve
        )
        assert_same_summary(ours, theirs, rtol=2e-5, atol=2e-6)


def test_narrow_floats_and_integers_are_summarised_as_the_numbers_they_are():
    rng = np.random.default_rng(3)
    logits, labels = rng.integers(-9, 9, size=(30, 6)), rng.integers(6, size=30)
    exact = summarize(logits.astype(np.float64), labels)
    for dtype in (np.int8, np.int64, np.float16, np.float32):
        assert_same_summary(summarize(logits.astype(dtype), labels), exact, rtol=1e-6, atol=1e-7)
    # uint8 must not wrap around when the largest is subtracted
    raised = (logits + 9).astype(np.uint8)
    np.testing.assert_array_equal(summarize(raised, labels).margin, exact.margin)


def test_labels_of_any_kind():
    logits = np.random.default_rng(4).normal(size=(4, 300))
    whole = summarize(logits, [0, 299, 5, 7])
    for labels in (
        np.array([[0], [299], [5], [7]]),
        torch.tensor([0, 299, 5, 7]),
        [0.0, 299, 5, 7],
    ):
        np.testing.assert_array_equal(summarize(logits, labels).label_gap, whole.label_gap)
    with pytest.raises(PredictionsError, match="row 1 holds 300"):
        summarize(logits, [0, 300, 5, 7])


# --- softmax


@given(labelled_rows(largest=1e4), st.floats(1e-3, 1e3))
def test_softmax_is_a_distribution_and_the_right_one(case: tuple, beta: float):
    logits, _ = case
    probs = softmax(logits, beta)
    np.testing.assert_allclose(probs, scipy_softmax(beta * logits, axis=1), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-12)
    narrow = softmax(logits.astype(np.float32), beta)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow.sum(axis=1), 1, rtol=1e-6)
    assert (probs >= 0).all()


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "float64"),
        ("int64", "float64"),
    ],
)
def test_kind_and_dtype_of_the_output(given_dtype: str, wanted: str):
    rng = np.random.default_rng(5)
    logits = rng.integers(-5, 5, size=(7, 4)).astype(given_dtype)
    betas = rng.uniform(0.5, 2, size=7)
    probs = softmax(logits, betas)
    tensor = softmax(torch.tensor(logits), betas)
    assert isinstance(probs, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert str(probs.dtype) == wanted
    assert str(tensor.dtype) == f"torch.{wanted}"
    np.testing.assert_allclose(tensor.numpy(), probs, rtol=1e-6)


def test_bfloat16_and_tensors_that_require_a_gradient():
    logits = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    probs = softmax(logits)
    assert not probs.requires_grad
    assert softmax(logits.detach().bfloat16()).dtype == torch.float32
    torch.testing.assert_close(probs, torch.softmax(logits.detach(), dim=1))


def test_a_beta_for_each_row():
    logits, betas = np.random.default_rng(6).normal(size=(9, 3)), np.geomspace(0.1, 10, 9)
    np.testing.assert_allclose(
        softmax(logits, betas), scipy_softmax(betas[:, None] * logits, axis=1), rtol=1e-12
    )


@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_input_is_not_written_to(library):
    for dtype in (np.float32, np.float64):
        logits = np.random.default_rng(7).normal(size=(9, 3)).astype(dtype)
        before = logits.copy()
        softmax(library(logits), 2.0)
        summarize(library(logits), np.zeros(9, dtype=int), curve="table")
        summarize(library(logits), np.zeros(9, dtype=int), curve="dense").confidence(2.0)
        np.testing.assert_array_equal(logits, before)


def test_a_masked_class_gets_nothing_and_leaves_the_others_alone():
    logits = np.random.default_rng(8).normal(size=(5, 4))
    masked = np.insert(logits, 2, -np.inf, axis=1)
    probs = softmax(masked, 0.5)
    np.testing.assert_array_equal(probs[:, 2], 0)
    np.testing.assert_allclose(np.delete(probs, 2, axis=1), softmax(logits, 0.5), rtol=1e-12)


@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 13_777])
def test_a_row_that_is_not_finite_is_named(library, bad: float, row: int):
    # Row 13 777 lies in the third chunk.
    logits = np.zeros((20_000, 10), dtype=np.float32)
    logits[row, 3] = bad
    with pytest.raises(PredictionsError, match=f"row {row} holds NaN or infinity"):
        softmax(library(logits))


def test_no_rows_are_no_rows():
    assert softmax(np.empty((0, 3))).shape == (0, 3)
