"""Many files: peak memory of a process, time by their number, and what two workers are worth.

    python -m benchmarks.shards --quick
    python -m benchmarks.shards [--files 64] [--rows 1000000] [--wide 20] --out results/shards.json

draws a few files in a temporary folder, links them as often as need be, runs `measure`, `fit` and
`apply` on them, and ends with a table of what was measured beside its bound. Ratios are of
processor time where one worker is compared with itself, and of wall time, both runs in turn, where
two are compared with one: that wants a machine with two cores that do nothing else. `--quick` runs
everything once rather than three times, without the fit of SMART to few files.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.text import format_table

DRAWN = 4


def draw(folder: Path, files: int, rows: int, classes: int, dtype: str) -> None:
    """Write `files` files of rows, of which at most `DRAWN` differ."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    from safetensors.numpy import save_file

    for i in range(min(files, DRAWN)):
        logits = np.empty((rows, classes), dtype=dtype)
        labels = rng.integers(classes, size=rows)
        for start in range(0, rows, 1000):
            part = rng.standard_normal((min(1000, rows - start), classes), dtype=np.float32)
            part[np.arange(len(part)), labels[start : start + len(part)]] += 3.0 * rng.random(
                len(part)
            )
            logits[start : start + len(part)] = 2.0 * part
        save_file({"logits": logits, "labels": labels}, folder / f"{i}.safetensors")
    for i in range(min(files, DRAWN), files):
        os.link(folder / f"{i % DRAWN}.safetensors", folder / f"{i}.safetensors")


def family(root: int) -> set[int]:
    """Return a process and all that it started, directly or not."""
    found, wanted = set[int](), [root]
    while wanted:
        process = wanted.pop()
        found.add(process)
        with suppress(OSError):  # it may have ended
            for task in os.scandir(f"/proc/{process}/task"):
                wanted += [int(n) for n in Path(task.path, "children").read_text().split()]
    return found


