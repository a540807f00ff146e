"""How the page works in a browser: tables, links that keep the view, figures, paper, axe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import (
    BROWSER,
    SWITCHES,
    assert_fits_screens_and_passes_axe,
    needs_browser,
    seen_in,
)

import calibrant as cb
from calibrant.decision import decide_by
from calibrant.evaluation.history import History

METHODS = [
    "none", "temperature", "temperature-laplace", "ets", "isotonic", "histogram", "smart", "svs",
    "vector", "platt", "beta", "irm",
]  # fmt: skip
KINDS = [
    "comparison", "groups", "many labels", "networks", "monitor", "history",
    "decision", "decision by groups", "costs", "sets",
]  # fmt: skip
pytestmark = needs_browser


@pytest.fixture(scope="module")
def comparison(labelled_logits: Callable[..., Any]) -> tuple[cb.Comparison, Any, Any]:
    fit, test = (cb.Predictions.from_logits(*labelled_logits(1500, 4, seed=s)) for s in (1, 2))
    return cb.compare(METHODS, fit=fit, test=test, resamples=60), fit, test


@pytest.fixture(scope="module")
def page(comparison: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    comparison[0].to_html(path)
    return path


WORK = """
const table = byId("ranking-table");
const shown = () => [...table.tBodies[0].rows].filter((r) => r.offsetParent !== null);
const isRow = (r) => !r.classList.contains("fold");
const nameIn = (r) => r.cells[0].firstChild.textContent.trim();
const names = () => shown().filter(isRow).map(nameIn);
seen.folded = names();
seen.folds = shown().filter((r) => !isRow(r)).map((r) => r.textContent);
seen.csv = csvOf(table).trim().split("\\n").length;
seen.arrows = Object.fromEntries([...table.tBodies[0].rows].filter(isRow)
  .map((r) => [nameIn(r), r.querySelector(".strip path") !== null]));
const field = byId("ranking-table-filter");
field.value = "temperature";
field.dispatchEvent(new Event("input"));
seen.filtered = names();
seen.filtered_csv = csvOf(table).trim().split("\\n").length;
field.value = "";
field.dispatchEvent(new Event("input"));
table.querySelector('[data-sort="method"]').click();
seen.sorted = names();
seen.latex = latexOf(byId("numbers-table"));
byId("metric").value = "nll";
byId("metric").dispatchEvent(new Event("change"));
seen.deck = byId("deck").textContent;
seen.headline = document.querySelector("h1").textContent;
byId("after").value = "platt";
byId("after").dispatchEvent(new Event("change"));
document.querySelector('a[href="#classes"]').click();
seen.hash = location.hash;
seen.figures = {};
for (const button of document.querySelectorAll("[data-figure]")) {
  const { figure, format } = button.dataset, text = figureText(figure);
  if (format === "svg") {
    const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
    seen.figures[figure] = [
      parsed.querySelectorAll("svg").length,
      parsed.querySelector("parsererror") === null,
      parsed.querySelectorAll("[class]").length,
      parsed.documentElement.textContent.includes("platt"),
    ];
  }
}
const png = await pngOf(figureText("reliability"));
seen.png = [png.type, png.size > 10000];
const papers = [...document.querySelectorAll("#numbers-paper table")];
seen.paper = papers.map((t) => [...t.tHead.rows[0].cells].map((c) => c.textContent));
seen.paper_rows = papers.map((t) => t.tBodies[0].rows.length);
seen.columns = [...byId("numbers-table").tHead.rows[0].cells].map((c) => visibleText(c));
"""


def test_tables_links_and_figures_work(comparison: Any, page: Path, tmp_path: Path) -> None:
    found: cb.Comparison = comparison[0]
    seen = seen_in(page, tmp_path, WORK)
    ranked = [m.name for m in found.methods]
    # Folded rows are few, in order, and what the page speaks of stands.
    assert len(seen["folded"]) < len(ranked)
    assert seen["folded"] == [name for name in ranked if name in seen["folded"]]
    assert {ranked[0], found.recommended, "none"} <= set(seen["folded"])
    assert seen["folds"]
    hidden = [name for name in ranked if name not in seen["folded"]]
    assert all(any(name in text for text in seen["folds"]) for name in hidden)
    assert seen["csv"] == 1 + len(ranked)
    # The scale is that of the contenders: only who is told apart from the best may lie beyond it.
    assert seen["arrows"]["none"]
    assert not any(seen["arrows"][name] for name in [found.best, *found.tied_with_best])
    assert "temperature" in seen["filtered"]
    assert 0 < len(seen["filtered"]) < len(ranked)
    assert seen["filtered_csv"] == 1 + len(seen["filtered"])
    assert sorted(seen["sorted"]) == seen["sorted"]
    assert len(seen["sorted"]) == len(ranked)
    lines = seen["latex"].splitlines()
    assert lines[0] == r"\begin{tabular}{" + "l" + "r" * (len(seen["columns"]) - 1) + "}"
    assert [lines[1], lines[3], *lines[-2:]] == [
        r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    assert len(lines) == 6 + len(ranked)
    assert {line.count(" & ") for line in (lines[2], *lines[4:-2])} == {len(seen["columns"]) - 1}
    best = min(found.methods, key=lambda m: m.evaluation["nll"].value)
    assert seen["deck"].startswith(f"Lowest NLL: {best.name}, ")
    assert found.recommended in seen["headline"]
    assert seen["hash"] == "#after=platt&metric=nll&at=classes"
    for figure, (parts, parsed, classes, named) in seen["figures"].items():
        assert parsed, figure
        assert classes == 0
        assert parts >= 2
        assert named or figure == "temperature"
    assert set(seen["figures"]) == {"reliability", "ranking", "margins", "temperature", "accept"}
    assert seen["png"] == ["image/png", True]
    on_paper = [title for head in seen["paper"] for title in head[1:]]
    assert on_paper == seen["columns"][1:]
    assert set(seen["paper_rows"]) == {len(ranked)}


def test_a_link_opens_the_view_that_it_keeps(page: Path, tmp_path: Path) -> None:
    script = """
