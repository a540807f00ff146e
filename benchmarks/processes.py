"""What needs a process of its own: start-up time, and the peak memory of a fit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.clock import in_turn

MEMORY_METHODS = ("temperature", "vector", "svs", "isotonic", "histogram", "smart", "ets")
IMPORTS = (
    "numpy",
    "calibrant",
    "sklearn.calibration",
    "relplot",
    "torchmetrics",
    "netcal.scaling",
    "probmetrics.calibrators",
)

# Linux only: VmHWM is the most memory that was ever resident since it was last reset.
MEMORY_PROBE = """
import sys
import numpy, scipy.optimize
from benchmarks.data import synthetic
from calibrant.posthoc.registry import make_calibrator

def kilobytes(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

rows = synthetic(int(sys.argv[2]), int(sys.argv[3]), 1)
small = synthetic(2000, int(sys.argv[3]), 2)
make_calibrator(sys.argv[1]).fit(*small)  # loads what is loaded late
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = kilobytes("VmRSS")
make_calibrator(sys.argv[1]).fit(*rows)
print((kilobytes("VmHWM") - before) * 1024 / rows.logits.nbytes)
"""


def peak_memory(rows: int, classes: int) -> dict[str, float | str]:
    """Return the peak memory of each fit beyond its input, as a share of the input."""
    found: dict[str, float | str] = {}
    for method in MEMORY_METHODS:
        command = [sys.executable, "-c", MEMORY_PROBE, method, str(rows), str(classes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[method] = float(done.stdout)
        else:
            found[method] = (done.stderr.strip().splitlines() or ["failed"])[-1]
    return found


FIT_PROBE = """
import sys, time, warnings
warnings.simplefilter("ignore")
from benchmarks.data import synthetic
from calibrant.core.errors import CalibrantError
from calibrant.posthoc.registry import make_calibrator

rows = synthetic(int(sys.argv[2]), int(sys.argv[3]), 1)
calibrator = make_calibrator(sys.argv[1])
try:
    calibrator.fit(*synthetic(500, int(sys.argv[3]), 2))  # loads what is loaded late
    began = time.process_time()
    calibrator.fit(*rows)
    print(time.process_time() - began)
except CalibrantError as refusal:
    print("refused:", refusal)
"""


def every_method(rows: int, classes: int, limit: float) -> dict[str, float | str]:
    """Return the processor's seconds that the fit of every method takes, or why there are none.

    Args:
        rows: N; classes: K.
        limit: seconds after which a process is given up, with its start and its data.
    """
    from calibrant.posthoc.registry import METHODS

    found: dict[str, float | str] = {}
    for method in METHODS:
        command = [sys.executable, "-c", FIT_PROBE, method, str(rows), str(classes)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            found[method] = f"more than {limit:g} s"
            continue
        said = (done.stdout or done.stderr).strip().splitlines() or ["failed"]
        try:
            found[method] = float(said[-1])
        except ValueError:
            found[method] = said[-1]
    return found


def start_up(repeats: int = 5) -> dict[str, dict[str, Any]]:
    """Return median and spread in seconds of starting Python and the commands."""
    import numpy as np

    from calibrant.sample import load_sample

    program = str(Path(sys.executable).with_name("calibrant"))
    sample = load_sample("test")
    rows = 50_000
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=rows)
    right = rng.random(rows) < confidence
    with tempfile.TemporaryDirectory() as folder:
        logits, table = Path(folder) / "sample.npz", Path(folder) / "top.csv"
        np.savez(logits, logits=np.asarray(sample.logits), labels=sample.labels)
        with table.open("w") as out:
            out.write("true_label,pred_label,confidence\n")
            out.writelines(
                f"{int(not hit)},0,{value:.6f}\n"
                for hit, value in zip(right, confidence, strict=True)
            )
        commands = {
            "python": [sys.executable, "-c", "pass"],
            **{f"import {name}": [sys.executable, "-c", f"import {name}"] for name in IMPORTS},
            "calibrant --version": [program, "--version"],
            "calibrant measure (sample)": [program, "measure", str(logits)],
            "calibrant measure (50 000-row CSV)": [program, "measure", str(table)],
        }
        timings = in_turn(
            {
                name: lambda command=command: subprocess.run(
                    command, capture_output=True, check=True
                )
                for name, command in commands.items()
            },
            repeats,
        )
    return {
        name: {"seconds": timing.median, "spread": timing.spread, "error": timing.error}
        for name, timing in timings.items()
    }
