"""Which network, with which map: simulated networks for which the answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli.app import run
from calibrant.comparison.models import ModelComparison
from calibrant.core.errors import InputError
from calibrant.posthoc.temperature.scaling import TemperatureScaling

TRUTH = cb.synthetic.tempered(3000, 5, temperature=1.0).predictions
FEW: dict[str, Any] = {"methods": "temperature", "resamples": 60}


def seen_through_noise(size: float, seed: int = 0, sharper: float = 1.0) -> cb.Predictions:
    """Return a network that knows less, with honest confidences or ones that are too sharp."""
    rng = np.random.default_rng(seed)
    logits = np.asarray(TRUTH.logits) + size * rng.normal(size=TRUTH.logits.shape)
    logits = logits * TemperatureScaling().fit(logits, TRUTH.labels).beta_
    return cb.Predictions.from_logits(sharper * logits, TRUTH.labels)


# It knows all that there is to know, and is far too sure.
SHARP = cb.Predictions.from_logits(4 * np.asarray(TRUTH.logits), TRUTH.labels)
HONEST = seen_through_noise(1.5)


@pytest.fixture(scope="module")
def found() -> ModelComparison:
    return cb.compare_models({"sharp": SHARP, "honest": HONEST}, **FEW)


def test_the_network_that_knows_more_is_recommended_with_the_map_that_it_needs(
    found: ModelComparison,
) -> None:
    assert (found.recommended.model, found.recommended.method) == ("sharp", "temperature")
    text = found.headline()
    assert text.startswith("Use sharp with temperature: NLL ")
    assert "Without a calibrator honest has the lowest NLL" in text
    assert "calibration changes the order" in text
    assert "has the lowest ECE, " in text
    assert found.may_be_best == [found.recommended]
    # One temperature gives back the truth, but for what five folds don't know of it.
    true = cb.evaluate(TRUTH, metrics=["nll"], resamples=2)["nll"].value
    assert found.recommended.evaluation["nll"].value == pytest.approx(true, abs=0.002)


def test_differences_are_those_of_the_rows(found: ModelComparison) -> None:
    first, second = found.of("sharp"), found.of("honest")
    pair = found.difference(first, second)
    losses = first.losses - second.losses
    assert pair.value == pytest.approx(losses.mean())
    assert pair.high - pair.value == pytest.approx(1.96 * losses.std() / 3000**0.5, rel=1e-3)
    mapped = found.difference(first, found.of("honest", "temperature"))
    assert mapped.high - mapped.low == pytest.approx(1.5 * (pair.high - pair.low), rel=0.02)
    ece = found.difference(first, second, "ece")
    assert ece.value == first.evaluation["ece"].value - second.evaluation["ece"].value


def test_networks_that_differ_by_a_temperature_can_not_be_told_apart() -> None:
    alike = cb.Predictions.from_logits(0.5 * np.asarray(HONEST.logits), HONEST.labels)
    twins = cb.compare_models({"a": HONEST, "b": alike}, **FEW)
    assert {entry.model for entry in twins.may_be_best} == {"a", "b"}
    assert "Not shown to be worse: " in twins.headline()
    nll = [twins.of(name, "temperature").evaluation["nll"].value for name in "ab"]
    assert nll[0] == pytest.approx(nll[1], abs=1e-6)


def test_at_matched_accuracy_every_network_is_as_often_right(found: ModelComparison) -> None:
    sharp, honest = found.of("sharp"), found.of("honest")
    assert sharp.accepted.coverage == 1
    assert found.target == sharp.evaluation.accuracy > honest.evaluation.accuracy
    scores = honest.evaluation.scores
    order = np.argsort(-scores.confidence)
    right = np.cumsum(scores.correct[order]) / np.arange(1, 3001)
    kept = int(np.flatnonzero(right >= found.target)[-1]) + 1
    assert honest.accepted.coverage == pytest.approx(kept / 3000)
    assert honest.accepted.low < honest.accepted.coverage < honest.accepted.high
    some = HONEST.take(np.sort(order[:kept]))
    wanted = cb.evaluate(some, metrics=["ece"], resamples=60)["ece"]
    assert honest.accepted.ece is not None
    assert honest.accepted.ece.value == wanted.value
    # Rows are chosen by their confidence alone, which leaves honest ones honest.
    assert honest.accepted.ece.at_floor
    assert not sharp.accepted.ece.at_floor
    assert found.difference(sharp, honest, "accepted").low > 0.05


def test_one_that_is_never_so_accurate_keeps_nothing() -> None:
    wrong = cb.Predictions.from_logits(-np.asarray(TRUTH.logits), TRUTH.labels)
    hopeless = cb.compare_models({"good": TRUTH, "bad": wrong}, **FEW)
    accepted = hopeless.of("bad").accepted
    assert (accepted.coverage, accepted.ece) == (0, None)
    assert "bad is never so accurate" in hopeless.matched()
    json.dumps(hopeless.as_dict(), allow_nan=False)


def test_weights_count_as_rows_do() -> None:
    sets = {"a": SHARP.take(slice(300)), "b": HONEST.take(slice(300))}
    weight = np.where(np.arange(300) % 3 == 0, 3.0, 1.0)
    weighed = {
        name: cb.Predictions.from_logits(rows.logits, rows.labels, sample_weight=weight)
        for name, rows in sets.items()
    }
    one = cb.compare_models(weighed, methods=[], resamples=60)
    many = cb.compare_models(
        {n: r.repeated() for n, r in weighed.items()}, methods=[], resamples=60
    )
    for name in "ab":
        first, second = one.of(name), many.of(name)
        assert first.evaluation["nll"].value == pytest.approx(second.evaluation["nll"].value)
        assert first.accepted.coverage == pytest.approx(second.accepted.coverage)
    assert one.target == pytest.approx(many.target)


def test_top_labels_of_several_networks_are_compared_by_the_loss_of_being_right() -> None:
    rng = np.random.default_rng(3)
    sure = rng.beta(5, 1, 1500)
    wrong = (rng.random(1500) >= sure).astype(int)
    labels = np.zeros(1500, int)
    honest = cb.Predictions.from_confidence(sure, wrong, labels)
    vague = cb.Predictions.from_confidence(np.full(1500, 0.9), wrong, labels)
    both = cb.compare_models({"vague": vague, "honest": honest}, methods="platt", resamples=60)
    assert both.score == "top_nll"
    assert both.recommended.model == "honest"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (HONEST.take(slice(100)), "a holds 3000 rows, and b 100"),
        (
            cb.Predictions.from_logits(HONEST.logits, np.roll(HONEST.labels, 1)),
            r"a and b differ in \d+ labels, first in row",
        ),
        (
            cb.Predictions.from_logits(np.zeros((3000, 6)), HONEST.labels),
            r"aren't predictions of one kind \(n_classes: 5 and 6\)",
        ),
        (
            cb.Predictions.from_logits(HONEST.logits, HONEST.labels, clusters=np.arange(3000) // 2),
            "have different clusters",
        ),
    ],
)
def test_other_rows_are_refused(other: cb.Predictions, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        cb.compare_models({"a": HONEST, "b": other}, **FEW)


def test_one_network_is_no_comparison() -> None:
    with pytest.raises(InputError, match="at least two"):
        cb.compare_models({"a": HONEST}, **FEW)


# --- the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("sharp", SHARP), ("honest", HONEST)):
        some = rows.take(slice(800))
        np.savez(f"{name}.npz", logits=some.logits, labels=some.labels, image=np.arange(800))
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["calibrant", "compare", *words])
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


def test_the_command_names_networks_after_their_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sharp.npz", "honest.npz", "--methods", "temperature", "--resamples", "40")
    code, out, err = call(capsys, "--models", *words, "--report", "page.html", "--id", "image")
    assert (code, err) == (0, "")
    assert out.startswith("Use sharp with temperature: NLL ")
    assert "ECE at equal accuracy (" in out
    assert "without a calibrator: sharp" in out
    *rest, last = call(capsys, *words, "--seeds", "0")[:2]
    assert rest == [0]
    assert "--models compares the networks" in last
    page = (folder / "page.html").read_text()
    assert "Use sharp with temperature" in page
    assert page.count("<tr>") == 5
    _, out, _ = call(capsys, "--models", *words, "--json", "-")
    document = json.loads(out)
    assert document["recommended"] == {"model": "sharp", "method": "temperature"}
    assert document["models"] == {"sharp": "sharp.npz", "honest": "honest.npz"}


def test_the_command_refuses_other_rows_and_options_of_other_comparisons(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "--models", "sharp.npz")
    assert code == 2
    assert "at least two" in err
    code, _, err = call(capsys, "--models", "sharp.npz", "sharp.npz")
    assert code == 2
    assert "named twice" in err
    code, _, err = call(capsys, "--models", "sharp.npz", "honest.npz", "--seeds", "0-1")
    assert code == 2
    assert "leave out the other options" in err
    some = HONEST.take(slice(800))
    np.savez("other.npz", logits=some.logits, labels=some.labels, image=np.arange(800)[::-1])
    code, _, err = call(capsys, "--models", "sharp.npz", "other.npz", "--id", "image")
    assert code == 2
    assert "'image' differs between sharp and other" in err
