"""The values of an axis of a study, as its declaration writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.files.gate import load_toml


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis.

    Attributes:
        name: what addresses it.
        label: what tables call it.
        attributes: more words about it, by which tables may group rows and columns.
        set: settings of its cells, over those of the study.
    """

    name: str
    label: str
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])


def axis_values(items: Any, where: str) -> tuple[AxisValue, ...]:
    """Return the values of a list; `where` begins errors."""
    if not isinstance(items, list) or not items:
        raise InputError(f"{where}: must be a list of at least one value, not {items!r}")
    values = tuple(axis_value(item, where) for item in cast(list[Any], items))
    # Values of one label would be one line of a table, which says the mean of them.
    for words in ([value.name for value in values], [value.label for value in values]):
        twice = next((word for word in words if words.count(word) > 1), None)
        if twice is not None:
            raise InputError(f"{where}: '{twice}' is there twice")
    return values


def axis_value(item: Any, where: str) -> AxisValue:
    """Return a value: a name or number, or a table with `name` and more about it."""
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        return AxisValue(str(item), str(item))
    if not isinstance(item, dict) or "name" not in item:
        raise InputError(f"{where}: a value is a name, or a table with a name, not {item!r}")
    table = cast(dict[str, Any], item)
    more = {k: v for k, v in table.items() if k not in ("name", "label", "set")}
    for key, word in more.items():
        if not isinstance(word, str):
            raise InputError(f"{where}: {key} of '{table['name']}' must be text, not {word!r}")
    settings = table.get("set", {})
    if not isinstance(settings, dict):
        raise InputError(f"{where}: set of '{table['name']}' must be a table, not {settings!r}")
    name = str(table["name"])
    return AxisValue(name, str(table.get("label", name)), more, cast(dict[str, Any], settings))


# Published numbers, as a declaration writes them: a small table of text.
# A value may stand for a column of the paper, and name the metric too: ``smart / ece``.
_BETWEEN = " / "
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ENTRY = re.compile(rf"({_NUMBER})(?:\s*(?:\+-|±)\s*({_NUMBER}))?(\*?)")
# What stands where a paper has no number.
_NOTHING = ("", "-")


@dataclass(frozen=True)
class Published:
    """A number of a paper, in the paper's units.

    Attributes:
        at: axis to the name of a value; axes that aren't there hold for all values.
        metric: what it is.
        value: the number.
        spread: what the paper prints behind +-; None for nothing.
        half_digit: half a unit of the last digit printed, by which rounding may have moved it.
        doubtful: whether it is marked by a star, as a slip of the paper that a footnote explains.
    """

    at: Mapping[str, str]
    metric: str
    value: float
    spread: float | None
    half_digit: float
    doubtful: bool

    @property
    def _decimals(self) -> int:
        return max(0, round(-math.log10(2 * self.half_digit)))

    @property
    def text(self) -> str:
        """The number as the paper prints it, with its star."""
        return f"{self.value:.{self._decimals}f}" + "*" * self.doubtful

    @property
    def with_spread(self) -> str:
        """The same with what the paper prints behind +-."""
        spread = "" if self.spread is None else f" +- {self.spread:.{self._decimals}f}"
        return f"{self.text}{spread}"

    def matches(self, at: Mapping[str, str]) -> bool:
        """Return whether it is the number of a cell."""
        return all(at.get(axis) == name for axis, name in self.at.items())


def parse_published(
    text: str, axes: Mapping[str, Sequence[str]], metrics: Sequence[str], where: str
) -> list[Published]:
    """Return the numbers of a block.

    The first line is a heading: axes first, then metrics, or values of an axis that isn't among
    these (``smart``), or both (``smart / ece``). Cells are separated by ``|``; a number may have a
    spread behind ``+-``, and a star where a footnote calls it a slip.

    Args:
        text: the block.
        axes: axis to the names of its values.
        metrics: of the study; a column that names none has the only one.
        where: what errors begin with.

    Raises:
        InputError: an unknown column or value, or a cell that is no number.
    """
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip() and not set(line) <= set("|-: ")
    ]
    if not lines:
        return []
    head, *rows = lines
    leading = [name for name in head if name in axes]
    if head[: len(leading)] != leading:
        raise InputError(f"{where}: published: the columns of axes come first, not {head}")
    others = head[len(leading) :]
    columns = [
        _published_column(name, axes, leading, metrics, f"{where}: published") for name in others
    ]
    found: list[Published] = []
    told: set[tuple[tuple[tuple[str, str], ...], str]] = set()
    for number, row in enumerate(rows, 1):
        place = f"{where}: published, row {number}"
        if len(row) != len(head):
            raise InputError(f"{place}: has {len(row)} cells, but the heading {len(head)}")
        at = dict(zip(leading, row, strict=False))
        for axis, name in at.items():
            if name not in axes[axis]:
                raise InputError(f"{place}: '{name}' is no value of the axis {axis}")
        for (of_column, metric), cell in zip(columns, row[len(leading) :], strict=True):
            if cell in _NOTHING:
                continue
            match = _ENTRY.fullmatch(cell)
            if match is None:
                raise InputError(f"{place}: '{cell}' is no number such as 1.38 or 1.38 +- 0.05")
            here = (tuple(sorted((at | of_column).items())), metric)
            if here in told:
                raise InputError(f"{place}: {metric} of this cell is there twice")
            told.add(here)
            spread = None if match[2] is None else float(match[2])
            half = _half_digit(match[1])
            found.append(
                Published(at | of_column, metric, float(match[1]), spread, half, bool(match[3]))
            )
    return found


