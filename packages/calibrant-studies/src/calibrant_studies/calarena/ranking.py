"""Own and published methods in one ranking for each benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant_studies.calarena.protocol import (
    BY_DATASET,
    Estimates,
    Failures,
    blocks_of,
    elo_ratings,
    improvements,
    resampled_weights,
    win_rates,
)
from calibrant_studies.calarena.published import BASE, Key, Results


@dataclass(frozen=True)
class Ranking:
    """Methods of one benchmark, the one that wins most first.

    Attributes:
        benchmark: its name.
        metric: the score, lower is better.
        methods: M names.
        own: M truth values, whether a method was run here.
        experiments: number of experiments that all methods have.
        left_out: number of experiments that some method lacks.
        by_dataset: whether intervals resample data sets, rather than experiments.
        improvement: mean of the base model's score less the method's.
        win_rate: mean share of other methods that it beats.
        win_rate_published: the same against the published methods alone; None without any.
        elo: ratings.
    """

    benchmark: str
    metric: str
    methods: tuple[str, ...]
    own: tuple[bool, ...]
    experiments: int
    left_out: int
    by_dataset: bool
    improvement: Estimates
    win_rate: Estimates
    win_rate_published: Estimates | None
    elo: Estimates


def rank(results: Results, metric: str, seed: int = 0, failures: Failures = "lose") -> Ranking:
    """Rank all methods of a benchmark on the experiments that each of them has.

    Args:
        results: scores of all methods.
        metric: what to rank by, lower is better.
        seed: of the resamples.
        failures: what a method that failed on an experiment does there, see `protocol`.

    Raises:
        InputError: the base model is missing, there is only one method, or no experiment that all
            of them have.
    """
    if BASE not in results.scores:
        raise InputError(f"{results.benchmark}: there are no scores of the {BASE}")
    methods = [method for method, found in results.scores.items() if found.get(metric)]
    if len(methods) < 2:
        raise InputError(f"{results.benchmark}: {metric} of fewer than two methods is known")
    everywhere = _common(results, methods, metric)
    if not everywhere:
        raise InputError(
            f"{results.benchmark}: no experiment has a {metric} of all of {', '.join(methods)}"
        )
    scores = np.array(
        [[results.scores[method][metric][key] for method in methods] for key in everywhere]
    )
    weights = resampled_weights(
        blocks_of([dataset for dataset, _ in everywhere], results.benchmark), seed
    )
    published = [i for i, method in enumerate(methods) if method in results.published]
    own = [i for i in range(len(methods)) if i not in published]
    wins = win_rates(scores, weights, failures=failures, own=own)
    order: IntArray = np.argsort(-wins.values, kind="stable")
    return Ranking(
        results.benchmark,
        metric,
        tuple(methods[int(i)] for i in order),
        tuple(methods[int(i)] not in results.published for i in order),
        len(everywhere),
        len(results.sizes) - len(everywhere),
        results.benchmark in BY_DATASET,
        _sorted(improvements(scores, scores[:, methods.index(BASE)], weights), order),
        _sorted(wins, order),
        _sorted(_against(scores, published, own, weights, failures), order)
        if len(published) > 1
        else None,
        _sorted(elo_ratings(scores, weights, failures, own), order),
    )


def _against(
    scores: FloatArray,
    published: Sequence[int],
    own: Sequence[int],
    weights: FloatArray,
    failures: Failures,
) -> Estimates:
    """Return win rates against the published methods; of those, against the other ones."""
    found = win_rates(scores, weights, scores[:, list(published)], failures, own)
    share = np.ones(scores.shape[1])
    # Nobody beats itself: a published method has one opponent fewer.
    share[list(published)] = len(published) / (len(published) - 1)
    return Estimates(found.values * share, found.low * share, found.high * share)


def _sorted(found: Estimates, order: IntArray) -> Estimates:
    return Estimates(found.values[order], found.low[order], found.high[order])


def _common(results: Results, methods: Sequence[str], metric: str) -> list[Key]:
    return [
        key
        for key in results.sizes
        if all(key in results.scores[method][metric] for method in methods)
    ]
