"""Whether this code has become slower than an earlier one: both in one run, turn by turn.

    python -m benchmarks.gate [--against REVISION] [--only WORDS] [--turns 9] [--most 1.15]

The earlier code, by default that of the newest tag ``v*``, is taken out of git into a temporary
folder. Each code has a process of its own, which answers one request at a time, so that whatever
else the machine does meets both alike. Times are of the processor. A kernel's ratio is the median
of its turns' ratios, new over old. One above `--most` is measured three times as often again; if it
stays above, the exit code is 1. What the earlier code doesn't have is left out, and named.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

TURNS, MOST = 9, 1.15
# The more often a kernel is measured where it looks slower.
AGAIN = 3
# Chance that the interval of a median ends above it, or below.
TAIL = 0.025

KERNELS = {
    "calibrant --version": (0, 0),
    "calibrant measure": (0, 0),
    **{
        f"{kernel}, {rows} x {classes}": (rows, classes)
        for rows, classes in ((10_000, 10), (10_000, 100), (10_000, 1_000))
        for kernel in (
            "ece",
            "smece",
            "smce",
            "ece from logits",
            "evaluate",
            "fit temperature",
            "fit vector",
            "fit svs",
            "fit isotonic",
            "fit histogram",
            "fit smart",
            "apply temperature",
            "apply smart",
        )
        if classes < 1_000 or kernel not in ("fit vector", "evaluate")
    },
    "apply temperature, 1 x 10": (1, 10),
    "apply smart, 1 x 10": (1, 10),
}

# Names are asked for within a kernel, so that one that isn't there yet stops that kernel only.
WORKER = """
import json, resource, subprocess, sys, tempfile, time, warnings
from pathlib import Path
import numpy as np
warnings.simplefilter("ignore")
import calibrant as cb

def rows(n, classes):
    rng = np.random.default_rng(classes)
    logits = (3 * rng.normal(size=(n, classes))).astype(np.float32)
    return logits, (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)

def probabilities(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

def public(name):
    # Metrics stood at the top of the package once.
    return getattr(cb, name, None) or getattr(cb.metrics, name)

def command(*words):
    return lambda: subprocess.run([sys.executable, "-m", "calibrant", *words], check=True,
                                  stdout=subprocess.DEVNULL)

def made(name, n, classes):
    kernel = name.partition(",")[0]
    if kernel == "calibrant --version":
        return command("--version")
    if kernel == "calibrant measure":
        logits, labels = rows(10_000, 10)
        path = Path(tempfile.mkdtemp(dir=sys.argv[1])) / "rows.npz"
        np.savez(path, logits=logits, labels=labels)
        return command("measure", str(path))
    logits, labels = rows(max(n, 5_000), classes)
    first = logits[:n]
    if kernel in ("ece", "smece", "smce", "evaluate"):
        probs = probabilities(logits)
        call = public({"ece": "expected_calibration_error", "smece": "smooth_ece",
                       "smce": "smooth_calibration_error"}.get(kernel, kernel))
        return lambda: call(probs, labels)
    if kernel == "ece from logits":
        from calibrant.predictions.scoring import score_top
        def ece_from_logits():
            scores = score_top(cb.Predictions.from_logits(logits, labels))
            return public("expected_calibration_error")(scores.confidence, scores.correct,
                                                        kind="confidence")
        return ece_from_logits
    what, method = kernel.split()
    fit = lambda: cb.make_calibrator(method).fit(logits, labels)
    if what == "fit":
        return fit
    fitted = fit()
    return lambda: fitted.predict_proba(first)

def used():
    return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, (
        resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))

