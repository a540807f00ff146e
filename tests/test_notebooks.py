"""Results in notebooks, papers and data frames: tables and pictures with the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import InputError
from calibrant.core.result import Table

VAL = cb.load_sample("validation").take(slice(600))
TEST = cb.load_sample("test").take(slice(600))
OPTIONS = {"metrics": ["ece", "nll"], "resamples": 50}
ONE = cb.evaluate(TEST, **OPTIONS)
GROUPS = cb.evaluate_by(TEST, "margin", **OPTIONS)
BOTH = cb.compare(["none", "temperature"], fit=VAL, test=TEST, **OPTIONS)
RESULTS = pytest.mark.parametrize("result", [ONE, GROUPS, BOTH], ids=["one", "groups", "compared"])


@RESULTS
def test_every_form_of_a_table_has_the_cells_that_are_printed(result):
    table, printed = result.as_table(), str(result)
    page, wiki, paper = result._repr_html_(), result.to_markdown(), result.to_latex()
    for row in table.rows:
        for cell in (cell for cell in row if cell.strip()):
            assert cell.strip() in printed
            assert f">{cell}<" in page
            assert f"| {cell} |" in wiki
            assert cell.strip().replace("%", r"\%") in paper
    assert page.count("<tr>") == len(table.rows) + 1
    assert paper.count(r"\\") == len(table.rows) + 1
    assert re.sub(r"\s+", " ", table.notes)[:60] in re.sub(r"\s+", " ", printed)


def test_notebooks_show_the_finding_above_the_table():
    assert ONE.headline().split(":")[0] in ONE._repr_html_()
    assert "Use temperature." in BOTH._repr_html_()
    assert "groups by margin" in GROUPS._repr_html_()


def test_names_can_not_break_the_page():
    rows = cb.Predictions.from_probs(TEST.probs, TEST.labels, source="x")
    column = np.where(np.arange(600) % 2 == 0, "<script>alert(1)</script>", "a & b")
    found = cb.evaluate_by(rows, column, **OPTIONS)
    page = found._repr_html_()
    assert "<script>" not in page
    assert "a &amp; b" in page
    assert r"a \& b" in found.to_latex()


def test_frames_hold_fractions():
    pytest.importorskip("pandas")
    frame = ONE.to_frame().set_index("metric")
    assert frame.loc["ece", "value"] == ONE["ece"].value
    assert frame.loc["ece", "floor_95"] == ONE["ece"].floor_95
    grouped = GROUPS.to_frame()
    assert len(grouped) == 2 * len(GROUPS.groups)
    assert grouped["n"].sum() == 2 * 600
    compared = BOTH.to_frame()
    wide = compared.pivot(index="method", columns="metric", values="value")
    assert wide.loc["temperature", "nll"] == BOTH["temperature"].evaluation["nll"].value


@RESULTS
def test_pictures_show_the_numbers_with_their_intervals(result):
    ax = result.plot()
    if result is ONE:
        assert ax.get_xlabel() == "Confidence"
        assert result.plot(strategy="smooth").lines
        return
    ends = [line.get_xdata() for line in ax.lines if len(line.get_xdata()) == 2]
    shown = result.results() if result is GROUPS else {
        m.name: m.evaluation["ece"] for m in BOTH.methods
    }  # fmt: skip
    np.testing.assert_allclose(ends, [[100 * r.low, 100 * r.high] for r in shown.values()])
    assert [text.get_text() for text in ax.get_yticklabels()] == list(shown)
    other = result.plot(metric="nll")
    assert other.get_xlabel() == "NLL"
    with pytest.raises(InputError, match="'brier' was not measured; there are: ece, nll"):
        result.plot(metric="brier")


def test_a_picture_goes_into_axes_that_are_given():
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert BOTH.plot(ax) is ax
    plt.close("all")


def test_a_name_that_is_a_tag_stays_a_name_in_markdown():
    table = Table(
        ["a", "<b>"], [["<script>alert(1)</script> | x", "p < 0.01"]], notes="<i>none</i>"
    )
    text = table.to_markdown()
    assert re.search(r"(?<!\\)<[A-Za-z/]", text) is None
    assert r"\<script>alert(1)\</script> \| x" in text
    assert "p < 0.01" in text
