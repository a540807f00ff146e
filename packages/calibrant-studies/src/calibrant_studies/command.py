"""`calibrant study`: tables and figures of papers, each one command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.compare import seeds_in
from calibrant.cli.help import OUTPUT, Command, Group
from calibrant.cli.options import EngineOptions, OutputOptions, flattened, option
from calibrant.cli.output import check_outputs, emit, progress, write_text
from calibrant.core.errors import InputError
from calibrant.core.outputs import replacing
from calibrant.core.text import counted, format_table, names_in, shortened, wrap

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="As `calibrant study list` has it, or a declaration (.toml)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What studies are run on."""

    data: list[str] = option(
        [],
        "Predictions (NAME-val.npz beside NAME-test.npz, or one file that is split), runs, data "
        "sets on disk, or a folder of these. NAME=PATH adds a row of your own. May be repeated.",
        metavar="[NAME=]PATH[,PATH]",
    )


@dataclass(frozen=True, kw_only=True)
class SmallOptions(DataOptions):
    """The same, or in small."""

    small: bool = option(False, "In small, on data that ship with Calibrant.")


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SmallOptions):
    """Which cells of a study are computed."""

    seeds: str | None = option(None, "In place of the study's, as 0-4 or 0,1,2.", metavar="SEEDS")
    methods: str | None = option(
        None,
        "In place of the study's; names separated by commas, plug-ins too.",
        metavar="NAMES",
    )
    only: list[str] = option(
        [],
        "These values of an axis only, such as network=resnet8. May be repeated.",
        metavar="AXIS=VALUE[,VALUE]",
    )
    settings: list[str] = option(
        [], "Over the study's settings, such as epochs=2.", "--set", metavar="KEY=VALUE"
    )


@dataclass(frozen=True, kw_only=True)
class StudyOutput(OutputOptions):
    """Where results are kept and written."""

    out: Path = option(
        Path("calibrant-study"),
        "Folder where results are kept; the same command goes on.",
        panel=OUTPUT,
    )
    table: list[Path] = option(
        [], "Write the table here: .md, .tex, .csv or .html. May be repeated.", panel=OUTPUT
    )
    page: Path | None = option(
        None,
        "Fill the places of this Markdown page, from <!-- study NAME: HEADING --> to <!-- end -->, "
        "with the tables.",
        panel=OUTPUT,
    )
    figure: list[Path] = option(
        [], "Write the figure here: .svg, .png or .pdf. May be repeated.", panel=OUTPUT
    )


study = typer.Typer(cls=Group, help="Run tables and figures of papers, and of the documentation.")


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a command; dataclasses that it takes become options."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        study.command(name, cls=Command)(flattened(function))
        return function

    return add


@command("list")
def list_studies(options: DataOptions, output: OutputOptions) -> None:
    """List all studies: paper, title, and whether they can run on what is given."""
    from calibrant_studies.catalogue import names, study_named, summary
    from calibrant_studies.inputs import inputs_of
    from calibrant_studies.requirements import runnable_in_words

    inputs, _ = inputs_of(options.data)
    found = [summary(study_named(name), inputs) for name in names()]
    runs = [runnable_in_words(study_named(name), inputs) for name in names()]
    rows = [
        [each["name"], each["paper"], said, each["title"]]
        for each, said in zip(found, runs, strict=True)
    ]
    table = format_table(["name", "paper", "runnable", "title"], rows, labels=4)
    note = wrap(
        "Runnable: on what --data names (calibrant study show NAME says what is missing); every "
        "study runs with --small, in seconds, on data that ship with Calibrant."
    )
    emit(f"{table}\n\n{note}", found, output.json)


