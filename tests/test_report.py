"""The report page: its words, its document, and how it works in a browser."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import InputError
from calibrant.evaluation.results import heading
from calibrant.evaluation.uncertainty import Gap
from calibrant.posthoc.registry import title_of
from calibrant.report.document import comparison_words
from calibrant.report.series import binned_reliability, risk_coverage

MAX_BYTES = 500_000
METHODS = ["none", "temperature", "isotonic", "smart"]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def sets(labelled_logits: Callable[..., Any]) -> tuple[cb.Predictions, cb.Predictions]:
    fit = cb.Predictions.from_logits(*labelled_logits(1500, 5, seed=1), source="fit set")
    test = cb.Predictions.from_logits(*labelled_logits(2000, 5, seed=2), source="test set")
    return fit, test


@pytest.fixture(scope="module")
def comparison(sets: tuple[cb.Predictions, cb.Predictions]) -> cb.Comparison:
    return cb.compare(METHODS, fit=sets[0], test=sets[1], resamples=80)


@pytest.fixture(scope="module")
def page(
    comparison: cb.Comparison,
    sets: tuple[cb.Predictions, cb.Predictions],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    comparison.to_html(path)
    return path


class Page(HTMLParser):
    """What a browser would find in the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for name in {tag for tag, _ in self._open} | {f"#{i}" for _, i in self._open if i}:
            self.texts[name] = self.texts.get(name, "") + data

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.texts["#data"])

    @property
    def ids(self) -> list[str]:
        return [i for _, attributes in self.tags if (i := attributes.get("id"))]


# Words.


def test_headline_says_before_and_after(comparison: cb.Comparison) -> None:
    before = comparison["none"].evaluation
    text, deck = comparison_words(comparison)
    gap = Gap.of(before.top)
    assert text.startswith(f"Overconfident by {100 * gap.value:.1f} points (95 % interval ")
    assert f"after {comparison.recommended}" in text
    recommended = comparison[comparison.recommended].evaluation["ece"]
    assert ("not distinguishable from perfect" in text) == recommended.at_floor
    assert comparison.best in deck
    for name in comparison.tied_with_best:
        assert name in deck


def test_headline_of_honest_and_of_twofold_errors() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.2, 0.9, 4000)

    def headline(chance: Any) -> str:
        labels = (rng.random(4000) >= chance).astype(int)
        rows = cb.Predictions.from_confidence(confidence, np.zeros(4000, int), labels)
        return heading(cb.evaluate(rows, resamples=50))

    assert headline(confidence) == ("Not distinguishable from perfectly calibrated with 4000 rows.")
    assert headline(confidence * 0.8).startswith("Overconfident by ")
    assert headline(confidence * 0.8 + 0.19).startswith("Underconfident by ")
    assert headline(np.full(4000, 0.55)).startswith(
        "Overconfident in some places and underconfident in others"
    )


def test_titles_are_words() -> None:
    assert title_of(cb.SMART) == "SMART"
    assert title_of(cb.posthoc.EnsembleTemperatureScaling) == "ensemble temperature scaling"


# The page.


