"""What the shell offers after a part of a name; nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Iterable


def complete_methods(incomplete: str) -> list[str]:
    """Return the methods that a list separated by commas may go on with."""
    from calibrant.posthoc.registry import METHODS

    return _continued(incomplete, [*METHODS, "all"])


def complete_method(incomplete: str) -> list[str]:
    """Return the methods whose name begins so."""
    from calibrant.posthoc.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_metrics(incomplete: str) -> list[str]:
    """Return the metrics that a list separated by commas may go on with."""
    from calibrant.metrics.registry import METRICS

    return _continued(incomplete, [*METRICS, "all"])


def complete_metric(incomplete: str) -> list[str]:
    """Return the metrics whose name begins so."""
    from calibrant.metrics.registry import METRICS

    return [name for name in METRICS if name.startswith(incomplete)]


def _continued(incomplete: str, names: Iterable[str]) -> list[str]:
    done, comma, begun = incomplete.rpartition(",")
    taken = {name.strip() for name in done.split(",")}
    return [f"{done}{comma}{n}" for n in names if n.startswith(begun.strip()) and n not in taken]
