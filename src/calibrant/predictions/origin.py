"""What a tool's log holds beside predictions: which tool, rows left out, rows without outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.text import counted


@dataclass(frozen=True)
class LeftOut:
    """Rows without a confidence that one reason explains.

    Attributes:
        rows: how many.
        correct: how many of them are right, of those where it is known.
        known: of how many of them it is known.
    """

    rows: int = 0
    correct: float = 0.0
    known: int = 0

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(
            self.rows + other.rows, self.correct + other.correct, self.known + other.known
        )


def _no_reasons() -> Mapping[str, LeftOut]:
    return {}


@dataclass(frozen=True)
class Origin:
    """What is known of a log beside its rows; prints as a paragraph.

    Attributes:
        tool: that wrote the log.
        version: of the tool; "" where the log doesn't say.
        signal: what the confidence was read from.
        rows: number of rows with a confidence.
        choices: the fewest and the most classes of a row; None where rows have one score.
        positions: whether a class is nothing but the position of a choice in its question.
        left_out: rows without a confidence, by reason.
        notes: what a reader should know besides: what was checked, and how.
        checked: whether the log's own accuracy came out of its rows, so that labels are theirs.
    """

    tool: str
    version: str
    signal: str
    rows: int
    choices: tuple[int, int] | None = None
    positions: bool = False
    left_out: Mapping[str, LeftOut] = field(default_factory=_no_reasons)
    notes: tuple[str, ...] = ()
    checked: bool = False

    @classmethod
    def together(cls, parts: Sequence[Origin]) -> Origin:
        """Return what is known of several logs that are read as one set."""
        left_out: dict[str, LeftOut] = {}
        for part in parts:
            for reason, rows in part.left_out.items():
                left_out[reason] = left_out.get(reason, LeftOut()) + rows
        of_rows = [part for part in parts if part.rows] or list(parts)
        widths = [part.choices for part in of_rows if part.choices is not None]

        def listed(name: str) -> str:
            return " and ".join(dict.fromkeys(text for p in of_rows if (text := getattr(p, name))))

        return cls(
            listed("tool"),
            listed("version"),
            listed("signal"),
            sum(part.rows for part in parts),
            (min(low for low, _ in widths), max(high for _, high in widths)) if widths else None,
            any(part.positions for part in of_rows),
            left_out,
            tuple(dict.fromkeys(note for part in of_rows for note in part.notes)),
            all(part.checked for part in of_rows),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "tool": self.tool,
            "version": self.version or None,
            "signal": self.signal,
            "rows": self.rows,
            "choices": None if self.choices is None else list(self.choices),
            "left_out": [
                {
                    "reason": reason,
                    "rows": some.rows,
                    "accuracy": some.correct / some.known if some.known else None,
                }
                for reason, some in self.left_out.items()
            ],
            "notes": list(self.notes),
            "checked": self.checked,
        }

    def __str__(self) -> str:
        first = f"{self.tool} {self.version}".rstrip() + f": {counted(self.rows, 'row')}"
        if self.choices is not None:
            low, high = self.choices
            first += f" of {low} choices" if low == high else f" of {low} to {high} choices"
        lines = [f"{first}; confidence from {self.signal}." if self.signal else f"{first}."]
        for reason, some in self.left_out.items():
            share = f" (accuracy {some.correct / some.known:.1%})" if some.known else ""
            lines.append(f"Left out {counted(some.rows, 'row')}{share}: {reason}.")
        return " ".join([*lines, *self.notes])


@dataclass(frozen=True, eq=False)
class LabelledSlice:
    """All rows of a judge's log, of which some have an outcome.

    Attributes:
        score: (N,) of every row.
        outcome: (N,) in [0, 1], NaN where it isn't known.
        clusters: (N,) names of what rows belong to, or None.
        inclusion: (N,) probability of having been drawn into the slice, or None.
    """

    score: FloatArray
    outcome: FloatArray
    clusters: NDArray[Any] | None = None
    inclusion: FloatArray | None = None

    @property
    def graded(self) -> bool:
        """Whether an outcome is neither 0 nor 1, so that it is no event."""
        known = self.outcome[self.outcome == self.outcome]
        return bool(((known != 0) & (known != 1)).any())
