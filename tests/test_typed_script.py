"""A user's script is typed: the strict modes of pyright and mypy find nothing to complain of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

SCRIPT = """
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import calibrant as cb

rows = cb.read_predictions("rows.npz")
val, test = rows.split(0.5, seed=0)

found = cb.evaluate(test, metrics=["ece"], resamples=100)
assert_type(found, cb.Evaluation)
assert_type(found["ece"].value, float)
assert_type(found.plot(), Axes)
found.to_html(Path("page.html"))
print(len(found.to_frame()))

logits: NDArray[np.float32] = np.zeros((3, 10), np.float32)
smart = cb.SMART().fit(val.logits, val.labels)
assert_type(smart, cb.SMART)
probs = smart.predict_proba(logits)
assert_type(probs, NDArray[np.floating])
print(probs.max(axis=1), smart.predict_proba(test.logits)[:, 0] * 2)
labels, confidence = smart.predict_confidence(logits)
print(labels + 1, confidence * 2)
assert_type(smart.apply_predictions(test, "calibrated.npz"), cb.Predictions)

shards = cb.Shards("parts")
scaling = cb.TemperatureScaling().fit_predictions(shards, engine=cb.Engine(workers=1))
assert_type(scaling.temperature_, float)
print(scaling.apply_predictions(shards, "calibrated", skip_broken=True).written)

comparison = cb.compare(["none", "smart"], fit=shards, test=test)
assert_type(comparison.tied_with_best, list[str])
assert_type(comparison["smart"].evaluation, cb.Evaluation)

monitor = cb.Monitor(window=300)
monitor.update(0.9, True)
assert_type(monitor.as_dict(), dict[str, Any])

size = cb.rows_needed(test, 0.01)
assert_type(size, cb.SampleSize)
"""


def test_strict_pyright_is_content_with_a_script_of_a_user(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    pytest.importorskip("matplotlib")
    settings = {
        "include": ["script.py"],
        "strict": ["script.py"],
        "extraPaths": [str(Path(calibrant.__file__).parents[1])],
        "pythonVersion": "3.11",
    }
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*words, "-p", str(tmp_path)], capture_output=True, text=True, check=False
    )
    problems = json.loads(done.stdout)["generalDiagnostics"]
    assert [(one["range"]["start"]["line"], one["message"]) for one in problems] == []


def test_strict_mypy_is_content_with_a_script_of_a_user(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy isn't installed")
    pytest.importorskip("matplotlib")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)]
    found = {"MYPYPATH": str(Path(calibrant.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | found,
    )
    assert done.stdout.startswith("Success"), done.stdout