def run(*words: str) -> dict[str, float]:
    """Run a command; return its wall and processor seconds and the most memory of any process."""
    peaks: dict[int, float] = {}
    seconds: dict[int, float] = {}
    began = time.perf_counter()
    command = [sys.executable, "-m", "calibrant", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ended = threading.Event()

    def watch() -> None:
        tick = os.sysconf("SC_CLK_TCK")
        while not ended.wait(0.05):
            for process in family(running.pid):
                try:
                    status = Path(f"/proc/{process}/status").read_text()
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                for line in status.splitlines():
                    if line.startswith("VmHWM"):
                        peaks[process] = int(line.split()[1]) / 1e3
                seconds[process] = (int(fields[11]) + int(fields[12])) / tick

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = running.communicate()
    ended.set()
    watcher.join()
    assert running.returncode == 0, text
    wall = time.perf_counter() - began
    return {"wall_s": wall, "cpu_s": sum(seconds.values()), "peak_mb": max(peaks.values())}


def narrow(folder: Path, files: int, rows: int, *, repeats: int) -> dict[str, Any]:
    """Time and weigh `measure` and `fit` on files of ten classes."""
    draw(folder / "many", files, rows, 10, "float32")
    draw(folder / "tiny", 1, 1000, 10, "float32")
    tiny = str(folder / "tiny" / "0.safetensors")
    few = [str(folder / "many" / f"{i}.safetensors") for i in range(files // 8)]
    many = [str(folder / "many")]
    out = str(folder / "t.safetensors")
    measure = ["measure", "--resamples", "100"]
    verbs = {
        "measure": measure,
        "fit temperature": ["fit", "--method", "temperature", "--out", out],
    }
    found: dict[str, Any] = {}
    for name, words in verbs.items():
        # What a run takes that has hardly any rows: to start, and to draw resamples.
        start = run(*words, tiny, "--workers", "1")
        small = run(*words, *few, "--workers", "1")
        large = run(*words, *many, "--workers", "1")
        of_work = [one["cpu_s"] - start["cpu_s"] for one in (small, large)]
        per_file = (large["cpu_s"] - small["cpu_s"]) / (files - files // 8)
        found[name] = {
            "a thousand rows": start,
            "few": small,
            "many": large,
            "ratio": of_work[1] / of_work[0],
            "rows_a_second": rows / per_file,
        }
        print(name, json.dumps(found[name]), flush=True)
    smart = ["fit", "--method", "smart", "--out", out, "--workers", "1"]
    found["fit smart"] = {"many": run(*smart, *many)}
    if repeats > 1:
        found["fit smart"]["few"] = run(*smart, *few)
    print("fit smart", json.dumps(found["fit smart"]), flush=True)
    pairs = []
    for repeat in range(repeats):
        # The run of one worker above is the first of these.
        again = found["measure"]["many"] if repeat == 0 else run(*measure, *many, "--workers", "1")
        two = run(*measure, *many, "--workers", "2")
        pairs.append(
            {
                "wall_ratio": again["wall_s"] / two["wall_s"],
                "cpu_share": two["cpu_s"] / two["wall_s"],
                "cpu_share_of_one": again["cpu_s"] / again["wall_s"],
                "cpu_ratio": two["cpu_s"] / again["cpu_s"],
                "peak_mb": two["peak_mb"],
            }
        )
        print("two workers", json.dumps(pairs[-1]), flush=True)
    found["two workers"] = pairs
    return found


PASSES = """
import sys, time
import numpy as np
from calibrant.scale.shards import Shards
from calibrant.scale.engines import Engine
import calibrant as cb

shards = Shards(sys.argv[1:])
def a_pass():
    took = 0.0
    for shard in shards:
        for batch in shard.batches(checked=True):
            z = np.asarray(batch.predictions.scores).astype(np.float32)
            began = time.process_time()
            np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1)
            took += time.process_time() - began
    return took

unit = min(a_pass() for _ in range(2))
began = time.process_time()
fitted = cb.TemperatureScaling().fit_predictions(shards, engine=Engine(workers=1))
print(unit, time.process_time() - began, fitted.fit_report_.iterations, fitted.temperature_)
"""


def wide(folder: Path, files: int, rows: int, classes: int, *, repeats: int) -> dict[str, Any]:
    """Time and weigh a temperature, in passes, and what is applied, on files of a vocabulary."""
    draw(folder / "wide", files, rows, classes, "float16")
    out = str(folder / "t.safetensors")
    found: dict[str, Any] = {
        "fit": run(
            "fit", str(folder / "wide"), "--method", "temperature", "--out", out, "--workers", "1"
        )
    }
    print("wide fit", json.dumps(found["fit"]), flush=True)
    one = str(folder / "wide" / "0.safetensors")
    words = [sys.executable, "-c", PASSES, one]
    runs = [
        [
            float(w)
            for w in subprocess.run(
                words, capture_output=True, text=True, check=True
            ).stdout.split()
        ]
        for _ in range(repeats)
    ]
    found["passes"] = [fit / unit for unit, fit, *_ in runs]
    found["median passes"] = statistics.median(found["passes"])
    found["pass_ns"] = [1e9 * unit / rows / classes for unit, *_ in runs]
    found["times over the rows"] = runs[0][2]
    found["apply"] = run(
        "apply",
        out,
        one,
        "--out",
        str(folder / "applied"),
        "--engine",
        "processes",
        "--workers",
        "1",
    )
    from safetensors.numpy import load_file

    probs = load_file(folder / "applied" / "0.safetensors")["probs"]
    off = max(
        float(np.abs(probs[i : i + 50].astype(np.float64).sum(axis=1) - 1).max())
        for i in range(0, rows, 50)
    )
    found["rows sum to 1 within"] = off
    print("wide", json.dumps(found), flush=True)
    return found


def bounds(found: dict[str, Any]) -> str:
    """Return what was measured as a table, beside what it may be at most, or between."""
    table: list[list[str]] = []

    def add(what: str, value: float, low: float, high: float, digits: int = 2) -> None:
        bound = f"{low:g} to {high:g}" if low and high < math.inf else f"<= {high:g}"
        bound = f">= {low:g}" if high == math.inf else bound
        table.append([what, f"{value:.{digits}f}", bound, "yes" if low <= value <= high else "NO"])

    one = found.get("narrow")
    if one is not None:
        for name in ("measure", "fit temperature", "fit smart"):
            for size, each in one[name].items():
                if size in ("few", "many"):
                    add(f"peak memory, {name}, {size} files, MB", each["peak_mb"], 0, 600, 0)
        for name in ("measure", "fit temperature"):
            add(f"processor time of many files over that of few, {name}", one[name]["ratio"], 7, 9)
        pairs = one["two workers"]
        ratio = statistics.median(pair["wall_ratio"] for pair in pairs)
        add("wall time of one worker over that of two", ratio, 1.7, math.inf)
        shares = [f"{pair['cpu_share_of_one']:.2f} and {pair['cpu_share']:.2f}" for pair in pairs]
        print(f"cores that one worker and two had: {'; '.join(shares)}; if below 0.9 and 1.8, the")
        print("machine was busy, and wall times say little")
        ratio = statistics.median(pair["cpu_ratio"] for pair in pairs)
        add("processor time of two workers over that of one", ratio, 0, 2 / 1.7)
    vocabulary = found.get("wide")
    if vocabulary is not None:
        add("peak memory, 128 000 classes, MB", vocabulary["fit"]["peak_mb"], 0, 1500, 0)
        add("peak memory, apply to them, MB", vocabulary["apply"]["peak_mb"], 0, 1500, 0)
        add("temperature in passes, 128 000 classes", vocabulary["median passes"], 0, 6)
        off = vocabulary["rows sum to 1 within"] * 1e6
        add("rows sum to 1 within, millionths", off, 0, 1)
    return format_table(["", "measured", "bound", "holds"], table)


def main() -> None:
    """Run, print the bounds and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wide", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    repeats = 1 if chosen.quick else 3
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if chosen.files:
            found["narrow"] = narrow(Path(folder), chosen.files, chosen.rows, repeats=repeats)
        if chosen.wide:
            found["wide"] = wide(Path(folder), chosen.wide, 2000, 128_000, repeats=repeats)
    print(bounds(found))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
