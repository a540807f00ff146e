"""What `plot` and `to_html` show of decisions."""

from __future__ import annotations

import json
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
from calibrant.decision import decide_by
from calibrant.metrics import multicalibration

TEST = cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
RULES: dict[str, dict[str, Any]] = {
    "risk": {"risk": 0.05},
    "precision": {"precision": 0.9, "of": 3},
    "recall": {"recall": 0.9, "of": 3},
    "cost": {"error_cost": 10, "hand_over_cost": 1},
    "set": {"cover": 0.95},
}
DECISIONS: dict[str, Any] = {n: cb.decide(SCALING, TEST, **rule) for n, rule in RULES.items()}
DECISIONS["groups"] = decide_by(SCALING, TEST, "predicted", risk=0.05)


@pytest.mark.parametrize("name", list(DECISIONS))
def test_a_page_has_one_picture_the_finding_the_promise_and_the_table(
    name: str, tmp_path: Path
) -> None:
    found = DECISIONS[name]
    found.to_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text(encoding="utf-8")
    assert ('<script id="data"' in page) == (name not in ("set", "groups"))
    svg, *_ = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
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
    model, everyone, uncalibrated, none = ax.get_lines()
    np.testing.assert_allclose(uncalibrated.get_ydata(), found.benefit["uncalibrated"])
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


def test_what_is_read_along_a_line_is_what_the_curve_holds(tmp_path: Path) -> None:
    found = DECISIONS["risk"]
    found.to_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text(encoding="utf-8")
    points = json.loads(page.partition('id="data" type="application/json">')[2].split("<")[0])
    assert len(points) == len(found.curve["coverage"])
    at = found.curve["threshold"].tolist().index(found.threshold)
    assert f"From {found.threshold:.4g} on: answered 69.2" in points[at][2]
    assert points[at][2].endswith("the chosen threshold.")
    assert points[at][2] in page.replace("\u2019", "'")


def test_groups_have_pictures_of_what_is_kept_and_of_their_risk(tmp_path: Path) -> None:
    found = DECISIONS["groups"]
    found.to_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text(encoding="utf-8")
    kept, risks = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert kept.count('class="bar"') == 10
    assert risks.count('class="whisker"') == sum(d.decides for d in found.groups.values())
    ax = found.plot()
    shares = [each.coverage.value for each in found.groups.values()]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], shares)
    plt.close("all")


def test_the_worst_groups_of_several_columns_are_drawn_with_noise_pale() -> None:
    columns = {"class": "predicted", "half": np.arange(TEST.n) % 2}
    found = multicalibration(TEST, columns, draws=50)
    ax = found.plot()
    assert ax.get_yticklabels()[0].get_text() == found.worst.group
    np.testing.assert_allclose(ax.patches[0].get_width(), found.worst.sigmas)
    pale = [bar.get_alpha() < 1 for bar in ax.patches]
    assert pale == [each not in found.miscalibrated for each in found.groups[: len(pale)]]
    plt.close("all")
