"""`calibrant study`: tables and figures of papers, each one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.datasets import seeds_in
from calibrant.cli.options import EngineName, Json, Scheduler, Workers
from calibrant.cli.output import check_outputs, emit, progress, write_text
from calibrant.core.errors import InputError
from calibrant.core.text import counted, format_table, names_in, shortened, wrap
from calibrant.files.atomic import replacing

study = typer.Typer(help="Run tables and figures of papers, and of the documentation, again.")

Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="[NAME=]PATH[,PATH]",
        help="Predictions (NAME-val.npz beside NAME-test.npz, or one file that is split), runs, "
        "data sets on disk, or a folder of these. NAME=PATH adds a row of your own. May be "
        "repeated.",
    ),
]
Name = Annotated[
    str, typer.Argument(help="As `calibrant study list` has it, or a declaration (.toml).")
]
Small = Annotated[bool, typer.Option("--small", help="In small, on data that ship with Calibrant.")]


def _inputs(data: list[str] | None) -> Any:
    from calibrant_studies.inputs import inputs_of

    return inputs_of(data or [])


@study.command("list")
def list_studies(data: Data = None, json: Json = None) -> None:
    """List all studies: paper, title, and whether they can run on what is given."""
    from calibrant_studies.catalogue import names, study_named, summary
    from calibrant_studies.requirements import runnable_in_words

    inputs, _ = _inputs(data)
    found = [summary(study_named(name), inputs) for name in names()]
    runs = [runnable_in_words(study_named(name), inputs) for name in names()]
    rows = [
        [each["name"], each["paper"], said, each["title"]]
        for each, said in zip(found, runs, strict=True)
    ]
    emit(format_table(["name", "paper", "runnable", "title"], rows, labels=4), found, json)


@study.command()
def show(name: Name, data: Data = None, small: Small = False, json: Json = None) -> None:
    """Show what a study computes, what it needs, and what of that is there."""
    from calibrant_studies.catalogue import summary
    from calibrant_studies.cells import cells_of
    from calibrant_studies.requirements import can_run_cell, missing_of, what_to_provide
    from calibrant_studies.running import prepared

    chosen, inputs = prepared(name, data or [], small=small)
    missing = missing_of(chosen, inputs)
    cells = cells_of(chosen)
    grid = {axis: [value.name for value in of] for axis, of in chosen.axes.items()}
    grid |= {"seeds": [str(seed) for seed in chosen.seeds], "metrics": list(chosen.metrics)}
    ready = sum(can_run_cell(cell, inputs) for cell in cells)
    lines = [wrap(f"{chosen.name} ({chosen.paper}): {chosen.title}"), ""]
    lines += [wrap(f"{axis}: {', '.join(words)}") for axis, words in grid.items()]
    lines += ["", f"{counted(len(cells), 'cell')} of kind {chosen.kind}; {ready} can be computed"]
    if missing:
        lines += ["", "Not there (--data gives it):", what_to_provide(missing)]
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
    emit("\n".join(lines), document, json)


@study.command()
def run(
    name: Name,
    data: Data = None,
    small: Small = False,
    seeds: Annotated[
        str | None, typer.Option(help="In place of the study's, as 0-4 or 0,1,2.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="In place of the study's; names separated by commas, plug-ins too."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUE[,VALUE]",
            help="These values of an axis only, such as network=resnet8. May be repeated.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Over the study's settings, such as epochs=2."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder where results are kept; the same command goes on.")
    ] = Path("calibrant-study"),
    engine: EngineName = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(help="Write the table here: .md, .tex, .csv or .html. May be repeated."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Fill the places of this Markdown page, from <!-- study NAME: HEADING --> to "
            "<!-- end -->, with the tables."
        ),
    ] = None,
    figure: Annotated[
        list[Path] | None,
        typer.Option(help="Write the figure here: .svg, .png or .pdf. May be repeated."),
    ] = None,
    json: Json = None,
) -> None:
    """Compute the cells of a study that aren't kept yet, and show its table.

    Exit code 1 where a cell failed.
    """
    from calibrant.scale.engines import Engine
    from calibrant_studies import figures, writing
    from calibrant_studies.requirements import can_run, missing_of, what_to_provide
    from calibrant_studies.running import Progress, prepared, run_cells
    from calibrant_studies.store import Store

    check_outputs([], [*(table or []), *(figure or []), json], made=out)
    for path in table or []:
        writing.check_ending(path)
    for path in figure or []:
        figures.check_ending(path)
    chosen: Any = engine or "processes"
    asked, inputs = prepared(
        name,
        data or [],
        small=small,
        seeds=None if seeds is None else seeds_in(seeds),
        methods=None if methods is None else names_in(methods),
        only=_only(only or []),
        settings=_settings(name, set_ or []),
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
        print(
            f"Not there, and left out (--data gives it):\n{what_to_provide(missing)}",
            file=sys.stderr,
        )
    with progress(None, name, remaining=True) as step:

        def watch(came: Progress) -> None:
            step(came.last, came.done, came.of)

        found = run_cells(asked, inputs, Store(out), Engine(chosen, workers, scheduler), watch)
    for path in table or []:
        write_text(path, writing.written_for(found, path))
    if page is not None:
        write_text(page, writing.filled(text, found, page))
    for path in figure or []:
        with replacing(path) as temporary:
            temporary.write_bytes(figures.drawn_for(found, path))
    pages = [] if page is None else [page]
    written = "".join(f"\n\nwrote {path}" for path in [*(table or []), *pages, *(figure or [])])
    emit(f"{found}{written}", found.as_dict(), json)
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
