"""Measure how good the verdict of `compare` is, where the truth is known.

    python -m calibrant.studies.verdicts --data cifar10=VAL.npz:TEST.npz --rows 2000 --sets 200

Methods are fitted once. The rest of a file's rows then stand for the world: test sets are drawn
from them with replacement, and each is compared as `compare` does. Because the world is at hand, it
is known which method is truly the best there, and what each choice costs. Printed, for each world:

- how many methods the set of those that may be the best in NLL holds, how often it misses the truly
  best, and the same for the methods that Holm's correction over all pairs can't tell from the best;
- what four ways to choose cost: NLL and ECE in the world, less the lowest of any method there, with
  standard errors over test sets;
- the scatter of differences in ECE: resamples' over the true one, and how often the 95 % interval
  of a difference holds its expected value.

Without --data the world is the sample that ships with the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from calibrant.comparison.comparison import ComparedMethod
from calibrant.comparison.verdict import decide
from calibrant.core.arrays import FloatArray, IntArray, to_numpy
from calibrant.core.text import format_table
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import holm, paired_difference
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.sample import load_sample
from calibrant.studies.data import Source
from calibrant.studies.program import parser_for, run_study

METHODS = (
    *("none", "temperature", "ets", "smart", "top-rest", "svs", "vector", "isotonic", "histogram"),
    "spline",
)
WAYS = ("lowest ECE", "lowest NLL", "temperature", "verdict")
METRICS = ("nll", "ece")
LEVEL = 0.95
# Methods that the world can tell apart by less than this are equally good.
EQUAL = 1e-9


@dataclass(frozen=True)
class World:
    """Rows that stand for all there are, with what fitted methods say of them.

    Attributes:
        labels: (N,) true classes.
        probs: (N, K) probabilities of each method.
        calibrators: fitted.
        keeps: which methods keep every predicted class of the world.
        nll: what each method has in the world.
    """

    labels: IntArray
    probs: dict[str, FloatArray]
    calibrators: dict[str, Calibrator]
    keeps: dict[str, bool]
    nll: FloatArray

    @classmethod
    def of(cls, fit: Predictions, rest: Predictions, methods: Sequence[str]) -> World:
        """Fit methods on some rows; the others are the world."""
        fitted = {name: make_calibrator(name).fit_predictions(fit.as_logits()) for name in methods}
        probs = {n: to_numpy(each.predict_proba(rest.logits)) for n, each in fitted.items()}
        before = to_numpy(rest.logits).argmax(axis=1)
        keeps = {n: bool((p.argmax(axis=1) == before).all()) for n, p in probs.items()}
        nll = [
            float(evaluate(p, rest.labels, metrics=["nll"], resamples=2)["nll"].value)
            for p in probs.values()
        ]
        return cls(rest.labels, probs, fitted, keeps, np.array(nll))

    def test_set(self, rows: int, seed: int, resamples: int) -> list[ComparedMethod]:
        """Return the methods as measured on a test set drawn from the world."""
        drawn = np.random.default_rng([7, seed]).integers(len(self.labels), size=rows)
        return [
            ComparedMethod(
                name,
                self.calibrators[name],
                evaluate(
                    p[drawn], self.labels[drawn], metrics=METRICS, resamples=resamples, seed=seed
                ),
                0.0,
                0.0,
                self.keeps[name],
                (),
            )
            for name, p in self.probs.items()
        ]


@dataclass(frozen=True)
class Found:
    """What came of one test set, methods as positions.

    Attributes:
        values: metric to (M,) values.
        subset: the methods that may be the best in NLL.
        apart: those that Holm's correction can tell from the best, left out.
        chosen: what each way chooses.
        scatter: (pairs,) standard deviations of differences in ECE over resamples.
        ends: (pairs, 2) ends of their intervals.
    """

    values: dict[str, FloatArray]
    subset: list[int]
    apart: list[int]
    chosen: dict[str, int]
    scatter: FloatArray
    ends: FloatArray


def look(methods: Sequence[ComparedMethod]) -> Found:
    """Return what one test set says."""
    names = [method.name for method in methods]
    results = {m: [method.evaluation[m] for method in methods] for m in METRICS}
    values = {m: np.array([result.value for result in each]) for m, each in results.items()}
    pairs = list(combinations(range(len(names)), 2))

    def differences(metric: str) -> list[tuple[float, float, float, float]]:
        of = results[metric]
        found = [
            paired_difference(of[i].replicates, of[j].replicates, (of[i].value, of[j].value), LEVEL)
            for i, j in pairs
        ]
        return [(each.value, each.low, each.high, each.p_value) for each in found]

    verdict = decide(methods, LEVEL)
    adjusted = holm([p for *_, p in differences("nll")])
    best = int(values["nll"].argmin())
    told = {
        i + j - best
        for (i, j), p in zip(pairs, adjusted, strict=True)
        if best in (i, j) and p <= 1 - LEVEL
    }
    ece = [results["ece"][i].replicates - results["ece"][j].replicates for i, j in pairs]
    return Found(
        values,
        [names.index(name) for name in verdict.may_be_best["nll"]],
        [i for i in range(len(names)) if i not in told],
        {
            "lowest ECE": int(values["ece"].argmin()),
            "lowest NLL": best,
            "temperature": names.index("temperature"),
            "verdict": names.index(verdict.recommended),
        },
        np.array([each.std() for each in ece]),
        np.array([[low, high] for _, low, high, _ in differences("ece")]),
    )


def with_error(values: FloatArray, scale: float = 1.0, digits: int = 4) -> str:
    """Return a mean and its standard error."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{scale * values.mean():.{digits}f} +- {scale * error:.{digits}f}"


