"""MaC-Cal's Figure 2: what a head is like before and after it was retrained under masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant_studies as studies
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.network_parts import angles_between

pytest.importorskip("torch")
pytest.importorskip("lightning")


def test_angles_are_those_of_the_plane() -> None:
    found = angles_between([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0], [1.0, 1.0]])
    expected = [[0, 90, 180, 45], [90, 0, 90, 45], [180, 90, 0, 135], [45, 45, 135, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_numbers_are_those_of_what_is_drawn(tmp_path: Path) -> None:
    result = studies.run("maccal-figure-2", small=True, out=tmp_path)
    assert [ran.cell.at["method"] for ran in result.ran] == ["vanilla", "retrained"]
    for ran in result.ran:
        values = {name: found["value"] for name, found in ran.result["values"].items()}
        angles = np.array(ran.result["angles"])
        pairs = angles[np.triu_indices(len(angles), 1)]
        assert values["angle"] == pytest.approx(pairs.mean(), abs=1e-2)
        assert values["angle-spread"] == pytest.approx(pairs.std(), abs=1e-2)
        assert 0 < values["entropy"] < np.log(len(angles))
        rows = ran.result["rows"]
        logits = np.array(rows["logits"])
        probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        entropy = -(probs * np.log(probs)).sum(axis=1)
        np.testing.assert_allclose(rows["entropy"], entropy, atol=1e-3)
    first, second = (np.array(ran.result["angles"]) for ran in result.ran)
    assert np.abs(first - second).max() > 1  # another head
    figure = kind_named("prototypes").draw(result)
    assert figure is not None
    assert len([ax for ax in figure.axes if ax.get_label() != "<colorbar>"]) == 6
