"""Comparisons: what JSON holds, who is best or tied with the best, and which sets are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from feature_rows import rows_with_features

from calibrant.cli.output import as_json
from calibrant.comparison.compare import compare
from calibrant.comparison.comparison import Comparison
from calibrant.comparison.verdict import pair_p_values
from calibrant.core.errors import CalibrantError, InputError, UnknownMethodError
from calibrant.core.fit_report import FitReport
from calibrant.core.progress import Progress
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.metrics.registry import CORE_METRICS, METRICS
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.binning import HistogramBinning
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.temperature.scaling import TemperatureScaling, Uncalibrated
from calibrant.predictions.predictions import Predictions


@pytest.fixture(scope="module")
def sets(labelled_logits) -> dict[str, Predictions]:
    return {
        name: rows_with_features(*labelled_logits(1000, 4, seed=seed), source=f"{name}.npz")
        for seed, name in enumerate(("fit", "test"))
    }


@pytest.fixture(scope="module")
def everything(sets) -> Comparison:
    return compare("all", resamples=50, **sets)


def test_json_has_the_promised_keys(everything):
    document = json.loads(as_json(everything.as_dict()))
    assert (document["fit"], document["test"]) == ("fit.npz", "test.npz")
    assert {m["method"] for m in document["methods"]} == set(METHODS)
    assert document["best"] == everything.best
    for method in document["methods"]:
        assert set(method) >= {
            "method",
            "fit_seconds",
            "apply_seconds",
            "parameters",
            "keeps_accuracy",
            "metrics",
        }
        assert isinstance(method["keeps_accuracy"], bool)
        assert isinstance(method["parameters"], int)
        assert method["fit_seconds"] >= 0
        assert set(method["metrics"]) >= {"ece", "adaece", "smce", "smece", "nll", "brier"}
        for numbers in method["metrics"].values():
            assert set(numbers) >= {"value", "low", "high", "floor", "floor_95"}
            assert numbers["low"] <= numbers["value"] <= numbers["high"]
        assert method["metrics"]["ece"]["floor"] > 0
        assert method["metrics"]["nll"]["floor"] is None


def test_json_is_strict_whatever_the_numbers_are():
    text = as_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": (True, None, "x")})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": [True, None, "x"]}


def test_methods_are_ranked(everything):
    values = [m.evaluation["ece"].value for m in everything.methods]
    # What differs by rounding alone is equal.
    rounded = [round(value, 9) for value in values]
    assert rounded == sorted(rounded)
    assert everything.best == everything.methods[0].name
    assert everything[everything.best] is everything.methods[0]
    assert everything["none"].evaluation["ece"].value == max(values)
    with pytest.raises(KeyError):
        everything["magic"]


def test_numbers_are_those_of_evaluate(everything, sets):
    calibrator = TemperatureScaling().fit(sets["fit"].logits, sets["fit"].labels)
    probs = calibrator.predict_proba(sets["test"].logits)
    alone = evaluate(probs, sets["test"].labels, resamples=50)
    for name, result in everything["temperature"].evaluation.results.items():
        assert result.as_dict() == alone[name].as_dict()


def test_ranking_by_another_metric(sets):
    result = compare(["none", "temperature", "vector"], rank_by="nll", resamples=20, **sets)
    assert result.best != "none"
    values = [m.evaluation["nll"].value for m in result.methods]
    assert values == sorted(values)
    by_accuracy = compare(["none", "vector"], rank_by="accuracy", resamples=20, **sets)
    values = [m.evaluation["accuracy"].value for m in by_accuracy.methods]
    assert values == sorted(values, reverse=True)
    # The metric that ranks is measured even if it was not asked for.
    few = compare(["none"], metrics=["nll"], rank_by="smce", resamples=20, **sets)
    assert set(few["none"].evaluation.results) == {"nll", "smce", "ece", "accuracy"}
    by_ks = compare(["none", "temperature"], rank_by="ks", resamples=20, **sets)
    assert set(by_ks["none"].evaluation.results) == {*CORE_METRICS, "ks"}
    values = [m.evaluation["ks"].value for m in by_ks.methods]
    assert values == sorted(values)
    assert by_ks.ranking().startswith("Lowest KS error: ")


def test_what_can_not_rank_is_refused_before_anything_is_fitted(sets):
    def unwanted(state: Progress) -> None:
        pytest.fail(f"{state.step} was fitted")

    with pytest.raises(InputError, match="one metric ranks"):
        compare(["none"], rank_by="all", watch=unwanted, **sets)
    single = sets["test"].take(np.arange(1))
    with pytest.raises(InputError, match="ranking by skce needs at least 2 rows, not 1"):
        compare(["none"], rank_by="skce", watch=unwanted, fit=sets["fit"], test=single)


def test_kept_classes_are_counted(everything, sets):
    for name, method in METHODS.items():
        if method.keeps_prediction:
            assert everything[name].keeps_accuracy
    original = sets["test"].logits.argmax(axis=1)
    probs = everything["vector"].calibrator.predict_proba(sets["test"].logits)
    assert everything["vector"].keeps_accuracy == bool((probs.argmax(axis=1) == original).all())


def test_what_loses_accuracy_is_said(sets):
    class Reversed(Uncalibrated):
        method = "reversed"

        def transform(self, xp, logits, features, learnt, *, masks=True):
            return super().transform(xp, -logits, features, learnt, masks=masks)

    result = compare([Reversed()], resamples=20, **sets)
    assert not result["reversed"].keeps_accuracy


def test_one_method_that_is_worse_is_not_tied_and_a_copy_is(sets):
    result = compare(
        [TemperatureScaling(), Uncalibrated(), TemperatureScaling()], resamples=100, **sets
    )
    assert {m.name for m in result.methods} == {"temperature-1", "temperature-2", "none"}
    assert len(result.tied_with_best) == 1
    assert result.tied_with_best[0].startswith("temperature-")
    assert "none" not in result.tied_with_best
    assert "Can't be told apart" in result.ranking() or "tied" in result.ranking().lower()


def test_calibrators_may_be_given_as_such(sets):
    given = HistogramBinning(n_bins=3)
    result = compare(["none", given], resamples=20, **sets)
    assert result["histogram"].calibrator is given
    assert given.n_parameters == 3


def test_one_name_is_enough(sets):
    assert [m.name for m in compare("smart", resamples=20, **sets).methods] == ["smart"]


def test_methods_are_left_out_without_what_they_need(sets):
    bare = {name: replace(rows, features=None, head=None) for name, rows in sets.items()}
    names = ["none", "dac", "feature-clipping"]
    result = compare(names, resamples=20, **bare)
    reason = "it needs features of shape (N, D), and fit.npz has no 'features'"
    assert result.skipped == dict.fromkeys(names[1:], reason)
    assert result.as_dict()["skipped"][0]["method"] == "dac"
    # One line for all that lack the same, and so for warnings.
    assert "dac, feature-clipping left out: they need features" in str(result)
    # Where there are features to fit on but none to apply to, or no last layer.
    result = compare(names, fit=sets["fit"], test=bare["test"], resamples=20)
    assert result.skipped["dac"] == reason.replace("fit.npz", "test.npz")
    headless = replace(sets["fit"], head=None)
    result = compare(names, fit=headless, test=sets["test"], resamples=20)
    assert result.skipped == {
        "feature-clipping": "it needs the last layer, and fit.npz has no 'head_weight' and "
        "'head_bias'"
    }
    narrow = replace(sets["test"], features=sets["test"].features[:, :2])
    result = compare(names, fit=sets["fit"], test=narrow, resamples=20)
    width = sets["fit"].features.shape[1]
    reason = f"fit.npz has {width} features, but test.npz 2"
    assert result.skipped == dict.fromkeys(names[1:], reason)
    # It is learnt once: to apply takes none.
    without = {"fit": sets["fit"], "test": replace(sets["test"], head=None)}
    assert not compare(names, resamples=20, **without).skipped


def test_warnings_of_a_fit_are_kept_and_not_raised(sets, labelled_logits):
    logits, _ = labelled_logits(200, 4, seed=5)
    all_right = Predictions.from_logits(logits, logits.argmax(axis=1))
    result = compare(["temperature", "none"], fit=all_right, test=sets["test"], resamples=20)
    assert "classified correctly" in result["temperature"].warnings[0]
    assert result["none"].warnings == ()
    assert "classified correctly" in str(result)
    result = compare(["temperature", "ets"], fit=all_right, test=sets["test"], resamples=20)
    assert str(result).count("classified correctly") == 1
    assert ": all 200 calibration rows" in " ".join(str(result).split())


def test_a_tie_in_rank_is_kept_in_order(sets):
    class First(Uncalibrated):
        method = "first"

        def _fit(self, predictions) -> FitReport:
            return super()._fit(predictions)

    calibrators: list[str | Calibrator] = ["none", First()]
    assert compare(calibrators, resamples=20, **sets).best == "none"


def test_probabilities_are_calibrated_by_their_logarithm(sets):
    probs = {
        name: Predictions.from_probs(p.probs, p.labels, source=p.source) for name, p in sets.items()
    }
    ours = compare(["temperature"], resamples=20, **probs)["temperature"].evaluation
    theirs = compare(["temperature"], resamples=20, **sets)["temperature"].evaluation
    for name in METRICS:
        if name in ours.results:
            np.testing.assert_allclose(ours[name].value, theirs[name].value, atol=1e-5)


def test_progress_is_told_of_every_method(sets):
    seen: list[Progress] = []
    compare(["none", "temperature"], resamples=20, watch=seen.append, **sets)
    assert [(state.done, state.of, str(state)) for state in seen] == [
        (0, 2, "none"),
        (1, 2, "temperature"),
    ]


def test_text_has_all_methods_and_no_control_characters(everything):
    text = everything.to_text(every=True)
    for name in METHODS:
        assert name in text
    short = str(everything)
    shown = [method.name for method in everything.shown()]
    assert len(shown) < len(METHODS) // 2
    assert {"none", everything.recommended, everything.best} <= set(shown)
    assert {each.name for each in everything.verdict.alternatives} <= set(shown)
    rows = short.partition("\n---")[2].partition("\n\n")[0].splitlines()[1:]
    assert [row.split(" ")[0].rstrip("*") for row in rows] == shown
    assert f"and {len(METHODS) - len(shown)} more methods" in short
    assert all(c.isprintable() or c == "\n" for c in text)
    assert everything.ranking() in text.replace("\n", " ") or everything.ranking()[:40] in text


@pytest.mark.filterwarnings("ignore:the rows to fit on and to measure on are the same")
def test_sets_that_can_not_be_compared(sets, labelled_logits):
    other = Predictions.from_logits(*labelled_logits(50, 7), source="other.npz")
    with pytest.raises(InputError, match=r"fit.npz has 4 classes, but other.npz 7"):
        compare(["none"], fit=sets["fit"], test=other)
    top = Predictions.from_confidence([0.5, 0.7], [0, 1], [0, 0], source="top.csv")
    with pytest.raises(CalibrantError, match=r"svs: it needs a score for every class, and top.csv"):
        compare(["svs"], fit=top, test=top)
    with pytest.raises(InputError, match=r"other.npz holds scores of classes and top.csv doesn't"):
        compare(["none"], fit=top, test=other)
    with pytest.raises(InputError, match="at least one method"):
        compare([], **sets)
    with pytest.raises(UnknownMethodError, match="no method is called 'magic'"):
        compare(["magic"], **sets)
    for arguments in ({"rank_by": "luck"}, {"metrics": ["luck"]}):
        with pytest.raises(UnknownMethodError, match="no metric is called 'luck'"):
            compare(["none"], **arguments, **sets)
    with pytest.raises(InputError, match="resamples"):
        compare(["none"], resamples=1, **sets)


def test_p_values_of_many_pairs_are_those_of_each_pair():
    rng = np.random.default_rng(0)
    values = np.array([0.02, 0.021, 0.05, 0.3])
    drawn = values[:, None] + rng.normal(0, 0.01, (4, 200)) + rng.normal(0, 0.01, 200)
    for i in range(4):
        found = pair_p_values(values[i] - values[i + 1 :], drawn[i] - drawn[i + 1 :])
        wanted = [
            paired_difference(drawn[i], drawn[j], (values[i], values[j])).p_value
            for j in range(i + 1, 4)
        ]
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_bare_arrays_are_refused_with_what_to_pass(sets):
    pair = (sets["fit"].logits, sets["fit"].labels)
    with pytest.raises(InputError, match=r"Predictions\.from_logits\(logits, labels\)"):
        compare(["none"], fit=pair, test=sets["test"])
    with pytest.raises(InputError, match="Predictions or Shards for test, not tuple"):
        compare(["none"], fit=sets["fit"], test=pair)
    with pytest.raises(InputError, match="margin must be at least 0"):
        compare(["none"], margin=-1.0, **sets)
