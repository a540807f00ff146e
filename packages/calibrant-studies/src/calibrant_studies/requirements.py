"""The inputs that a study needs: which are there, and which to provide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calibrant.core.text import counted, wrap
from calibrant_studies.cells import Cell, cells_of
from calibrant_studies.declaration import Study
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Need
from calibrant_studies.store import kept_result


class Missing(NamedTuple):
    """An input that isn't there: its name, what to provide, how many cells wait for it."""

    input: str
    what: str
    cells: int


def what_to_provide(missing: Sequence[Missing]) -> str:
    """Return what to provide: a paragraph for each form, with the names in it."""
    forms: dict[str, list[Missing]] = {}
    for each in missing:
        forms.setdefault(each.what, []).append(each)
    return "\n".join(
        wrap(
            f"- {', '.join(each.input for each in of_form)} "
            f"({counted(sum(each.cells for each in of_form), 'cell')}): {what}"
        )
        for what, of_form in forms.items()
    )


def can_run_cell(cell: Cell, inputs: Inputs) -> bool:
    """Return whether all is there that a cell needs, or an earlier run's result of it is."""
    kind = kind_named(cell.kind)
    if not any(need.lacking(inputs) for need in kind.needs(cell)):
        return True
    return kept_result(cell, kind.version, inputs) is not None


def can_run(study: Study, inputs: Inputs) -> bool:
    """Return whether all is there that some cell of a study needs."""
    return any(can_run_cell(cell, inputs) for cell in cells_of(study))


def runnable_in_words(study: Study, inputs: Inputs) -> str:
    """Return "yes" where all cells can be computed, "in part" where some can, else "no"."""
    found = {can_run_cell(cell, inputs) for cell in cells_of(study)}
    return "in part" if len(found) == 2 else "yes" if True in found else "no"


def missing_of(study: Study, inputs: Inputs) -> list[Missing]:
    """Return what isn't there of what cells need, each with how many cells wait for it."""
    kind, found = kind_named(study.kind), dict[str, dict[Need, int]]()
    for cell in cells_of(study):
        if kept_result(cell, kind.version, inputs) is not None:
            continue
        for need in kind.needs(cell):
            of_input = found.setdefault(need.input, {})
            if need.lacking(inputs):
                of_input[need] = of_input.get(need, 0) + 1
    missing: list[Missing] = []
    for name, of_input in found.items():
        # Where there is nothing at all, what most cells want comes first; the rest is more of it.
        wanted = sorted(of_input.items(), key=lambda item: -item[1])
        if name not in inputs and len(wanted) > 1:
            wanted = [(wanted[0][0], sum(cells for _, cells in wanted))]
        missing += [Missing(name, need.what, cells) for need, cells in wanted]
    return missing
