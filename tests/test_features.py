"""Methods that see features, each against the formula written out row by row."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from calibrant.core import arrays, numpy_namespace
from calibrant.core.errors import (
    CalibrationWarning,
    CalibratorFileError,
    InputError,
    NotApplicableError,
    NotIdentifiedWarning,
    PredictionsError,
)
from calibrant.files import read_predictions, write_predictions
from calibrant.posthoc.array_ops import smallest
from calibrant.posthoc.features import base
from calibrant.posthoc.features.base import nearest_distances, unit_rows
from calibrant.posthoc.features.density_aware import DensityAwareCalibration
from calibrant.posthoc.features.feature_clipping import FeatureClipping
from calibrant.posthoc.features.group import (
    GroupCalibration,
    Mixture,
    alternating_halves,
    fit_partition,
)
from calibrant.posthoc.features.proximity import BinMeanShift, ProximityDensityRatio, proximity_of
from calibrant.posthoc.loading import load
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax, summarize
from calibrant.sample import load_sample

NOBODY = -1


@pytest.fixture(scope="module")
def drifting():
    """Rows whose right temperature is 1 in one half of feature space and 4 in the other."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(1500, 6)) + 0.5
    honest = rng.normal(scale=3, size=(1500, 4))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    temperature = np.where(features[:, 0] > 0.5, 4.0, 1.0)
    return honest * temperature[:, None], labels, features


def nll(probs: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(probs[np.arange(len(labels)), labels]).mean())


# --- neighbours


def brute_distances(queries, bank, count, own):
    out = []
    for query, self_index in zip(queries.astype(float), own, strict=True):
        apart = [
            np.sqrt(((query - row) ** 2).sum())
            for i, row in enumerate(bank.astype(float))
            if i != self_index
        ]
        out.append(sorted(apart)[:count])
    return np.array(out)


@pytest.mark.parametrize("block", [1, 40, 1 << 22])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_nearest_distances_are_those_of_brute_force(block, count, monkeypatch):
    monkeypatch.setattr(base, "BLOCK_ELEMENTS", block)
    rng = np.random.default_rng(0)
    bank = unit_rows(rng.normal(size=(12, 5)))
    bank[7] = bank[2]  # a duplicate
    queries = np.concatenate([bank[:9], unit_rows(rng.normal(size=(4, 5)))])
    own = np.concatenate([np.arange(9), np.full(4, NOBODY)])
    found = nearest_distances(queries, bank, count, own)
    np.testing.assert_allclose(found, brute_distances(queries, bank, count, own), rtol=1e-12)
    assert found[2, 0] == found[7, 0] == 0  # itself is left out, its copy is not
    assert (found[9:, 0] > 0).all()


def test_tiny_distances_are_not_lost_to_rounding():
    bank = np.array([[1.0, 0.0], [1.0, 2.0**-20], [0.0, 1.0]], dtype=np.float32)
    found = nearest_distances(bank[:1], bank, 2, np.array([0]))
    np.testing.assert_array_equal(found[0, 0], 2.0**-20)


def test_rows_of_length_one(monkeypatch):
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [3e300, 4e300], [3e-300, 4e-300], [-3, -4]])
    monkeypatch.setattr(base, "BLOCK_ELEMENTS", 2)
    expected = [[0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, 0.8], [-0.6, -0.8]]
    for kind in (rows, torch.tensor(rows)):
        np.testing.assert_allclose(unit_rows(kind), expected, rtol=1e-6)


def test_a_bank_is_capped_by_the_same_draw_every_time(drifting):
    logits, labels, features = drifting
    small = [
        DensityAwareCalibration(reference_rows=100).fit(logits, labels, features) for _ in range(2)
    ]
    assert small[0].bank_.shape == (100, 6)
    np.testing.assert_array_equal(small[0].bank_, small[1].bank_)
    assert any("100 of 1500" in note for note in small[0].fit_report_.notes)
    given = BinMeanShift().fit(logits, labels, features, reference=features[:50])
    np.testing.assert_array_equal(given.bank_, unit_rows(features[:50]))
    assert not given.fit_report_.notes


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(2, 400), st.integers(0, 10**6), st.booleans())
def test_the_smallest_of_rows_are_those_of_sorting(count, width, seed, tied):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(5, max(width, count + 1)))
    rows[rng.uniform(size=rows.shape) < 0.05] = np.inf
    rows = np.round(rows) if tied else rows
    found = smallest(numpy_namespace, rows, count)
    assert all(len(set(places)) == count for places in found.tolist())
    values = np.sort(np.take_along_axis(rows, found, axis=1), axis=1)
    np.testing.assert_array_equal(values, np.sort(rows, axis=1)[:, :count])


