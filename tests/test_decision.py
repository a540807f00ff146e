"""The verdict of a comparison: the set of those that may be the best, and the rule on top of it."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrant.cli.output import as_json
from calibrant.comparison.compare import compare
from calibrant.comparison.verdict import ComparedMethod, Verdict, decide
from calibrant.core.errors import InputError
from calibrant.evaluation.best_set import covariance_of_means, may_be_best, may_have_best_mean
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.sample import RowSample, losses_of
from calibrant.evaluation.uncertainty import Gap
from calibrant.metrics.registry import METRICS
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample

LEVEL = 0.95
METHODS = ["none", "temperature", "svs"]
SETS = {"fit": load_sample("validation"), "test": load_sample("test")}


def test_the_set_holds_the_truly_best_as_often_as_it_says():
    rng = np.random.default_rng(0)
    rows, methods, sets = 400, 6, 300
    mixing = rng.normal(size=(methods, methods))
    missed, of_means, fewer = np.zeros(2), np.zeros(2), 150  # the latter takes longer
    for i in range(sets):
        losses = rng.normal(size=(rows, methods)) @ mixing
        drawn = rng.multinomial(rows, np.full(rows, 1 / rows), size=200)
        for case, lead in enumerate((0.0, 0.1)):  # all are best; or the first is, by a little
            shifted = losses.mean(axis=0) - lead * (np.arange(methods) == 0)
            found = may_be_best(shifted, (drawn @ losses / rows).T, LEVEL)
            missed[case] += not found[0]
            if i < fewer:
                covariance = np.cov(losses.T, bias=True) / rows
                of_means[case] += not may_have_best_mean(shifted, covariance, LEVEL)[0]
    for counted, of in ((missed, sets), (of_means, fewer)):
        share, error = counted / of, np.sqrt(0.05 * 0.95 / of)
        assert share.max() < 0.05 + 3 * error
        # Where all are equally good, it is no surer than it says.
        assert share[0] > 0.05 - 2.7 * error


def test_the_set_leaves_out_what_is_worse_beyond_noise():
    noise = np.random.default_rng(1).normal(size=(4, 400))
    found = may_be_best(np.array([0.0, 0.5, 20.0, 30.0]), noise, LEVEL)
    assert found.tolist() == [True, True, False, False]


def test_methods_that_agree_on_every_row_are_in_or_out_together():
    noise = np.random.default_rng(2).normal(size=(2, 400))
    twins = np.vstack([noise[0], noise[0] + 0.25, noise[1]])
    assert may_be_best(np.array([1.0, 1.25, 1.1]), twins, LEVEL).tolist() == [True, False, True]
    same = np.vstack([noise[0], noise[0], noise[1]])
    assert may_be_best(np.array([1.0, 1.0, 1.1]), same, LEVEL).all()


def test_the_set_of_means_is_that_of_very_many_resamples():
    rng = np.random.default_rng(4)
    root = rng.normal(size=(5, 5))
    noise = root @ rng.normal(size=(5, 50_000))
    agree = [
        (may_have_best_mean(costs, root @ root.T, LEVEL) == may_be_best(costs, noise, LEVEL)).mean()
        for costs in 3 * rng.normal(size=(20, 5))
    ]
    assert np.mean(agree) > 0.95  # all but those at the very edge
    assert may_have_best_mean(np.array([2.0]), np.eye(1), LEVEL).all()
    # Twins are in or out together, and what is worse by the same on every row is out.
    twins = np.ones((3, 3)) + np.diag([0.0, 0.0, 1.0])
    found = may_have_best_mean(np.array([1.0, 1.0, 1.5]), twins, LEVEL)
    assert found.tolist() == [True, True, True]
    found = may_have_best_mean(np.array([1.0, 1.25, 1.1]), twins, LEVEL)
    assert found.tolist() == [True, False, True]


def drawn_rows(rows: int, *, weights: Any = None, clusters: Any = None) -> list[RowSample]:
    """Return two sets of probabilities of the same rows, scored."""
    rng = np.random.default_rng(6)
    labels = rng.integers(3, size=rows)
    found = []
    for _ in range(2):
        probs = rng.dirichlet([2, 2, 2], size=rows)
        given = Predictions.from_probs(probs, labels, sample_weight=weights, clusters=clusters)
        found.append(RowSample.of(given))
    return found


@pytest.mark.parametrize("kind", ["plain", "weighted", "clustered", "few clusters"])
def test_means_vary_together_as_on_very_many_resamples(kind: str):
    weights = np.linspace(0.1, 3, 300) if kind == "weighted" else None
    clusters = {"clustered": np.arange(300) // 10, "few clusters": np.arange(300) // 50}.get(kind)
    names, samples = ["nll", "accuracy"], drawn_rows(300, weights=weights, clusters=clusters)
    measured = [evaluate(each, metrics=names, resamples=4000) for each in samples]
    losses = [losses_of(each, [METRICS[name] for name in names]) for each in samples]
    for name in names:
        results = [each[name] for each in measured]
        covariance = covariance_of_means([each[name] for each in losses], samples[0])
        difference = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        drawn = (results[0].replicates - results[1].replicates).std()
        assert np.sqrt(difference) == pytest.approx(drawn, rel=0.06)


def test_who_may_be_best_in_a_mean_does_not_depend_on_the_resamples(found: Any):
    again = compare(METHODS, metrics=["smce"], resamples=25, seed=3, **SETS)
    assert again.may_be_best["nll"] == found.may_be_best["nll"]


def of(
    name: str, *, kept: bool = True, parameters: int = 1, floor: float = 1.0, **values: float
) -> Any:
    """Return a compared method with these values, each with noise of .01 by 500 resamples."""
    results, losses = {}, np.zeros(500)
    for metric, value in values.items():
        rng = np.random.default_rng(sum(map(ord, name + metric)))
        drawn = value + 0.01 * rng.normal(size=500)
        floors = (floor / 2, floor, 0.5) if metric == "ece" else (None, None, None)
        results[metric] = MetricResult(METRICS[metric], value, value, value, *floors, drawn)
        if metric == "nll":  # whose noise is read off the rows, not off the resamples
            losses = value + (drawn - drawn.mean()) * 500**0.5
    report = SimpleNamespace(notes=())
    method = SimpleNamespace(
        name=name,
        keeps_accuracy=kept,
        calibrator=SimpleNamespace(method=name, n_parameters=parameters, fit_report_=report),
        evaluation=_Results(results, SimpleNamespace(weights=None, confidence=np.full(500, 0.9))),
        losses={"nll": losses},
    )
    method.place = partial(ComparedMethod.place, method)
    return method


class _Results(SimpleNamespace):
    def __init__(self, results: dict[str, MetricResult], scores: Any) -> None:
        sample = RowSample("test", "logits", 10, scores)
        super().__init__(results=results, n=500, sample=sample, gap=Gap(0.2, 0.1, 0.3), level=LEVEL)

    def __getitem__(self, name: str) -> MetricResult:
        return self.results[name]


def prices(verdict: Verdict) -> dict[str, str]:
    return {each.reason: each.name for each in verdict.alternatives}


def top_labels(rows: int, seed: int, decimals: int = 9) -> Predictions:
    """Return overconfident top labels: right with the square of the confidence."""
    rng = np.random.default_rng(seed)
    c = rng.beta(5, 1, rows)
    wrong = (rng.random(rows) >= c**2).astype(int)
    return Predictions.from_confidence(c.round(decimals), np.zeros(rows, int), wrong)


def test_top_labels_are_decided_by_the_log_loss_of_being_right():
    methods = ["none", "temperature", "beta", "scaling-binning", "histogram"]
    sets: Any = {"fit": top_labels(2000, 0, 2), "test": top_labels(2000, 1, 2)}
    found = compare(methods, resamples=50, **sets)
    assert found.verdict.score == "top_nll"
    assert found.recommended == "beta"  # the square of c is a beta map, but for a constant
    losses = {m.name: m.evaluation["top_nll"].value for m in found.methods}
    assert min(losses, key=lambda name: losses[name]) == "beta"
    assert "lowest top-label NLL" in str(found.verdict)
    assert "top-label NLL" in str(found.as_table())
    # Few steps have the lower ECE here, and lose by the score.
    assert found.best == "histogram"
    assert losses["histogram"] > losses["beta"] + 0.04


def test_wrong_rows_whose_confidence_is_1_are_counted():
    sets: Any = {"fit": top_labels(500, 0, 1), "test": top_labels(500, 1, 1)}
    found = compare(["none", "histogram"], resamples=20, **sets)
    rows = sets["test"]
    sure = int(((rows.scores == 1) & (rows.predicted != rows.labels)).sum())
    assert sure > 3
    (said,) = found["none"].warnings
    assert said.startswith(f"{sure} rows turned out otherwise at a confidence of 1 or 0")
    assert found["histogram"].warnings == ()
    assert found.recommended == "histogram"


def test_auto_is_recommended_where_it_may_be_best_and_the_lowest_likelihood_elsewhere():
    sharp, auto = of("sharp", nll=0.3, ece=0.2), of("auto", nll=0.305, ece=0.3, parameters=90)
    assert decide([sharp, auto], LEVEL).recommended == "auto"
    assert " may have the lowest NLL: 0.3050 (sharp has 0.3000)" in str(
        decide([sharp, auto], LEVEL)
    )
    assert decide([sharp, of("auto", nll=0.5, ece=0.0)], LEVEL).recommended == "sharp"


def test_neither_calibration_error_nor_simplicity_nor_the_menu_decides():
    sharp = of("sharp", nll=0.3, ece=0.2, parameters=90, kept=False)
    others = [of("calm", nll=0.301, ece=0.0), of("small", nll=0.302, ece=0.1, parameters=0)]
    others += [of(f"other-{i}", nll=0.31 + 0.01 * i, ece=0.1) for i in range(9)]
    for number in range(len(others)):
        assert decide([*others[:number], sharp], LEVEL).recommended == "sharp"


def test_of_equal_likelihoods_the_simpler_method_is_recommended():
    twins = [of("twin", nll=0.3, ece=0.1, parameters=p) for p in (20, 1)]
    assert decide(twins, LEVEL).recommended == "twin"
    assert decide(twins, LEVEL).alternatives == ()


def test_alternatives_keep_classes_are_simple_or_calibrated_and_state_their_price():
    sharp = of("sharp", nll=0.3, ece=0.2, parameters=90, kept=False)
    keeper = of("keeper", nll=0.34, ece=0.2, parameters=91)
    small = of("small", nll=0.3005, ece=0.2, parameters=2, kept=False)
    calm = of("calm", nll=0.302, ece=0.05, parameters=92, kept=False)
    coarse = of("coarse", nll=0.9, ece=0.0, parameters=93)
    verdict = decide([coarse, sharp, keeper, small, calm], LEVEL)
    wanted = {"keeps classes": "keeper", "simplest": "small", "lowest ece": "calm"}
    assert (verdict.recommended, prices(verdict)) == ("sharp", wanted)
    (price,) = [each.price for each in verdict.alternatives if each.name == "keeper"]
    assert price.value == pytest.approx(0.04)
    assert price.low < 0.04 < price.high
    assert verdict.or_else.startswith("To keep every predicted class, use keeper: NLL +0.0400 (")
    simplest = "The simplest with NLL at most 0.001 higher is small (2 parameters): NLL "
    assert simplest in verdict.or_else
    both = decide([sharp, of("small", nll=0.3005, ece=0.2, parameters=2)], LEVEL).or_else
    assert both.startswith("To keep every predicted class, use small, the simplest with NLL at ")
    assert both.count("small") == both.count("NLL +") == 1
    # A margin of nothing leaves no simpler one, a wide one the simplest of all.
    assert "simplest" not in prices(decide([sharp, small], LEVEL, margin=0.0))
    tiny = of("tiny", nll=0.5, ece=0.2, parameters=1)
    assert prices(decide([sharp, small, tiny], LEVEL, margin=0.5))["simplest"] == "tiny"


def test_the_first_sentence_says_what_is_still_wrong_and_what_helps():
    off = of("off", nll=0.3, ece=0.2, floor=0.1)
    honest, worse = (
        of(name, nll=nll, ece=0.05, floor=0.1) for name, nll in (("a", 0.34), ("b", 1))
    )
    first = str(decide([off, worse, honest], LEVEL)).partition(". ")[0]
    assert first.startswith("Use off, but its confidences are still overconfident by 20.0 points")
    assert "; a corrects that, NLL +0.0400 (" in first
    assert "can't be told" not in decide([off, honest], LEVEL).why
    assert "none of these methods corrects that" in decide([off], LEVEL).lead
    assert decide([of("fine", nll=0.3, ece=0.05, floor=0.1), worse], LEVEL).caution == ""


def test_a_calibration_error_alone_decides_nothing():
    with pytest.raises(InputError, match="a verdict takes nll, brier or top_nll"):
        decide([of("a", ece=0.4), of("b", ece=0.1, parameters=7)], LEVEL)


@pytest.fixture(scope="module")
def found() -> Any:
    return compare(METHODS, metrics=["smce"], resamples=60, **SETS)


def test_the_verdict_does_not_hang_on_what_is_shown(found):
    assert {"nll", "ece"} <= set(found["none"].evaluation.results)
    again = compare(
        METHODS,
        metrics=["nll", "ece"],
        rank_by="nll",
        resamples=60,
        **SETS,
    )
    assert again.recommended == found.recommended == "svs"
    assert str(again.verdict) == str(found.verdict)


def test_json_and_print_say_the_verdict(found):
    document = json.loads(as_json(found.as_dict()))
    assert document["recommended"] == "svs"
    assert document["decided_by"] == "nll"
    for each in document["alternatives"]:
        nll = found[each["method"]].evaluation["nll"].value - found["svs"].evaluation["nll"].value
        assert each["price"]["value"] == pytest.approx(nll, abs=1e-12)
    assert document["why"] == str(found.verdict)
    assert set(document["may_be_best"]) == set(found["none"].evaluation.results)
    for names in document["may_be_best"].values():
        assert names
        assert set(names) <= set(METHODS)
    text = str(found)
    assert text.startswith("Use svs. ")
    line = next(line for line in text.splitlines() if line.startswith("svs"))
    nll = f"{found['svs'].evaluation['nll'].value:.4f}"
    assert f"{nll}+" in line
    worse = next(line for line in text.splitlines() if line.startswith("none"))
    own = found["none"].evaluation
    assert f"{own['nll'].value:.4f} " in worse
    assert worse.count("+") == 1  # its accuracy


def test_the_best_value_of_a_metric_is_always_in_its_set(found):
    for metric, names in found.may_be_best.items():
        assert names[0] == found.best_by(metric)
