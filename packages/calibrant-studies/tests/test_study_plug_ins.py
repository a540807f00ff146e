"""What other packages add to studies, by entry points."""

from __future__ import annotations

from pathlib import Path

import calibrant as cb
import calibrant_studies as studies

EXAMPLE = Path(__file__).parents[3] / "tests/plug_in_example"
GOOD = "shrink_towards_uniform:ShrinkTowardsUniform"
ROWS = """
title = "A method of one's own"
kind = "posthoc"
metrics = ["nll"]
[axes]
input = ["sample"]
method = ["none"]
"""


def test_a_plug_in_enters_a_study_by_name(install_plug_ins, tmp_path):
    install_plug_ins(EXAMPLE, "calibrant.methods", shrink_uniform=GOOD)
    (tmp_path / "mine.toml").write_text(ROWS, encoding="utf-8")
    found = studies.run(
        str(tmp_path / "mine.toml"),
        methods=["none", "shrink-uniform"],
        settings={"resamples": 10},
        out=tmp_path / "out",
        engine=cb.Engine(workers=1),
    )
    assert not found.failed
    values = {record["method"]: record["value"] for record in found.records()}
    assert values["shrink-uniform"] != values["none"]
