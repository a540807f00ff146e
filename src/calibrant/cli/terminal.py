"""Stdout and stderr: colours on terminals that have them, any text, and a reader who has gone."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO

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
    text = _VERDICT.sub(lambda found: found[1] + coloured(GREEN, found[2]), text)
    return _HEADINGS.sub(lambda f: f"{coloured(BOLD, f[1])}\n{coloured(DIM, f[2])}", text)


def painted_sentence(sentence: str, stream: TextIO | None) -> str:
    """Return an error or a warning as a terminal shows it: its first word stands out."""
    kind, colon, rest = sentence.partition(":")
    colour = {"error": RED, "warning": YELLOW, "interrupted": YELLOW}.get(kind)
    if not colon or colour is None or not has_colours(stream):
        return sentence
    return f"{coloured(colour, kind + colon)}{rest}"


def coloured(colour: str, text: str) -> str:
    """Return a text in a colour."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def take_any_text() -> None:
    """Let stdout write out what its encoding lacks, such as names of files that aren't UTF-8."""
    stdout: Any = sys.stdout
    if isinstance(stdout, TextIOWrapper):  # it may be closed, or put in place by a caller
        stdout.reconfigure(errors="backslashreplace")


def finish_output() -> None:
    """Write out what stdout holds; that nobody reads it any more is no error.

    Raises:
        OSError: it can't be written, as on a full disk.
    """
    if sys.stdout is None:  # closed by whoever started this process
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more at its end, and would fail once more.
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