def _published_column(
    name: str,
    axes: Mapping[str, Sequence[str]],
    leading: Sequence[str],
    metrics: Sequence[str],
    where: str,
) -> tuple[dict[str, str], str]:
    """Return what a column holds: the value of an axis, if it names one, and the metric."""
    value, _, metric = name.rpartition(_BETWEEN)
    if not value:
        if name in metrics:
            return {}, name
        value, metric = name, metrics[0] if len(metrics) == 1 else ""
    if metric not in metrics:
        raise InputError(f"{where}: column '{name}' names none of the metrics {', '.join(metrics)}")
    of = [axis for axis, names in axes.items() if axis not in leading and value in names]
    if len(of) > 1:
        raise InputError(f"{where}: column '{name}' may be of the axis {' or '.join(of)}")
    if of:
        return {of[0]: value}, metric
    raise InputError(f"{where}: column '{name}' is neither a metric nor a value of an axis")


def _half_digit(text: str) -> float:
    digits, _, exponent = text.lower().partition("e")
    after = len(digits.partition(".")[2])
    return float(f"5e{int(exponent or 0) - after - 1}")


# A study as its file declares it: which cells to compute, and how to lay them out.
#
# A declaration is a short TOML file; ``docs/appendix/studies.md`` shows what it may hold.

INPUT, METHOD = "input", "method"
# What the axis of inputs becomes in the small form of a study that declares none.
SAMPLE = "sample"
# In place of the footnotes, which are about the full form.
IN_SMALL = (
    "In small: a few rows or images that ship with Calibrant or are made here, few seeds, short "
    "training. It shows that the study runs; its numbers say nothing of the full one's networks."
)


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
        return replace(
            self,
            title=f"{self.title} (in small)",
            axes=axes,
            seeds=seeds,
            settings=settings,
            footnotes=(IN_SMALL,),
        )

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


# Declarations as files: a study of a short TOML file, or what is wrong with that.

PAPERS = ("SMART", "FeDLaS", "MaC-Cal", "CalArena", "Calibrant")
_LAYOUT = ["title", "paper", "kind", "seeds", "metrics", "rows", "columns", "compare", "against"]
_MORE = ["axes", "skip", "small", "settings", "figure", "footnotes", "published", "intervals"]
_KEYS = [*_LAYOUT, *_MORE]
_SMALL = ["axes", "seeds", "settings"]
_FIGURE = ("x", "y", "lines", "panels", "log", "minus", "label")


def read_study(path: Path, name: str | None = None) -> Study:
    """Return the study that a file declares.

    Args:
        path: the TOML file.
        name: what to call it; that of the file by default.

    Raises:
        InputError: the file can't be read, or declares no study; the message names file and key.
    """
    document = load_toml(path, str(path))
    return study_from(document, name or path.stem, str(path))


def study_from(document: Mapping[str, Any], name: str, where: str) -> Study:
    """Return the study that a document declares; see `read_study`."""
    for key in document:
        if key not in _KEYS:
            raise InputError(f"{where}: {unknown(_KEYS, key, 'key of a study')}")
    title, kind = (_text(document, key, where) for key in ("title", "kind"))
    paper = _text(document, "paper", where, default="Calibrant")
    if paper not in PAPERS:
        raise InputError(f"{where}: paper must be one of {', '.join(PAPERS)}, not '{paper}'")
    tables = _table(document, "axes", where)
    if not tables:
        raise InputError(f"{where}: [axes] must name at least one axis with its values")
    axes = {axis: axis_values(items, f"{where}: axes.{axis}") for axis, items in tables.items()}
    metrics = _texts(document, "metrics", where)
    if not metrics:
        raise InputError(f"{where}: metrics must name at least one metric")
    known = [*axes, *(word for values in axes.values() for v in values for word in v.attributes)]
    rows = _texts(document, "rows", where, default=[axis for axis in axes if axis != METHOD])
    columns = _texts(document, "columns", where, default=[axis for axis in axes if axis == METHOD])
    for key, words in (("rows", rows), ("columns", columns)):
        for word in words:
            if word not in known:
                raise InputError(f"{where}: {key}: {unknown(dict.fromkeys(known), word, 'axis')}")
    compare = _text(document, "compare", where, default=METHOD if METHOD in axes else "")
    if compare and compare not in axes:
        raise InputError(f"{where}: compare: {unknown(axes, compare, 'axis')}")
    against = _texts(document, "against", where, default=[])
    for rival in against:
        if not compare or rival not in [value.name for value in axes[compare]]:
            raise InputError(f"{where}: against: '{rival}' is no value of the axis {compare}")
    names = {axis: [value.name for value in values] for axis, values in axes.items()}
    published = _text(document, "published", where, default="")
    return Study(
        name,
        title,
        paper,
        kind,
        _seeds(document.get("seeds", [0]), where),
        metrics,
        axes,
        rows,
        columns,
        compare or None,
        against,
        _skip(document, names, where),
        _table(document, "settings", where),
        _small(document, axes, where),
        _figure(document, axes, metrics, known, where),
        _texts(document, "footnotes", where, default=[]),
        tuple(parse_published(published, names, metrics, where)),
        bool(document.get("intervals", False)),
    )


