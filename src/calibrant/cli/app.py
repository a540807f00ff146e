"""The commands. Each reads, calls one function of the library, prints and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant._version import __version__
from calibrant.cli.catalogue import methods, metrics
from calibrant.cli.compare import compare, demo
from calibrant.cli.export import export
from calibrant.cli.head import head
from calibrant.cli.inspecting import inspect
from calibrant.cli.measuring import Asked, measure_one, measure_run
from calibrant.cli.monitor import monitor
from calibrant.cli.naming import NamesMethods, NamesMetrics
from calibrant.cli.options import (
    ClassAxis,
    Cluster,
    EngineName,
    Files,
    IgnoreIndex,
    Json,
    Kind,
    Labels,
    Level,
    Method,
    Metrics,
    Positive,
    Report,
    Resamples,
    Scheduler,
    Seed,
    Settings,
    SkipBroken,
    Weight,
    Workers,
    read,
)
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.cli.plug_ins import CommandsWithPlugIns
from calibrant.cli.shards import Many, apply_many, fit_many, fitted_text, measure_many
from calibrant.cli.telling import refuse_names, tells_names
from calibrant.cli.train import train
from calibrant.core.errors import InputError
from calibrant.core.text import counted, names_in
from calibrant.files.folders import is_run
from calibrant.predictions.predictions import Predictions

app = typer.Typer(
    name="calibrant",
    cls=CommandsWithPlugIns,
    help="Honest confidence for classifiers: measure it, recalibrate it, compare methods, train.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"calibrant {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Honest confidence for classifiers."""
    if context.invoked_subcommand is None:
        help_text = context.get_help()
        if help_text:  # with rich it is printed already
            print(help_text)


@app.command(cls=NamesMetrics)
@tells_names
def measure(
    files: Files,
    metrics: Metrics = "",
    by: Annotated[
        str | None,
        typer.Option(
            help="Measure within groups: class (predicted), label, margin, confidence, or the name "
            "of a column of FILE.",
            show_default=False,
        ),
    ] = None,
    rows_for: Annotated[
        float | None,
        typer.Option(
            help="Also say how many rows it takes to tell an ECE of this size from noise; a "
            "fraction, such as 0.01 for 1 %.",
            show_default=False,
        ),
    ] = None,
    kind: Kind = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    class_axis: ClassAxis = -1,
    labels: Labels = None,
    cluster: Cluster = None,
    weight: Weight = None,
    resamples: Resamples = None,
    level: Level = 0.95,
    seed: Seed = 0,
    report: Report = None,
    engine: EngineName = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    skip_broken: SkipBroken = False,
    json: Json = None,
) -> None:
    """Measure how honest the confidence in FILE is, with intervals and the noise floor.

    FILE may be a run of `calibrant train`: then its validation and its test rows are measured.
    """
    if rows_for is not None and not 0 < rows_for < 1:
        raise InputError(
            f"--rows-for takes an ECE as a fraction, such as 0.01 for 1 %, not {rows_for:g}"
        )
    if rows_for is not None and by is not None:
        raise InputError("--rows-for asks about the whole file; leave out either it or --by")
    options: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    options["metrics"] = names_in(metrics) or None
    reading: dict[str, Any] = {"kind": kind, "labels": labels, "cluster": cluster}
    reading |= {"positive": positive, "ignore_index": ignore_index, "weight": weight}
    reading["class_axis"] = class_axis
    asked, first = Asked(by, rows_for, options, reading), Path(files[0])
    many = Many(files, kind, labels, engine, scheduler, workers, skip_broken, positive, weight)
    if len(files) == 1 and is_run(first) and not many.asked_for:
        measure_run(first, asked, report, json)
    elif many.wanted:
        refuse_names("many files")
        more: dict[str, Any] = {"rows_for": rows_for, "report": report, "json": json}
        measure_many(many, by=by, cluster=cluster, **more, **options)
    else:
        measure_one(first, asked, report, json)


def _clusters_in(predictions: Predictions) -> int | None:
    return None if predictions.clusters is None else len(set(predictions.clusters.tolist()))


