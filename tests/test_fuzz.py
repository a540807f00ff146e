"""Damaged files of every format are read rightly or refused in one line: a short run of the fuzzer.

`python -m tests.fuzz` runs it for ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import fuzz
import numpy as np
import pytest
from fuzz import Watch, said
from fuzz_sound import FORMS, WRITERS, arrays_of

from calibrant.core.text import on_one_line
from calibrant.files import read_predictions

pytest.importorskip("pyarrow")
pytest.importorskip("h5py")
pytest.importorskip("torch")
pytest.importorskip("PIL")

CASES = 320


def test_damaged_files_and_odd_words_end_well(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "files").mkdir()
    watch = fuzz.fuzz(tmp_path / "files", 5, range(CASES))
    assert not watch.findings
    assert not list((tmp_path / "temporary").iterdir())
    # Of every format some are refused; some damage can't be seen, or does no harm.
    assert set(WRITERS) <= set(watch.cases)
    assert sum(watch.refused.values()) > sum(watch.cases.values()) / 2
    assert any(watch.refused[name] < watch.cases[name] for name in WRITERS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WRITERS)
def test_sound_files_are_read_as_others_read_them(name, form, tmp_path):
    file, write = WRITERS[name]
    arrays = arrays_of("logits" if name == "npy" else form)
    write(tmp_path / file, arrays)
    ours = read_predictions(tmp_path / file)
    assert fuzz.differs(ours, tmp_path / file) == ""
    # Beside it, not over it: what was read may be mapped.
    key = "logits" if name == "npy" else next(iter(arrays))
    (tmp_path / "others").mkdir()
    write(tmp_path / "others" / file, arrays | {key: arrays[key][::-1]})
    assert fuzz.differs(ours, tmp_path / "others" / file).startswith("other ")


def test_white_space_around_a_cell_is_no_part_of_it(tmp_path):
    path, arrays = tmp_path / "sound.csv", arrays_of("toplabel")
    WRITERS["csv"][1](path, arrays)
    text = path.read_text().replace("\n", "\n\x1e", 3).replace("true_label", "true_label\x1f")
    path.write_text(text, newline="")
    ours = read_predictions(path)
    np.testing.assert_array_equal(ours.scores, arrays["confidence"])
    assert fuzz.differs(ours, path) == ""


def test_the_fuzzer_sees_what_must_not_happen(tmp_path, monkeypatch):
    watch = Watch(tmp_path, quiet=True)

    def crashes():
        raise ValueError("a bug")

    def litters():
        (tmp_path / "litter").touch()

    for call in (crashes, litters, lambda: np.ones(fuzz.MOST_BYTES // 4)):
        watch.see("it", call)
    monkeypatch.setattr(fuzz, "run", lambda words: 1)
    fuzz.see_command(watch, ["measure"])
    found = " ".join(watch.findings)
    for what in ("ValueError: a bug", "left behind: ['litter']", "MB", "exit code 1"):
        assert what in found


def test_what_no_line_shows_is_written_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = said(["measure", "a\nb\x1b[31m.npz"])
    assert code == 2
    assert text == r"error: a\nb\x1b[31m.npz: no file of predictions matches this pattern" + "\n"
    assert on_one_line("café “a”") == "café “a”"


@pytest.mark.parametrize("words", [["--json", "-"], ["--report", "page.html"]])
def test_names_that_are_not_utf_8_are_shown_all_the_same(words, tmp_path):
    name = os.fsdecode(b"caf\xe9.npz")
    try:
        WRITERS["npz"][1](tmp_path / name, arrays_of("logits"))
    except OSError:
        pytest.skip("this system has no such names")
    ended = subprocess.run(
        [sys.executable, "-m", "calibrant", "measure", name, "--resamples", "20", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    page = tmp_path / "page.html"
    assert r"caf\udce9.npz" in ended.stdout
    assert words[0] != "--report" or r"caf\udce9.npz" in page.read_text("utf-8")