kernels = {}
for line in sys.stdin:
    name, n, classes = json.loads(line)
    try:
        if name not in kernels:
            kernels[name] = run = made(name, n, classes)
            run()
            began = used()
            run()
            # So often that a clock of the system, which ticks in milliseconds, can tell.
            kernels[name] = run, max(1, min(2000, int(0.05 / max(used() - began, 1e-5))))
        run, often = kernels[name]
        began = used()
        for _ in range(often):
            run()
        answer = (used() - began) / often
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    print(json.dumps(answer), flush=True)
"""

Pair = tuple[float, float]
Outcome = Literal["kept", "lost", "unclear"]


@dataclass(frozen=True)
class Ratio:
    """How much longer a kernel takes: the median of ratios, with its 95 % interval.

    Attributes:
        ratio: new over old; low, high: where the median lies in 95 % of such runs.
        before: median seconds of the old code; after: of the new one.
    """

    ratio: float
    low: float
    high: float
    before: float
    after: float

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Ratio:
        """Return that of (old, new) seconds, a pair a turn."""
        ratios = sorted(new / old for old, new in pairs)
        end = _order(len(ratios))
        before, after = (median(pair[i] for pair in pairs) for i in range(2))
        return cls(median(ratios), ratios[end], ratios[-1 - end], before, after)

    def outcome(self, most: float = MOST) -> Outcome:
        """Return whether speed was lost; unclear where the interval reaches down to 1."""
        if self.ratio <= most:
            return "kept"
        return "lost" if self.low > 1 else "unclear"


def _order(n: int) -> int:
    """Return the place of the sorted number that bounds their median's interval: the sign test's.

    The number at place k is above the median as rarely as k or fewer of n coins show heads.
    """
    below, place = 0.0, 0
    for k in range((n - 1) // 2 + 1):
        below += math.comb(n, k) / 2**n
        if below > TAIL:
            break
        place = k
    return place


def judged(measure: Callable[[int], Sequence[Pair]], turns: int, most: float = MOST) -> Ratio:
    """Return the ratio of a kernel; one that looks slower is measured again, and all turns count.

    Args:
        measure: returns the seconds of so many turns.
        turns: how many at first.
        most: the largest ratio that is not measured again.
    """
    pairs = list(measure(turns))
    found = Ratio.of(pairs)
    if found.outcome(most) != "kept":
        found = Ratio.of([*pairs, *measure(AGAIN * turns)])
    return found


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 if every kernel kept its speed; 1 if one lost it, or it can't be told."""
    return int(any(outcome != "kept" for outcome in outcomes))


def newest_release() -> str:
    """Return the newest tag of a release.

    Raises:
        SystemExit: there is none.
    """
    command = ["git", "describe", "--tags", "--match", "v*", "--abbrev=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(
            "no release is tagged (v*), so that there is nothing to compare with; name a revision: "
            "python -m benchmarks.gate --against REVISION (make bench-check AGAINST=REVISION)"
        )
    return found.stdout.strip()


def start(source: Path, folder: str) -> subprocess.Popen[str]:
    """Return a worker that runs the code in `source`, on one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": str(source)},
    )


def ask(worker: subprocess.Popen[str], request: list[Any]) -> float | str:
    """Return a worker's seconds, or why it has none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def main() -> int:
    """Print a line a kernel, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--against", help="the earlier revision; by default the newest release")
    parser.add_argument("--only", nargs="+", help="kernels whose names hold one of these words")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--most", type=float, default=MOST, help="the largest ratio that passes")
    parser.add_argument("--out", type=Path, help="where to keep the ratios as JSON")
    given = parser.parse_args()
    revision = given.against or newest_release()
    wanted = {
        name: size
        for name, size in KERNELS.items()
        if given.only is None or any(word in name for word in given.only)
    }
    print(f"processor time beside {revision}; load {os.getloadavg()[0]:.1f}")
    print(f"{'kernel':34}{'old ms':>10}{'new ms':>10}{'ratio':>8}   95 % interval")
    outcomes: list[Outcome] = []
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        earlier = subprocess.run(
            ["git", "archive", revision, "src"], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=earlier, check=True)
        workers = [start(Path(folder) / "src", folder), start(Path("src").resolve(), folder)]
        for name, (rows, classes) in wanted.items():
            request = [name, rows, classes]
            first = [ask(worker, request) for worker in workers]  # makes what the kernel needs
            failed = [answer for answer in first if isinstance(answer, str)]
            if failed:
                print(f"{name:34} left out: {failed[0]}")
                if isinstance(first[1], str) and not isinstance(first[0], str):
                    outcomes.append("lost")  # only the new code can't
                continue

            def measure(turns: int, request: list[Any] = request) -> list[Pair]:
                pairs: list[Pair] = []
                for turn in range(turns):
                    order = (0, 1) if turn % 2 else (1, 0)  # whoever is second isn't always so
                    took = {place: ask(workers[place], request) for place in order}
                    pairs.append((float(took[0]), float(took[1])))
                return pairs

            found = judged(measure, given.turns, given.most)
            outcomes.append(found.outcome(given.most))
            kept[name] = vars(found) | {"outcome": outcomes[-1]}
            print(
                f"{name:34}{found.before * 1e3:10.3f}{found.after * 1e3:10.3f}{found.ratio:8.2f}   "
                f"{found.low:.2f} to {found.high:.2f}"
                + ("" if outcomes[-1] == "kept" else f"  {outcomes[-1].upper()}"),
                flush=True,
            )
        for worker in workers:
            worker.kill()
    if given.out is not None:
        content = {"against": revision, "load": os.getloadavg()[0], "kernels": kept}
        given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
