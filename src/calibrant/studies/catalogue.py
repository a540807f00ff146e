"""The studies that there are, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from calibrant.core.lookup import unknown
from calibrant.studies.cells import cells_of
from calibrant.studies.declaration import Study
from calibrant.studies.inputs import Inputs
from calibrant.studies.kinds import kind_named
from calibrant.studies.kinds.base import Need
from calibrant.studies.loading import read_study
from calibrant.studies.needing import can_run

_ENDING = ".toml"


def names() -> list[str]:
    """Return the names of all studies, tables of papers first."""
    places = files("calibrant.studies").joinpath("declared").iterdir()
    found = [place.name.removesuffix(_ENDING) for place in places if place.name.endswith(_ENDING)]
    return sorted(found, key=_order)


def _order(name: str) -> tuple[list[str], int, str]:
    """Return what sorts table 2 before table 10."""
    words = name.split("-")
    last = words[-1]
    number = int(last) if last.isdecimal() else 0
    return words[: -1 if number else None], number, last


@cache
def study_named(name: str) -> Study:
    """Return a study by its name, or by the path of a declaration of one's own (.toml).

    Raises:
        UnknownMethodError: there is none of that name.
        InputError: its file declares no study.
    """
    if name.endswith(_ENDING):
        study = read_study(Path(name))
    elif name not in names():
        raise unknown(names(), name, "study")
    else:
        place = files("calibrant.studies").joinpath("declared", f"{name}{_ENDING}")
        with as_file(place) as path:
            study = read_study(path, name)
    kind_named(study.kind).check(study)
    return study


def needs_of(study: Study) -> list[Need]:
    """Return what all cells of a study need, each once."""
    kind = kind_named(study.kind)
    return list(dict.fromkeys(need for cell in cells_of(study) for need in kind.needs(cell)))


def summary(study: Study, inputs: Inputs) -> dict[str, Any]:
    """Return what a list of studies says of one.

    Args:
        study: the study.
        inputs: those that are given; it can run if they hold all that some cell needs.
    """
    return {
        "name": study.name,
        "title": study.title,
        "paper": study.paper,
        "needs": [f"{need.input}: {need.what}" for need in needs_of(study)],
        "runnable": can_run(study, inputs),
    }
