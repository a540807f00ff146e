"""What `plot` and `to_html` show of decisions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

import calibrant as cb

TEST = cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
RULES: dict[str, dict[str, Any]] = {
    "risk": {"risk": 0.05},
    "precision": {"precision": 0.9, "of": 3},
    "recall": {"recall": 0.9, "of": 3},
    "cost": {"error_cost": 10, "hand_over_cost": 1},
    "set": {"cover": 0.95},
}
DECISIONS = {name: cb.decide(SCALING, TEST, **rule) for name, rule in RULES.items()}


@pytest.mark.parametrize("name", list(RULES))
def test_a_page_has_one_picture_the_finding_the_promise_and_the_table(
    name: str, tmp_path: Path
) -> None:
    found = DECISIONS[name]
    found.to_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text(encoding="utf-8")
    assert "<script" not in page
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for drawn in root.iter("path"):
        for x, y in re.findall(r"[ML](\S+) ([^MLZ ]+)", drawn.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height
    assert "The promise" in page
    rows = found.as_table().rows
    assert page.partition("<tbody>")[2].count('scope="row"') == len(rows)


def test_the_sets_of_every_class_are_drawn_with_the_largest_first(tmp_path: Path) -> None:
    found = DECISIONS["set"]
    sizes = [row[5] for row in found.by_class]
    ax = found.plot()
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches[:10]], sorted(sizes)[::-1])
    assert ax.get_yticklabels()[0].get_text() == str(int(np.argmax(sizes)))
    plt.close("all")


def test_net_benefit_is_drawn_beside_all_and_none() -> None:
    found = DECISIONS["cost"]
    ax = found.plot()
    model, everyone, none = ax.get_lines()
    np.testing.assert_allclose(model.get_ydata(), found.benefit["benefit"])
    np.testing.assert_allclose(everyone.get_ydata(), found.benefit["all"])
    assert set(none.get_ydata()) == {0}
    plt.close("all")


def test_the_axis_of_a_risk_says_what_it_is_of() -> None:
    assert DECISIONS["risk"].plot().get_ylabel() == "Wrong among the answered"
    assert DECISIONS["precision"].plot().get_ylabel() == "Others among those called class 3"
    assert DECISIONS["recall"].plot().get_ylabel() == "Missed, of class 3"
    assert DECISIONS["recall"].plot().get_xlabel() == "Called"
    by_loss = cb.decide(SCALING, TEST, risk=0.1, loss=np.full(TEST.n, 0.05)).plot()
    assert by_loss.get_ylabel() == "Mean loss of the answered"
    plt.close("all")


def test_a_page_of_a_decision_lists_no_rows() -> None:
    with pytest.raises(cb.InputError, match="lists no rows"):
        DECISIONS["set"].to_html("d.html", ids=np.arange(TEST.n))
