"""Peak memory of the commands on a million rows, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROWS, CLASSES = 1_000_000, 10
INPUT = ROWS * (4 * CLASSES + 8) / 2**20  # MB of float32 logits and int64 labels

# VmHWM is the most memory that was resident since the process began or the count was reset. (What
# `getrusage` says begins at the size of the process that started this one.)
PROBE = """
import sys
from pathlib import Path
import scipy.optimize
import calibrant.cli
from calibrant.sample import load_sample
from calibrant.posthoc.registry import make_calibrator
from calibrant.evaluation.evaluate import evaluate

def megabytes(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

some = load_sample("validation").take(slice(200))
str(evaluate(some, resamples=2))
make_calibrator("smart").fit(some.logits, some.labels)  # loads what is loaded late
Path("/proc/self/clear_refs").write_text("5")
before = megabytes("VmRSS")
try:
    calibrant.cli.main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(megabytes("VmHWM") - before, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def million(tmp_path_factory) -> Path:
    """A file of a million overconfident rows of ten classes."""
    rng = np.random.default_rng(0)
    logits = np.empty((ROWS, CLASSES), dtype=np.float32)
    labels = np.empty(ROWS, dtype=np.int64)
    for start in range(0, ROWS, 50_000):
        part = slice(start, start + 50_000)
        honest = 2 * rng.normal(size=(50_000, CLASSES))
        labels[part] = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
        logits[part] = 2 * honest
    path = tmp_path_factory.mktemp("million") / "rows.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
@pytest.mark.parametrize(
    ("command", "most"),
    [
        # Resamples and steps are all alike: a few show as much as the 100 and 20 of the defaults.
        (["measure", "--resamples", "10"], 150),
        (["fit", "--method", "smart", "--set", "max_iterations=3", "--out", "s.safetensors"], 200),
    ],
    ids=["measure", "fit"],
)
def test_a_million_rows_take_little_more_memory_than_they_are(
    command: list[str], most: float, million: Path, tmp_path: Path
):
    verb, *options = command
    done = subprocess.run(
        [sys.executable, "-c", PROBE, verb, str(million), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    peak = float(done.stderr.splitlines()[-1])
    assert peak > INPUT, "the probe doesn't see even the rows"
    assert peak <= most
