"""Laws of `Predictions`: what it accepts, what it says when it doesn't, splitting and taking."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import calibrant as cb
from calibrant.core.errors import PredictionsError, RoundedProbabilitiesWarning
from calibrant.predictions.last_layer import Head
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize
from calibrant.predictions.temperature import fit_temperature

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0], [-2.0, 0.0, 4.0]])
PROBS = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]])
LABELS = np.array([0, 1, 2, 2])


@st.composite
def labelled_rows(draw: st.DrawFn) -> Predictions:
    rows, classes = draw(st.integers(2, 40)), draw(st.integers(2, 6))
    logits = draw(arrays(np.float64, (rows, classes), elements=st.floats(-50, 50)))
    # Logits that all sum to 1 are warned of, as they should be.
    assume(not np.allclose(logits.sum(axis=1), 1, atol=1e-3))
    labels = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    row_numbers = np.arange(float(rows))[:, None]
    return Predictions.from_logits(logits, labels, features=row_numbers)


# --- construction


def test_logits_are_kept_as_they_came():
    for logits in (LOGITS, LOGITS.astype(np.float32), torch.tensor(LOGITS), LOGITS.astype(int)):
        p = Predictions.from_logits(logits, LABELS)
        assert p.scores is logits
        assert p.logits is logits
        assert (p.kind, p.n, len(p), p.n_classes) == ("logits", 4, 4, 3)


def test_lists_are_accepted():
    p = Predictions.from_logits(LOGITS.tolist(), LABELS.tolist(), LOGITS.tolist())
    assert np.array_equal(p.scores, LOGITS)
    assert np.array_equal(p.features, LOGITS)
    p = Predictions.from_confidence([0.5, 1], [0, 7], [1, 7])
    assert p.scores.dtype == np.float64


@pytest.mark.parametrize(
    "labels",
    [LABELS.astype(np.uint8), LABELS.astype(float), LABELS[:, None], torch.tensor(LABELS)],
    ids=["uint8", "float", "column", "torch"],
)
def test_labels_become_int64(labels: object):
    p = Predictions.from_logits(LOGITS, labels)
    assert p.labels.dtype == np.int64
    assert np.array_equal(p.labels, LABELS)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_log_of_probs_is_finite_and_softmax_gives_them_back(dtype: str, library: object):
    probs = library(PROBS.astype(dtype))
    p = Predictions.from_probs(probs, LABELS)
    assert p.probs is probs
    logs = np.asarray(p.logits)
    assert np.isfinite(logs).all()
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(np.exp(logs), PROBS, atol=tolerance)


def test_bfloat16_probs():
    p = Predictions.from_probs(torch.tensor(PROBS).to(torch.bfloat16), LABELS)
    assert bool(torch.isfinite(p.logits).all())


@settings(deadline=None)
@given(labelled_rows())
def test_probs_of_logits_are_on_the_simplex(p: Predictions):
    assert (p.probs >= 0).all()
    np.testing.assert_allclose(p.probs.sum(axis=1), 1, atol=1e-12)


def test_top_label_form_has_no_rows():
    p = Predictions.from_confidence([0.5, 0.9], [0, 1], [0, 2], source="top.csv")
    assert p.n_classes is None
    for form in ("logits", "probs"):
        with pytest.raises(PredictionsError, match=r"^top.csv: this needs a score for every class"):
            getattr(p, form)


def test_repr_names_source_rows_and_kind():
    p = Predictions.from_logits(LOGITS, LABELS, source="val.npz")
    assert repr(p) == "<Predictions 'val.npz': 4 rows x 3 classes, logits>"
    p = Predictions.from_confidence([0.5], [0], [1])
    assert repr(p) == "<Predictions 'confidence': 1 rows, toplabel>"


# --- refusals


def with_value(array: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    changed = array.copy()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (LOGITS[0], r"must have shape \(N, K\).* not \(3,\)"),
        (LOGITS[:0], r"must have shape \(N, K\).* not \(0, 3\)"),
        (LOGITS[:, :1], r"must have shape \(N, K\).* not \(4, 1\)"),
        (None, r"must have shape \(N, K\)"),
        (LOGITS.astype(complex), "must hold real numbers, not complex128"),
        (LOGITS.astype(str), "must hold real numbers"),
        (LOGITS > 0, "must hold real numbers, not bool"),
        (with_value(LOGITS, 2, 1, np.nan), "but row 2, column 1 holds nan"),
        (with_value(LOGITS, 3, LABELS[3], -np.inf), "row 3 masks its class 2"),
        (torch.tensor(with_value(LOGITS, 1, 2, np.inf)), "but row 1, column 2 holds inf"),
    ],
)
def test_bad_logits(logits: object, message: str):
    with pytest.raises(PredictionsError, match="^val: 'logits' .*" + message):
        Predictions.from_logits(logits, LABELS, source="val")


def test_a_bad_row_is_named_across_chunks():
    logits = np.zeros((50_000, 10))
    logits[43_210, 7] = np.nan
    with pytest.raises(PredictionsError, match="row 43210, column 7 holds nan"):
        Predictions.from_logits(logits, np.zeros(50_000, dtype=int))


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (
            np.abs(LOGITS),
            "must sum to 1, but row 0 sums to 3.5; if these are logits, say so: ",
        ),
        (
            LOGITS,
            "must not be negative, but row 0, column 1 holds -1.0; if these are log",
        ),
        (with_value(PROBS, 2, 0, 0.26), "must sum to 1, but row 2 sums to 1.01"),
        (with_value(PROBS, 2, 0, np.nan), "must be finite, but row 2, column 0 holds nan"),
        (torch.tensor(with_value(PROBS, 2, 0, 0.26)), "but row 2 sums to 1.01"),
        (np.eye(3, dtype=int), "must be fractions"),
    ],
)
def test_bad_probs(probs: np.ndarray, message: str):
    with pytest.raises(PredictionsError, match="^val: .*'probs'.*" + message):
        Predictions.from_probs(probs, LABELS[: len(probs)] * 0, source="val")


def test_a_softmax_of_16_bits_is_read_whatever_it_is_stored_in_and_a_class_left_out_isn_t():
    test = cb.load_sample("test").take(np.arange(500))
    logits, labels = np.asarray(test.logits, np.float16), test.labels
    halves = np.exp(logits - logits.max(axis=1, keepdims=True))
    halves = (halves / halves.sum(axis=1, keepdims=True)).astype(np.float64)
    assert np.abs(halves.sum(axis=1) - 1).max() > 3e-4
    with pytest.warns(RoundedProbabilitiesWarning):
        read = Predictions.from_probs(halves, labels)
    np.testing.assert_allclose(read.probs.sum(axis=1), 1, atol=1.01e-4)
    # Votes of 256 trees are whole in 16 bits too, but weren't computed in them.
    votes = np.round(256 * halves)
    votes[:, 0] += 256 - votes.sum(axis=1)
    keep = (votes[:, 0] >= 0) & (votes[:, 0] <= 4)
    lacking = (votes / 256)[keep, 1:]
    assert keep.sum() > 50
    assert lacking.sum(axis=1).min() < 0.99
    with pytest.raises(PredictionsError, match="must sum to 1"):
        Predictions.from_probs(lacking, np.zeros(len(lacking), int))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_of_wide_rows_is_forgiven(dtype: type):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(1000, 0.1), size=50).astype(dtype)
    Predictions.from_probs(probs, np.zeros(50, dtype=int))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], "has 3 entries, but there are 4 rows of scores"),
        ([0, 1, 3, 0], "whole numbers from 0 to 2, but row 2 holds 3"),
        ([0, 1, 0, -1], "whole numbers from 0 to 2, but row 3 holds -1"),
        ([0, 0.5, 0, 1], "row 1 holds 0.5"),
        ([0, 1, np.nan, 1], "row 2 holds nan"),
        ([0, 1e30, 0, 1], "row 1 holds 1e"),
        (np.array([0, 1, 0, 2**64 - 1], dtype=np.uint64), "row 3 holds 18446744073709551615"),
        (["a", "b", "c", "d"], "must hold numbers"),
        ([True, False, True, True], "must hold numbers, not bool"),
        (np.eye(4)[:, :3], r"must have shape \(N,\).*not \(4, 3\)"),
    ],
)
def test_bad_labels(labels: object, message: str):
    with pytest.raises(PredictionsError, match="^val: 'labels' .*" + message):
        Predictions.from_logits(LOGITS, labels, source="val")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (LOGITS[:3], r"must have shape \(4, D\).*not \(3, 3\)"),
        (LOGITS[:, 0], r"must have shape \(4, D\)"),
        (LOGITS[:, :0], r"must have shape \(4, D\)"),
        (with_value(LOGITS, 1, 1, np.inf), "row 1, column 1 holds inf"),
        (LOGITS.astype(str), "must hold real numbers"),
    ],
)
def test_bad_features(features: object, message: str):
    with pytest.raises(PredictionsError, match="^val: 'features' .*" + message):
        Predictions.from_logits(LOGITS, LABELS, features, source="val")


@pytest.mark.parametrize(
    ("confidence", "predicted", "labels", "message"),
    [
        ([], [], [], r"'confidence' must have shape \(N,\) with N >= 1"),
        (PROBS, [0], [0], r"'confidence' must have shape \(N,\)"),
        ([0.5, 1.5], [0, 1], [0, 1], r"'confidence' must lie in \[0, 1\], but row 1 holds 1.5"),
        ([np.nan], [0], [0], "'confidence' .* row 0 holds nan"),
        (["high"], [0], [0], "'confidence' must hold numbers"),
        ([0.5], [0, 1], [0], "'predicted labels' has 2 entries, but there are 1 rows"),
        ([0.5], [0.5], [0], "'predicted labels' .* row 0 holds 0.5"),
        ([0.5], [0], [-2], "'labels' must be whole numbers from 0, but row 0 holds -2"),
    ],
)
def test_bad_top_label_form(confidence: object, predicted: object, labels: object, message: str):
    with pytest.raises(PredictionsError, match="^val: " + message):
        Predictions.from_confidence(confidence, predicted, labels, source="val")


# --- take


@settings(deadline=None)
@given(labelled_rows(), st.data())
def test_take_gives_the_rows_of_the_index(p: Predictions, data: st.DataObject):
    index = data.draw(st.lists(st.integers(-p.n, p.n - 1), min_size=1))
    part = p.take(np.array(index))
    assert np.array_equal(part.scores, p.scores[index])
    assert np.array_equal(part.labels, p.labels[index])
    assert np.array_equal(part.features, p.features[index])
    assert (part.kind, part.source) == (p.kind, p.source)


@pytest.mark.parametrize(
    "index",
    [np.array([2, 0, 2]), np.arange(4)[::-1], np.array([-1, 1]), LABELS == 2],
    ids=["repeated", "reversed", "negative", "mask"],
)
def test_take_of_torch_rows_is_take_of_numpy_rows(index: np.ndarray):
    rows = Predictions.from_logits(LOGITS, LABELS, features=LOGITS).take(index)
    tensors = Predictions.from_logits(torch.tensor(LOGITS), LABELS, torch.tensor(LOGITS))
    taken = tensors.take(index)
    assert isinstance(taken.scores, torch.Tensor)
    assert isinstance(taken.features, torch.Tensor)
    assert np.array_equal(taken.scores.numpy(), rows.scores)
    assert np.array_equal(taken.features.numpy(), rows.features)
    assert np.array_equal(taken.labels, rows.labels)


def test_take_keeps_predicted_labels():
    p = Predictions.from_confidence([0.1, 0.2, 0.3], [4, 5, 6], [7, 8, 9]).take(np.array([2, 0]))
    assert p.predicted is not None
    assert p.scores.tolist() == [0.3, 0.1]
    assert p.predicted.tolist() == [6, 4]
    assert p.labels.tolist() == [9, 7]


# --- split


@settings(deadline=None)
@given(labelled_rows(), st.data(), st.integers(0, 9), st.booleans())
def test_split_is_a_partition(p: Predictions, data: st.DataObject, seed: int, stratify: bool):
    size = data.draw(st.integers(1, p.n - 1))
    first, second = p.split(size, seed, stratify=stratify)
    assert (first.n, second.n) == (size, p.n - size)
    rows = np.concatenate([first.features[:, 0], second.features[:, 0]]).astype(int)
    assert sorted(rows) == list(range(p.n))
    assert np.array_equal(p.labels[rows], np.concatenate([first.labels, second.labels]))
    assert np.array_equal(p.scores[rows], np.concatenate([first.scores, second.scores]))


@settings(deadline=None)
@given(labelled_rows(), st.data(), st.integers(0, 9))
def test_stratified_shares_are_rounded_up_or_down(p: Predictions, data: st.DataObject, seed: int):
    size = data.draw(st.integers(1, p.n - 1))
    first, _ = p.split(size, seed, stratify=True)
    share = np.bincount(p.labels) * size / p.n
    got = np.bincount(first.labels, minlength=len(share))
    assert (np.abs(got - share) < 1).all()


def test_rare_labels_are_not_crowded_out():
    labels = np.concatenate([np.zeros(100, int), np.arange(1, 101)])
    p = Predictions.from_logits(np.zeros((200, 101)), labels)
    first, _ = p.split(0.25, stratify=True)
    assert (first.labels == 0).sum() == 25
    rare = first.labels[first.labels > 0]
    assert rare.max() > 50, "ties must not go to the smallest labels"


def test_split_goes_by_seed():
    p = Predictions.from_logits(np.arange(200.0).reshape(100, 2), np.zeros(100, int))
    once, again, other = (p.split(50, seed)[0].scores[:, 0] for seed in (3, 3, 4))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


@pytest.mark.parametrize("size", [0.25, np.float32(0.25), 25, 25.0, np.int64(25)])
def test_split_by_count_or_fraction(size: float):
    p = Predictions.from_logits(np.zeros((100, 2)), np.zeros(100, int))
    first, second = p.split(size)
    assert (first.n, second.n) == (25, 75)


@pytest.mark.parametrize("size", [0, 4, 5, -1, 0.0, 1e-3, -0.5])
def test_split_into_nothing(size: float):
    p = Predictions.from_logits(LOGITS, LABELS, source="val.npz")
    with pytest.raises(PredictionsError, match=r"^val.npz: can't split 4 rows into"):
        p.split(size)
    one = Predictions.from_logits([[0.0, 1.0]], [1], source="one.npz")
    with pytest.raises(PredictionsError, match=r"^one.npz: a single row can't be split$"):
        one.split(0.5)


# --- rows that nobody has labelled, and the last layer


def test_unlabelled_rows():
    p = Predictions.from_logits(LOGITS, None, source="new")
    assert p.known_labels is None
    assert (p.n, p.n_classes, len(p)) == (4, 3, 4)
    assert p.take([2, 0]).known_labels is None
    first, second = p.split(3)
    assert (first.n, second.n) == (3, 1)
    with pytest.raises(PredictionsError, match=r"^new: this needs the true label of every row"):
        _ = p.labels
    with pytest.raises(PredictionsError, match=r"^new: this needs the true label"):
        p.split(2, stratify=True)
    top = Predictions.from_confidence([0.5, 0.7], [0, 1], None)
    assert top.n == 2
    assert top.known_labels is None


WEIGHT = np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 2.0]])
BIAS = np.array([0.5, 0.0, -1.0])
INPUTS = np.random.default_rng(0).normal(scale=3, size=(4, 2))


@pytest.mark.parametrize("library", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_the_last_layer_is_carried(library):
    logits = INPUTS @ WEIGHT.T + BIAS
    head = Head(library(WEIGHT), library(BIAS))
    p = Predictions.from_logits(
        library(logits), [0, 1, 2, 0], library(INPUTS), head=head, reference=library(INPUTS[:3])
    )
    for part in (p.take([1, 3]), *p.split(2)):
        assert part.head is p.head
        assert part.reference is p.reference
        assert part.features.shape == (2, 2)
    # Logits may be off by a number for each row: probabilities are the same.
    shift = np.arange(4)[:, None]
    Predictions.from_logits(library(logits + shift), None, library(INPUTS), head=head)
    probs = Predictions.from_logits(library(logits), None).probs
    assert Predictions.from_probs(probs, None, library(INPUTS), head=head).head is not None
    # Lists and pairs are fine as well.
    listed = Predictions.from_logits(logits.tolist(), None, head=(WEIGHT.tolist(), BIAS.tolist()))
    assert isinstance(listed.head, Head)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_rounding_is_no_other_last_layer(dtype, probabilities):
    rng = np.random.default_rng(1)
    features, weight = rng.normal(size=(3000, 50)), rng.normal(size=(40, 50))
    logits = features @ weight.T
    narrow = torch.tensor(logits).to(getattr(torch, dtype))
    rounded = torch.tensor(features).to(getattr(torch, dtype))
    head = (weight, np.zeros(40))
    if probabilities:
        narrow = torch.softmax(torch.tensor(logits), 1).to(getattr(torch, dtype))
        assert Predictions.from_probs(narrow, None, rounded, head=head).head is not None
    else:
        assert Predictions.from_logits(narrow, None, rounded, head=head).head is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": (WEIGHT.T, BIAS)}, r"'head_weight' must have shape \(3, D\).*not \(2, 3\)"),
        ({"head": (WEIGHT, BIAS[:2])}, r"'head_bias' must have shape \(3,\).*not \(2,\)"),
        ({"head": (WEIGHT * np.nan, BIAS)}, "'head_weight' must be finite, but row 0, column 0"),
        ({"head": (WEIGHT, BIAS + np.inf)}, "'head_bias' must be finite"),
        ({"head": (WEIGHT.astype(str), BIAS)}, "'head_weight' must hold real numbers"),
        ({"head": (WEIGHT[:, :1], BIAS)}, r"'head_weight' has shape \(3, 1\), but 'features'"),
        ({"head": (WEIGHT, np.zeros(3))}, "don't give the scores: .* of row 0 is off by"),
        ({"head": (2 * WEIGHT, BIAS)}, "don't give the scores"),
        ({"features": INPUTS[::-1]}, "don't give the scores"),
        ({"reference": INPUTS[:, :1]}, r"'reference_features' must have shape \(M, 2\)"),
        ({"reference": INPUTS[:0]}, r"'reference_features' must have shape \(M, 2\)"),
        ({"reference": INPUTS + np.inf}, "'reference_features' must be finite"),
    ],
)
def test_what_does_not_belong_to_the_scores(change, message):
    given = {"features": INPUTS, "head": (WEIGHT, BIAS), "reference": INPUTS} | change
    with pytest.raises(PredictionsError, match="^val: .*" + message):
        Predictions.from_logits(INPUTS @ WEIGHT.T + BIAS, None, source="val", **given)


def test_summary_and_temperature_are_those_of_the_logits_and_made_once() -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), size=200), rng.integers(3, size=200)
    predictions = Predictions.from_probs(probs, labels)
    expected = fit_temperature(summarize(np.log(probs), labels, curve="dense"))
    assert predictions.temperature.beta == expected.beta
    assert predictions.temperature.temperature == 1 / expected.beta
    assert predictions.temperature is predictions.temperature
    assert predictions.summary is predictions.summary
    assert predictions.take(np.arange(100)).summary.n == 100


def test_a_temperature_that_noise_decides_says_so_without_a_warning() -> None:
    rows = Predictions.from_logits(np.zeros((20, 3)), np.zeros(20, dtype=int))
    assert rows.temperature.temperature == 1.0
    assert rows.temperature.notes[0].startswith("NotIdentifiedWarning: the logits are constant")


def test_probabilities_near_the_smallest_numbers_are_read_without_numpys_warnings() -> None:
    small = np.array([1e-300, 3e-310, 0.0, 2.5e-267])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = Predictions.from_probs(np.stack([1 - small, small], axis=1), [0] * 4)
    assert rows.probs[0, 1] == 1e-300