seen.after = byId("after").value;
seen.metric = byId("metric").value;
seen.points = document.querySelector('input[name="points"]:checked').value;
seen.classes = byId("classes-table").getAttribute("aria-label");
seen.scrolled = window.scrollY;
location.hash = "#after=nothing&metric=constructor&points=smooth&threshold=length";
await new Promise((done) => setTimeout(done, 50));
seen.unknown = [byId("after").value, byId("metric").value, state.points];
seen.headline = document.querySelector("h1").textContent;
"""
    view = "#after=platt&metric=nll&points=quantile&at=classes"
    seen = seen_in(page, tmp_path, script, view)
    assert (seen["after"], seen["metric"], seen["points"]) == ("platt", "nll", "quantile")
    assert seen["classes"] == "Classes, platt"
    assert seen["scrolled"] > 500
    data = json.loads(
        page.read_text(encoding="utf-8").split('type="application/json">')[1].split("</script>")[0]
    )
    # What a link asks for and the page hasn't is passed over.
    assert seen["unknown"] == [data["after"], data["rank_by"], "smooth"]
    assert len(seen["headline"]) > 10


def test_groups_are_shown_and_sorted(labelled_logits: Any, tmp_path: Path) -> None:
    rows = cb.Predictions.from_logits(*labelled_logits(900, 8))
    options: dict[str, Any] = {"metrics": ["ece"], "resamples": 30}
    groups = cb.evaluate_by(rows, "predicted", **options)
    cb.evaluate(rows, **options).to_html(tmp_path / "r.html", groups=groups)
    script = """
