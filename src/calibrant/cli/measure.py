"""The commands `measure` and `inspect`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.help import MANY, ends_with
from calibrant.cli.options import (
    DrawOptions,
    EngineOptions,
    File,
    Files,
    OutputOptions,
    PageOptions,
    Source,
    all_metrics,
    complete_group,
    each_of,
    option,
)
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError
from calibrant.core.text import counted, in_order, wrap
from calibrant.files import ReadOptions, read_predictions
from calibrant.files.formats.logs.reader import NothingToMeasureError
from calibrant.files.opening import RUN_FILES, is_run
from calibrant.files.reading import read_with_slice
from calibrant.predictions.origin import LabelledSlice
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.evaluation.groups import GroupedEvaluation
    from calibrant.scale.shards import Shards

Found = tuple[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What `measure` is asked for besides the metrics."""

    by: list[str] = option(
        [],
        "Measure within groups: class (predicted), label, margin, confidence, or the name of a "
        "column of FILE. Given twice or more: find the worst group of all columns and their pairs.",
        metavar="GROUPS",
        complete=complete_group,
    )
    rows_for: float | None = option(
        None,
        "Also say how many rows it takes to tell an ECE of this size from noise; a fraction, such "
        "as 0.01 for 1 %.",
        metavar="ECE",
    )

    each: bool = option(
        False,
        "Measure each FILE, or each log of a folder, by itself, not all as one set. With --report "
        "the page shows them side by side in the given order, such as runs or dates.",
        panel=MANY,
    )

    def __post_init__(self) -> None:
        if self.rows_for is not None and not 0 < self.rows_for < 1:
            raise InputError(
                "--rows-for takes an ECE as a fraction, such as 0.01 for 1 %, not "
                f"{self.rows_for:g}"
            )
        if self.rows_for is not None and self.by:
            raise InputError("--rows-for asks about the whole file; leave out either it or --by")


@ends_with(all_metrics)
def measure(
    files: Files,
    options: MeasureOptions,
    draw: DrawOptions,
    output: PageOptions,
    read: ReadOptions,
    engine: EngineOptions,
) -> None:
    """Measure how well calibrated the confidence in FILE is, with intervals and the noise floor.

    FILE may be a run of `calibrant train`: then its validation and its test rows are measured.
    """
    source, first = Source(files, read, engine), Path(files[0])
    if options.each:
        found = _measured_each(files, options, draw, output, read)
    elif len(files) == 1 and is_run(first) and not engine.given:
        found = _measured_run(first, options, draw, output, read)
    else:
        found = _measured(source, options, draw, output)
    emit(*found, output.json)


def _measured_run(
    folder: Path,
    options: MeasureOptions,
    draw: DrawOptions,
    output: PageOptions,
    read: ReadOptions,
) -> Found:
    """Measure the validation and the test rows of a run; the page is that of the test rows."""
    files = [folder / name for name in RUN_FILES]
    check_outputs(files, [output.report, output.json])
    if read.labels is not None:
        raise InputError(f"{folder}: the files of a run hold their labels; leave out --labels")
    outputs = (replace(output, report=None), output)
    found = [
        _measured(Source([str(file)], read), options, draw, each)
        for file, each in zip(files, outputs, strict=True)
    ]
    document: dict[str, Any] = {"run": str(folder)}
    for file, (_, measured) in zip(files, found, strict=True):
        document[file.stem] = measured
    return "\n\n".join(text for text, _ in found), document


def _measured_each(
    files: Sequence[str],
    options: MeasureOptions,
    draw: DrawOptions,
    output: PageOptions,
    read: ReadOptions,
) -> Found:
    """Measure each of several files by itself."""
    given, files = files, each_of(files)
    check_outputs([*map(Path, files)], [output.report, output.json])
    odd = next((f for f in files if not Path(f).is_file() and not Source([f], read).logs), None)
    if odd is not None:
        raise InputError(f"{odd}: --each measures files, and folders of logs; this is neither")
    if output.report is not None:
        return _side_by_side(files, options, draw, output, read)
    found: dict[str, Found] = {}
    for file in files:
        try:
            found[file] = _measured(Source([file], read), options, draw, output)
        except NothingToMeasureError as reason:
            if file in given:
                raise
            found[file] = (wrap(f"{reason}"), {"left_out": str(reason)})
    text = "\n\n".join(text for text, _ in found.values())
    return text, {name: document for name, (_, document) in found.items()}


