"""The command `decide`: what is done with calibrated rows, and what is promised of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from calibrant.cli.help import INTERVALS, OUTPUT
from calibrant.cli.options import (
    Files,
    ReportOptions,
    Source,
    complete_method,
    kind_of_groups,
    option,
)
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError
from calibrant.files import ReadOptions

if TYPE_CHECKING:
    from calibrant.decision.base import Decision
    from calibrant.posthoc.base import Calibrator
    from calibrant.predictions.predictions import Predictions
    from calibrant.scale.shards import Shards


RULES = "More about the rule"


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """What is decided by, and how intervals are made."""

    risk: float | None = option(
        None, "Answer the most confident rows; at most this share of answers (.05: 5 %) is wrong."
    )
    loss: str | None = option(
        None,
        "With --risk: the column of a loss from 0 to 1; its mean is bounded instead of the share "
        "of errors.",
        metavar="COLUMN",
        panel=RULES,
    )
    precision: float | None = option(
        None, "Share of the predictions of class --of that must be right."
    )
    recall: float | None = option(None, "Share of the rows of class --of that must be found.")
    of: str | None = option(
        None,
        "The class of --precision, --recall or the net benefit. Default: the second of two.",
        metavar="CLASS",
    )
    sure: float = option(0.95, "Probability that the promise holds, over draws of FILE.")
    costs: str = option(
        "",
        "Cost of each confusion: a row for each true class, a column for each answer.",
        metavar="'0,1;5,0'",
    )
    error_cost: float | None = option(None, "Cost of any error, in place of --costs.", panel=RULES)
    hand_over_cost: float | None = option(None, "Cost of not answering a row.", panel=RULES)
    cover: float | None = option(
        None, "Answer with sets of classes; this share of the sets holds the true class."
    )
    score: str = option(
        "lac", "The score behind these sets: lac, aps or raps.", metavar="WORD", panel=RULES
    )
    by: list[str] = option(
        [],
        "Find a threshold for each group, with one promise for all groups: class (predicted), "
        "margin, confidence, or the name of a column of FILE. Not with costs.",
        metavar="GROUPS",
        panel=RULES,
    )
    level: float = option(0.95, "Coverage of the intervals, a fraction.", panel=INTERVALS)
    seed: int = option(0, "Seed of all random draws.", panel=INTERVALS)


@dataclass(frozen=True, kw_only=True)
class DecidedOptions(ReportOptions):
    """Where the decision is saved, and its page."""

    out: Path | None = option(
        None, "Save the decision here (.safetensors), for apply.", panel=OUTPUT
    )


def decide(
    calibrator: Annotated[
        str,
        typer.Argument(
            metavar="CALIBRATOR",
            help="Saved by `calibrant fit`, or a method, to be fitted to half of the rows.",
            autocompletion=complete_method,
        ),
    ],
    files: Files,
    options: RuleOptions,
    output: DecidedOptions,
    read: ReadOptions,
) -> None:
    """Find which rows to answer, on labelled rows that weren't used for the fit."""
    from calibrant.decision.decide import decide as decided
    from calibrant.decision.decision_file import FORMAT, save_decision
    from calibrant.posthoc.loading import load

    outputs = [output.json, output.report, output.out]
    saved = Path(calibrator) if calibrator.endswith(".safetensors") else None
    check_outputs([saved], outputs)
    if output.out is not None:
        FORMAT.check_extension(output.out)
    source = Source(files, read)
    rows = source.rows(outputs)
    rule: dict[str, Any] = vars(options) | {
        "costs": _costs(options.costs) if options.costs else None,
        "loss": None if options.loss is None else source.column(options.loss, rows),
        "of": int(options.of) if options.of is not None and options.of.isdecimal() else options.of,
    }
    by = rule.pop("by")
    if len(by) > 1:
        raise InputError(
            "decide --by takes one column; for groups of several columns, such as "
            f"{' and '.join(by)}, add a column to the file that combines them"
        )
    fitted = calibrator if saved is None else load(saved)
    found: Decision = (
        _by_groups(fitted, source, rows, by[0], rule)
        if by
        else cast(Any, decided)(fitted, rows, **rule)
    )
    if output.out is not None and found.decides:
        save_decision(found, output.out)
    if output.report is not None:
        found.to_html(output.report)
    emit(str(found), found.as_dict(), output.json)
    if output.out is not None and not found.decides:
        raise InputError(f"{output.out} isn't written: there is no decision to save")


def _by_groups(
    calibrator: Calibrator | str,
    source: Source,
    rows: Predictions | Shards,
    by: str,
    rule: dict[str, Any],
) -> Decision:
    """Decide in each group of a kind, or of a column of the files."""
    from calibrant.decision.decide import decide_by

    costs = [rule.pop(name) for name in ("costs", "error_cost", "hand_over_cost")]
    if any(each is not None for each in costs):
        raise InputError(
            "--by needs a promise, and a decision by cost makes none; use --risk, "
            "--precision, --recall or --cover"
        )
    groups: Any = kind_of_groups(by) or source.column(by, rows)
    return decide_by(calibrator, rows, groups, **rule, by=by)


def _costs(text: str) -> list[list[float]]:
    try:
        rows = [[float(cell) for cell in row.split(",")] for row in text.split(";")]
    except ValueError:
        rows = []
    if not rows or any(len(row) != len(rows) for row in rows):
        raise InputError(
            f"--costs takes rows of numbers, as many as there are classes, as in '0,1;5,0'; not "
            f"'{text}'"
        )
    return rows