const rows = () => [...byId("groups-table").tBodies[0].rows];
const column = () => rows().map((r) => JSON.parse(r.cells[0].dataset.csv)[0]);
seen.first = column();
byId("groups-table").querySelector('[data-sort="ece"]').click();
seen.worst = column()[0];
seen.strips = byId("groups-table").querySelectorAll(".strip svg").length;
"""
    seen = seen_in(tmp_path / "r.html", tmp_path, script)
    assert seen["first"] == list(groups.groups)
    assert seen["worst"] == groups.worst
    assert seen["strips"] == len(groups.groups)


def parts_of(drawn: str) -> list[tuple[str, dict[str, str], str]]:
    """Return the elements of an SVG element, in their order; places without their last bits."""
    tidy = re.compile(r"(?<==\")-?\d+\.\d+(?=\")")
    found = ElementTree.fromstring(tidy.sub(lambda number: f"{float(number[0]):.7g}", drawn))
    return [(each.tag, dict(each.attrib), (each.text or "").strip()) for each in found.iter()]


def test_the_script_draws_what_the_page_shows_without_it(
    comparison: Any, page: Path, tmp_path: Path
) -> None:
    script = """
const shown = shownMethods(), reversed = [...shown].reverse();
const point = { ...doc.risk_point };
const ends = doc.scales[doc.rank_by], ranked = rankedMethods(doc.rank_by);
seen.reliability = reversed.map(({ method, role }) =>
  reliabilityChart(method, "uniform", role, doc.smooth_grid, 440, VIEWS.top));
seen.margins = [0, 1, 2, 3].map((i) => marginChart(reversed, i, 260));
seen.temperature = [temperatureChart(temperatureShown(), doc.margin_histogram, 780)];
seen.accept = [acceptChart(shown, point, doc.worth, 780)];
const results = ranked.map((m) => m.metrics[doc.rank_by]);
seen.strips = results.map((r) => strip(r, ...ends, results[0].value));
seen.words = visibleText(byId("accept-words"));
seen.ranking = csvOf(byId("ranking-table")).trim().split("\\n").length;
"""
    text = page.read_text(encoding="utf-8")
    static = text[: text.index('<script id="data"')]
    seen = seen_in(page, tmp_path, script)
    for name in ("reliability", "margins", "temperature", "accept"):
        box = static.split(f'id="{name}-chart">')[1].split("</section>")[0]
        drawn = re.findall(r"<svg .*?</svg>", box, re.DOTALL)
        for one, other in zip(drawn, seen[name], strict=True):
            for mine, scripts in zip(parts_of(one), parts_of(other), strict=True):
                assert mine == scripts, name
    rows = static.split('id="ranking-table"')[1].split("</table>")[0]
    drawn = re.findall(r"<svg .*?</svg>", rows, re.DOTALL)
    assert [parts_of(one) for one in drawn] == [parts_of(one) for one in seen["strips"]]
    assert seen["ranking"] == 1 + len(drawn)
    words = re.search(r'id="accept-words".*?<b>(.*?)</b>', static)
    assert words
    assert words[1] in seen["words"]


def test_what_stands_at_the_top_follows_the_chosen_method(
    comparison: Any, page: Path, tmp_path: Path
) -> None:
    script = """
const top = () => [document.title, document.querySelector("h1").textContent,
  document.querySelector(".use").textContent, byId("shown").textContent];
seen.first = top();
byId("after").value = "isotonic";
byId("after").dispatchEvent(new Event("change"));
seen.chosen = top();
byId("threshold-first").value = 3;
byId("threshold-first").dispatchEvent(new Event("input"));
seen.both = [byId("threshold").value];
for (const id of ["accept-first", "accept-words"]) seen.both.push(byId(id).textContent);
byId("after").value = doc.after;
byId("after").dispatchEvent(new Event("change"));
seen.back = top();
"""
    seen = seen_in(page, tmp_path, script)
    assert all("isotonic" in text for text in seen["chosen"])
    assert seen["back"] == seen["first"]
    assert not any("isotonic" in text for text in seen["first"][:3])
    ece = comparison[0]["isotonic"].evaluation["ece"].value
    assert f"{100 * ece:.2f}" in seen["chosen"][3]
    slider, first, second = seen["both"]
    assert slider == "3"
    assert first == second


LIST_ROWS = """
const table = () => [...byId("rows-table").tBodies[0].rows].filter((r) => !r.hidden);
const column = (name) => {
  const at = [...byId("rows-table").tHead.rows[0].cells].findIndex((c) => visibleText(c) === name);
  return table().map((r) => JSON.parse(r.cells[at].dataset.csv)[0]);
};
const look = () => ({ said: byId("rows-said").textContent, shown: byId("rows-of").value,
  confidence: column("Confidence"), right: column("Right"), predicted: column("Predicted") });
