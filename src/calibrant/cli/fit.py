"""The commands `fit` and `apply`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.completion import all_methods
from calibrant.cli.help import ends_with
from calibrant.cli.options import (
    MANY,
    OUTPUT,
    EngineOptions,
    Files,
    MethodOptions,
    OutputOptions,
    option,
)
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.cli.sources import ShardSource, working
from calibrant.core.errors import InputError
from calibrant.core.text import counted, wrap
from calibrant.files import ReadOptions, read_predictions, write_predictions
from calibrant.metrics.registry import METRICS
from calibrant.predictions.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class FitOptions(MethodOptions):
    """What is fitted, and to how many rows."""

    per_label: bool = option(False, "Of many labels: a calibrator for each.")
    sample: int | None = option(
        None,
        "Rows of the uniform sample that methods without exact sums are fitted to. Default: two "
        "million, and one million for chains and auto.",
        panel=MANY,
    )
    seed: int = option(0, "Seed of that sample.", panel=MANY)


@dataclass(frozen=True, kw_only=True)
class SavedOptions(OutputOptions):
    """Where the calibrator is saved."""

    out: Path = option(..., "Where to save the calibrator (.safetensors).", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class AppliedOptions(OutputOptions):
    """Where the probabilities are written."""

    out: Path = option(
        ...,
        "Where to write the probabilities, in any format; of many files a folder, which a second "
        "call goes on to fill.",
        panel=OUTPUT,
    )


@ends_with(all_methods)
def fit(
    files: Files,
    options: FitOptions,
    output: SavedOptions,
    read: ReadOptions,
    engine: EngineOptions,
) -> None:
    """Fit a calibrator on held-out predictions and save it."""
    from calibrant.posthoc.per_label import PerLabel
    from calibrant.posthoc.registry import make_calibrator, parse_arguments
    from calibrant.posthoc.state import FORMAT

    source, out, method = ShardSource(files, read, engine), output.out, options.method
    calibrator = make_calibrator(method, **parse_arguments(method, options.settings))
    if source.many or options.sample is not None:
        if read.cluster is not None:
            raise InputError("of many files no clusters are held out together; leave out --cluster")
        if options.per_label:
            raise InputError("--per-label is for one file of many labels; leave it out")
        shards = source.shards([out, output.json])
        FORMAT.check_extension(out)
        with working(source, shards, f"fitting {method}") as how:
            calibrator.fit_predictions(shards, sample=options.sample, seed=options.seed, **how)
        rows, facts = f"{shards.rows} rows of {shards.source}", {"n": shards.rows}
        facts |= {"file": shards.source, "shards": len(shards)}
    else:
        labels = None if read.labels is None else Path(read.labels)
        check_outputs([Path(files[0]), labels], [out, output.json])
        FORMAT.check_extension(out)
        if options.per_label:
            calibrator = PerLabel.like(calibrator)
            method = calibrator.method
        predictions = read_predictions(*source.one())
        with progress(None, f"fitting {method}"):
            calibrator.fit_predictions(predictions)
        rows, facts = _rows_of(predictions, files[0])
    calibrator.save(out)
    text, document = _fitted(calibrator, method, rows, out)
    emit(text, document | facts, output.json)


def _rows_of(predictions: Predictions, file: str) -> tuple[str, dict[str, Any]]:
    """Return which rows a calibrator was fitted to, in words and as JSON takes it."""
    clusters = None
    words = " with weights" if predictions.weights is not None else ""
    if predictions.clusters is not None:
        clusters = len(set(predictions.clusters.tolist()))
        words += f" in {clusters} clusters"
    facts: dict[str, Any] = {
        "file": file,
        "n": predictions.n,
        "weighted": predictions.weights is not None,
        "clusters": clusters,
        "n_classes": predictions.n_classes,
    }
    return f"{counted(predictions.n, 'row')}{words} of {file}", facts


def _fitted(calibrator: Any, method: str, rows: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Return what is printed about a fitted calibrator, and what is written as JSON.

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


def apply(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    files: Files,
    output: AppliedOptions,
    read: ReadOptions,
    engine: EngineOptions,
) -> None:
    """Apply a saved calibrator to FILE, which needs no labels, and write probabilities."""
    from calibrant.posthoc.loading import load

    source, out = ShardSource(files, read, engine), output.out
    if source.many:
        if read.cluster is not None:
            raise InputError("of many files no clusters are written; leave out --cluster")
        fitted = load(calibrator)
        shards = source.shards([output.json], labelled=False)
        with working(source, shards, f"applying {fitted.method}") as how:
            done = fitted.apply_predictions(shards, str(out), **how)
        document = {"calibrator": str(calibrator), "method": fitted.method} | done.as_dict()
        emit(f"{fitted.method} applied: {done}", document, output.json)
        return
    file, labels = files[0], None if read.labels is None else Path(read.labels)
    check_outputs([calibrator, Path(file), labels], [out, output.json])
    fitted = load(calibrator)
    before = read_predictions(*source.one(), labelled=False)
    if before.n_classes not in (None, fitted.n_classes_):
        raise InputError(
            f"{file}: has {before.n_classes} classes, but {calibrator} was fitted for "
            f"{fitted.n_classes_} classes"
        )
    after = fitted.apply_predictions(before)
    write_predictions(after, out)
    document = {
        "calibrator": str(calibrator),
        "method": fitted.method,
        "keeps_prediction": fitted.keeps_prediction,
        "file": file,
        "n": after.n,
        "n_classes": after.n_classes,
        "out": str(out),
    }
    rows = counted(after.n, "row")
    emit(f"{fitted.method} applied to {rows} of {file}, written to {out}", document, output.json)