def test_page_loads_nothing_and_is_small(page: Path) -> None:
    found = Page(page)
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < MAX_BYTES
    for tag, attributes in found.tags:
        link = attributes.pop("href", None)
        assert link is None or (tag == "a" and link[1:] in found.ids and link[0] == "#")
        assert not {"src", "srcset", "data", "action", "poster"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
    for loader in ("http://", "https://", "url(", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert loader not in text
    policy = next(a for t, a in found.tags if t == "meta" and a.get("http-equiv"))
    assert str(policy["content"]).startswith("default-src 'none'")


def test_page_is_well_formed_and_labelled(page: Path) -> None:
    found = Page(page)
    assert len(found.ids) == len(set(found.ids))
    named = {str(a["for"]) for t, a in found.tags if t == "label" and "for" in a}
    for tag, attributes in found.tags:
        if tag in ("select", "input") and attributes.get("type") != "radio":
            inside = {"after", "before", "metric"}  # these stand inside their labels
            assert attributes["id"] in named | inside
        for reference in ("aria-labelledby", "data-copy-table", "for"):
            for target in str(attributes.get(reference) or "").split():
                assert target in found.ids
    assert [a["lang"] for t, a in found.tags if t == "html"] == ["en"]
    assert sum(t == "h1" for t, _ in found.tags) == 1


def test_page_holds_the_numbers_of_the_comparison(page: Path, comparison: cb.Comparison) -> None:
    document = Page(page).document
    assert [m["name"] for m in document["methods"]] == [m.name for m in comparison.methods]
    assert document["tied_with_best"] == comparison.tied_with_best
    for entry, method in zip(document["methods"], comparison.methods, strict=True):
        for name, result in method.evaluation.results.items():
            assert entry["metrics"][name] == result.as_dict() | {"at_floor": result.at_floor}
        ranked = entry["differences"][comparison.rank_by]
        assert ranked == vars(comparison.differences[method.name])
        risk = risk_coverage(method.evaluation.top)
        assert entry["risk"]["accepted"] == risk.accepted.tolist()
        np.testing.assert_allclose(
            entry["bins"]["uniform"]["accuracy"],
            binned_reliability(method.evaluation.top).accuracy,
            rtol=1e-4,
        )
    best_nll = min(comparison.methods, key=lambda m: m.evaluation["nll"].value).name
    for entry in document["methods"]:
        difference = entry["differences"]["nll"]
        assert difference["value"] >= 0
        if entry["name"] == best_nll:
            assert not difference["significant"]


def test_page_tables_can_be_read_without_scripts(page: Path, comparison: cb.Comparison) -> None:
    text = Page(page).texts["#numbers-table"]
    for method in comparison.methods:
        assert f"{100 * method.evaluation['ece'].value:.2f}" in text
        assert f"{method.evaluation['nll'].value:.4f}" in text


def test_every_chart_is_there_before_a_script_draws_it(
    page: Path, comparison: cb.Comparison
) -> None:
    text = page.read_text(encoding="utf-8")
    static = text[: text.index('<script id="data"')]
    drawn = [
        ElementTree.fromstring(one) for one in re.findall(r"<svg .*?</svg>", static, re.DOTALL)
    ]
    named = [str(one.get("aria-label")) for one in drawn if one.get("role") == "img"]
    assert len(named) == 2 + 4 + 1 + 1
    shown = comparison.recommended
    assert sum(label.startswith(f"Reliability diagram of {shown}") for label in named) == 1
    assert sum(label.startswith("Risk-coverage curve") for label in named) == 1
    # A strip for each method of the ranking, a bar for each class.
    assert len(drawn) - len(named) == len(comparison.methods) + 5
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', "".join(map(str, named)))
    dots = [one for one in drawn[1].iter() if one.get("class") == "dot"]
    bins = binned_reliability(comparison[shown].evaluation.top)
    assert len(dots) == len(bins.count)


def test_the_first_screen_says_how_much_can_be_accepted_at_which_risk(
    page: Path, comparison: cb.Comparison
) -> None:
    found = Page(page)
    point, target = (found.document[key] for key in ("risk_point", "risk_target"))
    top = comparison[comparison.recommended].evaluation.top
    accepted = top.confidence >= point["threshold"] - 1e-6
    wrong = 1 - top.correct[accepted]
    assert point["met"]
    assert point["coverage"] == pytest.approx(accepted.mean())
    assert point["error"] == pytest.approx(wrong.mean())
    assert point["low"] < point["error"] < point["high"]
    assert point["error"] <= target <= (1 - top.accuracy) / 2
    words = found.texts["#accept-first"]
    assert f"{100 * point['coverage']:.1f}" in words
    assert f"{100 * point['low']:.2f}" in words
    assert words.strip() == found.texts["#accept-words"].strip()


def test_the_same_comparison_makes_the_same_page(
    page: Path,
    comparison: cb.Comparison,
    sets: tuple[cb.Predictions, cb.Predictions],
    tmp_path: Path,
) -> None:
    comparison.to_html(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_page_without_none_shows_the_network_itself(
    sets: tuple[cb.Predictions, cb.Predictions], tmp_path: Path
) -> None:
    methods = [cb.TemperatureScaling(), cb.TemperatureScaling(), cb.posthoc.IsotonicRegression()]
    found = cb.compare(
        methods, fit=sets[0], test=sets[1], metrics=["nll"], rank_by="nll", resamples=20
    )
    found.to_html(tmp_path / "r.html")
    document = Page(tmp_path / "r.html").document
    assert document["methods"][-1]["name"] == "none"
    assert not document["methods"][-1]["ranked"]
    assert document["before"] == "none"
    assert document["after"] == found.best
    names = [m["name"] for m in document["methods"]]
    assert sorted(names) == ["isotonic", "none", "temperature-1", "temperature-2"]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>&'\" %"
    rows = cb.Predictions.from_probs(np.full((30, 2), 0.5), np.arange(30) % 2, source=name)
    cb.evaluate(rows, resamples=5).to_html(tmp_path / "r.html")
    found = Page(tmp_path / "r.html")
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert found.document["source"] == name


def test_top_label_page_leaves_out_what_it_cannot_show(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    confidence, truth = rng.uniform(0.3, 1, 400), rng.integers(3, size=400)
    rows = cb.Predictions.from_confidence(confidence, rng.integers(3, size=400), truth)
    cb.evaluate(rows, resamples=20).to_html(tmp_path / "r.html")
    found = Page(tmp_path / "r.html")
    assert {"measured", "reliability", "accept", "classes"} <= set(found.ids)
    assert not {"ranking", "margins", "temperature", "after"} & set(found.ids)
    assert "nll" in found.document["skipped_metrics"]
    assert found.document["methods"][0]["temperature"] is None


@pytest.mark.filterwarnings("ignore:the rows to fit on and to measure on are the same")
def test_many_classes_keep_the_page_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(800, 1000)) * 3, rng.integers(1000, size=800)
    rows = cb.Predictions.from_logits(logits, labels)
    found = cb.compare(["none", "temperature"], fit=rows, test=rows, resamples=10)
    found.to_html(tmp_path / "r.html")
    document = Page(tmp_path / "r.html").document
    assert len(document["class_labels"]) == 60
    assert document["class_count"] == 1000
    assert (tmp_path / "r.html").stat().st_size < MAX_BYTES / 2


@pytest.mark.parametrize("n", [1, 2, 9])
def test_few_rows_make_a_page(n: int, tmp_path: Path) -> None:
    rows = cb.Predictions.from_logits(np.eye(3)[np.arange(n) % 3], np.zeros(n, int))
    cb.evaluate(rows, resamples=5).to_html(tmp_path / "r.html")
    assert Page(tmp_path / "r.html").document["n"] == n


def test_what_a_page_cannot_show_is_refused_and_an_old_page_stays(
    comparison: cb.Comparison, sets: tuple[cb.Predictions, cb.Predictions], tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")
    groups = cb.evaluate_by(sets[1], "predicted", metrics=["ece"], resamples=20)
    with pytest.raises(InputError, match="neither ids nor images"):
        groups.to_html(path, ids=np.arange(sets[1].n))
    with pytest.raises(InputError, match="only the page of an evaluation shows groups"):
        comparison.to_html(path, groups=groups)
    assert path.read_text() == "old"
    with pytest.raises(InputError, match="folder"):
        comparison.to_html(tmp_path / "no" / "r.html")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


# Drives every control in the page and reports what it saw.
SELF_CHECK = """
<script>
const seen = { errors: [], ready: document.documentElement.dataset.ready };
const fire = (id, value, kind = "change") => {
  byId(id).value = value;
  byId(id).dispatchEvent(new Event(kind));
};
try {
  seen.charts = document.querySelectorAll('svg[role="img"]').length;
  seen.unlabelled = [...document.querySelectorAll("svg")]
    .filter((s) => !s.hasAttribute("aria-hidden") && !s.getAttribute("aria-label")).length;
  seen.ranking = csvOf(byId("ranking-table"));
  fire("metric", "nll");
  seen.by_nll = csvOf(byId("ranking-table"));
  fire("target", "2", "input");
  seen.words = byId("accept-words").textContent;
  const strict = byId("threshold").value;
  fire("threshold", byId("threshold").max, "input");
  seen.all = byId("accept-words").textContent;
  for (const kind of ["quantile", "smooth"]) {
    const radio = document.querySelector(`input[value="${kind}"]`);
    radio.checked = true;
    radio.dispatchEvent(new Event("change"));
    const drawn = kind === "smooth" ? ".area" : ".dot";
    seen[kind] = document.querySelectorAll(`#reliability-chart ${drawn}`).length;
  }
  fire("after", "isotonic");
  seen.note = byId("temperature-note").textContent;
  fire("before", "isotonic");
  seen.single = document.querySelectorAll("#reliability-chart figure").length;
  byId("swap").click();
  document.querySelector('[data-sort="count"]').click();
  seen.classes = markdownOf(byId("classes-table"));
  for (const details of document.querySelectorAll("details.numbers")) {
    details.open = true;
    fillNumbers(details);
  }
  seen.tables = [...document.querySelectorAll("details.numbers table")].map((t) => t.rows.length);
  byId("theme").click();
  seen.theme = document.documentElement.dataset.theme;
  seen.nan = /NaN|undefined|Infinity/.test(document.querySelector("main").innerHTML);
  seen.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
} catch (error) { seen.errors.push(String(error)); }
const out = document.createElement("pre");
out.id = "check";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("width", [390, 1440])
def test_page_works_in_a_browser(
    page: Path, comparison: cb.Comparison, tmp_path: Path, width: int
) -> None:
    html = page.read_text(encoding="utf-8").replace("</body>", SELF_CHECK + "</body>")
    (tmp_path / "check.html").write_text(html, encoding="utf-8")
    switches = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --dump-dom"
    )
    done = subprocess.run(
        [
            str(BROWSER),
            *switches.split(),
            f"--window-size={width},900",
            f"--user-data-dir={tmp_path / 'profile'}",
            (tmp_path / "check.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (tmp_path / "dom.html").write_text(done.stdout, encoding="utf-8")
    seen = json.loads(Page(tmp_path / "dom.html").texts["#check"])
    assert seen["errors"] == []
    assert seen["ready"] == "true"
    assert seen["charts"] == 2 + 4 + 1 + 1
    assert seen["unlabelled"] == 0
    assert not seen["nan"]
    assert not seen["wide"]
    ranking = [line.split(",") for line in seen["ranking"].splitlines()]
    assert [line[0] for line in ranking[1:]] == [m.name for m in comparison.methods]
    assert float(ranking[1][-9]) == comparison.methods[0].evaluation["ece"].value
    by_nll = sorted(comparison.methods, key=lambda m: m.evaluation["nll"].value)
    assert seen["by_nll"].splitlines()[1].split(",")[0] == by_nll[0].name
    assert "100.0" in seen["all"]
    assert "of inputs at an error of" in seen["words"]
    assert seen["quantile"] == 30
    assert seen["smooth"] >= 2
    assert seen["note"].startswith("isotonic doesn")
    assert seen["single"] == 1
    assert seen["classes"].count("\n") == 2 + 5
    assert min(seen["tables"]) > 4
    assert seen["theme"] in ("light", "dark")


def test_many_files_have_a_page_of_what_their_cells_know(
    sets: tuple[cb.Predictions, cb.Predictions], tmp_path: Path
) -> None:
    test = sets[1]
    for i in range(2):
        part = test.take(np.arange(1000) + 1000 * i)
        np.savez(tmp_path / f"part-{i}.npz", logits=part.logits, labels=part.labels)
    found = cb.evaluate(cb.Shards(tmp_path), resamples=20, engine=cb.Engine(workers=1))
    found.to_html(tmp_path / "r.html")
    whole = cb.evaluate(test, resamples=20)
    whole.to_html(tmp_path / "whole.html")
    one, other = (Page(tmp_path / name).document for name in ("r.html", "whole.html"))
    assert one["n"] == other["n"] == 2000
    for key in ("count", "accuracy", "low", "high"):
        bins = [document["methods"][0]["bins"]["uniform"][key] for document in (one, other)]
        np.testing.assert_allclose(*bins, rtol=1e-4)
    assert one["methods"][0]["classes"] is None
    assert not {"classes", "margins"} & set(Page(tmp_path / "r.html").ids)


def test_a_comparison_that_was_pickled_makes_the_same_page(
    comparison: cb.Comparison, page: Path, tmp_path: Path
) -> None:
    pickle.loads(pickle.dumps(comparison)).to_html(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
