"""The verbs `compare` and `demo`: every method on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.completion import complete_methods, complete_metric
from calibrant.cli.datasets import compare_datasets, read_datasets, seeds_in, several
from calibrant.cli.options import (
    ClassAxis,
    Cluster,
    IgnoreIndex,
    Json,
    Kind,
    Level,
    Metrics,
    Positive,
    Report,
    Resamples,
    Seed,
    Weight,
    read,
)
from calibrant.cli.output import as_json, check_outputs, emit, progress, write_text
from calibrant.cli.shards import sampled_or_read
from calibrant.core.errors import InputError
from calibrant.core.text import names_in, wrap
from calibrant.predictions.predictions import Predictions

# The share of a file's rows that is fitted to, unless told otherwise.
FIT_SIZE = 0.5


def compare(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One file, to be split; or several data sets: files, runs of `calibrant train`, "
            "or a folder of either.",
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="Predictions to fit on. Of a folder, glob or manifest of shards a uniform sample "
            "of 100 000 rows is compared, and so it is of --test.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Predictions to measure on.", show_default=False)
    ] = None,
    fit_size: Annotated[
        float | None,
        typer.Option(
            help="Of files that are split: rows to fit on, or a fraction below 1. Default: 0.5.",
            show_default=False,
        ),
    ] = None,
    stratify: Annotated[bool, typer.Option(help="Keep label shares when splitting.")] = False,
    methods: Annotated[
        str,
        typer.Option(
            help="Names separated by commas, or all; `calibrant methods` lists them.",
            autocompletion=complete_methods,
        ),
    ] = "all",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.KEY=VALUE",
            help="Argument of one of the methods; may be repeated.",
        ),
    ] = None,
    metrics: Metrics = "",
    rank_by: Annotated[
        str | None,
        typer.Option(
            help="The metric that ranks. Default: ece; nll over several data sets.",
            autocompletion=complete_metric,
            show_default=False,
        ),
    ] = None,
    kind: Kind = None,
    cluster: Cluster = None,
    weight: Weight = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    class_axis: ClassAxis = -1,
    resamples: Resamples = None,
    level: Level = 0.95,
    seed: Seed = 0,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds of the splits, as 0-4 or 0,1,2.", show_default=False),
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            help="Over several data sets: write the table here, as .tex, .md or .csv; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    report: Report = None,
    json: Json = None,
) -> None:
    """Fit every method on one set and measure all on another, on the same rows, with intervals.

    Over several data sets: means over seeds, ranks over data sets, and what they can tell.
    """
    paths, tables = files or [], table or []
    check_outputs([*paths, fit, test], [report, json, *tables])
    options: dict[str, Any] = {"kind": kind, "cluster": cluster, "positive": positive}
    options |= {"ignore_index": ignore_index, "class_axis": class_axis, "weight": weight}
    if several(paths, seeds):
        if fit is not None or test is not None or report is not None:
            raise InputError(
                "over several data sets there is no --fit, --test or --report; give the files or "
                "folders alone"
            )
        compare_datasets(
            read_datasets(paths, **options),
            with_settings(_method_names(methods), settings or ()),
            seeds=[seed] if seeds is None else seeds_in(seeds),
            fit_size=FIT_SIZE if fit_size is None else fit_size,
            stratify=stratify,
            metrics=names_in(metrics) or None,
            rank_by=rank_by or "nll",
            resamples=resamples,
            level=level,
            tables=tables,
            json=json,
        )
        return
    if tables:
        raise InputError("--table is for several data sets; name more files, or --seeds")
    file = paths[0] if paths else None
    fit_set, test_set = _two_sets(file, fit, test, fit_size, seed, stratify, options)
    result = _compare_with_progress(
        fit_set,
        test_set,
        methods,
        settings or (),
        metrics=names_in(metrics) or None,
        rank_by=rank_by or "ece",
        resamples=resamples,
        level=level,
        seed=seed,
    )
    if report is not None:
        from calibrant.report import write_comparison_report

        write_comparison_report(report, result, fit_set, test_set)
    emit(str(result), result.as_dict(), json)


def _two_sets(
    file: Path | None,
    fit: Path | None,
    test: Path | None,
    fit_size: float | None,
    seed: int,
    stratify: bool,
    options: dict[str, Any],
) -> tuple[Predictions, Predictions]:
    if file is not None and fit is None and test is None:
        size = FIT_SIZE if fit_size is None else fit_size
        return read(file, **options).split(size, seed, stratify=stratify)
    if file is None and fit is not None and test is not None:
        if fit_size is not None or stratify:
            raise InputError(
                "--fit-size and --stratify split one file; with --fit and --test leave them out"
            )
        return sampled_or_read(fit, seed, options), sampled_or_read(test, seed, options)
    raise InputError("give either one FILE (with --fit-size) or both --fit FILE and --test FILE")


def _compare_with_progress(
    fit: Predictions, test: Predictions, methods: str, settings: Sequence[str] = (), **options: Any
) -> Any:
    from calibrant.comparison.compare import compare as compare_methods

    calibrators = with_settings(_method_names(methods), settings)
    with progress(len(calibrators), "comparing") as step:
        return compare_methods(calibrators, fit=fit, test=test, progress=step, **options)


def _method_names(text: str) -> list[str]:
    from calibrant.posthoc.registry import METHODS

    return list(METHODS) if text == "all" else names_in(text)


def with_settings(methods: Sequence[str], settings: Sequence[str]) -> list[Any]:
    """Return the methods, those with arguments as unfitted calibrators.

    Args:
        methods: names.
        settings: texts of the form ``METHOD.KEY=VALUE``.

    Raises:
        InputError: another form, a method that isn't compared, or no such argument.
    """
    from calibrant.posthoc.registry import make_calibrator, parse_arguments

    own: dict[str, list[str]] = {}
    for text in settings:
        method, dot, rest = text.partition(".")
        if not dot or "=" in method:
            raise InputError(f"--set '{text}' is not of the form METHOD.KEY=VALUE")
        if method not in methods:
            raise InputError(
                f"--set '{text}': {method} is not compared here; --methods has {', '.join(methods)}"
            )
        own.setdefault(method, []).append(rest)
    return [
        make_calibrator(name, **parse_arguments(name, own[name])) if name in own else name
        for name in methods
    ]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the calibrator, JSON and report page.")],
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Show the whole job on sample data that ships with the package; needs no network."""
    from calibrant.report import write_comparison_report
    from calibrant.sample import load_sample

    fit_set, test_set = load_sample("validation"), load_sample("test")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: can't make this folder ({error.strerror})") from error
    result = _compare_with_progress(fit_set, test_set, "all", seed=seed)
    report, document, saved = (
        out / "report.html",
        out / "comparison.json",
        out / "smart.safetensors",
    )
    write_comparison_report(report, result, fit_set, test_set)
    write_text(document, as_json(result.as_dict()) + "\n")
    result["smart"].calibrator.save(saved)
    raw = result["none"].evaluation
    text = (
        "A small network on CIFAR-10, measured on 10 000 test images:\n\n"
        f"{wrap(raw.headline())}\n\n{result}\n\n"
        f"wrote {report} (open it in a browser), {document} and {saved}"
    )
    emit(text, result.as_dict() | {"report": str(report)}, json)
