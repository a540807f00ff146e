"""What a study found, and its tables: in the paper's layout, number by number, and in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibrant.core.result import Table
from calibrant.core.text import wrap
from calibrant.evaluation.best_set import ranks_within
from calibrant.evaluation.formatting import in_percent_are
from calibrant_studies.cells import CellResults, Failed, cells_of
from calibrant_studies.declaration import Published, Study
from calibrant_studies.estimates import FEWEST_SEEDS, Estimate, all_pairs, competing, estimates_of
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.base import Measure
from calibrant_studies.requirements import Missing, what_to_provide
from calibrant_studies.significance import Difference
from calibrant_studies.store import as_kept

MAY_BE_BEST = "+"
RANK = "mean rank"
LEFT_OUT = "Given, and left out, since no cell is about it:"
Words = tuple[str, ...]
Slot = list[Estimate]


@dataclass(frozen=True)
class StudyResult(CellResults):
    """What a run of a study came to.

    Attributes:
        missing: inputs that weren't there.
        failed: cells that could not be computed.
        left_out: what was given and no cell takes, with reasons.
    """

    missing: Sequence[Missing]
    failed: Sequence[Failed]
    left_out: Sequence[str] = ()

    @property
    def computed(self) -> int:
        """How many cells were computed now."""
        return sum(not ran.reused for ran in self.ran)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What the cells measure, by name."""
        return kind_named(self.study.kind).measures

    @cached_property
    def estimates(self) -> list[Estimate]:
        """Every number that the study shows, gathered over seeds, with marks."""
        return estimates_of(self)

    def ranks(self, metric: str) -> dict[str, float]:
        """Return each competitor's mean rank, 1 for the best, over groups that hold all of them."""
        axis = self.study.compare
        if axis is None:
            return {}
        groups = competing([e for e in self.estimates if e.measure.name == metric], axis)
        names = list(dict.fromkeys(e.at[axis] for group in groups for e in group))
        whole = [{e.at[axis]: e.measure.cost(e.value) for e in group} for group in groups]
        costs = [[group[name] for name in names] for group in whole if len(group) == len(names)]
        if not costs or len(names) < 2:
            return {}
        means = ranks_within(np.array(costs)).mean(axis=0)
        return dict(zip(names, means.tolist(), strict=True))

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each number, in the units that tables have."""
        return [
            {
                **estimate.at,
                "metric": estimate.measure.name,
                "value": estimate.measure.scale * estimate.value,
                "spread": _scaled(estimate.measure, estimate.spread),
                "seeds": len(estimate.values),
                "low": _scaled(estimate.measure, estimate.low),
                "high": _scaled(estimate.measure, estimate.high),
                "floor": _scaled(estimate.measure, estimate.floor),
                "floor_95": _scaled(estimate.measure, estimate.floor_95),
                "best": estimate.best,
                "may_be_best": estimate.may_be_best,
                "published": None if estimate.published is None else estimate.published.value,
                "difference": estimate.difference,
                "difference_low": ends[0],
                "difference_high": ends[1],
                "verdict": estimate.verdict,
            }
            for estimate in self.estimates
            for ends in [estimate.difference_ends or (None, None)]
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        kind = kind_named(self.study.kind)
        return {
            "name": self.study.name,
            "title": self.study.title,
            "paper": self.study.paper,
            "cells": len(self.ran) + len(self.failed),
            "computed": self.computed,
            "missing": [missing._asdict() for missing in self.missing],
            "left_out": list(self.left_out),
            "failed": [
                {**failed.cell.at, "seed": failed.cell.seed, "error": failed.error}
                for failed in self.failed
            ],
            "ranks": {metric: self.ranks(metric) for metric in self.study.metrics},
            "results": self.records(),
            "footnotes": list(self.study.footnotes),
            "kept": as_kept(self.study.name, kind.version, ((r.cell, r.result) for r in self.ran)),
            **kind.document(self),
        }

    def __str__(self) -> str:
        return as_text(self)


def _scaled(measure: Measure, value: float | None) -> float | None:
    return None if value is None else measure.scale * value


def layout(result: StudyResult) -> Table:
    """Return the table in the layout that the study declares; bold is the best of each group.

    Rows without any number of one's own are left out. What stands in brackets was published.
    """
    study = result.study
    slots: dict[tuple[Words, Words], Slot] = {}
    for estimate in result.estimates:
        place = _place(study, estimate.at, estimate.measure.title)
        slots.setdefault(place, []).append(estimate)
    rows = list(dict.fromkeys(down for down, _ in slots))
    published = _published(result, rows)
    places = dict.fromkeys(across for _, across in [*slots, *published])
    columns = sorted(places, key=_order_of(study))
    cells: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for i, down in enumerate(rows):
        line = list(down)
        for across in columns:
            slot = slots.get((down, across), [])
            if slot and all(estimate.best for estimate in slot):
                bold.add((i, len(line)))
            line.append(_cell(slot, published.get((down, across)), ends=study.intervals))
        cells.append(line)
    head = [*study.rows, *(" ".join(across) for across in columns)]
    labels = max(1, len(study.rows))
    ranked = _with_ranks(result, head, cells, columns, slots)
    legend = _legend(result, ranked=len(ranked[1]) > len(rows))
    return Table(ranked[0], ranked[1], bold, legend, labels)


def _place(study: Study, at: Mapping[str, str], title: str) -> tuple[Words, Words]:
    """Return the row and the column of a number."""
    down = tuple(study.word(key, at) for key in study.rows) or ("",)
    across = tuple(study.word(key, at) for key in study.columns)
    return down, (*across, title) if len(study.metrics) > 1 or not across else across


def layout_words(study: Study, keys: Sequence[str], at: Mapping[str, str]) -> str:
    """Return what a point is called by several axes or attributes."""
    return ", ".join(filter(None, (study.word(key, at) for key in keys)))


def _published(result: StudyResult, rows: Sequence[Words]) -> dict[tuple[Words, Words], Published]:
    """Return what was published, by place; where several numbers share one there is no one."""
    study, measures = result.study, result.measures
    found: dict[tuple[Words, Words], dict[int, Published]] = {}
    points = {tuple(cell.at.items()): dict(cell.at) for cell in cells_of(study)}
    # Numbers of one's own that what was published isn't about.
    apart = {
        (tuple(estimate.at.items()), estimate.measure.name)
        for estimate in result.estimates
        if estimate.published is None
    }
    for point, at in points.items():
        for metric in study.metrics:
            number = study.published_at(at, metric)
            if number is None or (point, metric) in apart:
                continue
            place = _place(study, at, measures[metric].title)
            if place[0] in rows:
                found.setdefault(place, {})[id(number)] = number
    return {place: next(iter(of.values())) for place, of in found.items() if len(of) == 1}


def _order_of(study: Study) -> Callable[[Words], tuple[int, ...]]:
    """Return what sorts columns as the study declares them."""
    orders: list[dict[str, int]] = []
    for key in study.columns:
        if key in study.axes:
            words = [value.label for value in study.axes[key]]
        else:
            values = [value for axis in study.axes.values() for value in axis]
            words = [value.attributes[key] for value in values if key in value.attributes]
        orders.append({word: i for i, word in reversed(list(enumerate(words)))})

    def place(across: Words) -> tuple[int, ...]:
        return tuple(order.get(word, -1) for order, word in zip(orders, across, strict=False))

    return place


def _cell(slot: Slot, published: Published | None, *, ends: bool) -> str:
    """Return the value, its spread, its mark and what was published; the mean of several values.

    With `ends` its interval, too.
    """
    text = ""
    if slot:
        measure = slot[0].measure
        text = measure.show(sum(e.value for e in slot) / len(slot))
    if len(slot) == 1:
        if slot[0].spread is not None:
            text += f" +- {slot[0].measure.show(slot[0].spread)}"
        text += MAY_BE_BEST if slot[0].may_be_best else ""
        if ends and slot[0].low is not None and slot[0].high is not None:
            low, high = (slot[0].measure.show(end) for end in (slot[0].low, slot[0].high))
            text += f" ({low} to {high})"
    if published is not None:
        text += f" ({published.text})"
    return text.strip()


def _with_ranks(
    result: StudyResult,
    head: list[str],
    cells: list[list[str]],
    columns: Sequence[Words],
    slots: dict[tuple[Words, Words], Slot],
) -> tuple[list[str], list[list[str]]]:
    """Return the table with mean ranks: below it, if the competitors stand across."""
    study = result.study
    if study.compare is None or study.columns != (study.compare,) or len(cells) < 2:
        return head, cells
    line = [RANK, *[""] * (len(study.rows) - 1)]
    for across in columns:
        slot = next((s for (_, place), s in slots.items() if place == across), None)
        ranks = {} if slot is None else result.ranks(slot[0].measure.name)
        rank = None if slot is None else ranks.get(slot[0].at[study.compare])
        line.append("" if rank is None else f"{rank:.2f}")
    return head, [*cells, line] if any(line[len(study.rows) :]) else cells


def _legend(result: StudyResult, *, ranked: bool) -> str:
    """Return what the marks that are in the table mean."""
    found, said = result.estimates, list[str]()
    percent, others = (
        list(dict.fromkeys(e.measure.title for e in found if (e.measure.scale == 100) == wanted))
        for wanted in (True, False)
    )
    if percent:
        said.append(in_percent_are(percent, others))
    if any(estimate.spread is not None for estimate in found):
        said.append("+- is the standard deviation over seeds.")
    if any(estimate.published is not None for estimate in found):
        said.append("In brackets what was published.")
    if result.study.intervals:
        said.append(f"In brackets {levels_in_words(found)} intervals.")
    if any(estimate.may_be_best for estimate in found):
        said.append(
            f"{MAY_BE_BEST} may be the best among its competitors: in 95 % of cases the truly best "
            f"has a {MAY_BE_BEST}."
        )
    if ranked:
        said.append("Mean rank: over rows that have every column; 1 is best.")
    return "\n\n".join([" ".join(said), *result.study.footnotes]).strip()


def details(result: StudyResult) -> Table:
    """Return a row for each number: interval, floor, published value, difference and verdict."""
    study, found = result.study, result.estimates
    keys = [*study.rows, *study.columns]
    several = len(study.metrics) > 1
    compared = any(estimate.published is not None for estimate in found)
    floored = any(estimate.floor is not None for estimate in found)
    head = [*keys, *(["metric"] if several else []), "value", f"{levels_in_words(found)} interval"]
    head += ["floor"] if floored else []
    head += ["published", "difference", "verdict"] if compared else []
    rows: list[list[str]] = []
    for estimate in found:
        measure = estimate.measure
        line = [study.word(key, estimate.at) for key in keys]
        line += [measure.title] if several else []
        value = measure.show(estimate.value)
        if estimate.spread is not None:
            value += f" +- {measure.show(estimate.spread)}"
        value += MAY_BE_BEST if estimate.may_be_best else ""
        both = estimate.low is not None and estimate.high is not None
        ends = f"{measure.show(estimate.low)} .. {measure.show(estimate.high)}" if both else ""
        line += [value, ends]
        line += [measure.show(estimate.floor)] if floored else []
        if compared:
            line += _beside(estimate)
        rows.append(line)
    marked = any(estimate.may_be_best for estimate in found)
    notes = f"{MAY_BE_BEST} may be the best among its competitors. " if marked else ""
    notes += "Floor: what calibrated confidences would show on average. " if floored else ""
    if compared:
        notes += (
            "Difference: the value minus the published one, with an interval for test rows, the "
            "scatter of seeds and what the paper prints behind +-; it differs where the interval "
            f"leaves out 0, and is undecided with fewer than {FEWEST_SEEDS} seeds."
        )
    return Table(head, rows, set(), notes.strip(), max(1, len(keys) + several))


def levels_in_words(found: Sequence[Estimate]) -> str:
    """Return the level of the intervals in words, or the levels."""
    levels = dict.fromkeys(f"{100 * estimate.level:g} %" for estimate in found)
    return " or ".join(levels) or "95 %"


def _beside(estimate: Estimate) -> list[str]:
    """Return the published value, the difference with its interval, and the verdict."""
    if estimate.published is None or estimate.difference is None:
        return ["", "", ""]
    digits = estimate.measure.digits
    text = f"{estimate.difference:+.{digits}f}"
    if estimate.difference_ends is not None:
        low, high = estimate.difference_ends
        text += f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return [estimate.published.with_spread, text, estimate.verdict]


def tables(result: StudyResult) -> list[tuple[str, Table]]:
    """Return all tables that have rows, each with a heading."""
    if not result.estimates:
        return []
    found = [("", layout(result)), ("Number by number", details(result))]
    against = differences(result)
    found += [("Paired differences", against)] if against.rows else []
    return [*found, *kind_named(result.study.kind).tables(result)]


def as_text(result: StudyResult) -> str:
    """Return what a terminal shows."""
    study = result.study
    parts = [f"{study.name}: {study.title}"]
    if result.missing:
        parts.append(
            "Left out, because the data are missing (give them with --data):\n"
            f"{what_to_provide(result.missing)}"
        )
    if result.left_out:
        parts.append("\n".join([LEFT_OUT, *(wrap(f"- {each}") for each in result.left_out)]))
    for heading, table in tables(result):
        lead = f"{heading}\n\n" if heading else ""
        parts.append(f"{lead}{table.to_text()}")
        parts += [wrap(note) for note in table.notes.split("\n\n")]
    if result.failed:
        lines = [f"- {failed.cell}: {failed.error}" for failed in result.failed]
        parts.append("\n".join(["Failed, and tried again by the next run:", *lines]))
    return "\n\n".join(part for part in parts if part)


def differences(result: StudyResult) -> Table:
    """Return a row for each competitor and each of those that the study sets it against."""
    study = result.study
    others = [key for key in (*study.rows, *study.columns) if key != study.compare]
    rows = [
        [
            *(study.word(key, pair.rest) for key in others),
            pair.words,
            *(shown(found, measure) if found else "" for measure, found in pair.found.items()),
        ]
        for pair in all_pairs(result)
        if any(pair.found.values())
    ]
    notes = (
        "Means over seeds with 95 % intervals, from resamples of test rows that both share and, by "
        "Student's t, the scatter of seeds; * where the interval leaves out 0."
    )
    titles = [result.measures[name].title for name in study.metrics]
    return Table([*others, "difference", *titles], rows, set(), notes, len(others) + 1)


def shown(found: Difference, measure: Measure) -> str:
    """Return a difference and its interval as tables have them.

    Two competitors that do the same differ by rounding: what the digits don't show gets no star.
    """
    ends = [f"{measure.scale * end:+.{measure.digits}f}" for end in found]
    star = "*" if found.clear and any(map(float, ends)) else ""
    return f"{ends[0]} ({ends[1]} to {ends[2]}){star}"
