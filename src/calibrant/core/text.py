"""Plain text for terminals, pipes and notebooks, and documents as strict JSON."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

TERMINAL_WIDTH = 80
SHOWN_CLASSES = 10
# The space that no line breaks at.
NO_BREAK = "\u00a0"
# Spaces before a per cent sign, and between thousands.
WITHIN_NUMBERS = re.compile(r" (?=%)|(?<=\d) (?=\d{3}(?!\d))")


def format_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    labels: int = 1,
    marks: Mapping[int, str] = {},
) -> str:
    """Return a table whose first columns, `labels` of them, are aligned left and others right.

    Columns stand two spaces apart. In those with `marks`, by their place, some numbers end in one;
    it has a place of its own beside them, which is half of the space.
    """
    lines = [
        [
            cell + " " if i in marks and not cell.endswith(marks[i]) else cell
            for i, cell in enumerate(line)
        ]
        for line in (head, *rows)
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def form(line: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i < labels else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "".join(map(str.__add__, cells, [*gaps, ""])).rstrip()

    gaps = [" " if i in marks else "  " for i in range(len(head) - 1)]
    rule = "-" * (sum(widths) + sum(map(len, gaps)))
    return "\n".join([form(lines[0]), rule, *map(form, lines[1:])])


def wrap(text: str) -> str:
    """Return a paragraph broken at 80 columns, never within a number as 95 % or 100 000."""
    joined = WITHIN_NUMBERS.sub(NO_BREAK, text)
    lines = textwrap.fill(joined, TERMINAL_WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace(NO_BREAK, " ")


def on_one_line(text: str) -> str:
    r"""Return a text with whatever no line shows (line ends, control codes) as Python writes it.

    Names of files, columns and arguments come from outside and may hold anything.

    Examples:
        >>> from calibrant.core.text import on_one_line
        >>> on_one_line("there is no 'a\nb'")
        "there is no 'a\\nb'"
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def names_in(names: str | Sequence[object]) -> list[str]:
    """Return names that are a sequence, or a text that separates them by commas."""
    parts = names.split(",") if isinstance(names, str) else names
    return [str(part).strip() for part in parts if str(part).strip()]


def reason_of(error: BaseException, most: int | None = None) -> str:
    """Return the first line of what an exception says, or its type where it says nothing.

    What Python says of a number of thousands of digits is a hint at its own settings.
    """
    said = str(error).strip().partition("\n")[0]
    if "for integer string conversion" in said:
        return f"a whole number has more than {sys.get_int_max_str_digits()} digits"
    return said[:most] or type(error).__name__


def first_few(words: Sequence[str], most: int = 5) -> str:
    """Return "a, b, ..." of more than `most` words."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def shortened(words: Sequence[str], most: int = 5) -> str:
    """Return "a, b", and of more than `most` how many others there are."""
    if len(words) <= most + 1:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} others"


def in_order(classes: Sequence[str], form: str) -> str:
    """Return the classes in the order of their scores; of ``"binary"`` ones, which is positive."""
    return shortened(classes, SHOWN_CLASSES) + (" (positive)" if form == "binary" else "")


def listed(words: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def names_by_text(said: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each text once, with the names of all that it was said of.

    Examples:
        >>> from calibrant.core.text import names_by_text
        >>> names_by_text([("a", "too few rows"), ("b", "no labels"), ("c", "too few rows")])
        {'too few rows': 'a, c', 'no labels': 'b'}
    """
    names: dict[str, list[str]] = {}
    for name, text in said:
        names.setdefault(text, []).append(name)
    return {text: ", ".join(group) for text, group in names.items()}


def strict_json(document: Any, **form: Any) -> str:
    """Return a document as JSON.

    Args:
        document: mappings, lists, tuples, text and numbers; what isn't finite is null, and keys are
            written as text.
        form: how `json.dumps` is to write it, as ``indent=2``.

    Examples:
        >>> from calibrant.core.text import strict_json
        >>> strict_json({"gaps": (0.5, float("nan"))})
        '{"gaps": [0.5, null]}'
    """
    return json.dumps(_finite(document), allow_nan=False, **form)


def _finite(value: Any) -> Any:
    if isinstance(value, float):  # most values are numbers, and asking for a Mapping takes longest
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(Any, value)]
    if not isinstance(value, str | int) and isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in cast(Any, value).items()}
    return value
