"""The verdict of a comparison: the set of those that may be the best, and the rule on top of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrant.cli.output import as_json
from calibrant.comparison.compare import compare
from calibrant.comparison.verdict import decide
from calibrant.evaluation.best_set import covariance_of_means, may_be_best, may_have_best_mean
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.results import MetricResult
from calibrant.evaluation.sample import RowSample, losses_of
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


@pytest.mark.parametrize("kind", ["plain", "weighted", "clustered"])
def test_means_vary_together_as_on_very_many_resamples(kind: str):
    weights = np.linspace(0.1, 3, 300) if kind == "weighted" else None
    clusters = np.arange(300) // 10 if kind == "clustered" else None
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


def of(name: str, *, kept: bool = True, parameters: int = 1, **values: float) -> Any:
    """Return a compared method with these values, each with noise of .01 by 500 resamples."""
    results, losses = {}, np.zeros(500)
    for metric, value in values.items():
        rng = np.random.default_rng(sum(map(ord, name + metric)))
        drawn = value + 0.01 * rng.normal(size=500)
        results[metric] = MetricResult(METRICS[metric], value, value, value, replicates=drawn)
        if metric == "nll":  # whose noise is read off the rows, not off the resamples
            losses = value + (drawn - drawn.mean()) * 500**0.5
    return SimpleNamespace(
        name=name,
        keeps_accuracy=kept,
        calibrator=SimpleNamespace(n_parameters=parameters),
        evaluation=_Results(results, SimpleNamespace(weights=None)),
        losses={"nll": losses},
    )


class _Results(SimpleNamespace):
    def __init__(self, results: dict[str, MetricResult], scores: Any) -> None:
        super().__init__(
            results=results, level=LEVEL, sample=RowSample("test", "logits", 10, scores)
        )

    def __getitem__(self, name: str) -> MetricResult:
        return self.results[name]


def test_likelihood_decides_first_then_ece_then_kept_classes_then_simplicity():
    sharp = of("sharp", nll=0.3, ece=0.2, parameters=90)
    blunt = of("blunt", nll=0.9, ece=0.0, parameters=0)
    assert decide([blunt, sharp], LEVEL).recommended == "sharp"
    calm = of("calm", nll=0.3, ece=0.05, parameters=91)
    assert decide([blunt, sharp, calm], LEVEL).recommended == "calm"
    keeper = of("keeper", nll=0.305, ece=0.055, parameters=99)
    turner = replace_kept(calm, kept=False)
    assert decide([blunt, turner, keeper], LEVEL).recommended == "keeper"
    small = of("small", nll=0.306, ece=0.056, parameters=3)
    assert decide([blunt, turner, keeper, small], LEVEL).recommended == "small"


def replace_kept(method: Any, *, kept: bool) -> Any:
    return SimpleNamespace(**vars(method) | {"keeps_accuracy": kept})


def test_the_reasons_name_what_was_kept_at_each_step():
    methods = [
        of("none", nll=0.9, ece=0.3, parameters=0),
        of("turner", nll=0.3, ece=0.05, kept=False),
        of("big", nll=0.3, ece=0.05, parameters=40),
        of("small", nll=0.3, ece=0.05, parameters=2),
    ]
    verdict = decide(methods, LEVEL)
    assert verdict.recommended == "small"
    assert verdict.why == (
        "3 of 4 (turner, big and small) may have the lowest NLL; of these all 3 may have the "
        "lowest ECE. Of those that keep every predicted class, small has the fewest parameters (2)."
    )


def test_once_one_method_is_left_nothing_is_said_of_further_sets():
    verdict = decide([of("far", nll=0.9, ece=0.01), of("sharp", nll=0.3, ece=0.2)], LEVEL)
    assert verdict.why == (
        "Only sharp may have the lowest NLL. It keeps every predicted class and has 1 parameter."
    )


def test_without_a_proper_score_the_calibration_error_decides():
    verdict = decide([of("a", ece=0.4), of("b", ece=0.1, parameters=7)], LEVEL)
    assert verdict.recommended == "b"
    assert (
        verdict.why
        == "Only b may have the lowest ECE. It keeps every predicted class and has 7 parameters."
    )


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
    assert again.verdict.why == found.verdict.why


def test_json_and_print_say_the_verdict(found):
    document = json.loads(as_json(found.as_dict()))
    assert document["recommended"] == "svs"
    assert document["why"] == found.verdict.why
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
    assert "+" not in worse


def test_the_best_value_of_a_metric_is_always_in_its_set(found):
    for metric, names in found.may_be_best.items():
        assert names[0] == found.best_by(metric)
