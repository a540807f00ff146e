"""The commands `compare` and `demo`: every method on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from calibrant.cli.help import OUTPUT, ends_with
from calibrant.cli.options import (
    DrawOptions,
    EngineOptions,
    OutputOptions,
    PageOptions,
    Source,
    all_methods,
    complete_methods,
    complete_metric,
    each_of,
    option,
    watching,
)
from calibrant.cli.output import as_json, check_outputs, emit, write_text
from calibrant.core.errors import InputError
from calibrant.core.text import names_in, wrap
from calibrant.files import ReadOptions, read_column, read_predictions
from calibrant.files.opening import RUN_FILES, SUFFIXES, is_run, make_folder
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.scale.shards import Shards

SETS, SPLIT = "Several sets or networks", "Split and arguments"
# The share of a file's rows that is fitted to, unless told otherwise.
FIT_SIZE = 0.5
DataSets = dict[str, Predictions | tuple[Predictions, Predictions]]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What is compared, and on which rows."""

    fit: Path | None = option(
        None,
        "Predictions to fit on; from many files a sample of 100 000 rows.",
        metavar="FILE",
        reads=True,
    )
    test: Path | None = option(None, "Predictions to measure on.", metavar="FILE", reads=True)
    fit_size: float | None = option(
        None,
        "When a file is split: rows to fit on, or a fraction below 1. Default: 0.5.",
        panel=SPLIT,
    )
    stratify: bool = option(False, "Keep label shares when splitting.", panel=SPLIT)
    methods: str = option(
        "all",
        "Names separated by commas, or all; `calibrant methods` lists them.",
        metavar="NAMES",
        complete=complete_methods,
    )
    settings: list[str] = option(
        [],
        "Argument of one of the methods; may be repeated.",
        "--set",
        metavar="METHOD.KEY=VALUE",
        panel=SPLIT,
    )
    rank_by: str | None = option(
        None,
        "The metric that ranks the methods. Default: ece; nll with several data sets.",
        metavar="METRIC",
        complete=complete_metric,
    )
    margin: float | None = option(
        None,
        "Also name the simplest method within this much NLL of the recommended one. Default: .001.",
        panel=SPLIT,
    )
    models: bool = option(
        False,
        "FILEs are predictions of several networks for the same rows: find the best network with "
        "its best map. Maps (--methods, by default auto) are cross-validated on these rows.",
        panel=SETS,
    )
    pool: bool = option(
        False, "Split several FILEs as one set of rows, instead of comparing on each.", panel=SETS
    )
    transfer: bool = option(
        False,
        "Fit one method (--methods; by default temperature) to each FILE, or to each group of "
        "--by, and measure it on all others.",
        panel=SETS,
    )
    by: str | None = option(
        None,
        "With --transfer: the column of FILE, or of several logs, that names the sets.",
        metavar="COLUMN",
        panel=SETS,
    )
    seeds: str | None = option(
        None,
        "With several data sets: seeds of the splits, such as 0-4 or 0,1,2.",
        metavar="SEEDS",
        panel=SETS,
    )


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(PageOptions):
    """Where a comparison is written."""

    every: bool = option(
        False, "Show all methods, not only the best of each family.", "--all", panel=OUTPUT
    )
    table: list[Path] = option(
        [],
        "With several data sets: write the table here, as .tex, .md or .csv; may be repeated.",
        panel=SETS,
    )


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Where the demonstration goes."""

    out: Path = option(..., "Folder for the calibrator, JSON and report page.")
    seed: int = option(0, "Seed of all random draws.")


@ends_with(all_methods)
def compare(
    options: CompareOptions,
    draw: DrawOptions,
    output: ComparedOptions,
    read: ReadOptions,
    engine: EngineOptions,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="One file, to be split; or several data sets: files, runs of `calibrant train`, "
            "or a folder of either; with --models one file a network.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fit every method on one set of rows and measure all of them on another."""
    from calibrant.comparison.compare import compare as compare_methods

    paths = files or []
    check_outputs([*paths, options.fit, options.test], [output.report, output.json, *output.table])
    if options.models:
        _compare_models(paths, options, draw, output, read)
        return
    if options.transfer or options.by is not None:
        _transferred(paths, options, draw, output, read)
        return
    several = len(paths) > 1 and not options.pool
    if several or options.seeds is not None or any(path.is_dir() for path in paths):
        _compare_datasets(paths, options, draw, output, read)
        return
    if output.table:
        raise InputError("--table is for several data sets; name more files, or --seeds")
    fit_set, test_set = _two_sets(paths, options, draw.seed, read, engine)
    methods = with_settings(_method_names(options.methods), options.settings)
    given: dict[str, Any] = {} if options.margin is None else {"margin": options.margin}
    with Source([], read, engine).working("comparing") as how:
        result = compare_methods(
            methods,
            fit=fit_set,
            test=test_set,
            rank_by=options.rank_by or "ece",
            **draw.drawn,
            **given,
            **how,
        )
    if output.report is not None:
        # Of files in parts a sample was taken, whose rows nobody can name.
        sampled = options.test is None and Source([*map(str, paths)], read, engine).many
        file = None if sampled or len(paths) > 1 else options.test or paths[0]
        if file is None and output.images is not None:
            raise InputError("--images is for the rows of a single file; leave it out")
        whole = isinstance(test_set, Predictions)
        result.to_html(output.report, **output.names_of_rows(file if whole else None, read))
    emit(result.to_text(every=output.every), result.as_dict(), output.json)


