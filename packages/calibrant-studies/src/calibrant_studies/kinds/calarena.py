"""One method on all experiments of a benchmark of CalArena, ranked among its published methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.outputs import replacing
from calibrant.posthoc.registry import make_calibrator
from calibrant_studies.calarena.experiments import (
    MADE,
    Experiments,
    MadeExperiments,
    StoredExperiments,
    scores_of,
)
from calibrant_studies.calarena.protocol import (
    blocks_of,
    improvements,
    resampled_weights,
)
from calibrant_studies.calarena.published_ranking import (
    BASE,
    MEASURES,
    RANKED_BY,
    Key,
    Results,
    check_same,
    column,
    entry,
    published_column,
    ranked,
    read_published,
)
from calibrant_studies.cells import Cell
from calibrant_studies.declaration import Study
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Kind, Measure, Need, seven_digits
from calibrant_studies.kinds.posthoc import check_arguments, method_code

PUBLISHED = "published"
_FILE = "the benchmark's HDF5 file of probabilities, as CalArena publishes it (--data PATH)"
_TABLES = "CalArena's folder of result tables, results/BENCHMARK/METHOD.csv (--data published=PATH)"


class CalArena(Kind):
    """Fit a method on every experiment of a benchmark, or take what was published of one."""

    version: ClassVar[str] = "3"
    defaults: ClassVar[Mapping[str, Any]] = {
        "arguments": {},  # of methods, by name
        PUBLISHED: "",  # name of a published method, in place of one that is run
        "failures": "lose",
    }

    own_measures: ClassVar[tuple[Measure, ...]] = MEASURES

    def check(self, study: Study) -> None:
        """Refuse, besides, arguments of methods that aren't there, which would be ignored."""
        super().check(study)
        check_arguments(study)

    def own_rows(self, named: Sequence[str], study: Study, inputs: Inputs) -> list[str]:
        return [name for name in named if name != PUBLISHED]

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        if self.setting(cell, PUBLISHED):
            return (Need(PUBLISHED, _TABLES),)
        return () if cell.input in MADE else (Need(cell.input, _FILE),)

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        tables = inputs[PUBLISHED].digest if PUBLISHED in inputs else None
        found = {"benchmark": cell.input, "failures": self.setting(cell, "failures")}
        name = self.setting(cell, PUBLISHED)
        if name:
            return found | {"published": name, "tables": tables}
        calibrator = make_calibrator(cell.method, **self._arguments(cell))
        return found | {
            "method": cell.method,
            "arguments": calibrator.get_params(),
            "tables": tables,
        }

    def _arguments(self, cell: Cell) -> dict[str, Any]:
        return dict(self.setting(cell, "arguments").get(cell.method, {}))

    def method_version(self, cell: Cell) -> str:
        return "" if self.setting(cell, PUBLISHED) else method_code(cell.method)

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        published = _published(inputs, cell.input)
        name = self.setting(cell, PUBLISHED)
        if name:
            if published is None or name not in published.scores:
                raise InputError(f"{cell.input}: the published tables hold no {name}")
            own = {
                key: {metric: of[key] for metric, of in published.scores[name].items()}
                for key in published.sizes
            }
            return self._result(cell, own, published, name)
        own, base = self._scores(cell, inputs, work / "experiments", published)
        return self._result(cell, own, published, None, base)

    def _scores(
        self, cell: Cell, inputs: Inputs, kept: Path, published: Results | None
    ) -> tuple[dict[Key, dict[str, float]], dict[Key, dict[str, float]] | None]:
        """Return the scores of a method, each kept as it comes, and those of the base model."""
        kept.mkdir(parents=True, exist_ok=True)
        known = None if published is None else published.scores.get(BASE)
        own: dict[Key, dict[str, float]] = {}
        base: dict[Key, dict[str, float]] = {}
        with _opened(cell.input, inputs) as stored:
            for number, experiment in enumerate(stored.experiments):
                key = (experiment.dataset, experiment.model)
                file = kept / f"{number}.json"
                found = _kept(file)
                if found is None:
                    found = {"method": _tried(stored, number, cell.method, self._arguments(cell))}
                    found["base"] = (
                        found["method"]
                        if cell.method == "none"
                        else _tried(stored, number, "none", {})
                    )
                    with replacing(file) as temporary:
                        temporary.write_text(json.dumps(found), encoding="utf-8")
                own[key], base[key] = found["method"], found["base"]
                if known is not None and published is not None:
                    check_same(cell.input, key, published, found["base"], experiment[3:5])
        return own, base

    def _result(
        self,
        cell: Cell,
        own: Mapping[Key, Mapping[str, float]],
        published: Results | None,
        name: str | None,
        base: Mapping[Key, Mapping[str, float]] | None = None,
    ) -> dict[str, Any]:
        keys = sorted(own)
        blocks = blocks_of([dataset for dataset, _ in keys], cell.input)
        weights = resampled_weights(blocks)
        values: dict[str, dict[str, float]] = {}
        replicates: dict[str, list[float]] = {}
        for metric in RANKED_BY:
            scores = column(own, keys, metric)
            of_base = (
                column(base, keys, metric)
                if base is not None
                else published_column(published, BASE, keys, metric)
            )
            found = improvements(scores[:, None], of_base, weights)
            values[f"improvement-{metric}"] = entry(found, 0)
            drawn = weights @ np.where(np.isnan(scores), 0.0, of_base - scores)
            drawn /= weights.sum(axis=1)
            replicates[f"improvement-{metric}"] = seven_digits(drawn)
            if published is not None:
                values |= ranked(
                    metric, scores, published, keys, weights, name, self.setting(cell, "failures")
                )
        for metric in ("ece-15", "accuracy", "time"):
            mean = column(own, keys, metric)
            if not np.isnan(mean).all():
                values[metric] = {"value": float(np.nanmean(mean))}
        failed = int(np.isnan(column(own, keys, "brier")).sum())
        values |= {"experiments": {"value": len(keys)}, "failures": {"value": failed}}
        if blocks.max() == 0:
            # Drawn again and again, one experiment has an interval without width, which is none.
            replicates = {}
            values = {measure: {"value": of["value"]} for measure, of in values.items()}
        return {
            "values": values,
            "replicates": replicates,
            "apart": published is not None and len(keys) < len(published.sizes),
            "pairing": f"{cell.input} {len(keys)}",
            "scores": {"/".join(key): dict(own[key]) for key in keys},
        }


def _tried(
    stored: Experiments, number: int, method: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scores of a method; where it fails, why."""
    try:
        calibrator = make_calibrator(method, **arguments)
        return dict(scores_of(stored, stored.experiments[number], calibrator))
    except CalibrantError as error:
        return {"error": str(error)}


def _kept(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(found) if {"method", "base"} <= set(found) else None


def _opened(name: str, inputs: Inputs) -> Any:
    if name in MADE:
        return nullcontext(MadeExperiments(name))
    return closing(StoredExperiments(str(inputs[name].path)))


def _published(inputs: Inputs, benchmark: str) -> Results | None:
    if PUBLISHED not in inputs:
        return None
    path = inputs[PUBLISHED].path
    return _tables(path, inputs[PUBLISHED].digest).get(benchmark)


@lru_cache(maxsize=2)
def _tables(path: Path, digest: str) -> dict[str, Results]:
    found = read_published([path])
    for results in found.values():
        # Variants that CalArena tries in an ablation of one method don't compete.
        for method in [name for name in results.scores if name.startswith("CB")]:
            del results.scores[method]
    return found
