"""Other shares of the classes behind a calibrator: Bayes' rule, kept in files."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import CalibratorFileError, NotApplicableError

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
RARE = np.array([0.01, *[0.11] * 9])


def test_it_is_bayes_rule_for_two_normal_classes() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=4000)
    x = rng.normal(size=4000) + y

    def log_odds(share: float) -> np.ndarray:
        return x - 0.5 + np.log(share / (1 - share))

    logits = np.stack([0 * x, log_odds(0.5)], axis=1)
    none = cb.make_calibrator("none").fit(logits, y)
    shifted = cb.posthoc.with_prior(none, {"0": 0.9, "1": 0.1}, [0.5, 0.5])
    exact = 1 / (1 + np.exp(-log_odds(0.1)))
    np.testing.assert_allclose(shifted.predict_proba(logits)[:, 1], exact, rtol=1e-12)


def test_the_same_shares_change_nothing_and_there_and_back_is_the_same() -> None:
    before = np.bincount(VAL.labels, minlength=10) / VAL.n
    same = cb.posthoc.with_prior(SCALING, before.tolist(), VAL)
    probs = SCALING.predict_proba(TEST.logits)
    np.testing.assert_allclose(same.predict_proba(TEST.logits), probs, atol=1e-6)
    there = cb.posthoc.with_prior(SCALING, RARE.tolist(), VAL)
    back = cb.posthoc.with_prior(there, before.tolist(), RARE.tolist())
    np.testing.assert_allclose(back.predict_proba(TEST.logits), probs, atol=1e-5)


def test_known_shares_lower_the_loss_on_rows_drawn_with_them() -> None:
    rng = np.random.default_rng(1)
    chance = RARE[TEST.labels] / np.bincount(TEST.labels)[TEST.labels]
    drawn = TEST.take(rng.choice(TEST.n, 4000, p=chance / chance.sum()))
    shifted = cb.posthoc.with_prior(SCALING, RARE.tolist(), VAL)
    losses = [
        -np.log(c.predict_proba(drawn.logits)[np.arange(4000), drawn.labels])
        for c in (SCALING, shifted)
    ]
    gain = losses[0] - losses[1]
    assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))


def test_a_file_keeps_it_and_a_damaged_one_is_refused(tmp_path) -> None:
    shifted = cb.posthoc.with_prior(SCALING, RARE.tolist(), VAL)
    shifted.save(tmp_path / "p.safetensors")
    kept = cb.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(
        kept.predict_proba(TEST.logits[:50]), shifted.predict_proba(TEST.logits[:50])
    )
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        cb.decide(kept, VAL, risk=0.05)
    shifted.log_ratio_ = np.zeros(3)
    shifted.save(tmp_path / "bad.safetensors")
    with pytest.raises(CalibratorFileError, match="shape"):
        cb.load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([0.5, 0.5], "each of 10 classes"),
        ([0.2] * 10, "sum to 1"),
        ([0.0, *[1 / 9] * 9], "above 0"),
        ({"0": 1.0}, "a share of each class"),
    ],
)
def test_shares_that_are_none_are_refused(prior, message: str) -> None:
    with pytest.raises(cb.InputError, match=message):
        cb.posthoc.with_prior(SCALING, prior, VAL)


def test_what_has_no_probability_for_every_class_is_refused() -> None:
    top = cb.Predictions.from_confidence(VAL.probs.max(1), VAL.logits.argmax(1), VAL.labels)
    platt = cb.make_calibrator("platt").fit_predictions(top)
    with pytest.raises(NotApplicableError, match="every class from the logits alone"):
        cb.posthoc.with_prior(platt, [0.5, 0.5], [0.5, 0.5])
    with pytest.raises(NotApplicableError, match="with_prior"):
        cb.posthoc.PriorShift().fit_predictions(VAL)


def test_fit_puts_it_behind_what_is_fitted(tmp_path, capsys) -> None:
    cb.write_predictions(VAL, tmp_path / "val.npz")
    shares = ",".join(f"{k}={share}" for k, share in enumerate(RARE.tolist()))
    out = str(tmp_path / "p.safetensors")
    words = ["fit", str(tmp_path / "val.npz"), "--method", "temperature", "--no-worth"]
    app([*words, "--out", out, "--prior", shares], standalone_mode=False)
    assert (
        "The probabilities of temperature are corrected for other class shares."
        in capsys.readouterr().out
    )
    expected = cb.posthoc.with_prior(SCALING, RARE.tolist(), VAL)
    np.testing.assert_allclose(cb.load(out).log_ratio_, expected.log_ratio_)
    with pytest.raises(cb.InputError, match="name=share for each class"):
        app([*words, "--out", out, "--prior", "0:0.5"], standalone_mode=False)
