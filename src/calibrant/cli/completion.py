"""Names that the shell offers after their beginning, and that help texts list."""

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
    from calibrant.metrics.registry import metrics_named

    return _continued(incomplete, [*(m.name for m in metrics_named("all")), "all"])


def complete_metric(incomplete: str) -> list[str]:
    """Return the metrics whose name begins so."""
    from calibrant.metrics.registry import metrics_named

    return [m.name for m in metrics_named("all") if m.name.startswith(incomplete)]


def _continued(incomplete: str, names: Iterable[str]) -> list[str]:
    done, comma, begun = incomplete.rpartition(",")
    taken = {name.strip() for name in done.split(",")}
    return [f"{done}{comma}{n}" for n in names if n.startswith(begun.strip()) and n not in taken]


def complete_group(incomplete: str) -> list[str]:
    """Return the kinds of groups whose name begins so; columns have names of their own."""
    return [n for n in ("class", "label", "margin", "confidence") if n.startswith(incomplete)]


def all_methods() -> str:
    """Return the names of all methods, as a paragraph."""
    from calibrant.posthoc.registry import METHODS

    return f"Methods: {', '.join(METHODS)}; chains as svs+top-rest."


def all_metrics() -> str:
    """Return the names of all metrics, as a paragraph."""
    from calibrant.metrics.registry import METRICS

    return f"Metrics: {', '.join(METRICS)}."


def complete_loss(incomplete: str) -> list[str]:
    """Return the losses whose name begins so; none where torch isn't installed."""
    try:
        from calibrant.training import LOSSES
    except ImportError:
        return []
    return [name for name in LOSSES if name.startswith(incomplete)]
