"""The studies that there are, by name."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from calibrant.core.errors import UnknownMethodError
from calibrant_studies.cells import cells_of
from calibrant_studies.declaration import Study, read_study
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Need
from calibrant_studies.requirements import can_run

_ENDING = ".toml"


def names() -> list[str]:
    """Return the names of all studies, tables of papers first."""
    places = files("calibrant_studies").joinpath("declared").iterdir()
    found = [place.name.removesuffix(_ENDING) for place in places if place.name.endswith(_ENDING)]
    return sorted(found, key=_order)


def _order(name: str) -> tuple[list[str], int, str]:
    """Return what sorts table 2 before table 10, and figure 1c before figure 3."""
    words = name.split("-")
    number = re.fullmatch(r"(\d+)([a-z]?)", words[-1])
    if number is None:
        return words, 0, ""
    return words[:-1], int(number[1]), number[2]


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
        raise _unknown(name)
    else:
        place = files("calibrant_studies").joinpath("declared", f"{name}{_ENDING}")
        with as_file(place) as path:
            study = read_study(path, name)
    kind_named(study.kind).check(study)
    return study


def _unknown(name: str) -> UnknownMethodError:
    """Return the error about a name, with those that are like it: all of them would fill a page."""
    like = get_close_matches(name.lower().replace("_", "-"), names(), n=3)
    hint = f"; did you mean {' or '.join(repr(each) for each in like)}?" if like else ";"
    return UnknownMethodError(
        f"no study is called '{name}'{hint} `calibrant study list` has them all, and one of your "
        f"own is the path of a file that ends in {_ENDING}"
    )


def needs_of(study: Study) -> list[Need]:
    """Return what has to be provided for the cells of a study, each once."""
    kind, always = kind_named(study.kind), Inputs({})
    needs = dict.fromkeys(need for cell in cells_of(study) for need in kind.needs(cell))
    return [need for need in needs if need.lacking(always)]


def summary(study: Study, inputs: Inputs) -> dict[str, Any]:
    """Return a study's entry in the list of studies.

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
