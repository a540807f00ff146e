"""Rows of shards with weights: as repeated rows, as in one file, however they are dealt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_shard_sums import assert_same

import calibrant as cb
from calibrant.core.errors import InputError, NotApplicableError, PredictionsError
from calibrant.evaluation.cell_sample import plan_of
from calibrant.evaluation.sample_sources import summed

ONE = cb.Engine(workers=1)
N = 3_000
SUMMED = ["ece", "adaece", "smce", "ks", "nll", "brier", "accuracy", "rmsce", "slope"]


@pytest.fixture(scope="module")
def whole() -> cb.Predictions:
    drawn = cb.synthetic.tempered(N, 4, temperature=1.6, seed=5).predictions
    return cb.Predictions.from_logits(drawn.logits, drawn.labels, source="whole")


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, size=N).astype(float)


def dealt(rows: cb.Predictions, weights: np.ndarray, folder: Path, cuts: Sequence[int]):
    folder.mkdir()
    visit = np.arange(rows.n) // 10
    for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, rows.n], strict=True)):
        np.savez(
            folder / f"{i}.npz",
            logits=rows.scores[a:b],
            labels=rows.labels[a:b],
            weight=weights[a:b],
            visit=visit[a:b],
        )
    return cb.Shards(folder)


def weighed(rows: cb.Predictions, weights: np.ndarray) -> cb.Predictions:
    return cb.Predictions.from_logits(rows.scores, rows.labels, sample_weight=weights)


def test_whole_weights_are_repeated_rows(
    whole: cb.Predictions, counts: np.ndarray, tmp_path: Path
) -> None:
    shards = dealt(whole, counts, tmp_path / "w", [1000])
    repeated = whole.take(np.repeat(np.arange(N), counts.astype(int)))
    again = dealt(repeated, np.ones(repeated.n), tmp_path / "r", [2000])
    for path in (tmp_path / "r").iterdir():  # these are rows without weights
        held = dict(np.load(path))
        del held["weight"]
        np.savez(path, **held)
    again = cb.Shards(tmp_path / "r")
    first = cb.evaluate(shards, metrics=SUMMED, resamples=20, engine=ONE)
    second = cb.evaluate(again, metrics=SUMMED, resamples=20, engine=ONE)
    for name in first.results:
        assert first[name].value == pytest.approx(second[name].value, rel=1e-11), name
    assert first.mean_confidence == pytest.approx(second.mean_confidence, rel=1e-12)
    assert first.n == np.count_nonzero(counts)
    for method in ("temperature", "temperature-laplace", "isotonic", "spline"):
        one, two = (
            cb.make_calibrator(method).fit_predictions(s, engine=ONE) for s in (shards, again)
        )
        np.testing.assert_allclose(
            one.predict_proba(whole.scores), two.predict_proba(whole.scores), atol=1e-6
        )


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e12])
def test_sampling_weights_say_what_they_say_of_one_file(
    whole: cb.Predictions, tmp_path: Path, scale: float
) -> None:
    weights = scale * np.random.default_rng(2).lognormal(sigma=1.0, size=N)
    shards = dealt(whole, weights, tmp_path / "w", [700, 701])
    found = cb.evaluate(shards, metrics=SUMMED, resamples=400, engine=ONE)
    known = cb.evaluate(weighed(whole, weights), metrics=SUMMED, resamples=400)
    assert found.weighted
    assert found.effective_rows == pytest.approx(known.effective_rows, rel=1e-6)
    np.testing.assert_allclose(found.gap, known.gap, rtol=1e-4)
    for name, result in known.results.items():
        cellwise = name in ("adaece", "smce", "ks", "slope")
        assert found[name].value == pytest.approx(
            result.value, **({"abs": 1e-3} if cellwise else {"rel": 1e-10})
        ), name
        width = result.high - result.low
        assert abs(found[name].low - result.low) + abs(found[name].high - result.high) < 0.3 * width
        if result.floor is not None:
            assert found[name].floor == pytest.approx(result.floor, rel=0.1), name
    fitted = cb.TemperatureScaling().fit_predictions(shards, engine=ONE)
    alone = cb.TemperatureScaling().fit_predictions(weighed(whole, weights))
    assert fitted.temperature_ == pytest.approx(alone.temperature_, rel=1e-6)
    smart = cb.SMART().fit_predictions(shards, engine=ONE)
    assert "each with its weight" in smart.fit_report_.notes[-1]
    expected = cb.SMART().fit_predictions(weighed(whole, weights))
    np.testing.assert_allclose(
        smart.predict_proba(whole.scores[:50]), expected.predict_proba(whole.scores[:50]), atol=1e-6
    )


def test_weights_dont_hang_on_how_rows_are_dealt(whole: cb.Predictions, tmp_path: Path) -> None:
    weights = np.random.default_rng(3).lognormal(sigma=2.0, size=N)
    weights[:40] = 0.0  # the first file of the second deal weighs nothing
    plan = plan_of(None, column="visit", clustered=True)
    deals = [dealt(whole, weights, tmp_path / "a", [1500])]
    deals.append(dealt(whole, weights, tmp_path / "b", [30, 2000, 2001]))
    first, second = (summed(shards, plan, ONE) for shards in deals)
    assert_same(first, second)
    assert first.n == N - 40
    one, two = (
        cb.evaluate(shards, clusters="visit", resamples=30, engine=ONE).as_dict()["metrics"]
        for shards in deals
    )
    assert one == two
    fits = [cb.TemperatureScaling().fit_predictions(s, engine=ONE) for s in deals]
    assert fits[0].beta_ == fits[1].beta_


def test_groups_and_clusters_take_weights(whole: cb.Predictions, tmp_path: Path) -> None:
    weights = np.random.default_rng(4).lognormal(size=N)
    shards = dealt(whole, weights, tmp_path / "w", [1500])
    rows = weighed(whole, weights)
    found = cb.evaluate_by(shards, "label", metrics=["nll"], resamples=20, engine=ONE)
    known = cb.evaluate_by(rows, "label", metrics=["nll"], resamples=20)
    for name, group in known.groups.items():
        assert found.groups[name]["nll"].value == pytest.approx(group["nll"].value, rel=1e-10)
    visits = rows.with_clusters(np.arange(N) // 10)
    apart = cb.evaluate(shards, clusters="visit", metrics=["nll"], resamples=400, engine=ONE)
    other = cb.evaluate(visits, metrics=["nll"], resamples=400)
    width = other["nll"].high - other["nll"].low
    assert apart["nll"].high - apart["nll"].low == pytest.approx(width, rel=0.2)
    np.testing.assert_allclose(apart.gap, other.gap, rtol=1e-3)


def test_what_weights_cant_be_is_said(whole: cb.Predictions, tmp_path: Path) -> None:
    fractions = np.full(N, 0.5)
    fractions[7] = 0.25
    shards = dealt(whole, fractions, tmp_path / "f", [100])
    with pytest.raises(NotApplicableError, match="takes weights that count rows"):
        cb.make_calibrator("bbq").fit_predictions(shards, engine=ONE)
    found = cb.evaluate(shards, metrics="all", resamples=5, engine=ONE)
    assert "takes weights that count rows" in found.skipped["debiased_rmsce"]
    assert "with weights" in found.skipped["classwise_ece"]
    bad = fractions.copy()
    bad[150] = -1.0
    with pytest.raises(PredictionsError, match=r"1.npz: 'weight' must be .* but row 50 holds -1"):
        cb.evaluate(dealt(whole, bad, tmp_path / "b", [100]), engine=ONE)
    nothing = dealt(whole, np.zeros(N), tmp_path / "z", [100])
    with pytest.raises(InputError, match="above 0 for at least one row"):
        cb.evaluate(nothing, engine=ONE)
    with pytest.raises(InputError, match="above 0 for at least one row"):
        cb.TemperatureScaling().fit_predictions(nothing, engine=ONE)
    np.savez(tmp_path / "f" / "2.npz", logits=whole.scores[:9], labels=whole.labels[:9])
    with pytest.raises(PredictionsError, match=r"2.npz: has no 'weight' for each row"):
        cb.Shards(tmp_path / "f")


def test_weights_of_another_name_are_told(whole: cb.Predictions, tmp_path: Path) -> None:
    weights = np.random.default_rng(6).lognormal(size=N)
    path = tmp_path / "a.npz"
    np.savez(path, logits=whole.scores, labels=whole.labels, importance=weights)
    one = cb.read_predictions(path, weight="importance")
    np.testing.assert_array_equal(one.weights, weights)
    shards = cb.Shards(path, weight="importance")
    found = cb.evaluate(shards, metrics=["nll"], resamples=5, engine=ONE)
    known = cb.evaluate(weighed(whole, weights), metrics=["nll"], resamples=5)
    assert found["nll"].value == pytest.approx(known["nll"].value, rel=1e-10)
    with pytest.raises(PredictionsError, match=r"a.npz: there is no 'mass' to hold the weights"):
        cb.Shards(path, weight="mass")
