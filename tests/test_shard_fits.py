"""Calibrators fitted to many files: from sums as exact as from rows, or from a uniform sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import (
    BoundaryWarning,
    InputError,
    NotIdentifiedWarning,
    PredictionsError,
)
from calibrant.core.weights import as_float, rounded_sum
from calibrant.evaluation.cells import CellSums
from calibrant.posthoc.confidence.base import FITTED_CELLS, stand_ins
from calibrant.posthoc.temperature.summed import cumulants, row_moments, widen
from calibrant.predictions.rows import summarize
from calibrant.scale.sampling import sample, sampled_places

ONE = cb.Engine(workers=1)
MAPS = ("histogram", "isotonic", "bbq", "scaling-binning", "spline", "venn-abers")


def dealt(whole: cb.Predictions, folder: Path, cuts: Sequence[int]) -> cb.Shards:
    """Write the rows to files that begin at these places."""
    folder.mkdir()
    for i, (start, stop) in enumerate(zip([0, *cuts], [*cuts, whole.n], strict=True)):
        cb.write_predictions(whole.take(slice(start, stop)), folder / f"{i}.safetensors")
    return cb.Shards(folder)


@pytest.fixture(scope="module")
def whole() -> cb.Predictions:
    return cb.synthetic.tempered(20_000, 6, temperature=1.7, seed=5).predictions


@pytest.mark.parametrize(
    ("classes", "dtype"), [(5, np.float32), (300, np.float32), (300, np.float16)]
)
def test_moments_give_the_curve_nearby(classes: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(50, classes))).astype(dtype)
    logits[3, 2] = -np.inf
    labels = np.zeros(50, dtype=np.int64)
    found = row_moments(logits, labels, 0.8)
    curve = summarize(logits.astype(np.float64), labels, curve="dense").curve
    for t in (-0.03, 0.0, 0.02):
        expected = curve.evaluate(0.8 * (1 + t))
        value = sum(found.kappa[j] * t**j / math.factorial(j) for j in range(7))
        np.testing.assert_allclose(value, expected.value, atol=2e-6)
    assert found.log_classes[3] == pytest.approx(math.log(classes - 1))


def test_cumulants_of_a_poisson_count_are_its_mean() -> None:
    k = np.arange(60)
    mass = np.exp(-3.0 + k * math.log(3.0) - [math.lgamma(i + 1) for i in k])
    raw = np.array([[float(mass @ k**j)] for j in range(1, 7)])
    np.testing.assert_allclose(cumulants(raw)[:, 0], 3.0, rtol=1e-9)


def test_halves_are_widened_to_the_last_bit() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    for some in (finite, np.append(finite, np.float16(-np.inf))):
        room = np.empty(len(some), dtype=np.float32)
        widen(some, room)
        np.testing.assert_array_equal(room, some.astype(np.float32))


def test_rounded_sums_lose_next_to_nothing() -> None:
    values = np.array([0.1, 1e-9, -3.5, 1e6, 2.0**60])
    assert as_float(rounded_sum(values)) == pytest.approx(float(values.sum()), rel=1e-15)
    assert abs(as_float(rounded_sum(np.full(1000, 0.1))) - 100.0) < 1e-10


@pytest.mark.parametrize("cuts", [[7, 9000], list(range(3000, 20_000, 3000))])
def test_a_temperature_is_that_of_all_rows_however_they_are_dealt(
    whole: cb.Predictions, tmp_path: Path, cuts: list[int]
) -> None:
    one, many = (
        cb.TemperatureScaling().fit_predictions(dealt(whole, tmp_path / str(i), c), engine=ONE)
        for i, c in enumerate(([], cuts))
    )
    assert one.beta_ == many.beta_
    direct = cb.TemperatureScaling().fit_predictions(whole)
    assert many.beta_ == pytest.approx(direct.beta_, rel=1e-7)
    assert many.fit_report_.n == whole.n
    assert many.fit_report_.value == pytest.approx(direct.fit_report_.value, abs=1e-9)
    assert many.fit_report_.iterations <= 2


def test_a_bad_first_guess_costs_passes_only(whole: cb.Predictions, tmp_path: Path) -> None:
    order = np.argsort(whole.logits.argmax(axis=1) == whole.labels)  # wrong rows come first
    shards = dealt(whole.take(order), tmp_path / "a", [10_000])
    found = cb.TemperatureScaling().fit_predictions(shards, engine=ONE)
    direct = cb.TemperatureScaling().fit_predictions(whole)
    assert found.beta_ == pytest.approx(direct.beta_, rel=1e-7)
    assert found.fit_report_.iterations > 1


def test_temperatures_without_an_optimum_are_those_of_one_file(tmp_path: Path) -> None:
    logits = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.5]] * 20)
    right, chance = np.tile([0, 1], 20), np.tile([2, 0], 20)
    for i, (rows, labels, kind) in enumerate(
        (
            (logits, right, BoundaryWarning),
            (logits, chance, NotIdentifiedWarning),
            (np.zeros_like(logits), right, NotIdentifiedWarning),
        )
    ):
        shards = dealt(cb.Predictions.from_logits(rows, labels), tmp_path / str(i), [3])
        with pytest.warns(kind):
            found = cb.TemperatureScaling().fit_predictions(shards, engine=ONE)
        with pytest.warns(kind):
            direct = cb.TemperatureScaling().fit(rows, labels)
        assert found.beta_ == pytest.approx(direct.beta_, rel=1e-3)
        assert found.fit_report_.value == pytest.approx(direct.fit_report_.value, abs=1e-5)


def test_laplace_knows_all_rows(whole: cb.Predictions, tmp_path: Path) -> None:
    shards = dealt(whole, tmp_path / "a", [9])
    found = cb.make_calibrator("temperature-laplace").fit_predictions(shards, engine=ONE)
    assert found.uniform_ == 1 / (whole.n + 1)


@pytest.mark.parametrize("method", MAPS)
def test_maps_of_the_confidence_are_those_of_all_rows(
    whole: cb.Predictions, tmp_path: Path, method: str
) -> None:
    one, many = (
        cb.make_calibrator(method).fit_predictions(dealt(whole, tmp_path / str(i), c), engine=ONE)
        for i, c in enumerate(([], [5000, 5001]))
    )
    for name, array in many.state().items():
        np.testing.assert_array_equal(array, one.state()[name])
    direct = cb.make_calibrator(method).fit_predictions(whole)
    test = cb.synthetic.tempered(5000, 6, temperature=1.7, seed=6).predictions
    ours, theirs = (c.predict_confidence(test.logits)[1] for c in (many, direct))
    # A bin's edge may lie on the other side of a row or two, and small blocks of rows differ.
    assert np.abs(ours - theirs).mean() < 5e-4
    assert np.quantile(np.abs(ours - theirs), 0.95) < 2e-3
    assert "65536 cells" in many.fit_report_.notes[-1]
    many.save(tmp_path / "map.safetensors")
    np.testing.assert_array_equal(
        cb.load(tmp_path / "map.safetensors").predict_proba(test.logits),
        many.predict_proba(test.logits),
    )


def test_a_map_of_the_top_label_form_is_fitted_to_counts(tmp_path: Path) -> None:
    rows = cb.synthetic.top_label(5000).predictions
    cb.write_predictions(rows, tmp_path / "a.npz")
    found = cb.make_calibrator("isotonic").fit_predictions(cb.Shards(tmp_path), engine=ONE)
    direct = cb.make_calibrator("isotonic").fit_predictions(rows)
    ours, theirs = (c.apply_predictions(rows).scores for c in (found, direct))
    assert np.abs(ours - theirs).mean() < 5e-3
    other = cb.TemperatureScaling().fit_predictions(cb.Shards(tmp_path), engine=ONE)
    whole = cb.TemperatureScaling().fit_predictions(rows)
    assert other.beta_ == pytest.approx(whole.beta_)  # of the event that the label is right


def test_stand_ins_have_the_running_sums_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    confidence = np.sort(rng.beta(6, 1, size=50_000))
    correct = rng.random(50_000) < confidence
    sums = CellSums.of(confidence, correct, FITTED_CELLS)
    for most in (60_000, 5_000):
        c, a = stand_ins(sums, most)
        step = 50_000 // len(c)
        assert (np.diff(c) >= 0).all()
        assert set(a.tolist()) == {0.0, 1.0}
        for ours, theirs, off in ((a, correct, step + 30), (c, confidence, 5)):
            expected = np.cumsum(theirs)[step - 1 :: step]
            np.testing.assert_allclose(np.cumsum(ours) * step, expected, atol=off)


def test_a_sample_is_drawn_by_places_alone(whole: cb.Predictions, tmp_path: Path) -> None:
    one, many = dealt(whole, tmp_path / "a", []), dealt(whole, tmp_path / "b", [1, 4000, 4001])
    first, second = (sample(shards, 777, 3, ONE) for shards in (one, many))
    assert first.n == 777
    np.testing.assert_array_equal(first.scores, second.scores)
    np.testing.assert_array_equal(first.labels, second.labels)


def test_a_sample_is_uniform_and_exactly_as_large_as_asked() -> None:
    places = sampled_places(100_000, 10_000, seed=1)
    assert len(np.unique(places)) == 10_000
    counts = np.bincount(places // 10_000, minlength=10)
    assert ((counts - 1000) ** 2 / 900).sum() < 30  # chi-squared with 9 degrees of freedom
    assert len(np.intersect1d(places, sampled_places(100_000, 10_000, seed=2))) < 1200
    np.testing.assert_array_equal(sampled_places(5, 9, 0), np.arange(5))


@pytest.mark.parametrize("method", ["smart", "vector", "svs+top-rest"])
def test_other_methods_are_fitted_to_a_sample_and_say_so(
    whole: cb.Predictions, tmp_path: Path, method: str
) -> None:
    shards = dealt(whole, tmp_path / "a", [4000])
    found = cb.make_calibrator(method).fit_predictions(shards, sample=2000, engine=ONE)
    assert found.fit_report_.notes[-1] == (
        "fitted to a uniform sample of 2000 of 20000 rows, drawn by their places (seed 0)"
    )
    direct = cb.make_calibrator(method).fit_predictions(sample(shards, 2000, 0, ONE))
    np.testing.assert_allclose(
        found.predict_proba(whole.logits[:9]), direct.predict_proba(whole.logits[:9])
    )


@pytest.mark.parametrize("method", ["temperature", "isotonic", "vector"])
def test_fits_leave_out_broken_shards_when_asked_to(
    whole: cb.Predictions, tmp_path: Path, method: str
) -> None:
    dealt(whole, tmp_path / "a", [8000, 12_000])
    bad = whole.take(slice(8000, 12_000)).scores.copy()
    bad[:] = np.nan
    np.savez(tmp_path / "a" / "1.npz", logits=bad, labels=whole.labels[8000:12_000])
    (tmp_path / "a" / "1.safetensors").unlink()
    shards = cb.Shards(tmp_path / "a")
    with pytest.raises(PredictionsError, match=r"1.npz: .* row 0"):
        cb.make_calibrator(method).fit_predictions(shards, engine=ONE)
    found = cb.make_calibrator(method).fit_predictions(shards, engine=ONE, skip_broken=True)
    assert "1.npz" in found.fit_report_.notes[-1]
    rest = cb.make_calibrator(method).fit_predictions(whole.take(np.r_[0:8000, 12_000:20_000]))
    ours, theirs = (c.predict_proba(whole.logits[:999]) for c in (found, rest))
    assert np.abs(ours - theirs).mean() < 5e-4


def test_a_sample_of_nothing_is_refused(whole: cb.Predictions, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sample must be at least 1 row"):
        cb.TemperatureScaling().fit_predictions(dealt(whole, tmp_path / "a", []), sample=0)
