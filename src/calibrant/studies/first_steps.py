"""How well `probit-top-rest` chooses between normal noise and temperature scaling.

    python -m calibrant.studies.first_steps --data NAME=FILE [--data NAME=FIT_FILE:TEST_FILE]
        [--sizes 50,200,1000,5000] [--seeds 20]

The rows named normal, gumbel and both are drawn: labels are decided by that noise on 20 scores,
with a deviation that is up to twice as large at small margins for the third. For each draw, top-
rest scaling is fitted behind either first step. Printed are the mean NLL behind the better one on
the rows to measure on, and what is lost to it by: always temperature scaling (`top-rest`); always
normal noise; normal noise if it is likelier on the calibration rows by a standard error before
the second step (the former rule); and the present rule with several thresholds. The last columns
are paired differences of the present rule, with their standard errors over draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.text import format_table
from calibrant.metrics.proper import negative_log_likelihood
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chains import probit_top_rest
from calibrant.posthoc.chains.probit_top_rest import ProbitTopRestScaling
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.noise.probit import ProbitScaling
from calibrant.posthoc.temperature.single import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.studies.data import Draw, Source
from calibrant.studies.measuring import quietly, with_error
from calibrant.studies.program import parser_for, run_study

DRAWN = ("normal", "gumbel", "both")
THRESHOLDS = (0.0, 0.25, 0.5)


def noisy(kind: str, rows: int, seed: int) -> Predictions:
    """Return rows of 20 classes whose labels noise decides."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=2.0, size=(rows, 20))
    top = np.sort(scores, axis=1)
    unsure = np.exp(top[:, -2] - top[:, -1])[:, None]
    noise = rng.gumbel(size=scores.shape) if kind == "gumbel" else rng.normal(size=scores.shape)
    size = 1 + unsure if kind == "both" else 1.0
    return Predictions.from_logits(3 * scores, (scores + size * noise).argmax(axis=1))


def draw_of(name: str, source: Source | None, rows: int, seed: int) -> Draw:
    """Return rows to fit to and rows to measure on."""
    if source is not None:
        return source.draw(rows, seed)
    return Draw(noisy(name, rows, seed), noisy(name, 10_000, 10_000 + seed))


def losses_of(draw: Draw) -> list[float]:
    """Return the NLL of both first steps, of the former rule and of the present one."""
    fit, test = draw.fit, draw.test

    def fitted(calibrator: Calibrator) -> Calibrator:
        return calibrator.fit(fit.logits, fit.labels)

    def loss(calibrator: Calibrator) -> float:
        return negative_log_likelihood(calibrator.predict_proba(test.logits), test.labels)

    plain, normal = (
        loss(fitted(TopRestScaling())),
        loss(fitted(ProbitTopRestScaling(tails="normal"))),
    )
    own, other = (
        -np.log(c.predict_proba(fit.logits)[np.arange(fit.n), fit.labels])
        for c in (fitted(ProbitScaling()), fitted(TemperatureScaling()))
    )
    gain = other - own
    likelier = gain.mean() > gain.std(ddof=1) / np.sqrt(fit.n)
    found = [plain, normal, normal if likelier else plain]
    usual = probit_top_rest.CLEAR
    for threshold in THRESHOLDS:
        probit_top_rest.CLEAR = threshold
        chosen = fitted(ProbitTopRestScaling()).parts()["first_"].method
        found.append(normal if chosen == "probit" else plain)
    probit_top_rest.CLEAR = usual
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = parser_for("first_steps", __doc__)
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--sizes", default="50,200,1000,5000")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args(words)
    given = {source.name: source for source in map(Source.parse, arguments.data)}
    sources: dict[str, Source | None] = {**given, **dict.fromkeys(DRAWN)}
    rows: list[list[str]] = []
    for name, source in sources.items():
        for size in map(int, arguments.sizes.split(",")):
            draws = arguments.seeds if source is None else source.draws(size, arguments.seeds)
            with quietly():
                found = np.array([losses_of(draw_of(name, source, size, s)) for s in range(draws)])
            best = found[:, :2].min(axis=1)
            lost = [f"{column.mean() - best.mean():.4f}" for column in found.T]
            present = found[:, 3 + THRESHOLDS.index(probit_top_rest.CLEAR)]
            against = [with_error(present - found[:, i], 4) for i in (2, 0)]
            rows.append([f"{name}, {size} rows", str(draws), f"{best.mean():.4f}", *lost, *against])
            print(*rows[-1], flush=True)
    thresholds = [f"CLEAR {t}" for t in THRESHOLDS]
    head = ["data", "draws", "best NLL", "top-rest", "normal", "former", *thresholds]
    print(format_table([*head, "to the former", "to top-rest"], rows))


if __name__ == "__main__":
    run_study(main)