def _side_by_side(
    files: Sequence[str],
    options: MeasureOptions,
    draw: DrawOptions,
    output: PageOptions,
    read: ReadOptions,
) -> Found:
    """Measure several files, such as those of several dates, and write the page of all of them."""
    from calibrant.evaluation.evaluate import evaluate
    from calibrant.evaluation.history import History

    if len(files) < 2:
        raise InputError("the page of --each is for several files; with one file leave out --each")
    if options.by or options.rows_for is not None or output.images is not None:
        raise InputError(
            "the page of --each shows whole files; leave out --by, --rows-for and --images"
        )
    found = History({file: evaluate(read_predictions(file, read), **draw.drawn) for file in files})
    assert output.report is not None
    found.to_html(output.report)
    return str(found), found.as_dict()


def _measured(
    source: Source, options: MeasureOptions, draw: DrawOptions, output: PageOptions
) -> Found:
    """Measure the rows of one file or many, and write their page if asked to."""
    outputs = [output.report, output.json]
    some: LabelledSlice | None = None
    if source.many:
        rows = source.rows(outputs)
    else:
        file, read = source.one()
        labels = None if read.labels is None else Path(read.labels)
        check_outputs([*map(Path, source.files), labels], outputs)
        rows, some = read_with_slice(file, read)
    if rows is None:
        assert some is not None
        return _of_slice(some, draw)
    text, document = _of_rows(rows, source, options, draw, output)
    if some is not None:
        of_all, found = _of_slice(some, draw)
        text, document = f"{of_all}\n\n{text}", document | found
    if isinstance(rows, Predictions):
        if rows.origin is not None:
            text = f"{wrap(str(rows.origin))}\n\n{text}"
            document = {"origin": rows.origin.as_dict(), **document}
    elif len(source.files) > 1 and not options.by:
        several = f"{len(source.files)} arguments, one set of rows"
        text += f"\n\n{several}; --each measures each by itself."
    return text, document


def _of_slice(some: LabelledSlice, draw: DrawOptions) -> Found:
    """Return the accuracy of all rows, of which only some have an outcome."""
    from calibrant.evaluation.slices import accuracy_of_all

    found = accuracy_of_all(
        some.score,
        some.outcome,
        clusters=some.clusters,
        inclusion=some.inclusion,
        level=draw.level,
        seed=draw.seed,
    )
    text = str(found)
    if some.graded:
        text += "\n\n" + wrap(
            "Outcomes between 0 and 1 are neither right nor wrong, so calibration isn't measured; "
            "the accuracy is their mean."
        )
    return text, {"accuracy_of_all": found.as_dict()}


def _of_rows(
    rows: Predictions | Shards,
    source: Source,
    options: MeasureOptions,
    draw: DrawOptions,
    output: PageOptions,
) -> Found:
    """Measure rows, and write their page if asked to."""
    from calibrant.evaluation.evaluate import evaluate
    from calibrant.evaluation.groups import evaluate_labels

    page = output.report
    drawn = draw.drawn
    if len(options.by or ()) > 1:
        return _worst_of_all(source, options.by, rows, draw, page)
    with source.working("measuring") as how:
        groups = None if not options.by else _by_group(source, options.by[0], rows, drawn | how)
        if groups is not None and page is None:
            return str(groups), groups.as_dict()
        result = evaluate(rows, **drawn, **how)
        each_label = None
        if isinstance(rows, Predictions) and rows.label_names is not None:
            each_label = evaluate_labels(rows, **drawn, watch=how["watch"])
    if page is not None:
        file, read = (None, source.read) if source.many else source.one()
        names = output.names_of_rows(file if len(source.files) == 1 else None, read)
        result.to_html(page, groups=groups or each_label, **names)
    if groups is not None:
        return str(groups), groups.as_dict()
    text, document = str(result), result.as_dict()
    if options.rows_for is not None:
        from calibrant.evaluation.power import rows_needed

        size = rows_needed(result.sample, options.rows_for, seed=draw.seed)
        text += f"\n\n{size}"
        document["rows_needed"] = size.as_dict()
    if each_label is not None:
        text += f"\n\n{each_label}"
        document["labels"] = each_label.as_dict()
    return text, document


