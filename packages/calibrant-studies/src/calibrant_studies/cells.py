"""The grid of a study: its cells, where each is kept, and what came of them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from calibrant_studies.declaration import INPUT, METHOD, Study, merged


@dataclass(frozen=True)
class Cell:
    """One point of a grid.

    Attributes:
        study: which asks for it.
        kind: which kind of cell it is.
        at: axis to the name of its value.
        seed: of everything random.
        settings: those of the study, with those of its values over them.
        metrics: what the study shows.
        of_method: those of the settings that its method brings along.
        forced: those of the settings that whoever runs the study has chosen.
    """

    study: str
    kind: str
    at: Mapping[str, str]
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metrics: tuple[str, ...] = ()
    of_method: Mapping[str, Any] = field(default_factory=dict[str, Any])
    forced: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def input(self) -> str:
        """The name of its input."""
        return self.at[INPUT]

    @property
    def method(self) -> str:
        """The name of its method: what its settings say, or else its value on that axis."""
        return str(self.settings.get(METHOD) or self.at[METHOD])

    def __str__(self) -> str:
        return ", ".join([*self.at.values(), f"seed {self.seed}"])


class Ran(NamedTuple):
    """A cell with its result, and whether that was kept from before."""

    cell: Cell
    result: Mapping[str, Any]
    reused: bool


class Failed(NamedTuple):
    """A cell that could not be computed, and why, in a sentence."""

    cell: Cell
    error: str


@dataclass(frozen=True)
class CellResults:
    """What the cells of a study came to.

    Attributes:
        study: what was asked.
        ran: cells with their results.
    """

    study: Study
    ran: Sequence[Ran]


def cells_of(study: Study) -> list[Cell]:
    """Return all cells, those of one input together."""
    found: list[Cell] = []
    for values in itertools.product(*study.axes.values()):
        at = {axis: value.name for axis, value in zip(study.axes, values, strict=True)}
        if any(all(at.get(axis) == name for axis, name in part.items()) for part in study.skip):
            continue
        over = [*(value.set for value in values), study.forced]
        settings = reduce(merged, over, dict(study.settings))
        of_method: Mapping[str, Any] = study.value(METHOD, at[METHOD]).set if METHOD in at else {}
        found += [
            Cell(study.name, study.kind, at, seed, settings, study.metrics, of_method, study.forced)
            for seed in study.seeds
        ]
    return found


def address(
    kind: str,
    version: str,
    configuration: Mapping[str, Any],
    data: Mapping[str, str],
    method: str,
) -> str:
    """Return the digest under which a cell's result is kept.

    Args:
        kind: of the cell.
        version: of that kind; another one computes something else.
        configuration: all that its result depends on, as JSON takes it, and nothing more: cells of
            several studies that agree in it are one.
        data: name of each input to its digest, in the order of the cell's needs: which input plays
            which part counts, its name doesn't.
        method: version of the method.
    """
    document = [kind, version, configuration, list(data.values()), method]
    text = json.dumps(document, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
