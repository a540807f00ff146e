"""The accuracy to expect without labels: both ways by hand, intervals, and what breaks it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri
from scripts.accuracy_over_shifts import drawn

import calibrant as cb
from calibrant.cli.app import app
from calibrant.posthoc import estimate_prior, expected_accuracy, with_prior
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
BEFORE = VAL.take(slice(0, 1000))
FITTED = cb.TemperatureScaling().fit_predictions(BEFORE)
FOUND = expected_accuracy(FITTED, TEST, BEFORE, resamples=40)


def accuracy(rows: Predictions) -> float:
    return float((np.asarray(rows.logits).argmax(axis=1) == rows.labels).mean())


def test_both_ways_are_those_of_their_definitions() -> None:
    old, new = (FITTED.predict_proba(each.logits).max(axis=1) for each in (BEFORE, TEST))
    right = BEFORE.logits.argmax(axis=1) == BEFORE.labels
    threshold = np.sort(old)[(~right).sum()]  # as many rows are above it as are right
    assert FOUND.values["cbpe"][0] == pytest.approx(new.mean(), abs=1e-6)
    assert FOUND.values["atc"][0] == pytest.approx((new >= threshold).mean())
    assert FOUND.accuracy_before == pytest.approx(right.mean())


def test_the_rows_of_the_fit_have_their_own_accuracy() -> None:
    found = expected_accuracy(FITTED, BEFORE, BEFORE, resamples=2)
    assert found.values["atc"][0] == pytest.approx(accuracy(BEFORE), abs=2e-3)


def test_intervals_hold_the_accuracy_and_count_the_fit_and_the_outcomes() -> None:
    for value, low, high in FOUND.values.values():
        assert low < accuracy(TEST) < high
        assert low < value < high
    noise = 1.96 * np.sqrt(0.8 * 0.2 / TEST.n)
    for _, low, high in FOUND.values.values():
        assert (high - low) / 2 > 1.3 * noise  # of 1 000 rows of a fit there is more
    fixed = expected_accuracy(FITTED, TEST, VAL.take(slice(1000, 5000)), resamples=40)
    assert "not fitted to" in fixed.notes[0]
    widths = [each.values["cbpe"][2] - each.values["cbpe"][1] for each in (fixed, FOUND)]
    assert widths[0] < widths[1]


def test_harder_rows_are_seen_and_damaged_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    hard = drawn(rng, TEST, "small margins", 3000)
    value, low, high = expected_accuracy(FITTED, hard, BEFORE, resamples=40).values["cbpe"]
    assert value < FOUND.values["cbpe"][0] - 0.03
    assert low < accuracy(hard) < high
    damaged = drawn(rng, TEST, "damaged", 3000)
    found = expected_accuracy(FITTED, damaged, BEFORE, resamples=10)
    assert all(low > accuracy(damaged) for _, low, _ in found.values.values())
    assert "only labels can reveal that" in " ".join(str(found).split())


def test_labels_are_not_looked_at_and_weights_count_rows() -> None:
    blind = Predictions.from_logits(TEST.logits, None)
    assert expected_accuracy(FITTED, blind, BEFORE, resamples=2).values == (
        expected_accuracy(FITTED, TEST, BEFORE, resamples=2).values
    )
    twice = TEST.take(np.r_[np.arange(TEST.n), np.arange(500)])
    weights = np.ones(TEST.n)
    weights[:500] = 2
    weighed = replace(TEST, weights=weights)
    for way in ("cbpe", "atc"):
        values = [
            expected_accuracy(FITTED, rows, BEFORE, resamples=2).values[way][0]
            for rows in (twice, weighed)
        ]
        assert values[0] == pytest.approx(values[1])
    clustered = replace(TEST, clusters=np.arange(TEST.n) // 5)
    notes = expected_accuracy(FITTED, clustered, BEFORE, resamples=2).notes
    assert any("within a cluster" in note for note in notes)


def in_clusters(rng: np.random.Generator, clusters: int) -> Predictions:
    """Return rows in clusters of ten, right and wrong together, with confidences that are true."""
    units = np.repeat(np.arange(clusters), 10)
    p = rng.beta(4, 2, len(units))
    latent = 0.8 * rng.normal(size=clusters)[units] + 0.6 * rng.normal(size=len(units))
    rows = Predictions.from_confidence(p, np.zeros(len(p)), (latent > ndtri(p)).astype(int))
    return replace(rows, clusters=units)


def test_intervals_hold_the_accuracy_of_rows_in_clusters() -> None:
    held, narrow = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        before, new = in_clusters(rng, 80), in_clusters(rng, 40)
        # Each resample fits anew; what stands for x would take ten more fits of each to choose.
        platt = cb.make_calibrator("platt", inputs="log-odds").fit_predictions(before)
        right = float((new.labels == 0).mean())
        for clustered in (True, False):
            given = [r if clustered else replace(r, clusters=None) for r in (new, before)]
            _, low, high = expected_accuracy(platt, *given, resamples=40).values["cbpe"]
            held += clustered and low <= right <= high
            narrow += not clustered and low <= right <= high
    assert held >= 17
    assert narrow < 15


def test_it_stands_behind_other_shares_and_takes_rows_of_one_number() -> None:
    prior = with_prior(FITTED, [0.55] + [0.05] * 9, BEFORE)
    found = expected_accuracy(prior, TEST, BEFORE, resamples=3)
    said = prior.predict_proba(TEST.logits).max(axis=1)
    assert found.values["cbpe"][0] == pytest.approx(said.mean(), abs=1e-6)
    assert not found.notes
    shifted = estimate_prior(FITTED, TEST, BEFORE, resamples=2).calibrator
    assert expected_accuracy(shifted, TEST, BEFORE, resamples=2).n == TEST.n
    top = Predictions.from_confidence(BEFORE.probs.max(1), BEFORE.logits.argmax(1), BEFORE.labels)
    platt = cb.make_calibrator("platt").fit_predictions(top)
    value = expected_accuracy(platt, top, top, resamples=2).values["cbpe"][0]
    assert value == pytest.approx(accuracy(BEFORE), abs=1e-3)


def test_apply_says_what_to_expect(tmp_path, capsys) -> None:
    cb.write_predictions(BEFORE, tmp_path / "before.npz")
    np.savez(tmp_path / "new.npz", logits=TEST.logits)
    FITTED.save(tmp_path / "c.safetensors")
    words = ["apply", str(tmp_path / "c.safetensors"), str(tmp_path / "new.npz"), "--expect"]
    words = [*words, "--out", str(tmp_path / "o.npz"), "--json", "-"]
    app([*words, "--before", str(tmp_path / "before.npz")], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)["expected"]
    assert document["values"][0]["accuracy"] == pytest.approx(FOUND.values["cbpe"][0], abs=1e-6)
    assert list(FOUND.to_frame().columns) == ["way", "accuracy", "low", "high"]
    with pytest.raises(cb.InputError, match="--before"):
        app(words, standalone_mode=False)
