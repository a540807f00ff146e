"""Metrics of whole probability vectors, against loops over classes and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import dirichlet

from calibrant.core.errors import InputError, PredictionsError
from calibrant.metrics.binned import adaptive_calibration_error, expected_calibration_error
from calibrant.metrics.canonical import (
    canonical_calibration_error,
    measure_skce,
    skce,
)
from calibrant.metrics.classwise import (
    ClasswiseSums,
    classwise_adaptive_calibration_error,
    classwise_expected_calibration_error,
    measure_classwise,
)
from calibrant.metrics.full_rows import (
    BLOCKS,
    by_class,
    deal_into_blocks,
    honest_labels,
    prob_chunks,
)
from calibrant.predictions.predictions import Predictions

Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]


def drawn(n: int = 400, classes: int = 4, seed: int = 0, *, honest: bool = False) -> Labelled:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.5), n)
    truth = p if honest else np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True)
    y = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return p, np.minimum(y, classes - 1)


# --- classwise ECE


def test_classwise_is_the_mean_of_binary_eces():
    p, y = drawn()
    for n_bins in (1, 10, 15):
        by_class = [
            expected_calibration_error(p[:, k], y == k, n_bins, kind="confidence") for k in range(4)
        ]
        assert classwise_expected_calibration_error(p, y, n_bins) == pytest.approx(
            np.mean(by_class)
        )
        found = classwise_expected_calibration_error(p, y, n_bins, reduction="sum")
        assert found == pytest.approx(np.sum(by_class))
        by_class = [
            adaptive_calibration_error(p[:, k], y == k, n_bins, kind="confidence") for k in range(4)
        ]
        assert classwise_adaptive_calibration_error(p, y, n_bins) == pytest.approx(
            np.mean(by_class)
        )


def test_a_threshold_leaves_out_small_probabilities():
    p, y = drawn()
    for metric, binary in (
        (classwise_expected_calibration_error, expected_calibration_error),
        (classwise_adaptive_calibration_error, adaptive_calibration_error),
    ):
        by_class = [
            binary(p[p[:, k] > 0.25, k], (y == k)[p[:, k] > 0.25], kind="prob") for k in range(4)
        ]
        assert metric(p, y, threshold=0.25) == pytest.approx(np.mean(by_class))
        assert metric(p, y, threshold=2.0) == 0.0


def test_other_edges_by_name():
    p, y = drawn(300)
    p = np.round(p * 14) / 14
    p[:, 0] = 1 - p[:, 1:].sum(axis=1)
    p = np.abs(p) / np.abs(p).sum(axis=1, keepdims=True)
    p[0] = [1, 0, 0, 0]
    for convention in ("left-closed", "torchmetrics", "right-closed"):
        by_class = [
            expected_calibration_error(
                p[:, k], y == k, 14, convention=convention, kind="confidence"
            )
            for k in range(4)
        ]
        found = classwise_expected_calibration_error(p, y, 14, convention=convention)
        assert found == pytest.approx(np.mean(by_class))
    # The code of Kull et al.: "15 bins" are 14 and one for p = 1.
    index = np.digitize(p, np.arange(15) / 14) - 1
    kull = [np.abs(np.bincount(index[:, k], p[:, k] - (y == k))).sum() / 300 for k in range(4)]
    found = classwise_expected_calibration_error(p, y, 14, convention="torchmetrics")
    assert found == pytest.approx(np.mean(kull))
    with pytest.raises(InputError, match="convention"):
        classwise_expected_calibration_error(p, y, convention="both")
    with pytest.raises(InputError, match="reduction"):
        classwise_expected_calibration_error(p, y, reduction="max")


def test_the_width_says_how_many_classes_there_are():
    # Code that takes max(label) + 1 for K divides by 2 here.
    p = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    assert classwise_expected_calibration_error(p, np.array([0, 0])) == pytest.approx(1 / 3)


def test_a_probability_of_zero_is_in_the_first_bin():
    p, y = np.array([[1.0, 0.0]]), np.array([1])
    assert classwise_expected_calibration_error(p, y) == 1.0


HALVES = slice(0, 150), slice(150, None)


def test_sums_of_shards_and_order_of_classes_and_rows():
    p, y = drawn()
    halves = [ClasswiseSums.of(Predictions.from_probs(p[part], y[part]), 0, 0) for part in HALVES]
    merged = (halves[0] + halves[1]).measured("classwise_ece", 2, 0).value
    assert merged == pytest.approx(classwise_expected_calibration_error(p, y), abs=1e-9)
    order = np.array([2, 0, 3, 1])
    for metric in (
        classwise_expected_calibration_error,
        classwise_adaptive_calibration_error,
        skce,
        canonical_calibration_error,
    ):
        value = metric(p, y)
        assert metric(p[:, order], np.argsort(order)[y]) == pytest.approx(value)
        assert metric(p[::-1], y[::-1]) == pytest.approx(value)
        assert metric(torch.tensor(p), torch.tensor(y)) == pytest.approx(value)
        assert metric(p.astype(np.float32), y) == pytest.approx(value, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_measured_classwise_is_the_function(strategy: Any):
    p, y = drawn(500)
    p[:100] = [0.25, 0.25, 0.25, 0.25]
    mass = strategy == "quantile"
    metric = classwise_adaptive_calibration_error if mass else classwise_expected_calibration_error
    found = measure_classwise(Predictions.from_probs(p, y), 100, 0, strategy=strategy)
    assert found.value == pytest.approx(metric(p, y))
    assert found.honest is not None
    labels = honest_labels(Predictions.from_probs(p, y), 100, 0)
    by_hand = [metric(p, row) for row in labels[:10]]
    assert found.honest[:10] == pytest.approx(by_hand)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_few_rows_are_resampled_one_by_one(strategy: Any):
    p, y = drawn(60)
    found = measure_classwise(Predictions.from_probs(p, y), 400, 0, strategy=strategy)
    rng = np.random.default_rng(1)
    mass = strategy == "quantile"
    metric = classwise_adaptive_calibration_error if mass else classwise_expected_calibration_error
    exact = [metric(p[i], y[i]) for i in rng.integers(60, size=(200, 60))]
    assert found.replicates.mean() == pytest.approx(np.mean(exact), rel=0.1 if mass else 0.03)
    assert found.replicates.std() == pytest.approx(np.std(exact), rel=0.25)


def test_blocks_scatter_as_rows_do():
    p, y = drawn(3000)
    found = measure_classwise(Predictions.from_probs(p, y), 1000, 0)
    rng = np.random.default_rng(1)
    exact = [
        classwise_expected_calibration_error(p[i], y[i])
        for i in rng.integers(3000, size=(200, 3000))
    ]
    assert found.replicates.std() == pytest.approx(np.std(exact), rel=0.2)
    assert found.replicates.mean() == pytest.approx(np.mean(exact), rel=0.05)


# --- labels, chunks, blocks


def test_honest_labels_follow_the_probabilities():
    p = np.array([[0.2, 0.0, 0.8], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    labels = honest_labels(Predictions.from_probs(p, np.array([0, 0, 0])), 20_000, 0)
    share = np.stack([(labels == k).mean(axis=0) for k in range(3)], axis=1)
    assert share == pytest.approx(p, abs=0.01)
    assert (share[p == 0] == 0).all()


def test_chunks_are_probabilities_of_either_kind():
    p, y = drawn(50)
    from_probs = np.concatenate([c for _, c in prob_chunks(Predictions.from_probs(p, y))])
    from_logits = np.concatenate([c for _, c in prob_chunks(Predictions.from_logits(np.log(p), y))])
    assert np.array_equal(from_probs, p)
    assert from_logits == pytest.approx(p)


def test_blocks_differ_by_one_row():
    for n in (1, 7, 200, 1234):
        sizes = np.bincount(deal_into_blocks(n, 0))
        assert len(sizes) == min(n, BLOCKS)
        assert sizes.max() - sizes.min() <= 1


def test_labels_by_class():
    labels = np.array([[2, 0, 2], [0, 0, 1]])
    found = [list(zip(d.tolist(), r.tolist(), strict=True)) for d, r in by_class(labels, 4)]
    assert found == [[(0, 1), (1, 0), (1, 1)], [(1, 2)], [(0, 0), (0, 2)], []]


# --- SKCE


def test_skce_is_the_mean_over_pairs():
    p, y = drawn(40)
    e = np.eye(4)[y] - p
    distance = np.sqrt(((p[:, None] - p) ** 2).sum(axis=2))
    upper = np.triu_indices(40, 1)
    h = np.exp(-distance / np.median(distance[upper])) * (e @ e.T)
    assert skce(p, y) == pytest.approx(h[upper].mean())
    h = np.exp(-distance / 0.3) * (e @ e.T)
    assert skce(p, y, 0.3) == pytest.approx(h[upper].mean())


def test_skce_is_unbiased():
    values = [skce(*drawn(60, seed=s, honest=True)) for s in range(300)]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(300)
    assert min(values) < 0
    off = [skce(*drawn(60, seed=s)) for s in range(300)]
    assert np.mean(off) > 3 * np.std(off) / np.sqrt(300)


def test_blocks_of_pairs_estimate_the_same():
    p, y = drawn(2000)
    whole = skce(p, y, 0.5, block_rows=2000)
    assert skce(p, y, 0.5, block_rows=300) == pytest.approx(whole, rel=0.2)


def test_measured_skce_is_the_function():
    p, y = drawn(300)
    predictions = Predictions.from_probs(p, y)
    found = measure_skce(predictions, 200, 0)
    assert found.value == pytest.approx(skce(p, y))
    assert found.honest is not None
    labels = honest_labels(predictions, 200, 0)
    by_hand = [skce(p, row) for row in labels[:5]]
    assert found.honest[:5] == pytest.approx(by_hand)
    assert abs(found.honest.mean()) < 4 * found.honest.std() / np.sqrt(200)
    assert found.replicates.mean() == pytest.approx(found.value, abs=found.replicates.std() / 3)
    others = [skce(*drawn(300, seed=s)) for s in range(100)]
    assert found.replicates.std() == pytest.approx(np.std(others), rel=0.4)


def test_equal_rows_have_a_kernel_too():
    p, y = np.full((4, 2), 0.5), np.array([0, 0, 1, 1])
    assert skce(p, y) == pytest.approx(-1 / 6)


def test_pairs_need_two_rows():
    one = np.array([[0.5, 0.5]]), np.array([0])
    for metric in (skce, canonical_calibration_error):
        with pytest.raises(InputError, match="2 rows"):
            metric(*one)
        with pytest.raises(InputError, match="bandwidth"):
            metric(*drawn(10), 0.0)
        with pytest.raises(PredictionsError):
            metric(np.array([0.5, 0.4]), np.array([True, False]))


# --- the Dirichlet estimate


def test_the_canonical_estimate_is_its_definition():
    p, y = drawn(30)
    h = 0.1
    total = 0.0
    for i in range(30):
        others = [j for j in range(30) if j != i]
        weight = np.array([dirichlet.pdf(p[i], p[j] / h + 1) for j in others])
        near = weight @ np.eye(4)[y[others]] / weight.sum()
        total += (np.abs(near - p[i]) ** 2).sum() / 30
    assert canonical_calibration_error(p, y, h) == pytest.approx(total)


def test_the_canonical_bandwidth_is_the_likeliest():
    p, y = drawn(40)
    candidates = [*np.logspace(-5, -1, 15), *np.linspace(0.2, 1, 5)]

    def likelihood(h: float) -> float:
        return sum(
            np.log(sum(dirichlet.pdf(p[i], p[j] / h + 1) for j in range(40) if j != i))
            for i in range(40)
        )

    with np.errstate(divide="ignore"):
        best = max(candidates[8:], key=likelihood)
    assert canonical_calibration_error(p, y) == pytest.approx(
        canonical_calibration_error(p, y, best)
    )


def test_certain_rows_do_not_break_the_canonical_estimate():
    p = np.eye(3)[[0, 0, 1, 1, 2, 2]]
    assert canonical_calibration_error(p, p.argmax(axis=1), 0.1) == pytest.approx(0.0, abs=1e-4)
    with pytest.raises(InputError, match="norm"):
        canonical_calibration_error(p, p.argmax(axis=1), 0.1, norm=0)


def test_blocks_of_two_rows_have_one_pair_each():
    # Uniform rows: a pair of one label counts 2/3, any other -1/3, and all six pairs of four 0.
    p, y = np.full((4, 3), 1 / 3), np.array([0, 0, 1, 1])
    assert skce(p, y, 1.0) == pytest.approx(0, abs=1e-12)
    pairs = skce(p, y, 1.0, block_rows=2)
    assert min(abs(pairs - 2 / 3), abs(pairs + 1 / 3)) < 1e-12
    # Three rows are one block: a block of one row has no pair.
    assert skce(p[1:], y[1:], 1.0, block_rows=2) == skce(p[1:], y[1:], 1.0)
