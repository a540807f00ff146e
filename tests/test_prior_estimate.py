"""Shares of the classes in rows without labels: EM against brute force, intervals, tests."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scripts.shares_over_draws import EVEN, OTHER, draw

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import NotApplicableError
from calibrant.posthoc.accuracy_estimate import chance_of_mean, mean_with_covariance
from calibrant.posthoc.prior_estimate import estimated_shares
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
BEFORE = draw(np.random.default_rng(10), 1500, EVEN)
NEW = draw(np.random.default_rng(1), 1500, OTHER)
FITTED = cb.posthoc.StructuredVectorScaling().fit_predictions(BEFORE)
FOUND = cb.posthoc.estimate_prior(FITTED, NEW, BEFORE, resamples=50)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_em_ends_at_the_greatest_likelihood(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.5), 80)
    before, weights = probs.mean(axis=0), rng.uniform(0.5, 2, 80)

    def loss(free: np.ndarray) -> float:
        shares = np.exp([*free, 0.0])
        shares /= shares.sum()
        return float(-(weights @ np.log(probs @ (shares / before))) - before @ np.log(shares))

    best = minimize(loss, np.zeros(classes - 1), method="Nelder-Mead", options={"xatol": 1e-7})
    found = estimated_shares(probs, before, weights)
    assert found.sum() == pytest.approx(1)
    assert loss(np.log(found[:-1] / found[-1])) <= best.fun + 1e-5


def test_the_shares_of_shifted_rows_are_found_and_the_calibrator_gains_by_them() -> None:
    assert ((FOUND.low <= OTHER) & (FOUND.high >= OTHER)).all()
    assert FOUND.p_no_shift < 1e-6
    assert FOUND.p_nothing_else > 0.01
    assert not FOUND.notes
    rows = np.arange(NEW.n)
    losses = [
        -np.log(c.predict_proba(NEW.logits)[rows, NEW.labels]) for c in (FITTED, FOUND.calibrator)
    ]
    gain = losses[0] - losses[1]
    assert gain.mean() > 3 * gain.std() / np.sqrt(NEW.n)


def test_labels_of_the_new_rows_are_not_looked_at() -> None:
    blind = Predictions.from_logits(NEW.logits, None)
    found = cb.posthoc.estimate_prior(FITTED, blind, BEFORE, resamples=2)
    np.testing.assert_array_equal(found.shares, FOUND.shares)


def test_a_weight_of_two_is_a_row_twice() -> None:
    index = np.r_[np.arange(NEW.n), np.arange(200)]
    weights = np.ones(NEW.n)
    weights[:200] = 2
    twice = cb.posthoc.estimate_prior(FITTED, NEW.take(index), BEFORE, resamples=2)
    weighed = replace(NEW, weights=weights)
    found = cb.posthoc.estimate_prior(FITTED, weighed, BEFORE, resamples=2)
    np.testing.assert_allclose(found.shares, twice.shares, atol=2e-4)


def test_equal_shares_are_no_shift_and_intervals_widen_for_clusters() -> None:
    same = draw(np.random.default_rng(2), 1500, EVEN)
    found = cb.posthoc.estimate_prior(FITTED, same, BEFORE, resamples=30)
    assert found.p_no_shift > 0.01
    assert "No change of the class shares is shown" in repr(found)
    copies = same.take(np.repeat(np.arange(300), 5))
    alone = cb.posthoc.estimate_prior(FITTED, copies, BEFORE, resamples=30)
    together = replace(copies, clusters=np.repeat(np.arange(300), 5))
    clustered = cb.posthoc.estimate_prior(FITTED, together, BEFORE, resamples=30)
    assert (clustered.high - clustered.low).mean() > 1.3 * (alone.high - alone.low).mean()
    assert clustered.p_no_shift > alone.p_no_shift


def test_intervals_count_both_samples() -> None:
    few = BEFORE.take(slice(0, 300))
    fitted = cb.posthoc.StructuredVectorScaling().fit_predictions(few)
    found = cb.posthoc.estimate_prior(fitted, NEW, few, resamples=50)
    assert (found.high - found.low).mean() > 1.3 * (FOUND.high - FOUND.low).mean()


def test_the_test_of_a_mean_is_hotellings() -> None:
    from scipy.stats import ttest_1samp

    values = np.random.default_rng(3).normal(0.2, 1, (40, 1))
    mean, covariance = mean_with_covariance(values, np.arange(40), None)
    assert chance_of_mean(mean, covariance, 40) == pytest.approx(ttest_1samp(values, 0).pvalue[0])


def test_what_breaks_it_is_named() -> None:
    rng = np.random.default_rng(4)
    noisy = cb.posthoc.estimate_prior(FITTED, draw(rng, 1500, OTHER, 1.6), BEFORE, resamples=30)
    assert any("Something besides the class shares has changed" in note for note in noisy.notes)
    one = cb.TemperatureScaling().fit_predictions(BEFORE)
    biased = cb.posthoc.estimate_prior(one, NEW, BEFORE, resamples=5)
    assert any("no parameter for each class" in note for note in biased.notes)
    other = draw(rng, 800, EVEN)
    elsewhere = cb.posthoc.estimate_prior(FITTED, NEW, other, resamples=5)
    assert any("not fitted to" in note for note in elsewhere.notes)
    three = BEFORE.take(BEFORE.labels != 3)
    lacking = cb.posthoc.estimate_prior(
        cb.TemperatureScaling().fit_predictions(three), NEW, three, resamples=5
    )
    assert any(note.startswith("No row before is of class 3") for note in lacking.notes)
    top = cb.Predictions.from_confidence(VAL.probs.max(1), VAL.logits.argmax(1), VAL.labels)
    platt = cb.make_calibrator("platt").fit_predictions(top)
    with pytest.raises(NotApplicableError, match="every class from the logits alone"):
        cb.posthoc.estimate_prior(platt, top, top)


def test_it_has_all_the_faces_of_a_result() -> None:
    document = json.loads(json.dumps(FOUND.as_dict()))
    assert document["classes"][0]["share"] == FOUND.shares[0]
    assert list(FOUND.to_frame().columns) == ["class", "before", "share", "low", "high"]
    assert "class 0 has" in FOUND.headline()
    assert "| class |" in FOUND.to_markdown()


def test_kept_negatives_are_the_known_shares_of_two_classes() -> None:
    rng = np.random.default_rng(5)
    p = rng.uniform(0.02, 0.5, 400)
    rows = Predictions.from_binary(p, rng.uniform(size=400) < p, kind="prob")
    none = cb.make_calibrator("none").fit_predictions(rows)
    kept = cb.posthoc.with_kept_negatives(none, 0.1).predict_proba(p)[:, 1]
    np.testing.assert_allclose(kept, p / (p + (1 - p) / 0.1), rtol=1e-6)
    for wrong in (0.0, 1.5):
        with pytest.raises(cb.InputError, match="at most 1"):
            cb.posthoc.with_kept_negatives(none, wrong)
    with pytest.raises(NotApplicableError, match="two classes"):
        cb.posthoc.with_kept_negatives(FITTED, 0.1)


def test_fit_and_apply_estimate_shares_of_a_file(tmp_path, capsys) -> None:
    before, new = tmp_path / "before.npz", tmp_path / "new.npz"
    cb.write_predictions(BEFORE, before)
    np.savez(new, logits=NEW.logits)
    out, plain, rows = (str(tmp_path / n) for n in ("p.safetensors", "v.safetensors", "rows.npz"))
    words = ["fit", str(before), "--method", "svs", "--no-worth", "--out"]
    app([*words, out, "--prior", str(new)], standalone_mode=False)
    assert "The class shares have changed" in capsys.readouterr().out
    np.testing.assert_allclose(cb.load(out).log_ratio_, FOUND.calibrator.log_ratio_)
    app([*words, plain], standalone_mode=False)
    apply = ["apply", plain, str(new), "--out", rows, "--prior", str(new)]
    app([*apply, "--before", str(before)], standalone_mode=False)
    expected = FOUND.calibrator.predict_proba(NEW.logits)
    np.testing.assert_allclose(np.load(rows)["probs"], expected, atol=1e-6)
    with pytest.raises(cb.InputError, match="--before"):
        app(apply, standalone_mode=False)
    with pytest.raises(cb.InputError, match="give one of them"):
        app([*apply, "--kept-negatives", "0.1"], standalone_mode=False)
    decision = str(tmp_path / "d.safetensors")
    app(["decide", "svs", str(before), "--cover", "0.9", "--out", decision], standalone_mode=False)
    with pytest.raises(cb.InputError, match="the promise of a decision"):
        app(["apply", decision, *apply[2:], "--before", str(before)], standalone_mode=False)
