"""The step `given-groups` beside MCGrad, on rows that neither has seen.

    python -m scripts.groups_beside_mcgrad [mmlu_*.jsonl ...]

Rows are binary: whether the prediction is right, with its confidence, and columns of groups.
Without files they are simulated: of 4 regions and 3 ages, with shifts by region, by age and by
both. Files are logs of questions with `scores`, `gold` and `subject`; groups are the subject and
the letter that was said. Half of the rows fit, the other half measures: mean log loss, the worst
group in sigmas (`calibrant.metrics.multicalibration`) and how many groups show more than noise.
MCGrad is fitted as its README says, if it is installed (`pip install mcgrad`; without its tuner it
needs no torch). The differences of the log loss are to ``platt+given-groups``, paired.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import calibrant as cb
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.metrics import multicalibration
from calibrant.predictions.predictions import Predictions

METHODS = ("platt", "platt+given-groups", "natural-spline+given-groups")
Rows = tuple[FloatArray, IntArray, dict[str, IntArray]]


def simulated(rng: np.random.Generator, rows: int, effect: float = 0.6) -> Rows:
    """Return confidences, outcomes and groups; effect 0 leaves all groups alike."""
    region, age = rng.integers(4, size=rows), rng.choice(3, size=rows, p=[0.5, 0.35, 0.15])
    both = np.array([[0.0, 1, -1], [0, -1, 1], [1, 0, 0], [-1, 0, 0]])
    odds = rng.normal(1.0, 1.5, size=rows)
    shift = effect * (both[region, age] + 0.5 * (region == 3) - 0.5 * (age == 2))
    right = rng.uniform(size=rows) < 1 / (1 + np.exp(-(0.8 * odds + shift)))
    return 1 / (1 + np.exp(-odds)), right.astype(np.int64), {"region": region, "age": age}


def of_log(path: Path) -> Rows:
    """Return the rows of a log of questions."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    scores = np.array([[each["scores"][letter] for letter in "ABCD"] for each in lines])
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    said = probs.argmax(axis=1)
    right = np.array([each["gold"] for each in lines]) == np.array([*"ABCD"])[said]
    subject = np.unique([each["subject"] for each in lines], return_inverse=True)[1]
    confidence = np.clip(probs.max(axis=1), 1e-6, 1 - 1e-6)
    return confidence, right.astype(np.int64), {"subject": subject, "said": said}


def mcgrad(first: Rows, second: Rows) -> FloatArray | None:
    """Return MCGrad's probabilities of the second rows; None if it isn't installed."""
    sys.modules.setdefault("mcgrad.tuning", types.ModuleType("mcgrad.tuning"))
    try:
        import pandas as pd

        MCGrad = import_module("mcgrad.methods").MCGrad
    except ImportError:
        return None

    def frame(rows: Rows) -> Any:
        return pd.DataFrame({"p": rows[0], "y": rows[1], **rows[2]})

    names: dict[str, Any] = {"categorical_feature_column_names": list(first[2])}
    fitted = MCGrad().fit(frame(first), "p", "y", **names)
    return np.asarray(fitted.predict(frame(second), "p", **names), dtype=np.float64)


def predictions(rows: Rows) -> Predictions:
    """Return binary rows with their groups for features."""
    features = np.stack(list(rows[2].values()), axis=1).astype(np.float64)
    odds = np.log(rows[0] / (1 - rows[0]))
    logits = np.stack([0 * odds, odds], axis=1)
    return Predictions.from_logits(logits, rows[1], features).as_binary()


def compared(name: str, first: Rows, second: Rows) -> None:
    """Print a line for each way."""
    found: dict[str, tuple[FloatArray, float]] = {"as it was": (second[0], 0.0)}
    for method in METHODS:
        began = time.process_time()
        fitted = cb.make_calibrator(method).fit_predictions(predictions(first))
        after = fitted.apply_predictions(predictions(second)).positive_probs
        found[method] = (np.asarray(after), time.process_time() - began)
    began = time.process_time()
    other = mcgrad(first, second)
    if other is not None:
        found["MCGrad"] = (other, time.process_time() - began)
    losses = {n: -np.log(np.where(second[1] == 1, p, 1 - p)) for n, (p, _) in found.items()}
    for way, (p, seconds) in found.items():
        rows = Predictions.from_binary(np.clip(p, 0, 1), second[1], kind="prob")
        worst = multicalibration(rows, dict(second[2]), draws=400)
        difference = losses[way] - losses["platt+given-groups"]
        half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
        sigmas = max(each.sigmas for each in worst.groups)
        print(
            f"| {name} | {way} | {losses[way].mean():.4f} | {sigmas:.1f} | "
            f"{len(worst.miscalibrated)} of {len(worst.groups)} | "
            f"{difference.mean():+.4f} +- {half:.4f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=Path, nargs="*")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 5000, 20000])
    given = parser.parse_args()
    print("| rows | way | log loss | worst, sigma | beyond noise | difference | CPU s |")
    print("|:--|:--|--:|--:|--:|--:|--:|")
    for path in given.logs:
        confidence, right, groups = of_log(path)
        for seed in range(2):
            order = np.random.default_rng(seed).permutation(len(right))
            first, second = (
                (confidence[at], right[at], {n: g[at] for n, g in groups.items()})
                for at in np.array_split(order, 2)
            )
            compared(f"{path.stem}, half {seed}", first, second)
    if not given.logs:
        for effect in (0.6, 0.0):
            for rows in given.rows:
                rng = np.random.default_rng(rows)
                first, second = simulated(rng, rows, effect), simulated(rng, 20_000, effect)
                compared(f"{rows}, effect {effect}", first, second)


if __name__ == "__main__":
    main()