const press = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
seen.first = look();
const drawn = (what) => {
  const figures = [...byId("reliability-chart").querySelectorAll("figure")];
  return [...figures.at(-1).querySelectorAll(what)];
};
const dots = drawn("circle.dot");
press(dots[dots.length - 1]);
seen.bin = look();
seen.hash = location.hash;
byId("rows-table-filter").value = "wrong";
byId("rows-table-filter").dispatchEvent(new Event("input"));
seen.filtered = look();
byId("rows-table-filter").value = "";
byId("rows-table-filter").dispatchEvent(new Event("input"));
byId("rows-table").querySelector('[data-sort="Confidence"]').click();
seen.sorted = look();
const bars = drawn("rect.bar.wrong");
press(bars[bars.length - 1]);
seen.bar = look();
byId("rows-of").value = "class:2";
byId("rows-of").dispatchEvent(new Event("change"));
seen.class = look();
press(byId("classes-table").tBodies[0].rows[0].cells[1]);
seen.clicked = look();
document.querySelector('input[name="points"][value="quantile"]').click();
press(drawn("circle.dot")[0]);
seen.quantile = look();
const ends = shownMethods()[0].method.quantile_ends[0];
seen.ends = ends;
"""


def test_a_click_lists_the_rows_of_a_bin_a_bar_or_a_class(
    comparison: Any, page: Path, tmp_path: Path
) -> None:
    seen = seen_in(page, tmp_path, LIST_ROWS)
    assert seen["first"]["shown"] == "mistakes"
    assert set(seen["first"]["right"]) == {"wrong"}
    assert seen["first"]["confidence"] == sorted(seen["first"]["confidence"], reverse=True)
    assert len(seen["first"]["right"]) == 30
    assert seen["bin"]["shown"] == "bin:after:14"
    assert "rows=bin%3Aafter%3A14" in seen["hash"]
    assert all(value > 14 / 15 for value in seen["bin"]["confidence"])
    assert " of the " in seen["bin"]["said"] or seen["bin"]["said"].startswith("All ")
    assert set(seen["filtered"]["right"]) == {"wrong"}
    assert len(seen["filtered"]["right"]) < len(seen["bin"]["right"])
    assert seen["sorted"]["confidence"] == sorted(seen["bin"]["confidence"], reverse=True)
    assert seen["bar"]["shown"] == "bar:after:29"
    assert all(value > 29 / 30 for value in seen["bar"]["confidence"])
    assert set(seen["class"]["predicted"]) == {"2"}
    assert len(set(seen["clicked"]["predicted"])) == 1
    low, high = seen["ends"]
    assert seen["quantile"]["confidence"]
    assert all(low - 1e-5 <= value <= high + 1e-5 for value in seen["quantile"]["confidence"])


def watched() -> cb.Monitor:
    """Return a monitor whose page has all that such pages have."""
    rng = np.random.default_rng(0)
    said = rng.uniform(0.5, 1.0, 6_000)
    right = rng.random(6_000) < said - 0.2 * (np.arange(6_000) >= 4_000)
    monitor = cb.Monitor()
    monitor.update(said, right, np.arange(6_000) % 3)
    monitor.update(said[:50])
    return monitor


def decided(kind: str) -> Any:
    """Return a decision, by risk, costs or sets, or by groups."""
    scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
    test = cb.load_sample("test")
    demands: dict[str, dict[str, Any]] = {
        "decision": {"risk": 0.05},
        "costs": {"costs": 1 - np.eye(test.n_classes or 0)},
        "sets": {"cover": 0.9},
    }
    if kind in demands:
        return cb.decide(scaling, test, **demands[kind])
    return decide_by(scaling, test, "predicted", risk=0.05)


def several_dates() -> History:
    """Return the history of six dates with long names."""
    test = cb.load_sample("test")
    return History(
        {
            f"predictions/of the {i}th of October.npz": cb.evaluate(
                test.take(slice(500 * i, 500 * (i + 1))), metrics=["ece", "nll"], resamples=30
            )
            for i in range(6)
        }
    )


def test_the_mark_of_a_decision_moves_along_its_line(tmp_path: Path) -> None:
    decided("decision").to_html(tmp_path / "d.html")
    script = """
