"""The accuracy to expect of rows without labels, beside the accuracy that they have.

    python -m scripts.accuracy_over_shifts [mmlu_*_sparsity000.jsonl mmlu_*_sparsity050.jsonl]

On the sample: a calibrator (svs) is fitted to 2 000 rows of the validation set, and 2 000 rows of
the test set are looked at, as they are, with other shares of the classes, only those with small
margins, and with noise on the logits of the true class. Two logs of questions are a network and a
worse one: the calibrator of the first is put to use on the second. Each is drawn several times: the
mean error of both ways, and how often the 95 % interval held the accuracy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scripts.groups_beside_mcgrad import of_log

import calibrant as cb
from calibrant.core.arrays import IntArray
from calibrant.posthoc import estimate_prior, expected_accuracy
from calibrant.predictions.predictions import Predictions

KINDS = ("as they are", "other shares", "other shares, estimated", "small margins", "damaged")


def drawn(rng: np.random.Generator, test: Predictions, kind: str, rows: int) -> Predictions:
    """Return rows of a kind, each at most once."""
    chance = np.ones(test.n)
    if kind.startswith("other shares"):
        chance = rng.dirichlet(np.ones(10))[test.labels]
    elif kind == "small margins":
        chance = 1 / (1 + test.margins)
    found = test.take(rng.choice(test.n, rows, replace=False, p=chance / chance.sum()))
    if kind == "damaged":
        logits = np.array(found.logits, dtype=np.float64)
        logits[np.arange(rows), found.labels] -= rng.exponential(2.0, rows)
        found = Predictions.from_logits(logits, found.labels)
    return found


def line(kind: str, errors: list[list[float]], held: list[list[bool]]) -> None:
    """Print what was found of a kind."""
    off, of = np.array(errors), np.array(held)
    cells = [
        f"{100 * off[:, w].mean():+.1f} ({100 * np.abs(off[:, w]).mean():.1f})"
        f" | {100 * of[:, w].mean():.0f}"
        for w in range(off.shape[1])
    ]
    print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def looked_at(
    calibrator: cb.Calibrator, new: Predictions, before: Predictions, accuracy: float, seed: int
) -> tuple[list[float], list[bool]]:
    """Return of both ways the error, and whether the interval holds the accuracy."""
    found = expected_accuracy(calibrator, new, before, resamples=40, seed=seed).values.values()
    return [v[0] - accuracy for v in found], [v[1] <= accuracy <= v[2] for v in found]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=Path, nargs="*")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2000)
    given = parser.parse_args()
    print("| rows | CBPE off by (size), points | held, % | ATC off by (size) | held, % |")
    print("|:--|--:|--:|--:|--:|")
    val, test = cb.load_sample("validation"), cb.load_sample("test")
    for kind in KINDS if not given.logs else ():
        errors, held = list[list[float]](), list[list[bool]]()
        for seed in range(given.draws):
            rng = np.random.default_rng(seed)
            before = val.take(rng.choice(val.n, given.rows, replace=False))
            fitted = cb.make_calibrator("svs").fit_predictions(before)
            new = drawn(rng, test, kind, given.rows)
            if kind.endswith("estimated"):
                fitted = estimate_prior(fitted, new, before, resamples=2).calibrator
            right = np.asarray(fitted.apply_predictions(new).probs).argmax(axis=1) == new.labels
            off, inside = looked_at(fitted, new, before, float(right.mean()), seed)
            errors.append(off)
            held.append(inside)
        line(kind, errors, held)
    if len(given.logs) == 2:
        of_logs(given.logs[0], given.logs[1], given.rows, given.draws)


def of_logs(one: Path, other: Path, rows: int, draws: int) -> None:
    """Print what the calibrator of a network says of it, and of a worse one."""
    logs = {path: of_log(path)[:2] for path in (one, other)}

    def some(path: Path, index: IntArray) -> Predictions:
        confidence, right = (each[index] for each in logs[path])
        return Predictions.from_confidence(confidence, np.zeros(len(index)), 1 - right)

    for name, path in (("the same network", one), ("a worse network", other)):
        errors, held = list[list[float]](), list[list[bool]]()
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(len(logs[one][1]))
            before, new = some(one, order[:rows]), some(path, order[rows : 2 * rows])
            fitted = cb.make_calibrator("platt").fit_predictions(before)
            off, inside = looked_at(fitted, new, before, float((new.labels == 0).mean()), seed)
            errors.append(off)
            held.append(inside)
        line(name, errors, held)


if __name__ == "__main__":
    main()
