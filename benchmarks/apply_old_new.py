"""How long `predict_proba` takes now beside an earlier commit: both in one run, turn by turn.

    python -m benchmarks.apply_old_new --ref COMMIT [--methods temperature,smart] [--json PATH]

The earlier code is taken out of git into a temporary folder. Each method is fitted once by either
code to the same rows; then both are timed by turns, in processes of their own that answer one
request at a time, so that whatever else the machine does meets both alike. Times are of the
processor, medians of all turns; the ratio, new over old, is the median of the turns' ratios, with
the quartiles beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

SIZES = ((1, 10), (10_000, 10), (10_000, 100), (10_000, 1_000))
TURNS = 7

WORKER = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from calibrant.posthoc.registry import make_calibrator
made = {}

def rows(n, classes):
    rng = np.random.default_rng(classes)
    logits = (3 * rng.normal(size=(n, classes))).astype(np.float32)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels, rng.normal(size=(n, 16)).astype(np.float32)

for line in sys.stdin:
    method, n, classes = json.loads(line)
    try:
        if (method, classes) not in made:
            logits, labels, features = rows(2_000, classes)
            made[method, classes] = make_calibrator(method).fit(logits, labels, features)
        calibrator = made[method, classes]
        logits, _, features = rows(n, classes)
        given = (logits, features) if "features" in calibrator.needs else (logits,)
        repeats = 300 if n == 1 else max(1, 300 // classes)
        calibrator.predict_proba(*given)
        started = time.process_time()
        for _ in range(repeats):
            calibrator.predict_proba(*given)
        print(json.dumps((time.process_time() - started) / repeats), flush=True)
    except Exception as error:
        print(json.dumps(str(error)[:80]), flush=True)
"""


def start(source: Path) -> subprocess.Popen[str]:
    """Return a worker that runs the code in `source`."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )


def ask(worker: subprocess.Popen[str], request: list[Any]) -> float | str:
    """Return a worker's seconds, or why it has none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def main() -> None:
    """Print a table of both times and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ref", required=True, help="the earlier commit")
    parser.add_argument("--methods", help="names, by commas; all of the package otherwise")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--most-classes", type=int, default=1_000, help="leave out larger sizes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from calibrant.posthoc.registry import METHODS

    sizes = [size for size in SIZES if size[1] <= arguments.most_classes]
    methods = arguments.methods.split(",") if arguments.methods else list(METHODS)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", arguments.ref, "src"], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        old, new = start(Path(folder) / "src"), start(Path("src").resolve())
        print(
            f"{'method':22}{'rows':>8}{'classes':>9}{'old ms':>11}{'new ms':>11}{'ratio':>8}"
            f"{'quartiles':>14}"
        )
        for method, (n, classes) in itertools.product(methods, sizes):
            turns = [
                (ask(old, [method, n, classes]), ask(new, [method, n, classes]))
                for _ in range(arguments.turns)
            ]
            if any(isinstance(time, str) for turn in turns for time in turn):
                print(f"{method:22}{n:8}{classes:9}  {turns[0]}")
                continue
            before, after = (median(float(turn[i]) for turn in turns) for i in range(2))
            low, ratio, high = quantiles([float(b) / float(a) for a, b in turns], n=4)
            found.append(
                {"method": method, "rows": n, "classes": classes, "old": before, "new": after}
                | {"ratio": ratio, "quartiles": [low, high]}
            )
            print(
                f"{method:22}{n:8}{classes:9}{before * 1e3:11.3f}{after * 1e3:11.3f}"
                f"{ratio:8.2f}{low:8.2f}{high:6.2f}",
                flush=True,
            )
        for worker in (old, new):
            worker.kill()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
