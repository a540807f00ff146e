"""Files that a release wrote are read by every later one, and give what they gave."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scripts.release import fixtures

from calibrant.posthoc.registry import BUILT_IN

VERSIONS = sorted(folder.name for folder in fixtures.FORMATS.iterdir())
FILES = [
    file for version in VERSIONS for file in (fixtures.FORMATS / version).glob("*.safetensors")
]
# Sums are rounded differently by processors, and by libraries; nothing else may change.
TOLERANCE = 1e-12
ROWS = ("logits", "features", "labels", "confidence", "correct")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_of_a_release_gives_what_it_gave(file):
    if file.name == fixtures.HEAD:
        pytest.importorskip("torch")
    with np.load(file.with_name(fixtures.EXPECTED)) as kept:
        rows, expected = {name: kept[name] for name in ROWS}, kept[f"of {file.name}"]
    released = fixtures.released(file.parent.name)
    mend = (
        ""
        if released
        else f"; not released yet: python -m scripts.release.fixtures {file.parent.name}"
    )
    found = fixtures.answers(file, rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE, err_msg=mend)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_of_a_release_is_listed_and_all_of_them_are_small(version):
    folder = fixtures.FORMATS / version
    with np.load(folder / fixtures.EXPECTED) as kept:
        listed = {name.removeprefix("of ") for name in kept.files} - {*ROWS}
    assert listed == {file.name for file in folder.glob("*.safetensors")}
    assert listed >= {fixtures.STATE, fixtures.HEAD, "temperature.safetensors"}
    assert sum(file.stat().st_size for file in folder.iterdir()) < 300_000


def test_the_answers_tell_methods_apart():
    """Rows that every method maps alike would prove nothing."""
    with np.load(fixtures.FORMATS / VERSIONS[0] / fixtures.EXPECTED) as kept:
        of_rows = [kept[f"of {m}.safetensors"] for m in BUILT_IN if f"of {m}.safetensors" in kept]
    distinct = {answer.round(6).tobytes() for answer in of_rows}
    assert len(of_rows) > 35
    # Some take a step back to one temperature, as they should on so few rows.
    assert len(distinct) >= 28


def test_every_release_left_its_files():
    text = (fixtures.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-", text, re.MULTILINE)
    assert set(released) <= set(VERSIONS)


def test_files_of_a_released_version_are_never_written_again(monkeypatch, tmp_path, capsys):
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 0.9.0 - 2026-01-01\n\n- All.\n")
    monkeypatch.setattr(fixtures, "ROOT", tmp_path)
    monkeypatch.setattr(fixtures, "FORMATS", tmp_path)
    monkeypatch.setattr(fixtures, "write", lambda folder: folder.mkdir())
    assert fixtures.main(["0.9.0"]) == 2
    assert "stay as they are" in capsys.readouterr().err
    assert not (tmp_path / "0.9.0").exists()
    assert fixtures.main(["0.9.1"]) == 0
