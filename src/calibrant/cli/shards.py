"""Commands on many files: the same words as on one, read in bounded memory by an engine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.measuring import rows_like
from calibrant.cli.options import read, reading
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.cli.telling import refuse_names
from calibrant.core.errors import InputError
from calibrant.core.text import counted, wrap
from calibrant.metrics.table import METRICS
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.scale.engines import Engine
    from calibrant.scale.map_reduce import Progress, Watcher
    from calibrant.scale.shards import Shards

# Rows of a sample that methods are compared on.
COMPARED_ROWS = 100_000


@dataclass(frozen=True)
class Many:
    """Files that a command was given, and how they are to be worked on.

    Attributes:
        files: as they were given.
        kind: what to read; labels: the file of labels of one `.npy` file.
        engine, scheduler, workers: see `calibrant.scale.engines.Engine`.
        skip_broken: whether to leave out files that can't be read.
        positive: the positive class of binary predictions.
        weight: the column that says how much each row counts.
    """

    files: Sequence[str]
    kind: str | None = None
    labels: Path | None = None
    engine: str | None = None
    scheduler: str | None = None
    workers: int | None = None
    skip_broken: bool = False
    positive: str | None = None
    weight: str | None = None

    @property
    def asked_for(self) -> bool:
        """Whether the words name an engine, or what only an engine does."""
        return self.skip_broken or (self.engine, self.scheduler, self.workers) != (None, None, None)

    @property
    def wanted(self) -> bool:
        """Whether this is a task for an engine, rather than one file to be read whole."""
        from calibrant.scale.locating import stands_for_many

        return self.asked_for or stands_for_many(self.files)

    def by(self) -> Engine:
        """Return who does the work."""
        from calibrant.scale.engines import Engine

        return Engine(self.engine or "processes", self.workers, self.scheduler)  # type: ignore[arg-type]

    def shards(self, *, labelled: bool = True) -> Shards:
        """Return the files, once their headers are read."""
        from calibrant.scale.shards import Shards

        return Shards(
            self.files,
            reading(self.kind, labels=self.labels, positive=self.positive, weight=self.weight),
            skip_broken=self.skip_broken,
            labelled=labelled,
        )


@contextmanager
def watching(what: str, shards: Shards) -> Generator[Watcher]:
    """Yield what shows on a terminal how many shards are done, how quickly, and the time left."""
    with progress(len(shards), what) as advance:

        def watch(state: Progress) -> None:
            advance(str(state), state.shards, state.of)

        yield watch


def check_places(shards: Shards, outputs: Sequence[Path | str | None]) -> None:
    """Raise `InputError` if an output would replace one of the shards."""
    check_outputs([Path(shard.where) for shard in shards], outputs)


def measure_many(
    many: Many,
    *,
    by: str | None,
    cluster: str | None,
    rows_for: float | None,
    report: Path | None,
    json: str | None,
    **options: Any,
) -> None:
    """Measure many files, as `calibrant measure` does one."""
    from calibrant.scale.measure import evaluate_shards, evaluate_shards_by

    if report is not None:
        raise InputError("a report page shows single rows; measure a sample as one file for it")
    if by is not None and cluster is not None:
        raise InputError(
            "of many files take either groups or clusters; leave out --by or --cluster"
        )
    engine, shards = many.by(), many.shards()
    check_places(shards, [json])
    options |= {"engine": engine, "skip_broken": many.skip_broken}
    if by is not None:
        kind = "predicted" if by == "class" else by
        with watching("measuring", shards) as watch:
            grouped = evaluate_shards_by(shards, kind, watch=watch, **options)
        emit(str(grouped), grouped.as_dict(), json)
        return
    with watching("measuring", shards) as watch:
        result = evaluate_shards(shards, cluster=cluster, watch=watch, **options)
    text, document = str(result), result.as_dict()
    if rows_for is not None:
        size = rows_like(result, rows_for, options["seed"])
        text += f"\n\n{size}"
        document["rows_needed"] = vars(size)
    emit(text, document, json)


def fit_many(
    many: Many,
    *,
    method: str,
    settings: list[str],
    out: Path,
    sample: int | None,
    seed: int,
    json: str | None,
) -> None:
    """Fit a calibrator to many files, as `calibrant fit` does to one."""
    from calibrant.posthoc.registry import make_calibrator, parse_arguments
    from calibrant.posthoc.saving import FORMAT
    from calibrant.posthoc.shard_fitting import fit_shards

    calibrator = make_calibrator(method, **parse_arguments(method, settings))
    engine, shards = many.by(), many.shards()
    check_places(shards, [out, json])
    FORMAT.check_extension(out)
    options: dict[str, Any] = {"engine": engine, "skip_broken": many.skip_broken}
    with watching(f"fitting {method}", shards) as watch:
        fit_shards(calibrator, shards, sample=sample, seed=seed, watch=watch, **options)
    calibrator.save(out)
    text, document = fitted_text(calibrator, method, f"{shards.rows} rows of {shards.source}", out)
    document |= {"file": shards.source, "n": shards.rows, "shards": len(shards)}
    emit(text, document, json)


def apply_many(many: Many, *, calibrator: Path, out: Path, json: str | None) -> None:
    """Apply a calibrator to many files, as `calibrant apply` does to one."""
    from calibrant.posthoc.loading import load
    from calibrant.posthoc.shard_applying import apply_shards

    fitted = load(calibrator)
    engine, shards = many.by(), many.shards(labelled=False)
    check_places(shards, [json])
    options: dict[str, Any] = {"engine": engine, "skip_broken": many.skip_broken}
    with watching(f"applying {fitted.method}", shards) as watch:
        done = apply_shards(fitted, shards, str(out), watch=watch, **options)
    document = {"calibrator": str(calibrator), "method": fitted.method} | done.as_dict()
    emit(f"{fitted.method} applied: {done}", document, json)


def fitted_text(calibrator: Any, method: str, rows: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Return what `calibrant fit` prints of a fitted calibrator, and what it writes as JSON.

    Args:
        calibrator: the fitted one; method: what it was asked for as.
        rows: what it was fitted to, in words.
        out: where it was saved.
    """
    report = calibrator.fit_report_
    document: dict[str, Any] = {
        "method": method,
        "arguments": calibrator.get_params(),
        "n_classes": calibrator.n_classes_,
        "class_names": calibrator.class_names_,
        "parameters": calibrator.n_parameters,
        "keeps_prediction": calibrator.keeps_prediction,
        "fit": report.as_dict(),
        "out": str(out),
    }
    keeps = "keeps" if calibrator.keeps_prediction else "may change"
    text = (
        f"{method} fitted on {rows} and saved to {out}\n"
        f"{counted(calibrator.n_parameters, 'parameter')}, "
        f"{counted(report.iterations, 'iteration')}; {keeps} the predicted class"
    )
    parts = {name: part.method for name, part in calibrator.parts().items()}
    if parts:
        document["parts"] = parts
    for note in report.notes:
        if not note.partition(":")[0].endswith("Warning"):  # warnings go to stderr
            text += f"\n\n{wrap(_sentence(note))}"
    return text, document


