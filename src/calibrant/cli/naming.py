"""Commands whose help names all methods or metrics, looked up only when somebody asks for help."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class _EndsWithNames(TyperCommand):
    """A command whose help ends with a paragraph that is made when it is asked for."""

    def names(self) -> str:
        """Return the paragraph."""
        raise NotImplementedError

    @property
    def epilog(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The paragraph, by the library's name for it."""
        return self.names()

    @epilog.setter
    def epilog(self, value: Any) -> None:
        pass  # the library sets what the decorator was given


class NamesMethods(_EndsWithNames):
    """A command that ends its help with the names of all methods."""

    def names(self) -> str:
        """Return the names of all methods."""
        from calibrant.posthoc.registry import METHODS

        return f"Methods: {', '.join(METHODS)}; chains as svs+top-rest."


class NamesMetrics(_EndsWithNames):
    """A command that ends its help with the names of all metrics."""

    def names(self) -> str:
        """Return the names of all metrics."""
        from calibrant.metrics.registry import METRICS

        return f"Metrics: {', '.join(METRICS)}."
