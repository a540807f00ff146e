"""A study from its name, and what is asked of it, to its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.scale.engines import Engine
from calibrant_studies.catalogue import study_named
from calibrant_studies.cells import Cell, cells_of
from calibrant_studies.computing import Progress, run_cells
from calibrant_studies.declaration import INPUT, METHOD, Study
from calibrant_studies.inputs import Inputs, inputs_of
from calibrant_studies.kinds import kind_named
from calibrant_studies.results import StudyResult
from calibrant_studies.store import DEFAULT_FOLDER, Store

# One path or several, or names with paths.
Data = str | Path | Sequence[str | Path] | Mapping[str, str | Path | Sequence[str | Path]]


def run(
    study: str | Study,
    *,
    data: Data = (),
    small: bool = False,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = DEFAULT_FOLDER,
    engine: Engine | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> StudyResult:
    """Run a study: compute the cells that aren't kept yet, and gather all.

    Args:
        study: its name, the path of a declaration (.toml), or what was read of one.
        data: inputs: paths, ``NAME=PATH`` or ``NAME=FIT_PATH,TEST_PATH``; or names with a path, or
            a pair of paths, each. A name that the study doesn't know is another row.
        small: run the small form, on sample data that ship with the package.
        seeds: in place of the study's.
        methods: in place of the study's; any that `make_calibrator` knows, plug-ins among them.
        only: axis to the values that are wanted; all values of other axes are.
        settings: over those of the study and of its values, such as ``{"epochs": 2}``.
        out: the folder where results are kept; a second run goes on from them.
        engine: what cells are computed by; None for processes of this machine, one a core.
        watch: called as cells are done.

    Raises:
        UnknownMethodError: no such study, method or input.
        InputError: the study has no such axis, or an input can't be read.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.studies.run(
        ...     "smart-table-1", small=True, methods=["none", "temperature"], out="kept",
        ...     engine=cb.Engine(workers=1),
        ... )
        >>> [ran.cell.method for ran in found.ran], found.missing
        (['none', 'temperature'], [])
    """
    if isinstance(data, Mapping):
        pairs = ((name, (of,) if isinstance(of, str | Path) else of) for name, of in data.items())
        data = [f"{name}={','.join(map(str, paths))}" for name, paths in pairs]
    texts = [data] if isinstance(data, str | Path) else data
    chosen, inputs = prepared(
        study,
        [str(text) for text in texts],
        small=small,
        seeds=seeds,
        methods=methods,
        only=only,
        settings=settings,
    )
    return run_cells(chosen, inputs, Store(Path(out)), engine or Engine(), watch)


def check_apart(study: Study) -> None:
    """Refuse settings with which two values of an axis are one thing under two names.

    Raises:
        InputError: there are such values.
    """
    kind, one = kind_named(study.kind), replace(study, seeds=study.seeds[:1])
    declared = [kind.subject(cell) for cell in cells_of(replace(one, forced={}))]
    found: list[tuple[Cell, Any, Any]] = []
    for cell, before in zip(cells_of(one), declared, strict=True):
        now = kind.subject(cell)
        for other, other_before, other_now in found:
            if now == other_now and before != other_before:
                apart = [axis for axis, name in cell.at.items() if other.at[axis] != name]
                names = (", ".join(each.at[axis] for axis in apart) for each in (other, cell))
                raise InputError(
                    f"{study.name}: with --set {', '.join(study.forced)}, {' and '.join(names)} of "
                    f"the axis {', '.join(apart)} are the same; leave that out, or ask for one of "
                    "them with --only"
                )
        found.append((cell, before, now))


def prepared(
    study: str | Study,
    data: Sequence[str] = (),
    *,
    small: bool = False,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Study, Inputs]:
    """Return a study as it is asked for, and what it is given; see `run`."""
    study = whole = study_named(study) if isinstance(study, str) else study
    inputs, named = inputs_of(data)
    if small:
        study = study.reduced()
    kind = kind_named(study.kind)
    if named and (INPUT in study.axes):
        study = study.with_values(INPUT, kind.own_rows(named, study, inputs))
    for axis, values in (only or {}).items():
        if axis == INPUT and axis in study.axes:
            known = [value.name for value in study.axes[axis]]
            for name in values:
                if name not in known and name not in inputs:
                    raise unknown(known, name, "input")
        # Their values bring settings, without which a name would stand for what it isn't.
        elif axis in whole.axes and axis not in kind.axes:
            known = [value.name for value in (*whole.axes[axis], *study.axes[axis])]
            for name in values:
                if name not in known:
                    raise unknown(dict.fromkeys(known), name, f"value of the axis {axis}")
        study = study.with_values(axis, values, only=True, of=whole)
    if settings:
        study = replace(study, forced=dict(settings))
        kind.check(study)
    if methods is not None:
        study = study.with_values(METHOD, methods, only=True, of=whole)
    if settings:
        check_apart(study)
    return (study if seeds is None else replace(study, seeds=tuple(seeds))), inputs
