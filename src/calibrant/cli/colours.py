"""Colours on terminals that have them: what to look at first, and what went wrong."""

from __future__ import annotations

import os
import re
from typing import TextIO

BOLD, DIM, RED, YELLOW, GREEN = "1", "2", "1;31", "33", "1;32"
# The verdict, and each table's headings with the rule below them.
_VERDICT = re.compile(r"^(Use )(\S+)(?=\.(\s|$))", re.MULTILINE)
_HEADINGS = re.compile(r"^(.*\S.*)\n(-{8,})$", re.MULTILINE)


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal whose user wants colours.

    A variable NO_COLOR that isn't empty turns them off, and so does a terminal that says it is
    dumb; files and pipes never get any.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") == "dumb":
        return False
    if os.name == "nt" and "WT_SESSION" not in os.environ:
        return False
    return stream is not None and not stream.closed and stream.isatty()


def painted(text: str, stream: TextIO | None) -> str:
    """Return a result as a terminal shows it; the same text for any other stream."""
    if not has_colours(stream):
        return text
    text = _VERDICT.sub(lambda found: found[1] + _in(GREEN, found[2]), text)
    return _HEADINGS.sub(lambda f: f"{_in(BOLD, f[1])}\n{_in(DIM, f[2])}", text)


def painted_sentence(sentence: str, stream: TextIO | None) -> str:
    """Return an error or a warning as a terminal shows it: its first word stands out."""
    kind, colon, rest = sentence.partition(":")
    colour = {"error": RED, "warning": YELLOW, "interrupted": YELLOW}.get(kind)
    if not colon or colour is None or not has_colours(stream):
        return sentence
    return f"{_in(colour, kind + colon)}{rest}"


def _in(colour: str, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"