const range = document.getElementById("place");
const said = () => document.getElementById("words").textContent;
seen.first = said();
range.value = 3;
range.dispatchEvent(new Event("input"));
seen.moved = said();
seen.expected = points[3][2];
seen.mark = Number(document.querySelector("#mark circle").getAttribute("cx")) === points[3][0];
"""
    seen = seen_in(tmp_path / "d.html", tmp_path, script)
    assert seen["first"].endswith("the chosen threshold.")
    assert seen["moved"] == seen["expected"] != seen["first"]
    assert seen["mark"]


def shown(kind: str, labelled_logits: Any) -> Any:
    """Return a result of each kind that has a page, and what its page shows beside it."""
    if kind == "groups":
        rows = cb.Predictions.from_logits(*labelled_logits(900, 8))
        names = [f"a group of images from the long place {i}" for i in range(3)]
        options: dict[str, Any] = {"metrics": ["ece"], "resamples": 30}
        groups = cb.evaluate_by(rows, np.array(names)[np.arange(900) % 3], **options)
        return partial(cb.evaluate(rows, **options).to_html, groups=groups)
    if kind == "many labels":
        rng = np.random.default_rng(1)
        rows = cb.Predictions.from_many_labels(rng.random((300, 5)), rng.integers(2, size=(300, 5)))
        return cb.evaluate(rows, resamples=30).to_html
    if kind == "networks":
        a, b = (cb.Predictions.from_logits(*labelled_logits(400, 4, seed=s)) for s in (1, 2))
        a = cb.Predictions.from_logits(a.logits, b.labels)
        return cb.compare_models({"a": a, "b": b}, methods=["temperature"], resamples=30).to_html
    return {"monitor": watched, "history": several_dates}.get(
        kind, partial(decided, kind)
    )().to_html


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_passes_axe_and_no_screen_scrolls_it_sideways(
    kind: str, page: Path, labelled_logits: Any, tmp_path: Path
) -> None:
    if kind != "comparison":
        page = tmp_path / "r.html"
        shown(kind, labelled_logits)(page)
    assert_fits_screens_and_passes_axe(page, tmp_path)


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext on the PATH")
def test_paper_holds_every_column_and_no_half_empty_page(
    comparison: Any, page: Path, tmp_path: Path
) -> None:
    found: cb.Comparison = comparison[0]
    pdf = tmp_path / "r.pdf"
    switches = SWITCHES.removesuffix("--dump-dom").split()
    subprocess.run(
        [
            str(BROWSER),
            *switches,
            "--no-pdf-header-footer",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--print-to-pdf={pdf}",
            page.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    text = subprocess.run(
        ["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True
    ).stdout
    numbers = text[text.index("All metrics") : text.index("How this was made")]
    for method in found.methods:
        for name in ("ece", "nll", "brier"):
            value = method.evaluation[name].value
            assert (f"{100 * value:.2f}" if name == "ece" else f"{value:.4f}") in numbers
    for title in (
        "ECE",
        "AdaECE",
        "smCE",
        "smECE",
        "NLL",
        "Brier",
        "accuracy",
        "Class kept",
        "Fit",
    ):
        assert title in numbers
    boxes = subprocess.run(
        ["pdftotext", "-bbox", str(pdf), "-"], capture_output=True, text=True, check=True
    ).stdout
    for sheet in boxes.split("<page ")[1:-1]:
        height = float(re.search(r'height="([\d.]+)"', sheet)[1])  # type: ignore[index]
        lowest = max(float(end) for end in re.findall(r'yMax="([\d.]+)"', sheet))
        assert lowest > 0.6 * height
