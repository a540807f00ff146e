"""One measured number with its interval and its floor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.evaluation.uncertainty import FLOOR_QUANTILE, interval, less_rounding
from calibrant.metrics.full_rows import Measured
from calibrant.metrics.shapes import Metric


@dataclass(frozen=True, eq=False)
class MetricResult:
    """A measured number and how far to trust it. All values are fractions or nats.

    Attributes:
        metric: what was measured, with its convention.
        value: the metric on all rows.
        low: lower end of the bootstrap interval.
        high: upper end.
        floor: expected value if the confidences were perfectly honest; None for metrics that have
            no floor.
        floor_95: 95 % quantile of that; a value below can't be told from perfect at this N.
        p_value: share of perfectly honest data sets that would show at least this value.
        replicates: (R,) values on the resamples, paired over calibrators measured with one seed.

    Examples:
        >>> import calibrant as cb
        >>> ece = cb.evaluate(cb.load_sample("test"), metrics=["ece"], resamples=200)["ece"]
        >>> print(f"{ece.value:.1%}; an honest network would show {ece.floor:.2%}")
        6.1%; an honest network would show 0.65%
        >>> ece.low < ece.value < ece.high, ece.at_floor
        (True, False)
    """

    metric: Metric
    value: float
    low: float
    high: float
    floor: float | None = None
    floor_95: float | None = None
    p_value: float | None = None
    replicates: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def ends(self) -> tuple[float, float, float]:
        """The value and the ends of its interval."""
        return self.value, self.low, self.high

    @property
    def cost(self) -> float:
        """The value, turned so that lower is better."""
        return self.metric.cost(self.value)

    @property
    def at_floor(self) -> bool:
        """Whether the value is no more than noise would give honest confidences.

        If `metric.judges`, the confidences then can't be told from perfect ones; any other metric
        sees only a part of what may be wrong.
        """
        return self.floor_95 is not None and less_rounding(self.value) <= self.floor_95

    def as_dict(self) -> dict[str, float | None]:
        """Return the numbers as JSON takes them."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "floor": self.floor,
            "floor_95": self.floor_95,
            "p_value": self.p_value,
        }


def result_of(
    metric: Metric, found: Measured, level: float, beyond: dict[str, tuple[float, float]]
) -> MetricResult:
    """Return the result of one metric.

    Args:
        metric: what was measured.
        found: its value, replicates and honest values.
        level: nominal coverage of the interval.
        beyond: by metric, ends that the interval must hold.
    """
    value, drawn, honest, biased = found
    low, high = interval(value, drawn, level, biased=biased)
    if metric.name in beyond:
        least, most = beyond[metric.name]
        low, high = min(low, least), max(high, most)
    if honest is None:
        return MetricResult(metric, value, low, high, replicates=drawn)
    return MetricResult(
        metric,
        value,
        low,
        high,
        floor=float(honest.mean()),
        floor_95=float(np.quantile(honest, FLOOR_QUANTILE)),
        p_value=float((1 + np.sum(honest >= less_rounding(value))) / (1 + len(honest))),
        replicates=drawn,
    )
