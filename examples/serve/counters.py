"""Counts and durations in Prometheus' text format, in forty lines instead of a dependency."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from threading import Lock

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
CONFIDENCE = tuple(round(0.1 * step, 1) for step in range(1, 11))


class Histogram:
    """How many values lie at or below each bound, their number and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """Return its lines."""
        running, lines = 0, list[str]()
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {running}')
        return [*lines, f"{name}_sum {self.total:.9g}", f"{name}_count {running}"]


class Counters:
    """What the service counts; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.rows: Counter[str] = Counter(answered=0, abstained=0)
        self.seconds, self.confidence = Histogram(SECONDS), Histogram(CONFIDENCE)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        with self._lock:
            self.requests[path, status] += 1
            self.seconds.add(seconds)

    def row(self, confidence: float, answered: bool) -> None:
        """Count a row."""
        with self._lock:
            self.rows["answered" if answered else "abstained"] += 1
            self.confidence.add(confidence)

    def text(self) -> str:
        """Return all of it in Prometheus' text format."""
        with self._lock:
            lines = ["# TYPE serve_requests_total counter"]
            for (path, status), count in sorted(self.requests.items()):
                lines.append(f'serve_requests_total{{path="{path}",status="{status}"}} {count}')
            lines.append("# TYPE serve_rows_total counter")
            lines += [f'serve_rows_total{{outcome="{k}"}} {n}' for k, n in self.rows.items()]
            for name, histogram in (
                ("serve_request_seconds", self.seconds),
                ("serve_confidence", self.confidence),
            ):
                lines += [f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"
