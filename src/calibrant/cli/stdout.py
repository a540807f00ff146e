"""What stdout takes, and its end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any


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