def report(name: str, world: World, found: Sequence[Found]) -> str:
    """Return what the test sets of one world say."""
    best = int(world.nll.argmin())
    equal = {i for i, nll in enumerate(world.nll.tolist()) if nll <= world.nll[best] + EQUAL}
    expected = np.mean([each.values["ece"] for each in found], axis=0)
    rows: list[list[str]] = []
    for way in WAYS:
        chosen = [each.chosen[way] for each in found]
        nll = np.array([world.nll[i] - world.nll[best] for i in chosen])
        ece = np.array([expected[i] - expected.min() for i in chosen])
        most = max(set(chosen), key=chosen.count)
        often = f"{list(world.probs)[most]} {100 * chosen.count(most) / len(chosen):.0f} %"
        rows.append([way, with_error(nll), with_error(ece, 100, 2), often])
    sizes = np.array([len(each.subset) for each in found], dtype=np.float64)
    ties = np.array([len(each.apart) for each in found], dtype=np.float64)
    missed = np.array([not equal & set(each.subset) for each in found], dtype=np.float64)
    pairs = list(combinations(range(len(world.probs)), 2))
    differences = np.array(
        [[e.values["ece"][i] - e.values["ece"][j] for i, j in pairs] for e in found]
    )
    true = differences.std(axis=0)
    some = true > 1e-6  # methods that agree on every row have none
    ratio = np.mean([each.scatter for each in found], axis=0)[some] / true[some]
    truth = differences.mean(axis=0)
    held = np.mean([(e.ends[:, 0] <= truth) & (truth <= e.ends[:, 1]) for e in found], axis=0)[some]
    table = format_table(["choose by", "NLL over best", "ECE over best, points", "mostly"], rows)
    return "\n".join(
        [
            f"{name}: {len(found)} test sets, {len(world.probs)} methods",
            f"may be best in NLL: {sizes.mean():.1f} methods; the truly best is missed in "
            f"{with_error(missed, 100, 1)} % (Holm over all pairs leaves {ties.mean():.1f})",
            f"scatter of ECE differences over the true one: median {np.median(ratio):.2f}, "
            f"{ratio.min():.2f} to {ratio.max():.2f} over {len(ratio)} pairs; intervals hold "
            f"{100 * held.mean():.1f} % ({100 * held.min():.0f} to {100 * held.max():.0f})",
            "",
            table,
        ]
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for each world."""
    parser = parser_for("verdicts", __doc__)
    parser.add_argument("--data", action="append", default=[], help="NAME=FILE or NAME=FIT:TEST")
    parser.add_argument("--fit-rows", type=int, default=4000, help="of files that are split")
    parser.add_argument("--rows", type=int, default=2000, help="of a test set")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args(words)
    worlds = {
        source.name: source.draw(arguments.fit_rows, 0)
        for source in map(Source.parse, arguments.data)
    }
    parts = {name: (draw.fit, draw.test) for name, draw in worlds.items()}
    if not parts:
        parts = {"sample": (load_sample("validation"), load_sample("test"))}
    for name, (fit, rest) in parts.items():
        world = World.of(fit, rest, arguments.methods.split(","))
        found = [
            look(world.test_set(arguments.rows, seed, arguments.resamples))
            for seed in range(arguments.sets)
        ]
        print(report(f"{name}, {arguments.rows} rows", world, found), end="\n\n", flush=True)


if __name__ == "__main__":
    run_study(main)