@command("show")
def show(name: Name, options: SmallOptions, output: OutputOptions) -> None:
    """Show what a study computes, what it needs, and what of that is there."""
    from calibrant_studies.catalogue import summary
    from calibrant_studies.cells import cells_of
    from calibrant_studies.requirements import can_run_cell, missing_of, what_to_provide
    from calibrant_studies.running import prepared

    chosen, inputs = prepared(name, options.data, small=options.small)
    missing = missing_of(chosen, inputs)
    cells = cells_of(chosen)
    grid = {axis: [value.name for value in of] for axis, of in chosen.axes.items()}
    grid |= {"seeds": [str(seed) for seed in chosen.seeds], "metrics": list(chosen.metrics)}
    ready = sum(can_run_cell(cell, inputs) for cell in cells)
    lines = [wrap(f"{chosen.name} ({chosen.paper}): {chosen.title}"), ""]
    lines += [wrap(f"{axis}: {', '.join(words)}") for axis, words in grid.items()]
    lines += ["", f"{counted(len(cells), 'cell')} of kind {chosen.kind}; {ready} can be computed"]
    if missing:
        lines += ["", "Missing (give it with --data):", what_to_provide(missing)]
    for note in chosen.footnotes:
        lines += ["", wrap(note)]
    document = summary(chosen, inputs) | {
        "axes": {axis: grid[axis] for axis in chosen.axes},
        "seeds": list(chosen.seeds),
        "metrics": list(chosen.metrics),
        "kind": chosen.kind,
        "cells": len(cells),
        "missing": [each._asdict() for each in missing],
        "published": [
            {**p.at, "metric": p.metric, "value": p.value, "spread": p.spread}
            for p in chosen.published
        ],
        "footnotes": list(chosen.footnotes),
    }
    emit("\n".join(lines), document, output.json)


@command("run")
def run(name: Name, options: StudyOptions, output: StudyOutput, engine: EngineOptions) -> None:
    """Compute the cells of a study that aren't kept yet, and show its table.

    Exit code 1 where a cell failed.
    """
    from calibrant.scale.engines import Engine
    from calibrant_studies import figures, writing
    from calibrant_studies.requirements import can_run, missing_of, what_to_provide
    from calibrant_studies.running import Progress, prepared, run_cells
    from calibrant_studies.store import Store

    table, figure, page = output.table, output.figure, output.page
    check_outputs([], [*table, *figure, output.json], made=output.out)
    for path in table:
        writing.check_ending(path)
    for path in figure:
        figures.check_ending(path)
    by: Any = engine.engine or "processes"
    asked, inputs = prepared(
        name,
        options.data,
        small=options.small,
        seeds=None if options.seeds is None else seeds_in(options.seeds),
        methods=None if options.methods is None else names_in(options.methods),
        only=_only(options.only),
        settings=_settings(name, options.settings),
    )
    text = "" if page is None else writing.read_page(page, asked.name)
    # Before hours of work, not behind them.
    missing = missing_of(asked, inputs)
    if not can_run(asked, inputs):
        wanted = shortened(list(dict.fromkeys(each.input for each in missing)))
        raise InputError(
            f"{name}: nothing that it needs is there; --data gives it: {wanted} (calibrant study "
            f"show {name} says in which form), or run it with --small"
        )
    if missing:
        said = what_to_provide(missing)
        print(
            f"Left out, because the data are missing (give them with --data):\n{said}",
            file=sys.stderr,
        )
    working = Engine(by, engine.workers, engine.scheduler)
    with progress(None, name, remaining=True) as step:

        def watch(came: Progress) -> None:
            step(came.last, came.done, came.of)

        found = run_cells(asked, inputs, Store(output.out), working, watch)
    for path in table:
        write_text(path, writing.written_for(found, path))
    if page is not None:
        write_text(page, writing.filled(text, found, page))
    for path in figure:
        with replacing(path) as temporary:
            temporary.write_bytes(figures.drawn_for(found, path))
    pages = [] if page is None else [page]
    written = "".join(f"\n\nwrote {path}" for path in [*table, *pages, *figure])
    emit(f"{found}{written}", found.as_dict(), output.json)
    if found.failed:
        raise typer.Exit(1)


def _only(texts: list[str]) -> dict[str, list[str]]:
    """Return the values of axes that are asked for."""
    found: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals or not names_in(values):
            raise InputError(f"--only '{text}' is not of the form AXIS=VALUE,VALUE")
        found[axis] = [*found.get(axis, []), *names_in(values)]
    return found


def _settings(name: str, texts: list[str]) -> dict[str, Any]:
    """Return settings, of the types that the kind of the study's cells has."""
    from calibrant.core.arguments import parse_settings
    from calibrant_studies.catalogue import study_named
    from calibrant_studies.kinds import kind_named

    if not texts:
        return {}
    kind = study_named(name).kind
    return parse_settings(texts, kind_named(kind).defaults, f"kind '{kind}'")
