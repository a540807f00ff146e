"""The page of an evaluation or a comparison; `to_html` of these finds it by name."""

from __future__ import annotations

from os.path import commonprefix
from typing import Any

from markupsafe import Markup

from calibrant.comparison.comparison import Comparison
from calibrant.core.errors import InputError
from calibrant.core.result import Result
from calibrant.decision.base import Decision
from calibrant.evaluation.groups import GroupedEvaluation
from calibrant.evaluation.history import History
from calibrant.evaluation.multicalibration import Multicalibration
from calibrant.evaluation.results import Evaluation, MetricResult, heading, standing
from calibrant.report.charts import (
    THIN,
    Area,
    axes,
    charts_of,
    dot,
    element,
    fixed,
    gap_bar,
    in_percent,
    line,
    path,
    picture,
    rect,
    scale,
    shown_methods,
    strip,
    text,
    ticks,
    whole,
    within,
)
from calibrant.report.decisions import decision_page, groups_page
from calibrant.report.document import (
    Document,
    comparison_document,
    comparison_words,
    evaluation_document,
)
from calibrant.report.engine import Cell, PageTable, grouped, render_page, typeset
from calibrant.report.rows import RowNames

WIDTH, HEIGHT = 780, 260
# Names of sets below the picture: as many as have room.
MOST_NAMES = 8


def history_page(history: History) -> str:
    """Return the page."""
    table = history.as_table()
    found = [history.results(name) for name in history.metrics]
    charts = [(results, Markup(line_chart(results))) for results in found]
    return render_page(
        "history.html.jinja",
        headline=typeset(history.headline()),
        charts=charts,
        shown=PageTable.of(table, "What was measured"),
        notes=typeset(table.notes),
        count=len(history.evaluations),
    )