def _by_group(
    source: Source, by: str, rows: Predictions | Shards, how: dict[str, Any]
) -> GroupedEvaluation:
    """Return the rows measured within groups: those of a kind, or of a column of the files."""
    from calibrant.evaluation.groups import evaluate_by

    found = evaluate_by(rows, source.groups(by, rows), **how)
    # Of rows in memory the library saw a column, but not its name.
    return replace(found, by=by) if found.by == "group" else found


def _worst_of_all(
    source: Source,
    by: Sequence[str],
    rows: Predictions | Shards,
    draw: DrawOptions,
    page: Path | None,
) -> Found:
    """Return the worst group of several columns and their pairs."""
    from calibrant.evaluation.multicalibration import multicalibration

    if draw.metrics:
        raise InputError(
            "several --by find the worst group by an error measure of their own; leave out "
            "--metrics"
        )
    columns = {name: source.groups(name, rows) for name in by}
    found = multicalibration(rows, columns, draws=draw.resamples, seed=draw.seed)
    if page is not None:
        found.to_html(page)
    return str(found), found.as_dict()


def inspect(file: File, read: ReadOptions, output: OutputOptions) -> None:
    """Show what is in FILE and how it would be read; try the options for reading here.

    Of a calibrator and a decision it says what they do.
    """
    from calibrant.files.inspecting import inspect_file

    labels = None if read.labels is None else Path(read.labels)
    check_outputs([file, labels], [output.json])
    saved = _saved(file) or _graph(file)
    if saved is not None:
        emit(*saved, output.json)
        return
    found = inspect_file(file, read)
    emit(str(found), found.as_dict(), output.json)
    if found.predictions is None:
        raise InputError(f"{file}: can't be read as it is, for the reason above")


def _saved(file: Path) -> tuple[str, dict[str, Any]] | None:
    """Return what a saved decision or calibrator does; None for any other file."""
    from calibrant.cli.fit import on_classes
    from calibrant.decision.decision_file import is_decision, load_decision
    from calibrant.posthoc.loading import load
    from calibrant.posthoc.state import FORMAT

    decision = load_decision(file) if is_decision(file) else None
    if decision is None and not FORMAT.holds(file):
        return None
    fitted = load(file) if decision is None else decision.calibrator
    what = {
        "method": fitted.method,
        "n_parameters": fitted.n_parameters,
        "n_classes": fitted.n_classes_,
        "class_names": fitted.class_names_,
        "form": fitted.form_,
        "inputs": fitted.kind_,
        "keeps_prediction": fitted.keeps_prediction,
        "fit": fitted.fit_report_.as_dict(),
    }
    text = (
        f"the calibrator {fitted.method}: {counted(fitted.n_parameters, 'parameter')}, fitted to "
        f"{fitted.rows_of_fit()}; it {on_classes(fitted)}."
    )
    document: dict[str, Any] = {"file": str(file), "calibrator": what}
    if decision is None:
        names = fitted.class_names_
        parts = [f"{file} holds {text}", (fitted.fit_report_.worth or {}).get("finding", "")]
        parts[1:1] = [f"classes in order: {in_order(names, fitted.form_)}"] if names else []
        return "\n\n".join(wrap(part) for part in parts if part), document
    document |= {"decision": decision.as_dict()}
    return f"{wrap(f'{file} holds a decision, and {text}')}\n\n{decision}", document


def _graph(file: Path) -> tuple[str, dict[str, Any]] | None:
    """Return what an ONNX file that Calibrant wrote says of itself, as text and JSON; else None."""
    if file.suffix != ".onnx":
        return None
    from calibrant.export.onnx_file import props_of, signature, written_graph

    model = written_graph(file)
    if model is None:
        return None
    said = props_of(model)
    text = f"{said['method']} as an ONNX graph in {file}\n{signature(model)}"
    return text, {"file": str(file), **said, "class_names": json.loads(said["class_names"])}
