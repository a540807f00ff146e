"""How often the intervals of estimated shares hold the true ones, over draws of known truth.

Four normal classes in two dimensions; logits are the true log-odds, stretched and with a bias, so
that a calibrator has something to do. A calibrator is fitted to rows of even shares, and the shares
of other rows are estimated: with as even shares (how often a shift is found that isn't there), with
.55, .25, .15, .05 (how often intervals hold the true ones), and with rows that are noisier besides
(how often it is seen that something else has changed).

    python -m scripts.shares_over_draws --draws 200
"""

from __future__ import annotations

import argparse

import numpy as np

import calibrant as cb
from calibrant.core.arrays import FloatArray
from calibrant.predictions.predictions import Predictions

CENTRES = np.array([[1.2, 0.0], [-1.2, 0.0], [0.0, 1.2], [0.0, -1.2]])
EVEN, OTHER = np.full(4, 0.25), np.array([0.55, 0.25, 0.15, 0.05])
STRETCH, BIAS = 1.8, np.array([0.4, 0.0, -0.3, 0.0])


def draw(rng: np.random.Generator, n: int, shares: FloatArray, noise: float = 1.0) -> Predictions:
    """Return n rows, whose logits are off by a stretch and a bias."""
    labels = rng.choice(4, n, p=shares)
    x = CENTRES[labels] + noise * rng.standard_normal((n, 2))
    logits = x @ CENTRES.T
    return Predictions.from_logits(STRETCH * logits + BIAS, labels)


def main() -> None:
    """Print a line for each number of rows and method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=100)
    given = parser.parse_args()
    print("| rows | method | held, % | false shift, % | false else, % | seen else, % |")
    print("|--:|:--|--:|--:|--:|--:|")
    for n in (500, 2000):
        for method in ("svs", "vector", "temperature"):
            held, none, nothing, seen = [], [], [], []
            for seed in range(given.draws):
                rng = np.random.default_rng([n, seed])
                before = draw(rng, n, EVEN)
                fitted = cb.make_calibrator(method).fit_predictions(before)
                how = {"resamples": given.resamples, "seed": seed}
                other = cb.posthoc.estimate_prior(fitted, draw(rng, n, OTHER), before, **how)
                held.append(((other.low <= OTHER) & (other.high >= OTHER)).mean())
                nothing.append(other.p_nothing_else < 0.05)
                how["resamples"] = 20
                same = cb.posthoc.estimate_prior(fitted, draw(rng, n, EVEN), before, **how)
                none.append(same.p_no_shift < 0.05)
                noisy = draw(rng, n, OTHER, 1.5)
                found = cb.posthoc.estimate_prior(fitted, noisy, before, **how)
                seen.append(found.p_nothing_else < 0.05)
            cells = [f"{100 * np.mean(each):.1f}" for each in (held, none, nothing, seen)]
            print(f"| {n} | {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
