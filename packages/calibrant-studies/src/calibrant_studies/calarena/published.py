"""CalArena's published results: a CSV for each method of a benchmark, or several in one."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.files.bounds import check_regular

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
