"""`measure` on one file, or on the two files of a run: what is computed, printed and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from calibrant.cli.options import read
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.core.errors import InputError
from calibrant.files.folders import RUN_FILES
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.evaluation.power import SampleSize
    from calibrant.evaluation.results import Evaluation


@dataclass(frozen=True)
class Asked:
    """What `measure` is asked for besides the files.

    Attributes:
        by: what groups are, or None for no groups.
        rows_for: an ECE to tell from noise, or None.
        options: as `calibrant.evaluate` takes them.
        reading: as `calibrant.cli.options.read` takes them.
    """

    by: str | None
    rows_for: float | None
    options: Mapping[str, Any]
    reading: Mapping[str, Any]


def measure_one(file: Path, asked: Asked, report: Path | None, json: str | None) -> None:
    """Measure a file, print what was found and write its page."""
    check_outputs([file, asked.reading.get("labels")], [report, json])
    emit(*_measured(file, asked, report), json)


def measure_run(folder: Path, asked: Asked, report: Path | None, json: str | None) -> None:
    """Measure the validation and the test rows of a run; the page is that of the test rows."""
    files = [folder / name for name in RUN_FILES]
    check_outputs(files, [report, json])
    if asked.reading.get("labels") is not None:
        raise InputError(f"{folder}: the files of a run hold their labels; leave out --labels")
    pages = (None, report)
    found = [_measured(file, asked, page) for file, page in zip(files, pages, strict=True)]
    document: dict[str, Any] = {"run": str(folder)}
    for file, (_, measured) in zip(files, found, strict=True):
        document[file.stem] = measured
    emit("\n\n".join(text for text, _ in found), document, json)


def _measured(file: Path, asked: Asked, report: Path | None) -> tuple[str, dict[str, Any]]:
    """Return what is printed of a file and what goes into JSON; write its page if asked to."""
    from calibrant.evaluation.evaluate import evaluate

    predictions = read(file, **asked.reading)
    grouped = None if asked.by is None else _by_group(file, predictions, asked)
    if grouped is not None and report is None:
        return str(grouped), grouped.as_dict()
    result = evaluate(predictions, **asked.options)
    labels_apart = None
    if predictions.label_names is not None:
        from calibrant.evaluation.many_labels import evaluate_labels

        labels_apart = evaluate_labels(predictions, **asked.options)
    if report is not None:
        from calibrant.report import write_evaluation_report

        write_evaluation_report(report, result, predictions, grouped or labels_apart)
    if grouped is not None:
        return str(grouped), grouped.as_dict()
    text, document = str(result), result.as_dict()
    if labels_apart is not None:
        text += f"\n\n{labels_apart}"
        document["labels"] = labels_apart.as_dict()
    if asked.rows_for is not None:
        size = rows_like(result, asked.rows_for, asked.options["seed"])
        text += f"\n\n{size}"
        document["rows_needed"] = vars(size)
    return text, document


def rows_like(result: Evaluation, ece: float, seed: int) -> SampleSize:
    """Return how many rows like those that were measured tell a model of this ECE from noise."""
    from calibrant.evaluation.power import rows_needed

    return rows_needed(
        result.top.confidence,
        ece,
        seed=seed,
        weights=result.top.weight,
        design_effect=result.n / result.effective_rows,
    )


def _by_group(file: Path, predictions: Predictions, asked: Asked) -> Any:
    """Return the rows measured within groups: those of a kind, or of a column of the file."""
    from calibrant.evaluation.groups import GroupKind, evaluate_by
    from calibrant.files import read_column

    by = asked.by or ""
    kinds = {"class": "predicted"} | {kind: kind for kind in get_args(GroupKind)}
    groups: Any = kinds[by] if by in kinds else read_column(file, by)
    with progress(None, "measuring") as step:
        grouped = evaluate_by(predictions, groups, progress=step, **asked.options)
    # The library saw a column, but not its name.
    return replace(grouped, by=by) if grouped.by == "group" else grouped
