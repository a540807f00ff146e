"""A study as its file declares it: which cells to compute, and how to lay them out.

A declaration is a short TOML file; ``docs/studies.md`` shows what it may hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from calibrant.core.errors import InputError
from calibrant_studies.axes import AxisValue, axis_value
from calibrant_studies.published import Published

INPUT, METHOD = "input", "method"
# What the axis of inputs becomes in the small form of a study that declares none.
SAMPLE = "sample"


@dataclass(frozen=True)
class Figure:
    """A figure: a line for each value of `lines`, over the values of `x`, in `panels`.

    Attributes:
        x: the axis along the page; its values are numbers, or else places side by side.
        y: metrics, a row of panels each.
        lines: axes, or attributes of their values.
        panels: the same; a column of panels for each of their values.
        log: whether x is logarithmic.
        minus: the competitor whose value is taken off the others', or "".
        label: what stands along x; the name of its axis by default.
    """

    x: str
    y: tuple[str, ...]
    lines: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    log: bool = False
    minus: str = ""
    label: str = ""


@dataclass(frozen=True)
class Study:
    """What a declaration says.

    Attributes:
        name: what the command line calls it.
        title: what it shows, in a line.
        paper: whose table or figure it is.
        kind: which kind of cell computes it.
        seeds: of each cell.
        metrics: what is shown, by name.
        axes: axis to its values; the grid is their product, times the seeds.
        rows: axes, or attributes of their values, down the page.
        columns: the same across.
        compare: the axis whose values compete, or None.
        against: those of its values to which paired differences are shown.
        skip: parts of the grid that are left out, as axis to value.
        settings: what the kind reads.
        small: what the small form replaces, as the file says it.
        figure: how it is drawn, or None.
        footnotes: sentences below the table.
        published: the paper's numbers.
        intervals: whether the table itself shows them; they stand number by number in any case.
        forced: settings over all others, which whoever runs it has chosen.
    """

    name: str
    title: str
    paper: str
    kind: str
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    axes: Mapping[str, tuple[AxisValue, ...]]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    compare: str | None = None
    against: tuple[str, ...] = ()
    skip: tuple[Mapping[str, str], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    small: Mapping[str, Any] = field(default_factory=dict[str, Any])
    figure: Figure | None = None
    footnotes: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    intervals: bool = False
    forced: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def value(self, axis: str, name: str) -> AxisValue:
        """Return the value of an axis by its name."""
        return next(value for value in self.axes[axis] if value.name == name)

    def word(self, key: str, at: Mapping[str, str]) -> str:
        """Return what tables write for an axis, or an attribute of a value, at a cell."""
        if key in self.axes:
            return self.value(key, at[key]).label
        of = (self.value(axis, name).attributes for axis, name in at.items())
        return next((attributes[key] for attributes in of if key in attributes), "")

    def published_at(self, at: Mapping[str, str], metric: str) -> Published | None:
        """Return the paper's number for a cell, if it has one."""
        of = (each for each in self.published if each.metric == metric and each.matches(at))
        return next(of, None)

    def reduced(self) -> Study:
        """Return the small form: sample data that ship with the package, one seed or few."""
        axes = dict(self.axes)
        declared: Mapping[str, Any] = self.small.get("axes", {})
        for axis, items in declared.items():
            known = {value.name: value for value in self.axes[axis]}
            values = [axis_value(item, f"{self.name}: small.axes.{axis}") for item in items]
            axes[axis] = tuple(
                value
                if isinstance(item, dict)
                else known.get(value.name) or self.own_value(axis, value.name)
                for value, item in zip(values, items, strict=True)
            )
        if INPUT in axes and INPUT not in declared:
            axes[INPUT] = (self.own_value(INPUT, SAMPLE),)
        seeds = tuple(self.small.get("seeds", self.seeds[:1]))
        settings = merged(self.settings, self.small.get("settings", {}))
        return replace(self, axes=axes, seeds=seeds, settings=settings)

    def own_value(self, axis: str, name: str) -> AxisValue:
        """Return a value that isn't declared; tables that go by attributes call it by its name."""
        attributes = [key for value in self.axes[axis] for key in value.attributes]
        shown = [key for key in (*self.rows, *self.columns) if key in attributes]
        return AxisValue(name, name, {shown[0]: name} if shown else {})

    def with_values(
        self, axis: str, names: Sequence[str], *, only: bool = False, of: Study | None = None
    ) -> Study:
        """Return the study with more values on an axis, or only with these.

        Args:
            axis: which.
            names: of the values; what isn't declared is a value of its own.
            only: whether the other values go.
            of: a study whose declared values are known besides, as that of which this is the small
                form.

        Raises:
            InputError: it has no such axis.
        """
        if axis not in self.axes:
            raise InputError(
                f"{self.name} has no axis {axis} to put {', '.join(names)} on; its axes: "
                f"{', '.join(self.axes)}"
            )
        own = {value.name: value for value in self.axes[axis]}
        known = {value.name: value for value in (of or self).axes[axis]} | own
        kept: dict[str, AxisValue] = {} if only else own
        for name in names:
            kept.setdefault(name, known.get(name) or self.own_value(axis, name))
        return replace(self, axes={**self.axes, axis: tuple(kept.values())})


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others over them; tables within are merged likewise."""
    found = dict(first)
    for key, value in second.items():
        old = found.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = merged(cast(Any, old), cast(Any, value)) if both else value
    return found