def _skip(
    document: Mapping[str, Any], axes: Mapping[str, Sequence[str]], where: str
) -> tuple[Mapping[str, str], ...]:
    """Return the parts that are left out; one that is none would leave out nothing, or all."""
    parts = document.get("skip", [])
    listed = cast("list[Any]", parts) if isinstance(parts, list) else [parts]
    if any(part == {} or not isinstance(part, dict) for part in listed):
        raise InputError(f"{where}: skip must be a list of tables {{axis = value}}, not {parts!r}")
    found: list[Mapping[str, str]] = []
    for part in cast("list[dict[str, Any]]", listed):
        for axis, name in part.items():
            if axis not in axes:
                raise InputError(f"{where}: skip: {unknown(axes, axis, 'axis')}")
            if str(name) not in axes[axis]:
                raise InputError(f"{where}: skip: '{name}' is no value of the axis {axis}")
        found.append({axis: str(name) for axis, name in part.items()})
    return tuple(found)


def _small(document: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> dict[str, Any]:
    small = _table(document, "small", where)
    for key in small:
        if key not in _SMALL:
            raise InputError(f"{where}: small: {unknown(_SMALL, key, 'key')}")
    _table(small, "settings", f"{where}: small")
    for axis, items in _table(small, "axes", f"{where}: small").items():
        if axis not in axes:
            raise InputError(f"{where}: small.axes: {unknown(axes, axis, 'axis')}")
        axis_values(items, f"{where}: small.axes.{axis}")
    if "seeds" in small:
        _seeds(small["seeds"], f"{where}: small")
    return small


def _figure(
    document: Mapping[str, Any],
    axes: Mapping[str, Any],
    metrics: Sequence[str],
    known: Sequence[str],
    where: str,
) -> Figure | None:
    table = _table(document, "figure", where)
    if not table:
        return None
    for key in table:
        if key not in _FIGURE:
            raise InputError(f"{where}: figure: {unknown(_FIGURE, key, 'key')}")
    where = f"{where}: figure"
    x, y = _text(table, "x", where), _texts(table, "y", where, default=list(metrics))
    lines, panels = (_texts(table, key, where, default=[]) for key in ("lines", "panels"))
    for key, words, of in (
        ("x", [x], axes),
        ("y", y, metrics),
        ("lines", lines, known),
        ("panels", panels, known),
    ):
        for word in words:
            if word not in of:
                raise InputError(f"{where}: {key}: {unknown(dict.fromkeys(of), word, 'axis')}")
    minus, label = (_text(table, key, where, "") for key in ("minus", "label"))
    if minus and minus not in [value.name for values in axes.values() for value in values]:
        raise InputError(f"{where}: minus: '{minus}' is no value of any axis")
    return Figure(x, y, lines, panels, bool(table.get("log", False)), minus, label)


def _text(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        said = "is missing" if key not in table else f"must be text, not {value!r}"
        raise InputError(f"{where}: {key} {said}")
    return value


def _texts(
    table: Mapping[str, Any], key: str, where: str, default: list[str] | None = None
) -> tuple[str, ...]:
    values = table.get(key, default)
    if not isinstance(values, list) or not all(isinstance(v, str) for v in cast(list[Any], values)):
        said = "is missing" if key not in table else f"must be a list of text, not {values!r}"
        raise InputError(f"{where}: {key} {said}")
    return tuple(cast(list[str], values))


def _table(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} must be a table, not {value!r}")
    return cast(dict[str, Any], value)


def _seeds(seeds: Any, where: str) -> tuple[int, ...]:
    found = cast("list[Any]", seeds) if isinstance(seeds, list) else []
    whole = all(type(seed) is int and seed >= 0 for seed in found)
    if not found or not whole or len(set(found)) < len(found):
        raise InputError(f"{where}: seeds must be different whole numbers, not {seeds!r}")
    return tuple(found)
