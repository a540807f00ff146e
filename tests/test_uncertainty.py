"""Intervals that cover, floors that noise alone would show, and differences that are paired."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core.errors import InputError, UnknownMethodError
from calibrant.evaluation.bootstrap import bootstrap, floor
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import (
    MeanResidual,
    PairedDifference,
    interval,
    paired_difference,
)
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.registry import metrics_named
from calibrant.metrics.shrinkage import ShrunkGaps
from calibrant.metrics.top_label import TopLabel
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.scoring import score_rows, score_top

ROWS, LEVEL = 400, 0.9


def draw_top_labels(rng: np.random.Generator, bias: float) -> Predictions:
    """Rows whose chance to be right is their confidence minus `bias`."""
    confidence = rng.uniform(0.3, 0.95, size=ROWS)
    correct = rng.random(ROWS) < confidence - bias
    return Predictions.from_confidence(
        confidence, np.zeros(ROWS, dtype=int), 1 - correct.astype(int)
    )


@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_intervals_cover_what_they_should(bias):
    # Accuracy: its expectation. ECE: the expected measured value at this number of rows.
    rng = np.random.default_rng(0)
    expected_ece = np.mean(
        [
            expected_calibration_error(p.scores, p.predicted == p.labels, kind="confidence")
            for p in (draw_top_labels(rng, bias) for _ in range(1500))
        ]
    )
    truth = {"accuracy": 0.625 - bias, "ece": float(expected_ece)}
    hits = dict.fromkeys(truth, 0)
    trials = 250
    for _ in range(trials):
        result = evaluate(
            draw_top_labels(rng, bias), metrics=list(truth), resamples=150, level=LEVEL
        )
        for name, value in truth.items():
            hits[name] += result[name].low <= value <= result[name].high
            assert result[name].low <= result[name].value <= result[name].high
    error = np.sqrt(LEVEL * (1 - LEVEL) / trials)
    assert abs(hits["accuracy"] / trials - LEVEL) < 4 * error
    # Wide enough. Where the ECE is all noise, the interval stops at zero and may cover more.
    assert hits["ece"] / trials > LEVEL - 4 * error
    assert hits["ece"] / trials < (1.0 if bias else 1.01)


def test_the_floor_is_the_analytic_one():
    rng = np.random.default_rng(1)
    confidence = rng.beta(6, 2, size=5000)
    rows = TopLabel.sort(confidence, np.zeros(5000))
    drawn = floor(rows, metrics_named(["ece"]), 400, seed=0)["ece"]
    index = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    variance = np.bincount(index, confidence * (1 - confidence), 15)
    analytic = np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / 5000
    np.testing.assert_allclose(drawn.mean(), analytic, rtol=0.03)


def test_the_floor_does_not_depend_on_the_outcomes():
    rng = np.random.default_rng(2)
    confidence = rng.uniform(0.4, 1, size=500)
    metrics = metrics_named(["ece", "adaece", "smce", "smece"])
    draws = [
        floor(TopLabel.sort(confidence, correct), metrics, 20, seed=3)
        for correct in (np.zeros(500), np.ones(500))
    ]
    for name in draws[0]:
        np.testing.assert_array_equal(draws[0][name], draws[1][name])
        assert (draws[0][name] > 0).all()


def test_honest_confidences_are_at_the_floor_and_others_are_not():
    rng = np.random.default_rng(4)
    verdicts = []
    for _ in range(40):
        honest = rng.normal(scale=2, size=(800, 4))
        labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
        result = evaluate(softmax(honest), labels, metrics=["ece"], resamples=200)["ece"]
        verdicts.append(result.at_floor)
        assert result.at_floor == (result.value <= result.floor_95)
        assert result.floor < result.floor_95
        assert 0 < result.p_value <= 1
        if result.value > result.floor_95:
            assert result.p_value <= 0.06
    assert sum(verdicts) >= 33  # 95 % of 40 is 38
    result = evaluate(softmax(3 * honest), labels, metrics=["ece"], resamples=200)["ece"]
    assert not result.at_floor
    assert result.p_value == 1 / 201
    assert result.low > result.floor_95


def test_metrics_without_bias_have_no_floor(overconfident):
    logits, labels = overconfident
    result = evaluate(Predictions.from_logits(logits, labels), resamples=20)
    for name in ("nll", "brier", "accuracy"):
        assert result[name].floor is None
        assert result[name].floor_95 is None
        assert not result[name].at_floor


@pytest.mark.parametrize("rows", [2, 37, 3000])
def test_the_seed_decides_and_the_number_of_threads_does_not(rows, labelled_logits, monkeypatch):
    logits, labels = labelled_logits(rows, 4)
    # Small batches, so that there are several to share among threads.
    monkeypatch.setattr("calibrant.evaluation.bootstrap.BATCH_ROWS", 10 * rows)
    scores = score_rows(Predictions.from_logits(logits, labels))
    sorted_rows = TopLabel.sort(scores.confidence, scores.correct)
    metrics = metrics_named(["ece", "adaece", "smece", "nll", "accuracy"])
    drawn = []
    for threads, seed in ((1, 0), (4, 0), (4, 0), (4, 1)):
        monkeypatch.setattr("calibrant.core.threads.core_count", lambda threads=threads: threads)
        drawn.append(
            (
                bootstrap(scores, sorted_rows, metrics, 55, seed),
                floor(sorted_rows, metrics, 55, seed),
            )
        )
    for which in (0, 1):
        first, *same, other = (d[which] for d in drawn)
        for name, values in first.items():
            assert values.shape == (55,)
            for again in same:
                np.testing.assert_array_equal(values, again[name])
        if rows > 2:
            assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_resamples_are_those_of_rows(overconfident):
    logits, labels = overconfident
    scores = score_rows(Predictions.from_logits(logits, labels))
    rows = TopLabel.sort(scores.confidence, scores.correct)
    drawn = bootstrap(scores, rows, metrics_named(["accuracy", "nll", "ece"]), 400, seed=0)
    for name, per_row in (("accuracy", scores.correct), ("nll", scores.nll)):
        np.testing.assert_allclose(drawn[name].mean(), per_row.mean(), rtol=0.02)
        np.testing.assert_allclose(drawn[name].std(), per_row.std() / np.sqrt(2000), rtol=0.15)
    # One resample, done by hand with the same random numbers.
    rng = np.random.default_rng(np.random.SeedSequence(0).spawn(1)[0])
    index = rng.integers(2000, size=2000)
    np.testing.assert_allclose(drawn["nll"][0], scores.nll[index].mean())
    # A calibration error scatters around gaps that are drawn towards 0 as far as they may be noise.
    counts = np.bincount(index, minlength=2000)[rows.order]
    groups = np.array_split(np.arange(2000), 20)
    residual = rows.confidence - rows.correct
    likely = np.empty(2000)
    for group in groups:
        gap = residual[group].mean()
        likely[group] = gap**3 / (gap**2 + residual[group].var() / len(group) / 2)
    bins = np.clip(np.ceil(rows.confidence * 15) - 1, 0, 14).astype(int)
    sums = np.bincount(bins, (counts - 1) * residual + likely)
    np.testing.assert_allclose(drawn["ece"][0], np.abs(sums).sum() / 2000)


def test_an_absolute_gap_scatters_as_much_as_it_does_over_data_sets():
    # The bootstrap of |gap| scatters 1.25 times too much where the gap is 0, unless small gaps are
    # drawn towards it; where the gap is large nothing changes.
    rng = np.random.default_rng(3)
    confidence = np.sort(rng.uniform(0.5, 1, 1500))
    for gap, least, most in ((0.0, 0.9, 1.2), (0.1, 0.9, 1.1)):
        values, scatter = [], []
        for seed in range(60):
            right = rng.random(1500) < confidence - gap
            rows = TopLabel.sort(confidence, right)
            values.append(expected_calibration_error(confidence, right, kind="confidence"))
            if seed < 25:
                scores = score_top(
                    Predictions.from_confidence(confidence, np.zeros(1500, int), 1 - right)
                )
                drawn = bootstrap(scores, rows, metrics_named(["ece"]), 200, seed=seed)
                scatter.append(drawn["ece"].std())
        assert least < np.mean(scatter) / np.std(values) < most


def test_one_seed_pairs_calibrators(overconfident):
    # A monotone change of all confidences leaves the accuracy of every resample as it was.
    logits, labels = overconfident
    first, second = (
        evaluate(softmax(logits, beta), labels, metrics=["accuracy", "nll"], resamples=100)
        for beta in (1.0, 0.5)
    )
    np.testing.assert_array_equal(first["accuracy"].replicates, second["accuracy"].replicates)
    assert np.corrcoef(first["nll"].replicates, second["nll"].replicates)[0, 1] > 0.8


def test_interval_of_a_mean():
    values = np.arange(1001) / 1000
    np.testing.assert_allclose(interval(0.5, values, 0.9), (0.05, 0.95))
    # It always holds the value itself.
    assert interval(0.01, values, 0.9)[0] == 0.01
    assert interval(0.99, values, 0.9)[1] == 0.99
    low, high = interval(0.3, values, 0.9, biased=True)
    np.testing.assert_allclose([low, high], [0.0, 0.75])


def test_paired_difference():
    rng = np.random.default_rng(5)
    common, noise = rng.normal(size=2000), 0.1 * rng.normal(size=2000)
    found = paired_difference(common + 0.5 + noise, common, (0.45, 0.0))
    assert found.value == 0.45
    # The common part cancels; the bias of the resamples is taken off.
    np.testing.assert_allclose([found.low, found.high], [0.45 - 0.196, 0.45 + 0.196], atol=0.02)
    back = paired_difference(common, common + 0.5 + noise, (0.0, 0.45))
    np.testing.assert_allclose([back.low, back.high], [-found.high, -found.low], atol=1e-12)
    same = paired_difference(common, common, (0.2, 0.2))
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_a_difference_without_scatter_is_certain():
    same, other = (PairedDifference.normal(value, 0.0, 0.95) for value in (0.0, 0.1))
    assert (same.p_value, same.low, same.high) == (1, 0, 0)
    assert (other.p_value, other.low, other.high) == (0, 0.1, 0.1)


def test_few_clusters_of_one_size_are_as_many_numbers():
    rng = np.random.default_rng(7)
    residual = rng.normal(size=(3, 4)) + rng.normal(size=(3, 1))
    ones, blocks = np.ones(12), np.stack([residual.sum(axis=1), np.full(3, 4.0)])
    found = MeanResidual.of_cells(residual.ravel(), ones, ones, blocks)
    means = residual.mean(axis=1)
    np.testing.assert_allclose(found[:2], [means.mean(), means.var(ddof=1) / 3])


def test_paired_intervals_cover():
    rng = np.random.default_rng(6)
    hits, trials = 0, 150
    for _ in range(trials):
        honest = rng.normal(scale=2, size=(300, 3))
        labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
        both = [
            evaluate(softmax(honest, beta), labels, metrics=["nll"], resamples=100)["nll"]
            for beta in (1.0, 1.6)
        ]
        found = paired_difference(
            both[0].replicates, both[1].replicates, (both[0].value, both[1].value), LEVEL
        )
        hits += found.low <= TRUE_DIFFERENCE <= found.high
    error = np.sqrt(LEVEL * (1 - LEVEL) / trials)
    assert abs(hits / trials - LEVEL) < 4 * error


def _true_difference() -> float:
    honest = np.random.default_rng(7).normal(scale=2, size=(400_000, 3))
    probs = softmax(honest)
    expected = [-(probs * np.log(softmax(honest, beta))).sum(axis=1).mean() for beta in (1.0, 1.6)]
    return float(expected[0] - expected[1])


TRUE_DIFFERENCE = _true_difference()


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows(rows):
    result = evaluate(np.full((rows, 2), 0.5), np.zeros(rows, dtype=int), resamples=10)
    for found in result.results.values():
        assert np.isfinite([found.value, found.low, found.high]).all()


@pytest.mark.parametrize(
    "arguments", [{"resamples": 1}, {"level": 0}, {"level": 1}, {"level": np.nan}, {"seed": -1}]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        evaluate(np.full((2, 2), 0.5), [0, 1], **arguments)


def test_what_evaluate_refuses():
    with pytest.raises(InputError, match="needs labels"):
        evaluate(np.full((2, 2), 0.5))
    with pytest.raises(UnknownMethodError, match="no metric is called 'luck'"):
        evaluate(np.full((2, 2), 0.5), [0, 1], metrics=["luck"])
    with pytest.raises(InputError, match="sum to 1"):
        evaluate(np.array([[2.0, -1.0], [0.0, 3.0]]) ** 2, [0, 1])


def test_the_scatter_of_a_gap_is_right_within_what_the_documents_say():
    # In standard errors: what is seen of a gap is normal around it. The variance of |gap| around
    # what is then taken for the truth, averaged over what may be seen, is held to the true one.
    from scipy.stats import norm

    def variance(truth):
        mean = truth * (2 * norm.cdf(truth) - 1) + 2 * norm.pdf(truth)
        return truth**2 + 1 - mean**2

    seen = np.linspace(-8, 13, 4001)
    likely = np.abs(seen) ** 3 / (seen**2 + 0.5)
    truths = np.linspace(0, 5, 51)
    chance = norm.pdf(seen - truths[:, None])
    chance /= chance.sum(axis=1, keepdims=True)
    drawn, plain = (np.sqrt(chance @ variance(at) / variance(truths)) for at in (likely, abs(seen)))
    assert (round(drawn.min(), 2), round(drawn.max(), 2)) == (0.92, 1.16)
    assert (round(plain.min(), 2), round(plain.max(), 2)) == (0.95, 1.25)


def test_gaps_too_small_to_be_squared_are_drawn_towards_0() -> None:
    confidence = np.full(40, 1e-200)
    for weight in (None, np.full(40, 1e-180)):
        found = ShrunkGaps.of_rows(confidence, np.zeros(40), weight)
        assert found.gaps.max() <= 1e-200
    mixed = ShrunkGaps.of_rows(np.full(40, 0.5), np.tile([0.0, 1.0], 20))
    np.testing.assert_array_equal(mixed.gaps, 0)


def test_likely_gaps_do_not_depend_on_the_unit_of_the_weights() -> None:
    confidence, correct = np.linspace(0.6, 0.9, 16), np.tile([0.0, 1.0, 0.0, 0.0], 4)
    plain = ShrunkGaps.of_rows(confidence, correct).gaps
    for unit in (1 / 16, 3.0):  # sixteenths sum to exactly 1
        weighed = ShrunkGaps.of_rows(confidence, correct, np.full(16, unit)).gaps
        np.testing.assert_allclose(weighed, plain, rtol=1e-12)
    assert plain.min() > 0.1
    np.testing.assert_array_equal(ShrunkGaps.of_rows(confidence, correct, np.zeros(16)).gaps, 0)
