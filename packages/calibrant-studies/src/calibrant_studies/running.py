"""The cells of a study: each computed once, kept as it is done, whatever happens to the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from calibrant._version import __version__
from calibrant.core.arguments import unknown
from calibrant.core.errors import CalibrantError, InputError
from calibrant.scale.engines import Engine
from calibrant_studies.catalogue import study_named
from calibrant_studies.cells import Cell, Failed, Ran, address, cells_of
from calibrant_studies.declaration import INPUT, METHOD, Study
from calibrant_studies.inputs import Inputs, inputs_of
from calibrant_studies.kinds import kind_named
from calibrant_studies.requirements import missing_of
from calibrant_studies.results import StudyResult
from calibrant_studies.store import DEFAULT_FOLDER, Store, kept_result

Outcome = Literal["kept", "failed", "suspect"]
# How often a cell is begun whose process is killed: among others, and then alone.
MOST_TRIES = 2


@dataclass(frozen=True)
class Progress:
    """How far a run has come: cells done, of how many, and the seconds that these took."""

    done: int
    of: int
    seconds: float
    last: str = ""


@dataclass(frozen=True)
class Job:
    """A cell to compute: what it is, where it is kept, what it is made of."""

    cell: Cell
    address: str
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])


def run_cells(
    study: Study,
    inputs: Inputs,
    store: Store,
    engine: Engine,
    watch: Callable[[Progress], None] | None = None,
) -> StudyResult:
    """Compute the cells of a study that aren't kept yet, and return all that there are."""
    kind = kind_named(study.kind)
    kind.check(study)
    kind.check_inputs(study, inputs)
    store.prepare()
    placed: list[tuple[Cell, str]] = []
    told: dict[int, Ran] = {}
    failed: list[Failed] = []
    jobs: dict[str, Job] = {}
    for cell in cells_of(study):
        if any(need.lacking(inputs) for need in kind.needs(cell)):
            result = kept_result(cell, kind.version, inputs)
            if result is not None:
                told[len(placed)] = Ran(cell, result, reused=True)
                placed.append((cell, ""))
            continue
        try:
            job = _job(cell, inputs)
        except CalibrantError as error:
            failed.append(Failed(cell, str(error)))
            continue
        placed.append((cell, job.address))
        if job.address not in jobs and store.result(job.address) is None:
            jobs[job.address] = job
    began, total = time.monotonic(), len(jobs)
    if watch is not None:
        watch(Progress(0, total, 0.0))
    for done, job in enumerate(computed(list(jobs.values()), inputs, store, engine), 1):
        if watch is not None:
            watch(Progress(done, total, time.monotonic() - began, str(job.cell)))
    ran: list[Ran] = []
    kept = {place: store.result(place) for _, place in placed if place}
    for i, (cell, place) in enumerate(placed):
        if i in told:
            ran.append(told[i])
            continue
        document = kept[place]
        if document is None:
            failed.append(Failed(cell, store.failure(place) or "nothing was kept of it"))
        else:
            # Its process may have been killed between the two steps.
            store.forget_failure(place)
            ran.append(Ran(cell, document["result"], reused=place not in jobs))
    unasked = kind.left_out(study, inputs)
    return StudyResult(study, ran, missing_of(study, inputs), failed, unasked)


def _job(cell: Cell, inputs: Inputs) -> Job:
    kind = kind_named(cell.kind)
    data = {need.input: need.digest(inputs) for need in kind.needs(cell)}
    configuration = kind.configuration(cell, inputs)
    version = kind.method_version(cell)
    place = address(cell.kind, kind.version, configuration, data, version)
    document = {
        "kind": cell.kind,
        "version": kind.version,
        "configuration": configuration,
        "data": data,
        "method_version": version,
    }
    return Job(cell, place, document)


def computed(jobs: Sequence[Job], inputs: Inputs, store: Store, engine: Engine) -> Iterator[Job]:
    """Compute cells, and yield each as it is done, also if it failed.

    A process that is killed, say for want of memory, takes down those beside it. What these were
    at is suspect, and is tried once more, each alone: so one cell that needs too much fails alone.
    """
    life = os.urandom(8).hex()
    function = partial(compute, inputs=inputs, store=store, life=life)
    left: dict[str, Job] = {job.address: job for job in jobs}
    suspects: list[Job] = []
    while left:
        waiting = list(left.values())
        try:
            for i, outcome in engine.run(function, waiting):
                job = left.pop(waiting[i].address)
                if outcome == "suspect":
                    suspects.append(job)
                else:
                    yield job
        except InputError:
            # Processes were killed again and again. If that taught which cells are suspect, those
            # that are left go on without them.
            if not any(store.tries(job.address, life) for job in left.values()):
                raise
            known = [job for job in left.values() if store.tries(job.address, life)]
            suspects += known
            left = {place: job for place, job in left.items() if job not in known}
    alone = partial(compute, inputs=inputs, store=store, life=life, alone=True)
    for job in suspects:
        for _ in engine.run(alone, [job], apart=True):
            yield job


def compute(job: Job, inputs: Inputs, store: Store, life: str, *, alone: bool = False) -> Outcome:
    """Compute one cell and keep what comes of it.

    Args:
        job: the cell.
        inputs: what it needs is there.
        store: where it is kept.
        life: the run that asks; a cell that was begun in it and came to no end is suspect.
        alone: whether nothing else runs beside it; then also what is suspect is computed.
    """
    if store.result(job.address) is not None:  # somebody else's by now
        return "kept"
    tries = store.tries(job.address, life)
    if tries and not alone:
        return "suspect"
    if tries >= MOST_TRIES:
        return "failed"
    store.begin(job.address, life)
    began = time.perf_counter()
    made = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "calibrant": __version__}
    try:
        result = kind_named(job.cell.kind).run(job.cell, inputs, store.work(job.address))
    # Whatever goes wrong in one cell, methods of other people among it, the others go on.
    except Exception as error:
        text = str(error).partition("\n")[0]
        said = text if isinstance(error, CalibrantError) else f"{type(error).__name__}: {text}"
        store.keep_failure(job.address, {**job.document, **made, "error": said})
        return "failed"
    seconds = time.perf_counter() - began
    store.keep(job.address, {**job.document, **made, "seconds": seconds, "result": result})
    return "kept"


# A study from its name, and what is asked of it, to its result.
# One path or several, or names with paths.
Data = str | Path | Sequence[str | Path] | Mapping[str, str | Path | Sequence[str | Path]]


# Parameters: all that one may ask of a study; the command has the same as options.
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
        >>> import calibrant_studies
        >>> found = calibrant_studies.run(
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