def test_fewer_rows_than_neighbours(drifting):
    logits, labels, features = (part[:8] for part in drifting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        assert BinMeanShift().fit(logits, labels, features).neighbours_ == 7
        given = BinMeanShift().fit(logits, labels, features, reference=features)
    assert given.neighbours_ == 8  # reference rows are taken to be other rows


# --- density-aware calibration


@pytest.mark.parametrize("loss", ["nll", "mse"])
@pytest.mark.parametrize("layers", ["", "2,4"])
def test_dac_finds_the_best_weights(loss, layers):
    rng = np.random.default_rng(1)
    reference = np.concatenate([rng.normal(size=(300, 2)), 1 + rng.normal(size=(300, 4))], axis=1)
    features = np.concatenate([rng.normal(size=(900, 2)), 1 + rng.normal(size=(900, 4))], axis=1)
    parts = [slice(0, 2), slice(2, 6)] if layers else [slice(0, 6)]
    own = np.full(900, NOBODY)
    scores = np.stack(
        [brute_distances(unit_rows(features[:, p]), unit_rows(reference[:, p]), 4, own)[:, 3]
         for p in parts],
        axis=1,
    )  # fmt: skip
    honest = rng.normal(scale=3, size=(900, 5))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    true = 0.5 + 2 * scores.sum(axis=1) / scores.mean()
    logits = honest * true[:, None]
    dac = DensityAwareCalibration(neighbours=4, layers=layers, loss=loss)
    dac.fit(logits, labels, features, reference=reference)

    single = 1 / TemperatureScaling().fit(logits, labels).beta_

    def mean_loss(w):
        temperature = np.maximum(w[0] + scores @ w[1:], dac.floor_)
        probs = softmax(logits, 1 / temperature)
        # Shares of the single temperature, at the mean distance, are drawn to (1, 0, ...).
        away = np.append(w[0] / single - 1, w[1:] * scores.mean(axis=0) / single)
        pull = away @ away / 900
        if loss == "nll":
            return nll(probs, labels) + pull
        return float(((probs - np.eye(5)[labels]) ** 2).sum(axis=1).mean()) + pull

    start = np.append(0.5, np.full(len(parts), 2 / scores.mean()))
    brute = minimize(
        mean_loss, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-11,
        "maxiter": 4000}, bounds=[(None, None)] + [(0, None)] * len(parts),
    )  # fmt: skip
    ours = np.append(dac.offset_, dac.weights_)
    np.testing.assert_allclose(mean_loss(ours), dac.fit_report_.value, rtol=1e-9)
    assert mean_loss(ours) <= brute.fun + 1e-6
    assert (dac.weights_ >= 0).all()
    assert dac.n_parameters == 1 + len(parts)
    plain = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    assert nll(dac.predict_proba(logits, features), labels) < nll(plain, labels) - 0.01
    temperature = np.maximum(ours[0] + scores @ ours[1:], dac.floor_)
    np.testing.assert_allclose(dac.temperatures(features), temperature, rtol=1e-9)
    np.testing.assert_allclose(
        dac.predict_proba(logits, features), softmax(logits, 1 / temperature), atol=1e-12
    )


def test_the_kth_neighbour_is_the_kth(drifting):
    logits, labels, features = (part[:60] for part in drifting)
    distances = [
        DensityAwareCalibration(neighbours=k)
        .fit(logits, labels, features, reference=features[30:])
        ._distances(features)[0][:, -1]
        for k in (1, 5)
    ]
    brute = brute_distances(unit_rows(features), unit_rows(features[30:]), 5, [NOBODY] * 60)
    np.testing.assert_allclose(distances[0], brute[:, 0], rtol=1e-12)
    np.testing.assert_allclose(distances[1], brute[:, 4], rtol=1e-12)