def _transferred(
    paths: Sequence[Path],
    options: CompareOptions,
    draw: DrawOptions,
    output: ComparedOptions,
    read: ReadOptions,
) -> None:
    """Fit to each group, or file, and measure on each other."""
    from calibrant.comparison.transfer import transfer

    if not options.transfer:
        raise InputError("--by COLUMN names the groups for --transfer; add --transfer")
    if options.fit or options.test or output.report or output.table:
        raise InputError(
            "--transfer fits to each FILE itself: leave out --fit, --test, --report and --table"
        )
    if options.by is None:
        sets = _each_read(paths, read)
    else:
        source = Source([*map(str, paths)], read)
        if len(paths) != 1 and not source.logs:
            raise InputError("--transfer --by COLUMN takes one FILE, or logs")
        where, how = source.one()
        rows, groups = read_predictions(where, how), read_column(where, options.by, how)
        sets = {str(g): rows.take(np.flatnonzero(groups == g)) for g in np.unique(groups)}
    method = "temperature" if options.methods == "all" else options.methods
    with watching("comparing") as watch:
        found = transfer(
            sets,
            method,
            metric=draw.metrics or None,
            resamples=draw.resamples or 500,
            level=draw.level,
            seed=draw.seed,
            watch=watch,
        )
    emit(str(found), found.as_dict(), output.json)


def _two_sets(
    paths: Sequence[Path],
    options: CompareOptions,
    seed: int,
    read: ReadOptions,
    engine: EngineOptions,
) -> tuple[Predictions | Shards, Predictions | Shards]:
    """Return the rows to fit on and the rows to measure on."""
    fit, test, size = options.fit, options.test, options.fit_size
    if paths and fit is None and test is None:
        from calibrant.comparison.compare import COMPARED_ROWS
        from calibrant.scale.sampling import in_memory

        source = Source([str(path) for path in paths], read, engine)
        with source.working("sampling") as how:
            rows = in_memory(source.rows(), COMPARED_ROWS, seed, **how)
        return rows.split(FIT_SIZE if size is None else size, seed, stratify=options.stratify)
    if not paths and fit is not None and test is not None:
        if size is not None or options.stratify:
            raise InputError(
                "--fit-size and --stratify split one file; with --fit and --test leave them out"
            )
        fit_set = Source([str(fit)], read, engine).rows()
        return fit_set, Source([str(test)], read, engine).rows()
    raise InputError("give either one FILE (with --fit-size) or both --fit FILE and --test FILE")


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