@app.command(cls=NamesMethods)
@tells_names
def fit(
    files: Files,
    out: Annotated[Path, typer.Option(help="Where to save the calibrator (.safetensors).")],
    method: Method = "auto",
    per_label: Annotated[
        bool, typer.Option("--per-label", help="Of many labels: a calibrator for each.")
    ] = False,
    settings: Settings = None,
    kind: Kind = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    class_axis: ClassAxis = -1,
    labels: Labels = None,
    cluster: Cluster = None,
    weight: Weight = None,
    engine: EngineName = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    skip_broken: SkipBroken = False,
    sample: Annotated[
        int | None,
        typer.Option(
            help="Of many files: rows of the sample that methods are fitted to which sums can't "
            "carry; two million without it, and one million for chains and auto.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of that sample.")] = 0,
    json: Json = None,
) -> None:
    """Fit a calibrator on held-out predictions and save it."""
    from calibrant.posthoc.per_label import PerLabel
    from calibrant.posthoc.registry import make_calibrator, parse_arguments
    from calibrant.posthoc.saving import FORMAT

    many = Many(files, kind, labels, engine, scheduler, workers, skip_broken, positive, weight)
    if many.wanted or sample is not None:
        refuse_names("many files")
        if cluster is not None:
            raise InputError("of many files no clusters are held out together; leave out --cluster")
        if per_label:
            raise InputError("--per-label is for one file of many labels; leave it out")
        more: dict[str, Any] = {"sample": sample, "seed": seed, "json": json}
        fit_many(many, method=method, settings=settings or [], out=out, **more)
        return
    file = Path(files[0])
    check_outputs([file, labels], [out, json])
    FORMAT.check_extension(out)
    where: dict[str, Any] = {
        "cluster": cluster,
        "positive": positive,
        "ignore_index": ignore_index,
        "class_axis": class_axis,
        "weight": weight,
    }
    calibrator = make_calibrator(method, **parse_arguments(method, settings or []))
    if per_label:
        calibrator = PerLabel.like(calibrator)
        method = calibrator.method
    predictions = read(file, kind, labels, **where)
    with progress(None, f"fitting {method}"):
        calibrator.fit_predictions(predictions)
    calibrator.save(out)
    weighted = " with weights" if predictions.weights is not None else ""
    if predictions.clusters is not None:
        weighted += f" in {_clusters_in(predictions)} clusters"
    rows = f"{counted(predictions.n, 'row')}{weighted} of {file}"
    text, document = fitted_text(calibrator, method, rows, out)
    document |= {
        "file": str(file),
        "n": predictions.n,
        "weighted": predictions.weights is not None,
        "clusters": _clusters_in(predictions),
        "n_classes": predictions.n_classes,
    }
    emit(text, document, json)


@app.command()
@tells_names
def apply(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that `calibrant fit` saved.")],
    files: Files,
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write the probabilities; any format. Of many files a folder, which a "
            "second call goes on to fill."
        ),
    ],
    kind: Kind = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    class_axis: ClassAxis = -1,
    labels: Labels = None,
    cluster: Cluster = None,
    weight: Weight = None,
    engine: EngineName = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    skip_broken: SkipBroken = False,
    json: Json = None,
) -> None:
    """Apply a saved calibrator to FILE, which needs no labels, and write probabilities."""
    from calibrant.files import write_predictions
    from calibrant.posthoc.loading import load

    many = Many(files, kind, labels, engine, scheduler, workers, skip_broken, positive, weight)
    if many.wanted:
        refuse_names("many files")
        if cluster is not None:
            raise InputError("of many files no clusters are written; leave out --cluster")
        apply_many(many, calibrator=calibrator, out=out, json=json)
        return
    file = Path(files[0])
    check_outputs([calibrator, file, labels], [out, json])
    where: dict[str, Any] = {
        "cluster": cluster,
        "positive": positive,
        "ignore_index": ignore_index,
        "class_axis": class_axis,
        "weight": weight,
    }
    fitted = load(calibrator)
    before = read(file, kind, labels, labelled=False, **where)
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
        "file": str(file),
        "n": after.n,
        "n_classes": after.n_classes,
        "out": str(out),
    }
    rows = counted(after.n, "row")
    emit(f"{fitted.method} applied to {rows} of {file}, written to {out}", document, json)


app.command(cls=NamesMethods)(tells_names(compare))
for command in (export, monitor, train, head, tells_names(inspect), methods, metrics, demo):
    app.command()(command)
