"""Run the cells of a study: each once, kept as it is done, whatever happens to the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.core.errors import CalibrantError
from calibrant.scale.engines import Engine
from calibrant.studies.catalogue import study_named
from calibrant.studies.cells import Cell, address, cells_of
from calibrant.studies.declaration import INPUT, METHOD, Study
from calibrant.studies.inputs import Inputs, inputs_of
from calibrant.studies.kinds import kind_named
from calibrant.studies.needing import missing_of
from calibrant.studies.results import Failed, Ran, StudyResult
from calibrant.studies.store import DEFAULT_FOLDER, Store


@dataclass(frozen=True)
class Progress:
    """How far a run has come: cells done, of how many, and the seconds that these took."""

    done: int
    of: int
    seconds: float
    last: str = ""

    @property
    def seconds_left(self) -> float | None:
        """What the rest takes if its cells are like those that are done; None before the first."""
        return self.seconds / self.done * (self.of - self.done) if self.done else None


@dataclass(frozen=True)
class Job:
    """A cell to compute: what it is, where it is kept, what it is made of."""

    cell: Cell
    address: str
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])


def run(
    study: str | Study,
    *,
    data: Sequence[str | Path] | str | Path = (),
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
        data: inputs: paths, ``NAME=PATH`` or ``NAME=FIT_PATH,TEST_PATH``. A name that the study
            doesn't know is another row.
        small: run the small form, on sample data that ship with the package.
        seeds: in place of the study's.
        methods: in place of the study's; any that `make_calibrator` knows, plug-ins among them.
        only: axis to the values that are wanted; all values of other axes are.
        settings: over those of the study and of its values, such as ``{"epochs": 2}``.
        out: the folder where results are kept; a second run goes on from them.
        engine: what cells are computed by; None for processes of this machine, one a core.
        watch: called as cells are done.

    Raises:
        UnknownMethodError: no such study or method.
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
    study = study_named(study) if isinstance(study, str) else study
    inputs, named = inputs_of(data)
    if small:
        study = study.reduced()
    kind = kind_named(study.kind)
    if named and (INPUT in study.axes):
        study = study.with_values(INPUT, kind.own_rows(named, study, inputs))
    for axis, values in (only or {}).items():
        study = study.with_values(axis, values, only=True)
    if settings:
        study = replace(study, forced=dict(settings))
        kind.check(study)
    if methods is not None:
        study = study.with_values(METHOD, methods, only=True)
    return (study if seeds is None else replace(study, seeds=tuple(seeds))), inputs


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
    store.prepare()
    placed: list[tuple[Cell, str]] = []
    failed: list[Failed] = []
    jobs: dict[str, Job] = {}
    for cell in cells_of(study):
        if any(need.lacking(inputs) for need in kind.needs(cell)):
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
    function = partial(compute, inputs=inputs, store=store)
    waiting = list(jobs.values())
    for done, (i, _) in enumerate(engine.run(function, waiting) if waiting else (), 1):
        if watch is not None:
            watch(Progress(done, total, time.monotonic() - began, str(waiting[i].cell)))
    ran: list[Ran] = []
    kept = {place: store.result(place) for _, place in placed}
    for cell, place in placed:
        document = kept[place]
        if document is None:
            failed.append(Failed(cell, store.failure(place) or "nothing was kept of it"))
        else:
            ran.append(Ran(cell, document["result"], reused=place not in jobs))
    return StudyResult(study, ran, missing_of(study, inputs), failed)


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


def compute(job: Job, inputs: Inputs, store: Store) -> bool:
    """Compute one cell and keep what comes of it; return whether it came to a result."""
    if store.result(job.address) is not None:  # somebody else's by now
        return True
    began = time.perf_counter()
    made = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "calibrant": __version__}
    try:
        result = kind_named(job.cell.kind).run(job.cell, inputs, store.work(job.address))
    # Whatever goes wrong in one cell, methods of other people among it, the others go on.
    except Exception as error:
        text = str(error).partition("\n")[0]
        said = text if isinstance(error, CalibrantError) else f"{type(error).__name__}: {text}"
        store.keep_failure(job.address, {**job.document, **made, "error": said})
        return False
    seconds = time.perf_counter() - began
    store.keep(job.address, {**job.document, **made, "seconds": seconds, "result": result})
    return True
