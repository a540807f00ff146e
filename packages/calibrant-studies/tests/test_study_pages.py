"""What studies show: tables, pages and figures; and every declared study in its small form."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import assert_fits_screens_and_passes_axe, needs_browser

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import InputError
from calibrant_studies.catalogue import study_named
from calibrant_studies.cells import Cell, Failed, Ran
from calibrant_studies.declaration import Figure, Study, axis_value, study_from
from calibrant_studies.figures import content, draw, draw_points, drawn_for
from calibrant_studies.kinds import kind_named
from calibrant_studies.results import StudyResult, details, differences, layout
from calibrant_studies.significance import Difference, paired
from calibrant_studies.writing import filled, read_page, written_for

ONE = cb.Engine(workers=1)
DECLARED = """
title = "Two methods, three sizes"
kind = "posthoc"
seeds = [0, 1]
metrics = ["ece"]
rows = ["input"]
columns = ["method"]
against = ["none"]
footnotes = ["A % sign & more."]
published = \"\"\"
input | none | smart
a     | 6.5  | 1.00 +- 0.10
b     | 5    | 3.0*
\"\"\"

[axes]
input = [{ name = "a", label = "A" }, "b"]
method = ["none", "smart", "temperature"]

[figure]
x = "input"
lines = ["method"]
minus = "none"
"""


def cell_result(value: float, seed: int, *, shift: float = 0.0) -> dict[str, object]:
    """Return the result of a cell whose resamples scatter by .002, alike for all of a seed."""
    noise = np.random.default_rng(seed).normal(scale=0.002, size=60)
    own = np.random.default_rng(round(1000 * value)).normal(scale=0.0002, size=60)
    replicates = value + noise + own + shift
    ends = {"value": value, "low": value - 0.004, "high": value + 0.004, "floor": 0.003}
    return {
        "values": {"ece": ends},
        "replicates": {"ece": replicates.tolist()},
        "pairing": f"rows {seed}",
    }


@pytest.fixture
def study() -> Study:
    return study_from(tomllib.loads(DECLARED), "mine", "mine.toml")


@pytest.fixture
def result(study: Study) -> StudyResult:
    values = {"a": (0.065, 0.011, 0.0112), "b": (0.051, 0.013, 0.05)}
    ran = [
        Ran(Cell("mine", "posthoc", {"input": name, "method": method}, seed), found, False)
        for name, of_input in values.items()
        for method, value in zip(("none", "smart", "temperature"), of_input, strict=True)
        for seed in (0, 1)
        for found in [cell_result(value + 0.001 * seed * (method == "smart"), seed)]
    ]
    failed = Failed(Cell("mine", "posthoc", {"input": "b", "method": "cts"}, 0), "it failed")
    return StudyResult(study, ran, [], [failed])


@needs_browser
def test_the_page_of_a_study_passes_axe_and_fits_every_screen(
    result: StudyResult, tmp_path: Path
) -> None:
    page = tmp_path / "study.html"
    page.write_text(written_for(result, page), encoding="utf-8")
    assert_fits_screens_and_passes_axe(page, tmp_path)


def test_the_table_has_values_marks_what_was_published_and_ranks(result: StudyResult) -> None:
    table = layout(result)
    assert table.head == ["input", "none", "smart", "temperature"]
    assert table.rows == [
        ["A", "6.50 +- 0.00 (6.5)", "1.15 +- 0.07+ (1.00)", "1.12 +- 0.00+"],
        ["b", "5.10 +- 0.00 (5)", "1.35 +- 0.07+ (3.0*)", "5.00 +- 0.00"],
        ["mean rank", "3.00", "1.50", "1.50"],
    ]
    assert table.bold == {(0, 3), (1, 2)}
    assert "A % sign" in table.notes


def test_numbers_stand_beside_published_ones_with_a_difference_and_its_interval(
    result: StudyResult,
) -> None:
    rows = {tuple(row[:2]): row[2:] for row in details(result).rows}
    assert rows["A", "smart"] == [
        "1.15 +- 0.07+",
        "0.75 .. 1.55",
        "0.30",
        "1.00 +- 0.10",
        "+0.15 (-0.63 to +0.93)",
        "undecided",
    ]
    assert rows["b", "smart"][-3:] == ["3.0*", "-1.65 (-2.45 to -0.85)", "undecided"]
    assert [rows["b", method][0][-1] for method in ("smart", "temperature")] == ["+", "0"]
    assert rows["A", "temperature"][-3:] == ["", "", ""]
    # 5 may be anything from 4.5 to 5.5.
    assert rows["b", "none"][-3:] == ["5", "+0.10 (-0.80 to +1.00)", "undecided"]


def test_paired_differences_know_what_resamples_share(result: StudyResult) -> None:
    rows = {row[1]: row[2] for row in differences(result).rows if row[0] == "A"}
    assert rows["smart - none"].startswith("-5.35 (")
    assert rows["smart - none"].endswith(")*")
    found = paired([cell_result(0.02, 0)], [cell_result(0.021, 0)], "ece")
    assert found is not None
    # Each alone is known to .004; their difference ten times better.
    assert found.clear
    assert found.high - found.low < 0.002
    assert paired([cell_result(0.02, 0)], [cell_result(0.021, 1)], "ece") is None
    assert not Difference(0.1, -0.1, 0.3).clear


def test_markdown_latex_csv_and_page_hold_the_same(result: StudyResult, tmp_path: Path) -> None:
    markdown = written_for(result, "t.md")
    assert "| A | 6.50 +- 0.00 (6.5) | 1.15 +- 0.07+ (1.00) | **1.12 +- 0.00+** |" in markdown
    assert "- b, cts, seed 0: it failed" in markdown
    latex = written_for(result, "t.tex")
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 3
    assert r"1.15 $\pm$ 0.07+ (1.00) & \textbf{1.12 $\pm$ 0.00+} \\" in latex
    rows = list(csv.DictReader(io.StringIO(written_for(result, "t.csv"))))
    apart = [float(row["difference_high"]) < 0 for row in rows if row["published"]]
    assert apart.count(True) == 1
    assert len(rows) == 6
    page = written_for(result, "t.html")
    assert page.count("<table>") == 3
    assert "<b>1.12 +- 0.00+</b>" in page
    assert "data:image/svg+xml;base64," in page
    assert "A % sign &amp; more." in page
    assert "://" not in re.sub(r"base64,[^\"]*", "", page)
    with pytest.raises(InputError, match=r"t.txt: tables are written as .md, .tex"):
        written_for(result, "t.txt")


def test_a_page_has_its_places_filled_and_the_rest_left(
    result: StudyResult, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    text = "# A\n\n<!-- study {} -->\nold\n<!-- end -->\n\nB\n<!-- study {} -->\n<!-- end -->\nC\n"
    page.write_text(text.format("mine", "mine: Paired differences"))
    new = filled(read_page(page, "mine"), result, page)
    assert new.startswith("# A\n\n<!-- study mine -->\n\n| input |")
    assert new.endswith("<!-- end -->\nC\n")
    assert new.count("| smart - none |") == 2
    assert "old" not in new
    assert filled(new, result, page) == new
    page.write_text(text.format("mine", "mine: Sums"))
    with pytest.raises(InputError, match="a place for 'Sums' of mine, which has: Number by number"):
        filled(read_page(page, "mine"), result, page)
    page.write_text(text.format("others", "others"))
    with pytest.raises(InputError, match=r"page.md: has no place for this study: <!-- study mine"):
        read_page(page, "mine")


def test_the_table_shows_intervals_where_the_study_wants_them(result: StudyResult) -> None:
    wanted = StudyResult(replace(result.study, intervals=True), result.ran, [], [])
    (plain, _), (shown, notes) = (
        (layout(each).rows[0][1], layout(each).notes) for each in (result, wanted)
    )
    assert plain == "6.50 +- 0.00 (6.5)"
    assert shown == "6.50 +- 0.00 (6.10 to 6.90) (6.5)"
    assert "95 % intervals" in notes


def test_the_figure_shows_differences_to_a_rival(result: StudyResult, tmp_path: Path) -> None:
    (ax,) = draw(result).axes
    drawn: dict[str, list[float]] = {}
    for line in ax.get_lines():
        drawn.setdefault(str(line.get_label()), []).append(float(np.ravel(line.get_xdata())[0]))
    assert "none" not in drawn
    assert drawn["smart"] == pytest.approx([-5.35, -3.75])
    # Inputs are no numbers: no line leads from one to the next.
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["A", "b"]
    assert content(draw(result), "svg") == content(draw(result), "svg")
    assert drawn_for(result, Path("f.png")).startswith(b"\x89PNG")
    with pytest.raises(InputError, match="figures are written as"):
        drawn_for(result, Path("f.bmp"))


def test_one_that_competes_with_nobody_has_no_marks(result: StudyResult) -> None:
    alone = [ran for ran in result.ran if ran.cell.method == "none"]
    found = StudyResult(result.study, alone, [], [])
    assert not any(estimate.best for estimate in found.estimates)
    assert found.ranks("ece") == {}


def test_the_declaration_that_the_page_shows_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/appendix/studies.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    mine = str(tmp_path / "mine.toml")
    found = studies.run(mine, small=True, out=tmp_path, engine=ONE, settings={"resamples": 20})
    assert [row[:2] for row in layout(found).rows] == [["sample", ""]]
    assert study_named(mine).value("method", "smart").set == {
        "arguments": {"smart": {"n_bins": 20}}
    }


def test_lines_over_numbers_are_told_apart_without_colour_and_moved_aside(study: Study) -> None:
    sizes = tuple(axis_value(size, "") for size in (50, 5000))
    figure = Figure("size", ("ece",), ("method",), log=True, label="rows")
    study = replace(study, axes={**study.axes, "size": sizes}, figure=figure, published=())
    ran = [
        Ran(
            Cell("mine", "posthoc", {"input": "a", "method": method, "size": size}, seed),
            cell_result(0.01 * rank + 0.001 * seed, seed),
            False,
        )
        for rank, method in enumerate(("none", "smart"), 1)
        for size in ("50", "5000")
        for seed in (0, 1)
    ]
    drawn = draw(StudyResult(study, ran, [], []))
    (ax,) = drawn.axes
    assert ax.get_xlabel() == "rows"
    lines = [container[0] for container in ax.containers]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 2
    starts = [float(line.get_xdata()[0]) for line in lines]
    assert starts[0] < 50 < starts[1]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["none", "smart"]


def test_numbers_of_a_table_stand_below_one_another(result: StudyResult) -> None:
    (ax, other) = draw_points(result).axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["none", "smart", "temperature"]
    assert (ax.get_title(), other.get_title()) == ("A", "b")
    # Without anything across, what competes does.
    down = replace(result.study, rows=("input", "method"), columns=())
    again = draw_points(replace(result, study=down)).axes
    assert [each.get_title() for each in again] == ["A", "b"]
    # And where nothing does, all numbers share a panel.
    (one,) = draw_points(replace(result, study=replace(down, compare=None))).axes
    assert len(one.get_yticklabels()) == 6


@pytest.mark.parametrize(
    "name", ["second-stages.json", "second-stage-seeds.json", "second-stage-halves.json"]
)
def test_records_of_the_documentation_stand_in_for_cells_of_today(name: str) -> None:
    path = Path(__file__).parents[3] / "docs/results" / name
    kept = json.loads(path.read_text(encoding="utf-8"))["kept"]
    versions = {(each["study"], each["version"]) for each in kept}
    assert versions
    assert versions == {(name, kind_named(study_named(name).kind).version) for name, _ in versions}
