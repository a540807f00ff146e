"""Options that tell what the keys and columns of a file are called, for all commands.

A command is marked with `tells_names`; what was told is found by `told`, where files are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from calibrant.core.errors import InputError

LogitsKey = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Key or column that holds the logits.", show_default=False),
]
ProbsKey = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Key or column that holds the probabilities.", show_default=False
    ),
]
LabelsKey = Annotated[
    str | None,
    typer.Option(
        "--labels-key",
        "--label-column",
        metavar="NAME",
        help="Key or column that holds the labels.",
        show_default=False,
    ),
]
ClassColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Columns named after the classes, in their order, separated by commas; --kind says "
        "whether they hold logits or probs.",
        show_default=False,
    ),
]
OPTIONS: dict[str, Any] = {
    "logits_key": LogitsKey,
    "probs_key": ProbsKey,
    "labels_key": LabelsKey,
    "class_columns": ClassColumns,
}
_TOLD: ContextVar[dict[str, Any] | None] = ContextVar("names that were told", default=None)


def told() -> dict[str, Any]:
    """Return what the running command was told, as arguments of `read_predictions`."""
    return dict(_TOLD.get() or {})


def refuse_names(of: str) -> None:
    """Raise `InputError` if names were told where they can't be used.

    Args:
        of: what was asked for, such as "several files".
    """
    if told():
        option = next(iter(told())).replace("_", "-")
        raise InputError(f"--{option} goes with one file of predictions, not with {of}")


def tells_names(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the options of this module as well."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        names = {name: options.pop(name) for name in OPTIONS}
        columns = names["class_columns"]
        if columns is not None:
            names["class_columns"] = tuple(name.strip() for name in columns.split(","))
        before = _TOLD.set({name: value for name, value in names.items() if value is not None})
        try:
            command(*arguments, **options)
        finally:
            _TOLD.reset(before)

    signature, keyword = inspect.signature(command), inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(command, include_extras=True)
    own = [one.replace(annotation=hints[name]) for name, one in signature.parameters.items()]
    more = [
        inspect.Parameter(name, keyword, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *more]
    )
    run.__annotations__ = hints | OPTIONS
    return run