# --- over several data sets


def _compare_datasets(
    paths: Sequence[Path],
    options: CompareOptions,
    draw: DrawOptions,
    output: ComparedOptions,
    read: ReadOptions,
) -> None:
    """Compare methods over data sets, print the result and write its tables."""
    from calibrant.comparison.multi_dataset import compare_over

    if options.fit is not None or options.test is not None or output.report is not None:
        raise InputError(
            "--fit, --test and --report are for a single data set; with several, give only "
            "the files or folders"
        )
    datasets = _read_datasets(paths, read)
    methods = with_settings(_method_names(options.methods), options.settings)
    seeds = [draw.seed] if options.seeds is None else seeds_in(options.seeds)
    with watching("comparing", remaining=True) as watch:
        found = compare_over(
            datasets,
            methods,
            seeds=seeds,
            fit_size=FIT_SIZE if options.fit_size is None else options.fit_size,
            stratify=options.stratify,
            metrics=names_in(draw.metrics) or None,
            rank_by=options.rank_by or "nll",
            resamples=draw.resamples,
            level=draw.level,
            watch=watch,
        )
    for path in output.table:
        write_text(path, found.table(found.rank_by).written_for(path))
    written = "".join(f"\n\nwrote {path}" for path in output.table)
    if len(datasets) > 1:
        apart = f"{len(datasets)} data sets, each compared by itself; --pool makes one set of them."
        if _same_labels(datasets):
            apart += (
                " All hold the same labels in the same order: if they are predictions of several "
                "networks for the same rows, --models compares the networks."
            )
        written = f"\n\n{wrap(apart)}{written}"
    emit(f"{found}{written}", found.as_dict(), output.json)


def _same_labels(datasets: DataSets) -> bool:
    """Return whether files hold the same labels, in an order that isn't sorted."""
    (first, *others) = datasets.values()
    if not isinstance(first, Predictions) or (np.diff(first.labels) >= 0).all():
        return False
    return all(
        isinstance(rows, Predictions) and np.array_equal(rows.labels, first.labels)
        for rows in others
    )


def _compare_models(
    paths: Sequence[Path],
    options: CompareOptions,
    draw: DrawOptions,
    output: ComparedOptions,
    read: ReadOptions,
) -> None:
    """Compare networks on the same rows, and write what was found."""
    from calibrant.comparison.models import compare_models

    own = CompareOptions(models=True, methods=options.methods, settings=options.settings)
    if options != own or output.table:
        raise InputError(
            "--models goes with the files of the networks, --methods and --set; leave out the "
            "other options"
        )
    if len(paths) < 2:
        raise InputError("--models needs the files of at least two networks")
    names = _names_of(paths)
    models = {name: read_predictions(path, read) for name, path in zip(names, paths, strict=True)}
    if read.id is not None:
        _check_ids(dict(zip(names, paths, strict=True)), read)
    wanted = ["auto"] if options.methods == "all" else names_in(options.methods)
    methods = with_settings(wanted, options.settings)
    with watching("comparing", remaining=True) as watch:
        found = compare_models(models, methods=methods, watch=watch, **draw.drawn)
    if output.report is not None:
        if output.images is not None:
            raise InputError("the page of --models lists no rows; leave out --images")
        found.to_html(output.report)
    emit(str(found), found.as_dict(), output.json)


