"""Rows to fit on and rows to measure on, for studies, drawn so that the truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.synthetic import margin_tempered, tempered

MOST_TEST_ROWS = 10_000


@dataclass(frozen=True)
class Draw:
    """One draw: `fit` and `test` share no row; `truth` is (N, K) true probabilities, if known."""

    fit: Predictions
    test: Predictions
    truth: NDArray[np.float64] | None = None


def known_truth(name: str, rows: int, seed: int) -> Draw:
    """Return synthetic rows by the name of their kind: ``synthetic``, ``tempered-K``, ``margin-K``.

    K is a number of classes; see `calibrant.synthetic` for the last two.
    """
    kind, _, classes = name.partition("-")
    if kind == "synthetic":
        return synthetic(rows, seed)
    make = {"tempered": tempered, "margin": margin_tempered}[kind]
    truth = make(rows + MOST_TEST_ROWS, int(classes), seed=seed)
    fit, test = np.arange(rows), np.arange(rows, rows + MOST_TEST_ROWS)
    return Draw(truth.predictions.take(fit), truth.predictions.take(test), truth.honest[test])


def synthetic(rows: int, seed: int, classes: int = 20, bias: float = 0.6) -> Draw:
    """Return rows of a network that is too sure at middling margins and favours some classes.

    The true probabilities are softmax(z) with the top class's log odds multiplied by 0.8 and
    lowered by a bump at margins near 1.3. The network says 1.5 (z + b), with a normal b of
    deviation `bias` that is fixed by class.
    """
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=2.5, size=(rows + MOST_TEST_ROWS, classes))
    truth = softmax(honest)
    index, top = np.arange(len(truth)), honest.argmax(axis=1)
    second, first = np.sort(honest, axis=1)[:, -2:].T
    bump = np.exp(-(((np.log(first - second + 1e-3) - 0.3) / 0.6) ** 2))
    confidence = truth[index, top]
    log_odds = 0.8 * np.log(confidence / (1 - confidence)) - 1.2 * bump
    new = 1 / (1 + np.exp(-log_odds))
    truth[index, top] = 0
    truth *= ((1 - new) / truth.sum(axis=1))[:, None]
    truth[index, top] = new
    labels = (truth.cumsum(axis=1) > rng.random((len(truth), 1))).argmax(axis=1)
    favour = bias * np.random.default_rng(12345).normal(size=classes)
    whole = Predictions.from_logits(1.5 * (honest + favour), labels, source="synthetic")
    fit, test = np.arange(rows), np.arange(rows, len(truth))
    return Draw(whole.take(fit), whole.take(test), truth[test])
