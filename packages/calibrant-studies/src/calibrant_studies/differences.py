"""Paired differences between competitors, over seeds and resamples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.tables import Table
from calibrant_studies.kinds.base import Measure
from calibrant_studies.over_seeds import interval_over_seeds

if TYPE_CHECKING:
    from calibrant_studies.results import Ran, StudyResult

LEVEL = 0.95


class Difference(NamedTuple):
    """A mean difference over seeds, and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired(ours: Sequence[Any], theirs: Sequence[Any], metric: str) -> Difference | None:
    """Return the mean difference of a metric between results on the same resamples, or None.

    The interval holds what other seeds and other test rows would change, see `over_seeds`.

    Args:
        ours: results of one, seed by seed.
        theirs: of the other, for the same seeds.
        metric: by name.
    """
    values: list[float] = []
    drawn: list[FloatArray] = []
    for a, b in zip(ours, theirs, strict=True):
        points = [each["values"].get(metric, {}).get("value") for each in (a, b)]
        replicates = [each.get("replicates", {}).get(metric, ()) for each in (a, b)]
        same = a.get("pairing") == b.get("pairing") and len(replicates[0]) == len(replicates[1])
        if None in points or not same or not replicates[0]:
            return None
        values.append(points[0] - points[1])
        drawn.append(np.asarray(replicates[0]) - np.asarray(replicates[1]))
    ends = interval_over_seeds(np.array(values), np.array(drawn), LEVEL)
    return Difference(float(np.mean(values)), *ends)


class Pair(NamedTuple):
    """Two competitors at one point of the grid.

    Attributes:
        rest: where, as axis to value, without the axis of the competitors.
        words: the one and the other.
        found: the difference in each metric; None where results aren't on the same resamples.
    """

    rest: dict[str, str]
    words: str
    found: dict[Measure, Difference | None]


def all_pairs(result: StudyResult) -> Iterator[Pair]:
    """Yield each competitor with each of those that the study sets it against, point by point."""
    study, axis = result.study, result.study.compare
    metrics = [result.measures[name] for name in study.metrics]
    points: dict[tuple[tuple[str, str], ...], dict[str, list[Ran]]] = {}
    for ran in result.ran if axis is not None else ():
        rest = tuple((key, name) for key, name in ran.cell.at.items() if key != axis)
        points.setdefault(rest, {}).setdefault(ran.cell.at[str(axis)], []).append(ran)
    for rest, group in points.items():
        for rival in study.against:
            for name, ours in group.items():
                theirs = group.get(rival, [])
                if name == rival or name in study.against[: study.against.index(rival)]:
                    continue
                if [r.cell.seed for r in ours] != [r.cell.seed for r in theirs]:
                    continue
                a, b = ([ran.result for ran in of] for of in (ours, theirs))
                found = {measure: paired(a, b, measure.name) for measure in metrics}
                yield Pair(dict(rest), f"{name} - {rival}", found)


def differences(result: StudyResult) -> Table:
    """Return a row for each competitor and each of those that the study sets it against."""
    study = result.study
    others = [key for key in (*study.rows, *study.columns) if key != study.compare]
    rows = [
        [
            *(study.word(key, pair.rest) for key in others),
            pair.words,
            *(shown(found, measure) if found else "" for measure, found in pair.found.items()),
        ]
        for pair in all_pairs(result)
        if any(pair.found.values())
    ]
    notes = (
        "Means over seeds with 95 % intervals, from resamples of test rows that both share and, by "
        "Student's t, the scatter of seeds; * where the interval leaves out 0."
    )
    titles = [result.measures[name].title for name in study.metrics]
    return Table([*others, "difference", *titles], rows, set(), notes, len(others) + 1)


def shown(found: Difference, measure: Measure) -> str:
    """Return a difference and its interval as tables have them.

    Two competitors that do the same differ by rounding: what the digits don't show gets no star.
    """
    ends = [f"{measure.scale * end:+.{measure.digits}f}" for end in found]
    star = "*" if found.clear and any(map(float, ends)) else ""
    return f"{ends[0]} ({ends[1]} to {ends[2]}){star}"
