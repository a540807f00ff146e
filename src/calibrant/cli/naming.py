"""Commands whose help names all methods or metrics, looked up only when somebody asks for help."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class NamesMethods(TyperCommand):
    """A command that ends its help with the names of all methods."""

    @property
    def epilog(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names, in one paragraph."""
        from calibrant.posthoc.registry import METHODS

        return f"Methods: {', '.join(METHODS)}; chains as svs+top-rest."

    @epilog.setter
    def epilog(self, value: Any) -> None:
        pass  # the library sets what the decorator was given


class NamesMetrics(TyperCommand):
    """A command that ends its help with the names of all metrics."""

    @property
    def epilog(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names, in one paragraph."""
        from calibrant.metrics.registry import METRICS

        return f"Metrics: {', '.join(METRICS)}."

    @epilog.setter
    def epilog(self, value: Any) -> None:
        pass