def _names_of(paths: Sequence[Path]) -> list[str]:
    """Return what sets of rows are called: their files, or the paths of files of one name."""
    stems = [path.name if path.is_dir() else path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise InputError("a file is named twice; name each once")
    return names


def _each_read(paths: Sequence[Path], read: ReadOptions) -> dict[str, Predictions]:
    """Return the rows of each file, or folder of logs, by its name."""
    places = [Path(one) for one in each_of([*map(str, paths)])]
    return {n: read_predictions(p, read) for n, p in zip(_names_of(places), places, strict=True)}


def _check_ids(files: Mapping[str, Path], read: ReadOptions) -> None:
    """Raise `InputError` unless the files hold the same rows, by a column that tells them apart."""
    (first, path), *others = files.items()
    column = str(read.id)
    ids = read_column(path, column, read)
    for name, other in others:
        found = read_column(other, column, read)
        if len(found) != len(ids) or (found != ids).any():
            raise InputError(
                f"'{column}' differs between {first} and {name}, in its values or their order; "
                "networks are compared on the same rows in the same order"
            )


def seeds_in(text: str) -> list[int]:
    """Return the seeds of ``0-4`` or ``0,1,2``.

    Raises:
        InputError: another form, or no seed.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--seeds takes numbers and ranges, as 0-4 or 0,1,2, not '{text}'")
        found += range(int(first), int(last or first) + 1)
    if not found or len(set(found)) < len(found):
        raise InputError(f"--seeds '{text}' names no seed, or one more than once")
    return found


def _read_datasets(paths: Sequence[Path], read: ReadOptions) -> DataSets:
    """Return data sets by name: files that are split, runs with their two files.

    A folder is a run, or holds runs, or files of predictions.

    Raises:
        InputError: a folder with neither, or two data sets of one name.
    """
    found: DataSets = {}
    if all(Source([str(path)], read).logs for path in paths):
        return {**_each_read(paths, read)}
    for path in [place for given in paths for place in _places(given)]:
        name = path.absolute().name if path.is_dir() else path.stem  # "." has no name of its own
        if name in found:
            raise InputError(f"{path}: two data sets are called {name}; rename one of them")
        if path.is_dir():
            fit, test = (read_predictions(path / file, read) for file in RUN_FILES)
            found[name] = (fit, test)
        else:
            found[name] = read_predictions(path, read)
    return found


def _places(path: Path) -> list[Path]:
    """Return the runs and files that a path stands for."""
    if not path.is_dir() or is_run(path):
        return [path]
    inside = sorted(path.iterdir())
    runs = [place for place in inside if place.is_dir() and is_run(place)]
    files = [place for place in inside if place.is_file() and place.suffix.lower() in SUFFIXES]
    if not runs and not files:
        raise InputError(
            f"{path}: holds neither runs (folders with {' and '.join(RUN_FILES)}) nor files of "
            "predictions"
        )
    return runs or files


def demo(options: DemoOptions, output: OutputOptions) -> None:
    """Measure, correct and compare on sample data that ships with the package; no network."""
    from calibrant.comparison.compare import compare as compare_methods
    from calibrant.posthoc.registry import METHODS
    from calibrant.sample import CLASS_NAMES, load_sample

    parts = (load_sample(part) for part in ("validation", "test"))
    fit_set, test_set = (replace(rows, class_names=CLASS_NAMES) for rows in parts)
    out = options.out
    make_folder(str(out))
    with watching("comparing") as watch:
        result = compare_methods(
            list(METHODS), fit=fit_set, test=test_set, seed=options.seed, watch=watch
        )
    report, document, saved = (
        out / "report.html",
        out / "comparison.json",
        out / "calibrator.safetensors",
    )
    result.to_html(report)
    found = result.as_dict()
    write_text(document, as_json(found) + "\n")
    result[result.recommended].calibrator.save(saved)
    raw = result["none"].evaluation
    text = (
        "A small network on CIFAR-10, measured on 10 000 test images:\n\n"
        f"{wrap(raw.headline())}\n\n{result}\n\n"
        f"wrote {report} (open it in a browser), {document} and {saved} ({result.recommended})"
    )
    emit(text, found | {"report": str(report)}, output.json)