def _sentence(note: str) -> str:
    """Return a note as a sentence begins: a metric's name becomes its title, nll NLL."""
    first = note.split(" ", 1)[0]
    title = METRICS[first].title if first in METRICS else first[:1].upper() + first[1:]
    return title + note[len(first) :]


def sampled_or_read(path: Path, seed: int, options: dict[str, Any]) -> Predictions:
    """Return the predictions in a file; of many shards a uniform sample of their rows.

    Args:
        path: a file, or a folder, glob or manifest of shards.
        seed: of the sample.
        options: how a file is read.
    """
    from calibrant.scale.locating import stands_for_many

    if not stands_for_many([str(path)]):
        return read(path, **options)
    from calibrant.scale.engines import Engine
    from calibrant.scale.sampling import sample

    refuse_names("many files")
    if options.get("cluster") is not None:
        raise InputError("a sample of many files has no clusters; leave out --cluster")
    many = Many(
        [str(path)],
        options.get("kind"),
        positive=options.get("positive"),
        weight=options.get("weight"),
    )
    shards = many.shards()
    with watching("sampling", shards) as watch:
        rows = sample(shards, COMPARED_ROWS, seed, Engine(), watch)
    return replace(rows, source=f"{rows.n} of {shards.rows} rows of {shards.source}")
