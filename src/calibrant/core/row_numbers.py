"""How rows are numbered in messages where only a part of a file is at hand.

Whoever reads a file in batches says where the batch begins; checks of the batch then name the row
of the file, and needn't know that there is one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_first: ContextVar[int] = ContextVar("first row", default=0)


@contextmanager
def rows_from(first: int) -> Generator[None]:
    """Within the body, row 0 of whatever is checked is called row `first`."""
    token = _first.set(first)
    try:
        yield
    finally:
        _first.reset(token)


def row_number(row: int) -> int:
    """Return what to call a row of the arrays at hand."""
    return _first.get() + row
