"""Every metric by name, in the three shapes that there are (`calibrant.metrics.metric_types`)."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core.arguments import unknown
from calibrant.metrics.metric_types import CurveMetric, MeanMetric, Metric, RowsMetric
from calibrant.metrics.positive import POSITIVE_METRICS
from calibrant.metrics.table import METRICS

__all__ = [
    "CORE_METRICS",
    "METRICS",
    "POSITIVE_METRICS",
    "CurveMetric",
    "MeanMetric",
    "Metric",
    "RowsMetric",
    "metrics_named",
]


CORE_METRICS = ("ece", "adaece", "smce", "smece", "nll", "brier", "accuracy")
"""What is measured unless something else is asked for."""


def metrics_named(names: Sequence[str] | str | None, *, binary: bool = False) -> list[Metric]:
    """Return the metrics of `names`.

    Args:
        names: names, or one; ``"all"`` among them stands for every metric. None: `CORE_METRICS`.
        binary: whether both of these hold those of the positive class too.

    Raises:
        UnknownMethodError: no metric goes by a name; the message lists those that there are.
    """
    known, more = METRICS | POSITIVE_METRICS, POSITIVE_METRICS if binary else {}
    if names is None:
        names = (*CORE_METRICS, *more)
    found: dict[str, Metric] = {}
    for name in [names] if isinstance(names, str) else names:
        if name == "all":
            found |= METRICS | more
        elif name in known:
            found[name] = known[name]
        else:
            raise unknown([*known, "all"], name, "metric")
    return list(found.values())
