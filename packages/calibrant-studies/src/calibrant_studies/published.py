"""Published numbers, as a declaration writes them: a small table of text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.core.errors import InputError

# A value may stand for a column of the paper, and name the metric too: ``smart / ece``.
_BETWEEN = " / "
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ENTRY = re.compile(rf"({_NUMBER})(?:\s*(?:\+-|±)\s*({_NUMBER}))?(\*?)")
# What stands where a paper has no number.
_NOTHING = ("", "-")


@dataclass(frozen=True)
class Published:
    """A number of a paper, in the paper's units.

    Attributes:
        at: axis to the name of a value; axes that aren't there hold for all values.
        metric: what it is.
        value: the number.
        spread: what the paper prints behind +-; None for nothing.
        half_digit: half a unit of the last digit printed, by which rounding may have moved it.
        doubtful: whether it is marked by a star, as a slip of the paper that a footnote explains.
    """

    at: Mapping[str, str]
    metric: str
    value: float
    spread: float | None
    half_digit: float
    doubtful: bool

    @property
    def text(self) -> str:
        """The number as the paper prints it, with its star."""
        decimals = max(0, round(-math.log10(2 * self.half_digit)))
        return f"{self.value:.{decimals}f}" + "*" * self.doubtful

    def matches(self, at: Mapping[str, str]) -> bool:
        """Return whether it is the number of a cell."""
        return all(at.get(axis) == name for axis, name in self.at.items())


def parse_published(
    text: str, axes: Mapping[str, Sequence[str]], metrics: Sequence[str], where: str
) -> list[Published]:
    """Return the numbers of a block.

    The first line is a heading: axes first, then metrics, or values of an axis that isn't among
    these (``smart``), or both (``smart / ece``). Cells are separated by ``|``; a number may have a
    spread behind ``+-``, and a star where a footnote calls it a slip.

    Args:
        text: the block.
        axes: axis to the names of its values.
        metrics: of the study; a column that names none has the only one.
        where: what errors begin with.

    Raises:
        InputError: an unknown column or value, or a cell that is no number.
    """
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip() and not set(line) <= set("|-: ")
    ]
    if not lines:
        return []
    head, *rows = lines
    leading = [name for name in head if name in axes]
    if head[: len(leading)] != leading:
        raise InputError(f"{where}: published: the columns of axes come first, not {head}")
    others = head[len(leading) :]
    columns = [_column(name, axes, leading, metrics, f"{where}: published") for name in others]
    found: list[Published] = []
    told: set[tuple[tuple[tuple[str, str], ...], str]] = set()
    for number, row in enumerate(rows, 1):
        place = f"{where}: published, row {number}"
        if len(row) != len(head):
            raise InputError(f"{place}: has {len(row)} cells, but the heading {len(head)}")
        at = dict(zip(leading, row, strict=False))
        for axis, name in at.items():
            if name not in axes[axis]:
                raise InputError(f"{place}: '{name}' is no value of the axis {axis}")
        for (of_column, metric), cell in zip(columns, row[len(leading) :], strict=True):
            if cell in _NOTHING:
                continue
            match = _ENTRY.fullmatch(cell)
            if match is None:
                raise InputError(f"{place}: '{cell}' is no number such as 1.38 or 1.38 +- 0.05")
            here = (tuple(sorted((at | of_column).items())), metric)
            if here in told:
                raise InputError(f"{place}: {metric} of this cell is there twice")
            told.add(here)
            spread = None if match[2] is None else float(match[2])
            half = _half_digit(match[1])
            found.append(
                Published(at | of_column, metric, float(match[1]), spread, half, bool(match[3]))
            )
    return found


def _column(
    name: str,
    axes: Mapping[str, Sequence[str]],
    leading: Sequence[str],
    metrics: Sequence[str],
    where: str,
) -> tuple[dict[str, str], str]:
    """Return what a column holds: the value of an axis, if it names one, and the metric."""
    value, _, metric = name.rpartition(_BETWEEN)
    if not value:
        if name in metrics:
            return {}, name
        value, metric = name, metrics[0] if len(metrics) == 1 else ""
    if metric not in metrics:
        raise InputError(f"{where}: column '{name}' names none of the metrics {', '.join(metrics)}")
    of = [axis for axis, names in axes.items() if axis not in leading and value in names]
    if len(of) > 1:
        raise InputError(f"{where}: column '{name}' may be of the axis {' or '.join(of)}")
    if of:
        return {of[0]: value}, metric
    raise InputError(f"{where}: column '{name}' is neither a metric nor a value of an axis")


def _half_digit(text: str) -> float:
    digits, _, exponent = text.lower().partition("e")
    after = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - after)
