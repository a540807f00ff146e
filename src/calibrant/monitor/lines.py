"""Lines of a stream are counted, block by block; those that hold no usable row may be left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.files.reading import MisreadError
from calibrant.monitor.first_rows import FirstRows
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.rows import Reading, Row, Scored, parse, plain, scored
from calibrant.monitor.sequential_tests import Alarm


def count_lines(
    monitor: Monitor, data: bytes, reading: Reading, number: int, first: FirstRows
) -> list[Alarm]:
    """Let a monitor count whole lines; blank ones hold no row.

    Args:
        monitor: counts.
        data: the lines.
        reading: how they are read.
        number: of the first of these lines in its file.
        first: looks at the first rows; its source begins the error messages.

    Raises:
        PredictionsError: a line isn't usable, and those aren't left out; or all rows look like what
            they weren't said to be.
    """
    numbered = [(i, line) for i, line in enumerate(data.splitlines(), number) if line.strip()]
    if not numbered:
        return []
    unreadable = monitor.leave_out if reading.skip_broken else None
    if reading.skip_broken:
        known = monitor.unreadable
        monitor.notes["unreadable"] = known._replace(read=known.read + len(numbered))._asdict()
    try:
        numbers, lines = zip(*numbered, strict=True)
        found = look_at(first, parse(lines, numbers, first.source), numbers, reading, monitor)
    except MisreadError:
        raise
    except PredictionsError as error:
        if unreadable is None:
            hint = "--skip-broken (skip_broken=) leaves out lines without a usable row"
            raise PredictionsError(error.sentence, hint, error.line) from error
        # A line of this block can't be read, so that nothing of it was counted.
        rows, usable = list[Row](), list[int]()
        for number, line in numbered:
            try:
                row = parse([line], [number], first.source)
                scored(row, reading, [number], first.source)
            except PredictionsError as error:
                unreadable(error)
            else:
                rows += row
                usable.append(number)
        found = look_at(first, rows, usable, reading, monitor) if rows else None
    if found is None:
        return []
    if isinstance(found, Scored):
        return found.feed(monitor, unreadable)
    return list(monitor.update(*found))


def look_at(
    first: FirstRows,
    rows: Sequence[Row],
    numbers: Sequence[int],
    reading: Reading,
    monitor: Monitor,
) -> Scored | tuple[FloatArray, BoolArray]:
    """Return what rows say, where they are simple as `plain` does; the first ones are looked at.

    Raises:
        PredictionsError: a row isn't usable, or all look like what they weren't said to be.
    """
    found = plain(rows, reading)
    if found is None:
        found = scored(rows, reading, numbers, first.source, first)
        if not first.enough:
            said, outcomes, predicted = found.late(monitor)
            first.top(np.array(said), np.array(predicted, dtype=np.int64), outcomes)
    elif not first.enough:
        first.right(*found)
    first.judge()
    first.counted = True
    return found
