"""What a fit is worth: numbers of rows that it hasn't seen, and what the command does with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import Outcome

import calibrant as cb
from calibrant.cli.app import run
from calibrant.core.errors import InputError
from calibrant.core.progress import Progress
from calibrant.posthoc.fitting.cross_validation import fold_numbers
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.posthoc.worth import cross_fitted

VAL = cb.load_sample("validation")
FEW: dict[str, Any] = {"resamples": 60}


def drawn(rows: int, temperature: float, seed: int = 0) -> cb.Predictions:
    """Return rows whose confidences a temperature would make honest."""
    return cb.synthetic.tempered(rows, 5, temperature=temperature, seed=seed).predictions


def top_labels(rows: int) -> cb.Predictions:
    rng = np.random.default_rng(1)
    c = rng.beta(5, 1, rows)
    wrong = (rng.random(rows) >= c**2).astype(int)
    return cb.Predictions.from_confidence(c, np.zeros(rows, int), wrong)


def test_rows_are_mapped_by_a_fit_to_the_other_folds() -> None:
    rows = drawn(400, 2.0)
    found = cb.posthoc.cross_validated("temperature", rows, seed=3, **FEW)
    parts = fold_numbers(rows.summary, 5, 3, blind=True)
    losses = np.empty(400)
    for part in range(5):
        seen, unseen = rows.take(parts != part), rows.take(parts == part)
        probs = TemperatureScaling().fit_predictions(seen).predict_proba(unseen.logits)
        losses[parts == part] = -np.log(probs[np.arange(unseen.n), unseen.labels])
    assert found.after["nll"].value == pytest.approx(losses.mean(), rel=1e-6)
    own = cb.evaluate(rows, metrics=["nll"], **FEW)["nll"].value
    assert found.before["nll"].value == own
    assert found.differences["nll"].value == pytest.approx(losses.mean() - own, rel=1e-6)


def test_a_fit_that_gains_says_how_much_in_two_sentences() -> None:
    found = cb.posthoc.cross_validated("temperature", drawn(1500, 3.0), **FEW)
    assert found.state == "gain"
    text = found.headline()
    assert text.startswith("On held-out rows temperature gains: NLL ")
    assert text.count(". ") == 1  # numbers have no space behind their point
    for evaluation in (found.before, found.after):
        assert f"{evaluation['nll'].value:.4f}" in text
        assert f"{100 * evaluation['ece'].value:.2f} %" in text
        assert f"{100 * evaluation.mean_confidence:.1f} %" in text
    assert "accuracy stays" in text
    assert found.advice() == ""
    lower = found.differences["nll"]
    assert f"{-lower.value:.4f} lower ({-lower.high:.4f} to {-lower.low:.4f})" in text


def test_honest_confidences_gain_nothing_and_are_called_honest() -> None:
    found = cb.posthoc.cross_validated("temperature", drawn(1500, 1.0), **FEW)
    assert found.state == "no gain"
    assert "shows no gain in NLL beyond noise" in found.headline()
    assert found.advice() == "The confidences can't be told from calibrated ones before the fit."


def test_a_map_that_loses_is_said_to_make_it_worse() -> None:
    honest = drawn(3000, 1.0)
    flat = cb.make_calibrator("histogram", n_bins=1)  # the accuracy for every row
    found = cb.posthoc.cross_validated(flat, honest, **FEW)
    assert found.state == "loss"
    assert "histogram makes it worse" in found.headline()


def test_the_interval_of_the_gain_holds_the_true_one() -> None:
    held = 0
    world = drawn(20_000, 1.3, seed=99)
    for seed in range(40):
        rows = drawn(200, 1.3, seed=seed)
        change = cb.posthoc.cross_validated("temperature", rows, resamples=2).differences["nll"]
        fitted = TemperatureScaling().fit_predictions(rows).apply_predictions(world)
        true = np.subtract(
            *(
                cb.evaluate(each, metrics=["nll"], resamples=2)["nll"].value
                for each in (fitted, world)
            )
        )
        held += change.low <= true <= change.high
    assert held >= 36  # 38 are expected; fewer than 36 in 1 of 20 such tests of an honest one


@pytest.mark.parametrize("as_weights", [False, True])
def test_copies_of_a_row_are_held_out_together(as_weights: bool) -> None:
    few = drawn(100, 2.0)
    if as_weights:
        rows = cb.Predictions.from_logits(few.logits, few.labels, sample_weight=np.full(100, 3.0))
        rows = rows.repeated_together()
    else:
        rows = few.take(np.repeat(np.arange(100), 3))
    mapped = cross_fitted(cb.make_calibrator("temperature"), rows)
    after = np.asarray(mapped.scores).reshape(100, 3, 5)
    np.testing.assert_array_equal(after[:, :1], after[:, 1:2])
    assert len(np.unique(mapped.clusters)) == 100
    found = cb.posthoc.cross_validated("temperature", rows, **FEW)
    assert found.before.clusters == 100
    # They know no more than a hundred rows do.
    once = cb.posthoc.cross_validated("temperature", few, **FEW).differences["nll"]
    width = found.differences["nll"].high - found.differences["nll"].low
    assert width == pytest.approx(once.high - once.low, rel=0.2)


def test_clusters_stay_whole_and_weights_count() -> None:
    few = drawn(300, 2.0)
    clusters, weight = np.arange(300) // 6, np.where(np.arange(300) % 2 == 0, 2.0, 1.0)
    rows = cb.Predictions.from_logits(few.logits, few.labels, clusters=clusters)
    assert cb.posthoc.cross_validated("temperature", rows, **FEW).before.clusters == 50
    weighed = cb.Predictions.from_logits(few.logits, few.labels, sample_weight=weight)
    found = cb.posthoc.cross_validated("temperature", weighed, **FEW)
    own = -np.log(np.asarray(few.probs)[np.arange(300), few.labels])
    assert found.before["nll"].value == pytest.approx((own * weight).sum() / weight.sum())


def test_top_labels_and_events_are_judged_by_their_own_score() -> None:
    top = cb.posthoc.cross_validated("beta", top_labels(1500), **FEW)
    assert (top.score, top.state) == ("top_nll", "gain")
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 1500)
    event = cb.Predictions.from_binary(p, rng.random(1500) < p**2)
    binary = cb.posthoc.cross_validated("platt", event, **FEW)
    assert (binary.score, binary.state) == ("nll", "gain")


def test_what_can_not_be_held_out_is_refused() -> None:
    rows = drawn(50, 2.0)
    with pytest.raises(InputError, match="folds must be at least 2"):
        cb.posthoc.cross_validated("temperature", rows, folds=1)
    with pytest.raises(InputError, match="at least two rows"):
        cb.posthoc.cross_validated("temperature", rows.take(slice(1)))
    scores = replace(top_labels(50), kind="score")
    with pytest.raises(InputError, match="scores aren't probabilities"):
        cb.posthoc.cross_validated("platt", scores)
    one = cb.Predictions.from_logits(rows.logits, rows.labels, clusters=np.zeros(50, int))
    with pytest.raises(InputError, match="one cluster"):
        cb.posthoc.cross_validated("temperature", one)


def test_progress_names_the_folds_and_the_calibrator_stays_unfitted() -> None:
    heard: list[Progress] = []
    scaling = TemperatureScaling()
    cb.posthoc.cross_validated(scaling, drawn(100, 2.0), folds=3, watch=heard.append, **FEW)
    assert [each.step for each in heard] == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3"]
    assert [(each.done, each.of) for each in heard] == [(0, 3), (1, 3), (2, 3)]
    assert not hasattr(scaling, "fit_report_")


def test_its_page_and_json_hold_what_it_prints(tmp_path: Path) -> None:
    found = cb.posthoc.cross_validated("temperature", drawn(300, 2.0), **FEW)
    found.to_html(tmp_path / "worth.html")
    page = (tmp_path / "worth.html").read_text()
    assert "On held-out rows temperature" in page
    assert page.count("<tr>") == 5
    assert "<script" not in page
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["metrics"]["nll"]["after"] == found.after["nll"].value
    assert [row["metric"] for row in found.records()] == ["nll", "ece", "confidence", "accuracy"]


# --- the command


@pytest.fixture
def fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Outcome, cb.Calibrator]]:
    def call(rows: cb.Predictions, *words: str) -> tuple[Outcome, cb.Calibrator]:
        cb.write_predictions(rows, tmp_path / "rows.npz")
        saved = tmp_path / "saved.safetensors"
        code = run(["calibrant", "fit", str(tmp_path / "rows.npz"), *words, "--out", str(saved)])
        out, err = capsys.readouterr()
        return Outcome(code, " ".join(out.split()), err), cb.load(saved)

    return call


def test_fit_says_and_saves_what_it_is_worth(fit: Any) -> None:
    said, saved = fit(drawn(600, 3.0), "--method", "temperature")
    assert said.code == 0
    assert "On held-out rows temperature gains: NLL" in said.out
    worth = saved.fit_report_.worth
    assert worth["state"] == "gain"
    assert worth["finding"] in said.out
    said, saved = fit(drawn(600, 3.0), "--method", "temperature", "--no-worth")
    assert "held-out" not in said.out
    assert saved.fit_report_.worth is None


def test_without_a_gain_fit_saves_what_is_preferred(fit: Any) -> None:
    honest = drawn(600, 1.0)
    said, saved = fit(honest, "--method", "svs")
    assert saved.method == "svs"
    assert "no gain in NLL beyond noise" in said.out
    assert "saved all the same; --no-gain temperature or --no-gain none" in said.out
    for preferred in ("temperature", "none"):
        said, saved = fit(honest, "--method", "svs", "--no-gain", preferred)
        assert saved.method == preferred
        assert f"So {preferred} was saved instead." in said.out
        assert said.out.startswith(f"{preferred} fitted on 600 rows")
        assert saved.fit_report_.worth["method"] == "svs"
    said, saved = fit(drawn(600, 3.0), "--method", "svs", "--no-gain", "none")
    assert saved.method == "svs"


def test_many_files_are_judged_by_a_sample(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said, saved = fit(drawn(600, 3.0), "--method", "temperature", "--workers", "1")
    assert saved.fit_report_.worth["note"] == ""  # a sample of all is none
    monkeypatch.setattr("calibrant.posthoc.worth.SAMPLE_ROWS", 200)
    said, saved = fit(drawn(600, 3.0), "--method", "temperature", "--workers", "1")
    assert "Measured on a uniform sample of 200 of 600 rows." in said.out
    assert saved.fit_report_.worth["rows"] == 200
    assert saved.fit_report_.n == 600


def test_a_worth_that_can_not_be_measured_does_not_keep_a_fit_from_being_saved(
    fit: Any,
) -> None:
    rows = drawn(60, 2.0)
    one = cb.Predictions.from_logits(rows.logits, rows.labels, clusters=np.zeros(60, int))
    said, saved = fit(one, "--method", "temperature", "--cluster", "cluster")
    assert said.code == 0
    assert "The gain can't be measured: " in said.out
    assert saved.fit_report_.worth is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--no-gain", "svs"), "--no-gain is keep, temperature or none, not 'svs'"),
        (("--no-gain", "none", "--no-worth"), "--no-worth doesn't measure"),
    ],
)
def test_options_of_worth_that_do_not_go_together_are_refused(
    words: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cb.write_predictions(drawn(60, 2.0), tmp_path / "rows.npz")
    out = str(tmp_path / "saved.safetensors")
    assert run(["calibrant", "fit", str(tmp_path / "rows.npz"), "--out", out, *words]) == 2
    assert reason in capsys.readouterr().err
    assert not Path(out).exists()