def test_dac_with_nothing_to_learn(drifting):
    logits, _, features = (part[:50] for part in drifting)
    with pytest.warns(CalibrationWarning) as caught:
        dac = DensityAwareCalibration().fit(logits, logits.argmax(axis=1), features)
    assert caught[0].filename == __file__  # it is for the caller of `fit`
    assert not dac.weights_.any()
    np.testing.assert_allclose(dac.temperatures(features), dac.offset_)
    with pytest.warns(NotIdentifiedWarning):
        DensityAwareCalibration().fit(np.zeros((50, 4)), np.arange(50) % 4, features)


def test_dac_never_raises_the_calibration_loss():
    validation = load_sample("validation")
    few = validation.take(np.arange(400))
    for k in (1, 10):
        dac = DensityAwareCalibration(neighbours=k).fit_predictions(few)
        single = TemperatureScaling().fit_predictions(few)
        assert dac.fit_report_.value <= single.fit_report_.value + 1e-12


# --- group calibration


@pytest.fixture
def mixture(drifting) -> Mixture:
    logits, labels, features = (part[:80] for part in drifting)
    return Mixture(summarize(logits, labels, curve="dense"), features, 0.5, 0.1)


def some_point(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.exp(rng.normal(scale=0.3, size=3)), rng.normal(size=(3, 6))


def test_gradient_of_the_mixture(drifting, mixture):
    logits, labels, features = (part[:80] for part in drifting)
    ratios, weights = some_point(0)
    found = mixture.at(ratios, weights)
    share = softmax(features @ weights.T)
    probs = sum(share[:, g, None] * softmax(logits, 0.5 * ratios[g]) for g in range(3))
    wanted = nll(probs, labels) + 0.1 * (weights**2).mean()
    np.testing.assert_allclose(found.value, wanted, rtol=1e-10)

    def slope(up: tuple, down: tuple) -> float:
        return (mixture.at(*up).value - mixture.at(*down).value) / 2e-6

    for g in range(3):
        step = np.exp(1e-6 * np.eye(3)[g])
        by_ratio = slope((ratios * step, weights), (ratios / step, weights))
        np.testing.assert_allclose(found.by_ratios[g], by_ratio, rtol=1e-5, atol=1e-8)
        for d in range(6):
            step = np.zeros((3, 6))
            step[g, d] = 1e-6
            by_weight = slope((ratios, weights + step), (ratios, weights - step))
            np.testing.assert_allclose(found.by_weights[g, d], by_weight, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_every_step_of_a_partition_makes_its_objective_smaller(mixture, penalty):
    mixture = replace(mixture, penalty=penalty)
    for seed in range(5):
        _, start = some_point(seed)
        metric = mixture.metric(3)
        values = [
            mixture.at(*fit_partition(mixture, start, metric, steps)).value
            for steps in (*range(12), 24, 39)  # each begins anew
        ]
        assert (np.diff(values) < 0).all()
    # ... and in the end there is nothing to gain.
    last = mixture.at(*fit_partition(mixture, start, metric, 5000))
    np.testing.assert_allclose(last.by_weights, 0, atol=1e-5 if penalty else 1e-3)


def test_halves_share_no_row_and_not_the_order(drifting):
    logits, labels, features = (part[:101] for part in drifting)
    rows = summarize(logits, labels, curve="dense")
    first, second = alternating_halves(rows, features)
    assert sorted([*first, *second]) == list(range(101))
    assert len(first) == 51
    np.testing.assert_allclose(rows.margin[first].mean(), rows.margin[second].mean(), rtol=0.1)
    back = summarize(logits[::-1], labels[::-1], curve="dense")
    np.testing.assert_array_equal(100 - alternating_halves(back, features[::-1])[0], first)


@pytest.mark.parametrize("groups", [2, 3])
def test_each_stage_of_group_calibration_sees_its_half(drifting, groups):
    logits, labels, features = drifting
    calibrator = GroupCalibration(partitions=3, groups=groups, shrinkage=1.0)
    calibrator.fit(logits, labels, features)
    x = (features - features.mean(axis=0)) / features.std(axis=0)
    rows = summarize(logits, labels, curve="dense")
    halves = alternating_halves(rows, x)
    beta = TemperatureScaling().fit(logits, labels).beta_
    expected = np.zeros_like(logits)
    for u in range(3):
        learn, calibrate = halves[u % 2], halves[(u + 1) % 2]
        start = np.random.default_rng([0, u]).uniform(-1, 1, size=(groups, 6)) / np.sqrt(6)
        mixture = Mixture(rows.take(learn), x[learn], beta, 0.1)
        _, weights = fit_partition(mixture, start, mixture.metric(groups), 50)
        np.testing.assert_allclose(calibrator.partitions_[u], weights, atol=1e-4)
        group = (x @ calibrator.partitions_[u].T).argmax(axis=1)
        for g in range(groups):
            chosen = calibrate[group[calibrate] == g]

            def penalised(ratio, chosen=chosen):
                row_nll = nll(softmax(logits[chosen], beta * ratio), labels[chosen])
                return len(chosen) * row_nll + 0.5 * (ratio - 1) ** 2

            best = minimize_scalar(penalised, bounds=(1 / 8, 8), options={"xatol": 1e-9})
            np.testing.assert_allclose(calibrator.betas_[u, g], beta * best.x, rtol=1e-4)
        expected += softmax(logits, calibrator.betas_[u, group]) / 3
    probs = calibrator.predict_proba(logits, features)
    np.testing.assert_allclose(probs, expected, atol=1e-12)
    assert calibrator.n_parameters == 3 * groups * 8
    np.testing.assert_allclose(calibrator.fit_report_.value, nll(probs, labels), rtol=1e-9)


def test_group_calibration_finds_the_halves_of_feature_space(drifting):
    logits, labels, features = drifting
    calibrator = GroupCalibration().fit(logits[:1000], labels[:1000], features[:1000])
    single = TemperatureScaling().fit(logits[:1000], labels[:1000])
    ours = nll(calibrator.predict_proba(logits[1000:], features[1000:]), labels[1000:])
    assert ours < nll(single.predict_proba(logits[1000:]), labels[1000:]) - 0.02


def test_shuffled_rows_give_group_calibration_bit_for_bit(drifting):
    order = np.random.default_rng(0).permutation(1500)
    plain, other = (
        GroupCalibration(partitions=2).fit(*(part[rows] for part in drifting))
        for rows in (np.arange(1500), order)
    )
    for name in ("centre_", "scale_", "partitions_", "betas_"):
        np.testing.assert_array_equal(getattr(other, name), getattr(plain, name))


def test_units_of_the_features_do_not_matter_to_group_calibration(drifting):
    logits, labels, features = (part[:300] for part in drifting)
    scaled = features * np.logspace(-6, 6, 6) + 3
    constant = np.concatenate([scaled, np.full((300, 1), 0.1)], axis=1)
    plain = GroupCalibration(partitions=2).fit(logits, labels, features)
    other = GroupCalibration(partitions=2).fit(logits, labels, scaled)
    np.testing.assert_allclose(
        other.predict_proba(logits, scaled), plain.predict_proba(logits, features), atol=1e-4
    )
    with_constant = GroupCalibration(partitions=2).fit(logits, labels, constant)
    moved = constant + np.eye(7)[6]
    np.testing.assert_array_equal(
        with_constant.predict_proba(logits, constant), with_constant.predict_proba(logits, moved)
    )


# --- ProCal


def test_both_conventions_of_proximity():
    distances = np.array([[0.0, 0.5, 1.0], [0.2, 0.2, 0.2]])
    np.testing.assert_allclose(proximity_of(np, distances, "paper"), np.exp([-0.5, -0.2]))
    released = [(1 + np.exp(-0.25) + np.exp(-1)) / 3, np.exp(-0.04)]
    np.testing.assert_allclose(proximity_of(np, distances, "released"), released)


def confidences_and_proximities(drifting, kind, beta):
    logits, labels, features = drifting
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    away = np.linalg.norm(unit[:, None] - unit, axis=2)
    np.fill_diagonal(away, np.inf)
    nearest = np.sort(away, axis=1)[:, :10]
    proximity = (
        np.exp(-nearest.mean(axis=1))
        if kind == "paper"
        else np.exp(-(nearest**2)).mean(axis=1)
    )  # fmt: skip
    confidence = softmax(logits, beta).max(axis=1)
    return confidence, proximity, logits.argmax(axis=1) == labels


@pytest.mark.parametrize("kind", ["paper", "released"])
@pytest.mark.parametrize("scaling", ["temperature", "none"])
def test_density_ratio_is_the_formula(drifting, kind, scaling, monkeypatch):
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS_CPU", 999)
    few = [part[:300] for part in drifting]
    calibrator = ProximityDensityRatio(convention=kind, scaling=scaling).fit(*few)
    beta = TemperatureScaling().fit(*few[:2]).beta_ if scaling == "temperature" else 1.0
    c, d, right = confidences_and_proximities(few, kind, beta)
    points = np.stack([c, d], axis=1)

    def density(group, query):
        h = 1.06 * group.std(axis=0) * len(group) ** (-1 / 6)
        kernels = np.exp(-0.5 * ((query - group) / h) ** 2) / (np.sqrt(2 * np.pi) * h)
        return kernels.prod(axis=1).mean()

    expected = []
    for query in points:
        d1, d0 = density(points[right], query), density(points[~right], query)
        expected.append(d1 / (d1 + d0 * (~right).sum() / right.sum()))
    found = calibrator.map_confidence(c, d)
    # The row that stands for knowing nothing weighs least where rows are many.
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert np.median(np.abs(found - expected)) < 1e-3
    np.testing.assert_allclose(calibrator.right_, points[right], atol=1e-6)


def test_far_from_all_rows_the_density_ratio_returns_the_confidence(drifting):
    calibrator = ProximityDensityRatio().fit(*(part[:300] for part in drifting))
    confidence = np.array([0.05, 0.3, 0.6])
    far = calibrator.map_confidence(confidence, np.array([-50.0, 50.0, 1e6]))
    np.testing.assert_allclose(far, confidence, atol=2e-3)
    certain = calibrator.map_confidence(np.ones(2), np.array([0.5, 1e6]))
    assert (certain < 1).all()


def test_density_ratio_of_rows_that_coincide():
    # One wrong row, and all rows in one place: bandwidths would be zero.
    logits = np.tile([2.0, 0.0, 0.0], (20, 1))
    labels = np.zeros(20, dtype=int)
    labels[3] = 1
    calibrator = ProximityDensityRatio().fit(logits, labels, np.ones((20, 4)))
    probs = calibrator.predict_proba(logits, np.ones((20, 4)))
    np.testing.assert_allclose(probs[:, 0], 19 / 20, atol=0.01)


@pytest.mark.parametrize("wrong", [0, 20])
def test_density_ratio_needs_right_and_wrong_rows(wrong):
    logits = np.random.default_rng(0).normal(size=(20, 3))
    labels = logits.argmax(axis=1) if wrong == 0 else logits.argmin(axis=1)
    with pytest.raises(NotApplicableError, match="needs right and wrong"):
        ProximityDensityRatio(scaling="none").fit(logits, labels, logits)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_bin_mean_shift_is_the_formula(drifting, strength):
    few = [part[:360] for part in drifting]
    calibrator = BinMeanShift(proximity_bins=3, confidence_bins=4, strength=strength).fit(*few)
    c, d, right = confidences_and_proximities(few, "paper", calibrator.beta_)
    found = calibrator.map_confidence(c, d)
    expected = c.copy()
    for level in np.array_split(np.argsort(d), 3):
        for cell in np.array_split(level[np.argsort(c[level])], 4):
            assert len(cell) == 30
            expected[cell] += strength * (right[cell].mean() - c[cell].mean())
    assert calibrator.shifts_.shape == (3, 4)
    floor, cap = 1 / 4 / 361, 1 - 3 / 4 / 361
    np.testing.assert_allclose(calibrator.limits_, [floor, cap])
    np.testing.assert_allclose(found, np.clip(expected, floor, cap), atol=1e-7)


def test_bins_of_tied_proximities_have_fewer_cells(drifting):
    logits, labels, _ = (part[:100] for part in drifting)
    one_place = np.ones((100, 3))
    calibrator = BinMeanShift().fit(logits, labels, one_place)
    assert calibrator.shifts_.shape == (1, 10)
    probs = calibrator.predict_proba(logits, one_place)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.parametrize("method", [BinMeanShift, ProximityDensityRatio])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_and_pairs_of_procal_say_the_same(drifting, method, dtype):
    logits, labels, features = drifting
    logits = logits.astype(dtype)
    calibrator = method().fit(logits, labels, features)
    label, confidence = calibrator.predict_confidence(logits, features)
    probs = calibrator.predict_proba(logits, features)
    np.testing.assert_array_equal(label, logits.argmax(axis=1))
    np.testing.assert_array_equal(probs.argmax(axis=1), label)
    np.testing.assert_allclose(probs.max(axis=1), np.maximum(confidence, (1 + 2e-6) / 4), rtol=5e-6)


# --- feature clipping


@pytest.fixture(scope="module")
def clippable():
    """Features of which a few are far too large, and the last layer that reads them."""
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(size=(4, 8)), rng.normal(size=4)
    honest = rng.normal(size=(1200, 8))
    labels = (honest @ weight.T + bias + rng.gumbel(size=(1200, 4))).argmax(axis=1)
    features = honest * np.where(np.abs(honest) > 1.2, 6.0, 1.0)
    return features @ weight.T + bias, labels, features, (weight, bias)


@pytest.mark.parametrize("scaling", ["temperature", "none"])
@pytest.mark.parametrize("accuracy", [0.0, 0.99])
def test_feature_clipping_finds_the_best_bound(clippable, scaling, accuracy):
    logits, labels, features, (weight, bias) = clippable
    calibrator = FeatureClipping(scaling=scaling, accuracy=accuracy)
    calibrator.fit(logits, labels, features, head=(weight, bias))

    def loss(bound):
        clipped = np.clip(features, -bound, bound) @ weight.T + bias
        if (clipped.argmax(axis=1) == labels).mean() < accuracy * plain:
            return np.inf
        beta = TemperatureScaling().fit(clipped, labels).beta_ if scaling != "none" else 1.0
        return nll(softmax(clipped, beta), labels)

    plain = (logits.argmax(axis=1) == labels).mean()
    grid = [loss(bound) for bound in np.linspace(0.05, 12, 240)]
    assert calibrator.fit_report_.value <= min(grid) + 1e-4
    np.testing.assert_allclose(loss(calibrator.bound_), calibrator.fit_report_.value, rtol=1e-6)
    clipped = np.clip(features, -calibrator.bound_, calibrator.bound_) @ weight.T + bias
    np.testing.assert_allclose(
        calibrator.predict_proba(logits, features), softmax(clipped, calibrator.beta_), atol=1e-9
    )
    assert calibrator.n_parameters == 1 + (scaling == "temperature")


def test_no_bound_is_the_network_itself():
    rng = np.random.default_rng(6)
    features = rng.normal(size=(900, 5))
    weight = rng.normal(size=(3, 5))
    logits = features @ weight.T
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    calibrator = FeatureClipping(scaling="none", accuracy=1.0)
    calibrator.fit(logits, labels, features, head=(weight, np.zeros(3)))
    inside = (np.abs(features) <= calibrator.bound_).all(axis=1)
    probs = calibrator.predict_proba(logits, features)
    assert inside.mean() > 0.5
    np.testing.assert_array_equal(probs[inside], softmax(logits)[inside])


def test_the_network_may_be_trained_on(clippable):
    logits, labels, features, (weight, bias) = clippable
    live = torch.tensor(weight), torch.tensor(bias)
    calibrator = FeatureClipping().fit(torch.tensor(logits), labels, features, head=live)
    before = calibrator.predict_proba(logits, features)
    live[0].zero_()
    np.testing.assert_array_equal(calibrator.predict_proba(logits, features), before)


# --- what all of them share

EVERY = [
    GroupCalibration(partitions=2),
    ProximityDensityRatio(),
    BinMeanShift(),
    FeatureClipping(),
    DensityAwareCalibration(),
]
every = pytest.mark.parametrize("method", EVERY, ids=lambda calibrator: calibrator.method)


@pytest.fixture(scope="module")
def sample() -> Predictions:
    return load_sample("validation").take(np.arange(600))


@every
def test_they_say_what_is_missing(method, sample):
    calibrator = type(method)(**method.get_params())
    with pytest.raises(PredictionsError, match=r"needs features of shape \(N, D\).*'features'"):
        calibrator.fit(sample.logits, sample.labels)
    if "head" in calibrator.needs:
        with pytest.raises(PredictionsError, match=r"the last layer.*'head_weight' and"):
            calibrator.fit(sample.logits, sample.labels, sample.features)
    calibrator.fit_predictions(sample)
    for call in (calibrator.predict_proba, calibrator.predict_confidence):
        with pytest.raises(PredictionsError, match=r"needs features of shape \(600, 64\)"):
            call(sample.logits)
        with pytest.raises(PredictionsError, match=r"fitted for 64 features.*not \(600, 60\)"):
            call(sample.logits, sample.features[:, :60])
        with pytest.raises(PredictionsError, match=r"'features' must have shape \(600, D\)"):
            call(sample.logits, sample.features[:5])
        broken = sample.features.copy()
        broken[17, 3] = np.nan
        with pytest.raises(PredictionsError, match="row 17, column 3 holds nan"):
            call(sample.logits, broken)
    narrow = Predictions.from_logits(sample.logits, None, sample.features[:, :60], "narrow.npz")
    with pytest.raises(PredictionsError, match=r"for 64 features, and narrow.npz has 60"):
        calibrator.apply_predictions(narrow)
    bare = Predictions.from_logits(sample.logits, None, source="bare.npz")
    with pytest.raises(PredictionsError, match=r"bare\.npz has no 'features'"):
        calibrator.apply_predictions(bare)


@every
def test_saved_and_applied_without_labels(method, sample, tmp_path):
    calibrator = type(method)(**method.get_params()).fit_predictions(sample)
    calibrator.save(tmp_path / "saved.safetensors")
    back = load(tmp_path / "saved.safetensors")
    unlabelled = Predictions.from_logits(sample.logits, None, sample.features)
    after = back.apply_predictions(unlabelled)
    np.testing.assert_array_equal(after.probs, calibrator.apply_predictions(sample).probs)
    assert after.known_labels is None
    assert after.head is None
    assert calibrator.apply_predictions(sample).known_labels is not None
    assert (tmp_path / "saved.safetensors").stat().st_size < 300_000


@every
def test_features_of_other_kinds(method, sample):
    calibrator = type(method)(**method.get_params()).fit_predictions(sample)
    probs = calibrator.predict_proba(sample.logits, sample.features)
    tensor = calibrator.predict_proba(torch.tensor(sample.logits), torch.tensor(sample.features))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), probs, atol=1e-6)
    mixed = calibrator.predict_proba(sample.logits, torch.tensor(sample.features).double())
    np.testing.assert_allclose(mixed, probs, atol=1e-6)


def test_reference_features_of_a_file_are_used(sample, tmp_path):
    with_reference = replace(sample, reference=sample.features[:40])
    write_predictions(with_reference, tmp_path / "val.npz")
    dac = DensityAwareCalibration().fit_predictions(read_predictions(tmp_path / "val.npz"))
    assert dac.bank_.shape == (40, 64)
    assert not any("no reference" in note for note in dac.fit_report_.notes)


@every
@pytest.mark.parametrize("width", [63, 65, 0, -1])
def test_a_file_with_another_width_is_refused(method, width, sample, tmp_path):
    path = tmp_path / "saved.safetensors"
    type(method)(**method.get_params()).fit_predictions(sample).save(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata()
    state["width_"] = np.array(width)
    safetensors.numpy.save_file(state, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="parameters don't fit"):
        load(path)


def test_layers_must_add_up(drifting):
    logits, labels, features = drifting
    for layers in ("2,3", "6,0", "-1,7", "two", "3;3", ","):
        with pytest.raises(InputError, match="layers must be widths"):
            DensityAwareCalibration(layers=layers).fit(logits, labels, features)
