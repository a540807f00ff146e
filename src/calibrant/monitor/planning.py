"""How many rows it takes until a drift is seen, from the confidences of a stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError
from calibrant.core.result import Result, Table
from calibrant.core.text import counted, wrap
from calibrant.core.weights import codes_of
from calibrant.monitor.monitor import Monitor, as_names, as_rows
from calibrant.monitor.sequential_tests import Alarm

# Streams that are drawn, and rows after which one is given up.
STREAMS, MOST_ROWS = 60, 30_000
# Confidences that are kept of the stream.
KEPT = 200_000
# How normal numbers behind the outcomes of a cluster's rows correlate, where nobody says.
CORRELATION = 0.3
SHARES = (0.5, 0.8)


@dataclass(frozen=True)
class Needed:
    """After how many units a test sees the drift.

    Attributes:
        test: ``"level"`` or ``"change"``.
        median: half of the streams raise the alarm by then; most: four in five do. None where
            fewer do before they are given up.
        seen: share of the streams that raise it at all.
    """

    test: str
    median: int | None
    most: int | None
    seen: float


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """What it takes to see a drift.

    Attributes:
        drift: by how much every probability lies below its confidence, a fraction.
        unit: ``"row"`` or ``"cluster"``; longest: units after which a stream is given up.
        streams: how many were drawn; rows: from how many rows' confidences.
        needed: by each test.
        correlation: of the normal numbers behind the outcomes of a cluster; None for rows.
    """

    drift: float
    unit: str
    longest: int
    streams: int
    rows: int
    needed: tuple[Needed, ...]
    correlation: float | None

    def headline(self) -> str:
        """Return what the tests take, in a sentence."""
        seen = " and ".join(
            f"{each.test} {'' if each.median is None else 'after '}{self._in_words(each.median)}"
            for each in self.needed
        )
        return f"A drift of {100 * self.drift:g} points is seen in half of the streams: {seen}."

    def as_table(self) -> Table:
        """Return what each test takes."""
        rows = [
            [each.test, *map(self._in_words, (each.median, each.most)), f"{100 * each.seen:.0f}"]
            for each in self.needed
        ]
        return Table(["test", "half seen after", "80 % seen after", "seen in %"], rows)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each test."""
        return [{"drift": self.drift, "unit": self.unit} | vars(each) for each in self.needed]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)

    def _in_words(self, units: int | None) -> str:
        late = f"not within {counted(self.longest, self.unit)}"
        return late if units is None else counted(units, self.unit)

    def __str__(self) -> str:
        parts = [
            f"A drift of {100 * self.drift:g} points: from some {self.unit} on each row is right "
            f"that much less often than its confidence says. In {self.streams} streams drawn from "
            f"the confidences of {counted(self.rows, 'row')}:"
        ]
        for found in self.needed:
            ends = [self._in_words(n) for n in (found.median, found.most)]
            parts.append(f"{found.test}: seen after {ends[0]} (median); in 80 % after {ends[1]}.")
        parts.append(
            "Counted from the start of the drift, by tests that start there. After a long "
            "calibrated time the change test takes about as long, the level test longer."
        )
        if self.correlation is not None:
            parts.append(
                f"Assumed: outcomes of a cluster correlate by {self.correlation:g} on the normal "
                "scale."
            )
        return "\n\n".join(wrap(part) for part in parts)


