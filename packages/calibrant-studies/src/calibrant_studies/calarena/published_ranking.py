"""CalArena's published results: a CSV for each method of a benchmark, or several in one."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.files.gate import check_regular
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
from calibrant_studies.kinds.base import Measure

BASE = "Base-model"
METRICS = ("brier", "logloss", "kuiper", "ece-15", "accuracy", "time")
_BENCHMARK = re.compile(r".+-(binary|multiclass)$")
_SIZES = ("cal_size", "test_size")

Key = tuple[str, str]


@dataclass
class Results:
    """Scores of methods on the experiments of one benchmark.

    Attributes:
        benchmark: its name.
        sizes: of each experiment, by data set and model, how many rows were fitted on and measured.
        scores: by method and metric, the score on each experiment; NaN where the method failed.
        published: the methods whose scores were read from tables.
    """

    benchmark: str
    sizes: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, tuple[int, int]])
    scores: dict[str, dict[str, dict[Key, float]]] = field(
        default_factory=dict[str, dict[str, dict[Key, float]]]
    )
    published: set[str] = field(default_factory=set[str])

    def put(self, method: str, metric: str, key: Key, value: float) -> None:
        """Keep a score."""
        self.scores.setdefault(method, {}).setdefault(metric, {})[key] = value


def read_published(places: Iterable[Path]) -> dict[str, Results]:
    """Read result tables by benchmark.

    Args:
        places: CSV files, or folders that hold some, at any depth. The benchmark is the column of
            that name, or else the name of the folder or of the file, such as ``cv-binary``.

    Raises:
        InputError: no file, or a table that isn't of CalArena's layout.
    """
    found: dict[str, Results] = {}
    for place in places:
        for path in _files(Path(place)):
            _read(path, found)
    return found


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        check_regular(place, str(place), InputError)
        yield place
        return
    files = sorted(
        path for path in place.rglob("*.csv") if not path.name.endswith("-experiments.csv")
    )
    if not files:
        raise InputError(f"{place}: holds no CSV of results")
    yield from files


def _read(path: Path, found: dict[str, Results]) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        try:
            table = csv.DictReader(file)
            names = list(table.fieldnames or ())
            wanted = _columns(path, names)
            for number, row in enumerate(table):
                _keep(path, number, row, wanted, found)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}: isn't a CSV of results: {error}") from error


def _columns(path: Path, names: list[str]) -> dict[str, tuple[str, str]]:
    """Return method and metric of each column of scores."""
    missing = [name for name in ("dataset", "model", *_SIZES) if name not in names]
    if missing:
        raise InputError(
            f"{path}: there is no column '{missing[0]}'; expected dataset, model, cal_size, "
            "test_size and METHOD_METRIC for each metric"
        )
    split = {
        name: (name[: -len(metric) - 1], metric)
        for name in names
        for metric in METRICS
        if name.endswith(f"_{metric}")
    }
    if not split:
        raise InputError(
            f"{path}: there is no column of scores; expected METHOD_METRIC with one of "
            f"{', '.join(METRICS)}"
        )
    return split


def _keep(
    path: Path,
    number: int,
    row: dict[str, str],
    wanted: dict[str, tuple[str, str]],
    found: dict[str, Results],
) -> None:
    where = f"{path}: row {number}"
    benchmark = row.get("benchmark") or next(
        (name for name in (path.parent.name, path.stem) if _BENCHMARK.match(name)), None
    )
    if benchmark is None:
        raise InputError(
            f"{path}: which benchmark are these results of? Expected a folder or a file named like "
            "'cv-binary', or a column 'benchmark'"
        )
    results = found.setdefault(benchmark, Results(benchmark))
    key = (row["dataset"], row["model"])
    sizes = (int(_number(row[_SIZES[0]], where)), int(_number(row[_SIZES[1]], where)))
    if results.sizes.setdefault(key, sizes) != sizes:
        raise InputError(
            f"{where}: {'/'.join(key)} has {sizes[0]} and {sizes[1]} rows here, and "
            f"{results.sizes[key][0]} and {results.sizes[key][1]} in other tables of {benchmark}"
        )
    for name, (method, metric) in wanted.items():
        if key in results.scores.get(method, {}).get(metric, {}):
            raise InputError(f"{where}: {'/'.join(key)} has a second {metric} of {method}")
        # CalArena leaves the score empty where a method failed.
        value = _number(row[name], where) if row[name] else float("nan")
        results.put(method, metric, key, value)
        results.published.add(method)


def _number(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"{where}: {text!r} isn't a number") from None


# What cells of CalArena's study measure, and how their methods stand among the published ones.

RANKED_BY = {"logloss": "log loss", "brier": "Brier score"}


def _measures() -> tuple[Measure, ...]:
    found: list[Measure] = []
    for metric, title in RANKED_BY.items():
        found += [
            Measure(
                f"improvement-{metric}",
                f"{title}, improvement",
                100,
                2,
                "high",
                "100 times the mean of the base model's score minus the method's",
            ),
            Measure(
                f"wins-{metric}",
                f"{title}, wins",
                100,
                1,
                "high",
                "percent of CalArena's other published methods that it beats, mean of experiments",
            ),
            Measure(
                f"elo-{metric}",
                f"{title}, Elo",
                1,
                0,
                "high",
                "among CalArena's published methods, whose mean with it is 1000",
            ),
        ]
    found += [
        Measure("ece-15", "ECE", 100, 2, "low", "mean; of the positive class for binary ones"),
        Measure("accuracy", "accuracy", 100, 2, "high", "mean of experiments"),
        Measure("time", "seconds", 1, 2, "neither", "mean, to fit and to apply"),
        Measure("experiments", "experiments", 1, 0, "neither", "number of experiments"),
        Measure("failures", "failures", 1, 0, "low", "experiments on which it gave no result"),
    ]
    return tuple(found)


MEASURES = _measures()


def ranked(
    metric: str,
    scores: FloatArray,
    published: Results,
    keys: Sequence[Key],
    weights: FloatArray,
    name: str | None,
    failures: Failures,
) -> dict[str, dict[str, float]]:
    """Return win rate and rating of one method among the published ones.

    The method is Calibrant's, unless `name` is that of a published one.
    """
    own = (0,) if name is None else ()
    others = [each for each, of in published.scores.items() if each != name and of.get(metric)]
    field = np.array([published_column(published, each, keys, metric) for each in others]).T
    wins = win_rates(scores[:, None], weights, field, failures, own)
    ratings = elo_ratings(np.column_stack([scores, field]), weights, failures, own)
    return {f"wins-{metric}": entry(wins, 0), f"elo-{metric}": entry(ratings, 0)}


def entry(found: Estimates, place: int) -> dict[str, float]:
    """Return one estimate with its interval, as results of cells have it."""
    parts = (found.values, found.low, found.high)
    return dict(zip(("value", "low", "high"), (float(p[place]) for p in parts), strict=True))


def column(
    scores: Mapping[Key, Mapping[str, float]], keys: Sequence[Key], metric: str
) -> FloatArray:
    """Return (E,) scores; NaN where the method failed."""
    found = [scores[key].get(metric) for key in keys]
    return np.array([math.nan if value is None else value for value in found], np.float64)


def published_column(
    published: Results | None, method: str, keys: Sequence[Key], metric: str
) -> FloatArray:
    """Return (E,) published scores of a method."""
    of = {} if published is None else published.scores.get(method, {}).get(metric, {})
    missing = next((key for key in keys if key not in of), None)
    if missing is not None:
        raise InputError(
            f"{'' if published is None else published.benchmark}: the published tables have no "
            f"{metric} of {method} on {'/'.join(missing)}"
        )
    return np.array([of[key] for key in keys], np.float64)


# What float32 sums may differ by.

_SAME = 1e-4


def check_same(
    benchmark: str,
    key: Key,
    published: Results,
    base: Mapping[str, Any],
    sizes: tuple[int, int],
) -> None:
    """Refuse tables that aren't about the rows of the file."""
    where = f"{benchmark}: {'/'.join(key)}"
    if key not in published.sizes:
        raise InputError(f"{where}: the published tables don't have it")
    if tuple(published.sizes[key]) != tuple(sizes):
        raise InputError(
            f"{where}: has {sizes[0]} rows to fit on and {sizes[1]} to measure on in the file, and "
            f"{published.sizes[key][0]} and {published.sizes[key][1]} in the published tables"
        )
    for metric in RANKED_BY:
        said = published.scores[BASE].get(metric, {}).get(key)
        own = base.get(metric)
        if said is not None and own is not None and abs(said - own) > _SAME * max(1.0, abs(said)):
            raise InputError(
                f"{where}: the base model's {metric} is {own:.6g} on the rows of the file, and "
                f"{said:.6g} in the published tables; they aren't of the same probabilities"
            )


# Own and published methods in one ranking for each benchmark.


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
        improvement: mean of the base model's score minus the method's.
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
