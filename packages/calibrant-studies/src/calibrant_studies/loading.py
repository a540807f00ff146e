"""Declarations as files: a study of a short TOML file, or what is wrong with that."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant_studies.axes import axis_values
from calibrant_studies.declaration import METHOD, Figure, Study
from calibrant_studies.published import parse_published

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
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: is no TOML: {error}") from error
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
    for axis, items in small.get("axes", {}).items():
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