def line_chart(results: dict[str, MetricResult]) -> str:
    """Return one metric over the sets, in their order: values, intervals, and the floor's band."""
    metric = next(iter(results.values())).metric
    area = Area(56, WIDTH - 12, 12, HEIGHT - 34)
    found = list(results.values())
    floors = [each.floor_95 for each in found if each.floor_95 is not None]
    low = 0.0 if floors else min(each.low for each in found)
    high = max([each.high for each in found] + floors)
    room = 0.06 * (high - low) or 0.01
    low = low if floors else low - room
    y = scale(low, high + room, area.bottom, area.top)
    x = scale(-0.5, len(found) - 0.5, area.left, area.right)
    unit = 100.0 if metric.percent else 1.0
    out = axes(area, (x, [], 1), (y, ticks(low, high + room, 4), unit))
    for i, each in enumerate(found):
        if each.floor_95 is not None:
            top, left = y(each.floor_95), x(i - 0.5)
            out += rect("floor", left, top, x(i + 0.5) - left, area.bottom - top)
    points = [(x(i), y(each.value)) for i, each in enumerate(found)]
    drawn = element("path", "line", d=path(points))
    names = list(results)
    for i, (name, each) in enumerate(results.items()):
        drawn += line(x(i), y(each.low), x(i), y(each.high), "whisker")
        value, least, most = (f"{unit * v:.4g}" for v in each.ends)
        drawn += dot(x(i), y(each.value), 4.5, f"{name}: {value} ({least} to {most})")
    out += within("after", drawn) + line(area.left, area.bottom, area.right, area.bottom, "axis")
    step = -(-len(names) // MOST_NAMES)
    most = WIDTH // (7 * min(len(names), MOST_NAMES))
    # Names that are too long are told apart by what they don't share.
    begin = len(commonprefix(names))  # noqa: RUF071 (characters are meant, not folders)
    end = len(commonprefix([name[::-1] for name in names]))  # noqa: RUF071
    for i in range(0, len(names), step):
        own = names[i][begin : max(len(names[i]) - end, begin)]
        short = names[i] if len(names[i]) <= most else f"…{own[-most:]}…"
        out += text(x(i), area.bottom + 20, short, anchor="middle")
    label = (
        f"{metric.title} of {whole(len(found))} sets of rows. The numbers are in the table below."
    )
    return picture(WIDTH, HEIGHT, label, out)


SCRIPTS = ("charts.js", "tables.js", "saving.js", "view.js", "drawing.js", "rows.js", "page.js")


def page_of(
    result: Result,
    groups: GroupedEvaluation | None = None,
    *,
    ids: Any = None,
    images: Any = None,
) -> str:
    """Return the page of a result. What its kind of scores can't show is left out.

    Args:
        result: evaluations, comparisons and decisions have pictures; others a finding and a table.
        groups: what `calibrant.evaluate_by` found on the rows of an evaluation, to be shown as
            well.
        ids: (N,) names of the rows as they were read, for the list of rows; None for their numbers.
        images: (N, H, W) or (N, H, W, 3) uint8 pictures of them, shown small in that list.

    Raises:
        InputError: groups of another result, or ids or images that don't fit.
    """
    names = RowNames(ids, images)
    if isinstance(result, Evaluation):
        result.sample.refuse_ranks("a page")
        document = evaluation_document(result, groups, names)
        return render(document, heading(result), standing(result))
    if groups is not None:
        raise InputError("only the page of an evaluation shows groups")
    if isinstance(result, Comparison):
        return render(comparison_document(result, names), *comparison_words(result))
    if ids is not None or images is not None:
        raise InputError("this page lists no rows, so it takes neither ids nor images")
    if isinstance(result, Decision):
        return decision_page(result)
    if isinstance(result, Multicalibration):
        return groups_page(result)
    return history_page(result) if isinstance(result, History) else _page_of_table(result)


def _page_of_table(result: Result) -> str:
    """Return the page of a result that is a finding and a table."""
    table = result.as_table()
    lead, _, rest = " ".join(result.above()).partition(". ")
    return render_page(
        "table.html.jinja",
        headline=typeset(f"{lead.removesuffix('.')}."),
        deck=typeset(rest),
        shown=PageTable.of(table, "What was found"),
        notes=[typeset(note) for note in (table.notes, *result.below()) if note],
    )


def render(document: Document, headline: str, deck: str) -> str:
    """Return the page of a document.

    Args:
        document: from `calibrant.report.document`.
        headline: the finding in one sentence.
        deck: the sentence below it.
    """
    return render_page(
        "page.html.jinja",
        doc=document,
        headline=typeset(headline),
        deck=typeset(deck),
        charts={name: Markup(html) for name, html in charts_of(document).items()},
        accepted=accepted_words(document["risk_point"], document),
        shown=next(m for m in document["methods"] if m["name"] == document["after"]),
        ranking_table=_ranking_table(document) if document["verb"] == "compare" else None,
        groups_table=_groups_table(document["groups"]) if document["groups"] else None,
        classes_table=_classes_table(document) if document["methods"][0]["classes"] else None,
        metrics_table=_metrics_table(document),
        numbers_table=_numbers_table(document) if document["verb"] == "compare" else None,
        scripts=SCRIPTS,
    )


def accepted_words(point: dict[str, Any], document: Document) -> tuple[str, str, str]:
    """Return what a threshold accepts: the sentence, its bold end, and what is in small print."""
    threshold = point["threshold"]
    cut = fixed(threshold, 6 if threshold > 0.9999 else 4 if threshold > 0.99 else 3)
    lead = f"With a confidence of at least {cut}, accept"
    if not point["met"]:
        lead = (
            f"No threshold keeps the error within {in_percent(document['risk_target'], 2)}. The "
            f"strictest one, a confidence of at least {cut}, accepts"
        )
    found = (
        f"{in_percent(point['coverage'])} of inputs at an error of {in_percent(point['error'], 2)}"
    )
    ends = f"{in_percent(point['low'], 2)} to {in_percent(point['high'], 2)}"
    small = (
        f"{round(100 * document['level'])}{THIN}% interval of that error: {ends} (Wilson; a "
        "threshold chosen on these same rows looks a little better than it is)."
    )
    return lead, found, small


def _ends_of(low: str, high: str, kind: str = "strip") -> Cell:
    """Return the heading of a column of pictures: the ends of their scale."""
    ends = f'<span class="ends"><span>{low}</span><span>{high}</span></span>'
    return Cell(csv=[], kind=kind, picture=f'<span class="visually-hidden">Picture, </span>{ends}')


def _ranking_table(document: Document) -> PageTable:
    """Return the ranking by the metric that the page opens with."""
    name = document["rank_by"]
    metric, (low, high) = document["metrics"][name], document["scales"][name]
    named = {method["name"]: method for method in document["methods"]}
    ranked = [named[method] for method in document["ranked_by"][name]]
    unit, best = f"{THIN}%" * metric["percent"], ranked[0]["metrics"][name]["value"]
    rows: list[list[Cell]] = []
    for method in ranked:
        result, words = method["metrics"][name], method["words"][name]
        floor = [f"95{THIN}%: {words['floor_95']}"] if words["floor"] else []
        difference = f"{words['difference_low']} to {words['difference_high']}"
        marks = ["recommended"] * (method["name"] == document["recommended"]) + words["marks"]
        first = method is ranked[0]
        rows.append(
            [
                Cell(method["name"], marks=", ".join(marks) or "worse than the best"),
                Cell(method["stands_for"], kind="title"),
                Cell(picture=strip(result, (low, high), best), kind="strip"),
                Cell(words["value"] + unit, [f"{words['low']} to {words['high']}"], bold=True),
                Cell(words["floor"], floor),
                Cell("" if first else words["difference"], [] if first else [difference]),
            ]
        )
    ends = [fixed(100 * end, 2) if unit else fixed(end, 4) for end in (low, high)]
    titles = (metric["title"], "Floor", "To the best")
    head = ["Method", Cell("In words", kind="title"), _ends_of(ends[0], ends[1] + unit), *titles]
    label = "Ranking of the methods"
    return PageTable(label, head, rows, id="ranking-table", kind="ranking")


def _groups_table(groups: dict[str, Any]) -> PageTable:
    """Return the groups, a row each."""
    metric, (low, high) = groups["metric"], groups["scale"]
    said, true = ("probability", "share") if groups["of_positive"] else ("confidence", "accuracy")
    values = [row["value"] for row in groups["rows"]]
    nearest = min(values)
    rows: list[list[Cell]] = []
    for row in groups["rows"]:
        words, p = row["words"], row["p_adjusted"]
        interval = [f"{words['low']} to {words['high']}"]
        rows.append(
            [
                Cell(row["name"], csv=[row["name"]], marks="more than noise" * row["marked"]),
                Cell(whole(row["n"]), csv=[row["n"]]),
                Cell(in_percent(row["confidence"], 2), csv=[row["confidence"]]),
                Cell(in_percent(row["accuracy"], 2), csv=[row["accuracy"]]),
                Cell(picture=strip(row, (low, high), nearest), csv=[], kind="strip"),
                Cell(
                    words["value"], interval, True, [row[end] for end in ("value", "low", "high")]
                ),
                Cell(words["floor_95"], csv=[row["floor_95"]]),
                Cell("" if p is None else f"{p:.2g}", csv=[p]),
            ]
        )
    ends = [fixed(100 * end, 1) if groups["percent"] else fixed(end, 3) for end in (low, high)]
    head = [
        Cell(groups["by"], csv=["group"]),
        Cell("Rows", csv=["rows"]),
        Cell(said.capitalize(), csv=[said]),
        Cell("Share" if groups["of_positive"] else "Right", csv=[true]),
        _ends_of(*ends),
        Cell(groups["title"], csv=[metric, f"{metric}_low", f"{metric}_high"]),
        Cell(f"Floor, 95{THIN}%", csv=["floor_95"]),
        Cell("p, all groups", csv=["p_adjusted"]),
    ]
    return PageTable("Table of groups", head, rows, id="groups-table", kind="ranking")


def _classes_table(document: Document) -> PageTable:
    """Return the classes as the method has them that the page opens with."""
    found = shown_methods(document)[0][0]["classes"]
    columns = [found[key] for key in ("count", "confidence", "accuracy", "low", "high")]
    ends = [end for end in [*found["low"], *found["high"]] if end is not None]
    span = [
        min(max(min(ends, default=0.0), -0.5), -0.005),
        max(min(max(ends, default=0.0), 0.5), 0.005),
    ]
    names = document["class_names"] or [str(label) for label in document["class_labels"]]
    rows: list[list[Cell | str]] = []
    for name, count, said, right, low, high in zip(names, *columns, strict=True):
        if not count:
            rows.append([name, "0", "", "", "", "", ""])
            continue
        cells = [name, whole(count), in_percent(said, 2), in_percent(right, 2)]
        cells += [
            fixed(100 * (said - right), 2),
            f"{fixed(100 * low, 1)} to {fixed(100 * high, 1)}",
        ]
        bar = gap_bar(said - right, low, high, None, span)
        rows.append([*cells, Cell(picture=bar, kind="gapbar")])
    head = ["Class", "Rows", "Confidence", "Right", "Gap", "Interval"]
    picture = '<span class="visually-hidden">Picture of the gap</span>'
    return PageTable(
        "Table of classes",
        [*head, Cell(picture=picture, kind="gapbar")],
        rows,
        id="classes-table",
        tall=True,
    )


def _metrics_table(document: Document) -> PageTable:
    """Return what was measured of the first method, a row for each metric."""
    method = document["methods"][0]
    rows: list[list[Cell]] = []
    for name, result in method["metrics"].items():
        words, metric = method["words"][name], document["metrics"][name]
        rows.append(
            [
                Cell(metric["title"], csv=[name]),
                Cell(words["value"] + " %" * metric["percent"], bold=True, csv=[result["value"]]),
                Cell(f"{words['low']} to {words['high']}", csv=[result["low"], result["high"]]),
                Cell(words["floor"], csv=[result["floor"]]),
                Cell(words["floor_95"], csv=[result["floor_95"]]),
                Cell(words["against_floor"], csv=[result["p_value"]]),
            ]
        )
    head = [
        Cell("Metric", csv=["metric"]),
        Cell("Value", csv=["value"]),
        Cell("Interval", csv=["low", "high"]),
        Cell("Floor", csv=["floor"]),
        Cell("Floor, 95 %", csv=["floor_95"]),
        Cell("Finding", csv=["p_value"]),
    ]
    return PageTable("Table of metrics", head, rows, words=(5,), id="metrics-table")


def _numbers_table(document: Document) -> PageTable:
    """Return every metric of every method."""
    metrics = document["metrics"]
    ends = ("", "_low", "_high", "_floor", "_floor_95", "_p_value")
    head = [Cell("Method", csv=["method"])]
    for name, metric in metrics.items():
        title = metric["title"] + " %" * metric["percent"]
        head.append(Cell(title, csv=[f"{name}{end}" for end in ends]))
    head += [Cell(title) for title in ("Class kept", "Parameters", "Fit, s")]
    rows: list[list[Cell]] = []
    for method in document["methods"]:
        row = [Cell(method["name"], csv=[method["name"]])]
        for name in metrics:
            result, words = method["metrics"][name], method["words"][name]
            signs = [("◦", "at the floor")] if result["at_floor"] else []
            if name in method.get("may_be_best", ()):
                signs.append(("+", "may be the best"))
            small = [f"{words['low']}\N{EN DASH}{words['high']}"]
            if result["floor"] is not None:
                small.append(f"floor {words['floor']}, {words['floor_95']}")
            kept = ("value", "low", "high", "floor", "floor_95", "p_value")
            csv = [result[key] for key in kept]
            row.append(Cell(words["value"], small, bold=True, csv=csv, signs=signs))
        facts = [""] * 3
        if method["ranked"]:
            facts = [
                "yes" if method["keeps_accuracy"] else "no",
                grouped(method["parameters"]),
                f"{method['fit_seconds']:.2f}",
            ]
        rows.append([*row, *map(Cell, facts)])
    return PageTable("Table of all metrics", head, rows, id="numbers-table")