def plan(
    confidence: Array,
    drift: float,
    *,
    clusters: Any = None,
    correlation: float = CORRELATION,
    seed: int = 0,
    **settings: Any,
) -> Plan:
    """Return how many rows, or clusters, it takes until a drift is seen.

    Streams are drawn with replacement from the confidences given, whole clusters together, and
    outcomes with probabilities that much lower. Outcomes of a cluster go by normal numbers that
    correlate (a Gaussian copula).

    Args:
        confidence: (n,) confidences, or (n, K) probabilities.
        drift: by how much probabilities lie below confidences, a fraction above the tolerance.
        clusters: (n,) names of clusters; None where each row stands alone.
        correlation: of these normal numbers, from 0 to below 1.
        seed: for the draws.
        settings: of `Monitor`, such as ``tolerance``.

    Raises:
        InputError: no rows, or a drift that the tolerance lets pass.

    Examples:
        >>> import numpy as np
        >>> from calibrant.monitor.planning import plan
        >>> said = np.random.default_rng(0).uniform(0.6, 1.0, 2_000)
        >>> small, large = plan(said, 0.06), plan(said, 0.2)
        >>> large.needed[0].median < small.needed[0].median
        True
    """
    from scipy.special import ndtr

    said = as_rows(confidence)
    said = said.max(axis=1) if said.ndim == 2 else said
    tolerance = Monitor(**settings).tolerance
    if not len(said):
        raise InputError("a plan needs rows, and there are none")
    if not 0 < drift < 1:
        raise InputError(f"a drift must lie between 0 and 100 points, not {100 * drift:g}")
    if drift <= tolerance:
        raise InputError(
            f"a drift of {100 * drift:g} lies within the tolerance of {100 * tolerance:g} "
            "points, for which no alarm is wanted; plan for a larger one, or give a smaller "
            "--tolerance (tolerance=)"
        )
    if not 0 <= correlation < 1:
        raise InputError(f"correlation must be from 0 to below 1, not {correlation:g}")
    names = as_names(clusters, len(said), "clusters")
    code = np.arange(len(said)) if names is None else codes_of(np.array(names))[0]
    order = np.argsort(code, kind="stable")
    size = np.bincount(code)
    first = np.cumsum(size) - size
    longest = max(round(MOST_ROWS / float(size.mean())), 1)
    found: dict[str, list[float]] = {"level": [], "change": []}
    rng = np.random.default_rng(seed)
    for _ in range(STREAMS):
        monitor = Monitor(**settings)
        units, ends = 0, dict[str, float]()
        while units < longest and len(ends) < 2:
            # Few at first, as many are seen soon.
            drawn = rng.integers(len(size), size=min(max(units, 50), longest - units))
            of = np.repeat(np.arange(len(drawn)), size[drawn])
            place = np.arange(len(of)) - np.repeat(
                np.cumsum(size[drawn]) - size[drawn], size[drawn]
            )
            p = said[order[first[drawn][of] + place]].astype(np.float64)
            normal = correlation**0.5 * rng.normal(size=len(drawn))[of]
            normal += (1 - correlation) ** 0.5 * rng.normal(size=len(of))
            alone = rng.random(len(of))
            chance: FloatArray = alone if names is None else cast(Any, ndtr)(normal)
            right = chance < np.maximum(p - drift, 0.0)
            before = monitor.rows
            alarms = list(monitor.update(p, right, clusters=None if names is None else units + of))
            alarms += monitor.close_clusters()
            for alarm in alarms:
                ends[alarm.test] = units + int(of[alarm.row - before]) + 1
            units += len(drawn)
        for test, values in found.items():
            values.append(ends.get(test, np.inf))
    needed = tuple(_needed(test, np.sort(values)) for test, values in found.items())
    unit, own = ("row", None) if names is None else ("cluster", correlation)
    return Plan(drift, unit, longest, STREAMS, len(said), needed, own)


def _needed(test: str, ends: FloatArray) -> Needed:
    median, most = (ends[int(np.ceil(share * len(ends))) - 1] for share in SHARES)
    numbers = [int(end) if np.isfinite(end) else None for end in (median, most)]
    return Needed(test, *numbers, seen=float(np.isfinite(ends).mean()))


class Confidences(Monitor):
    """Gathers what is said of rows, and counts nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.said: list[float] = []
        self.clusters: list[str] = []

    def plan(self, drift: float, **settings: Any) -> Plan:
        """Return `plan` of what was gathered."""
        return plan(np.array(self.said), drift, clusters=self.clusters or None, **settings)

    def update(
        self,
        confidence: Array,
        correct: Array | None = None,
        groups: Any = None,
        clusters: Any = None,
        *others: Any,
        **named: Any,
    ) -> tuple[Alarm, ...]:
        """Keep confidences, and names of clusters."""
        said = as_rows(confidence)
        said = (said.max(axis=1) if said.ndim == 2 else said).tolist()
        room = max(KEPT - len(self.said), 0)
        self.said += said[:room]
        self.clusters += (as_names(clusters, len(said), "clusters") or [])[:room]
        return ()

    def predict(
        self,
        ids: Any,
        confidence: Array,
        predicted: Array | None = None,
        groups: Any = None,
        clusters: Any = None,
        *others: Any,
        **named: Any,
    ) -> tuple[Alarm, ...]:
        """Keep confidences, and names of clusters."""
        return self.update(confidence, clusters=clusters)

    def learn(self, *outcomes: Any, **named: Any) -> tuple[Alarm, ...]:
        """Keep nothing: outcomes say nothing of what is planned."""
        return ()
