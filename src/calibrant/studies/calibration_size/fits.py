"""All fits of the study of calibration sizes, and how far a method is from temperature scaling."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import NotApplicableError
from calibrant.posthoc.auto import AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import CrossValidation, Trial
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.studies.data import Draw, Source
from calibrant.studies.measuring import quietly, scores_of

BASE = "temperature"


class Found(NamedTuple):
    """One fit of one method."""

    ece: float
    nll: float
    seconds: float
    calibrator: Calibrator


# (method, size) to its fits by seed
Results = dict[tuple[str, int], list[Found]]


def fit_chain(name: str, logits: FloatArray, labels: IntArray) -> Calibrator:
    """Return a chain of methods as auto fits it once it has all the weight."""
    contest = CrossValidation(Predictions.from_logits(logits, labels), 5, 1, "nll")
    done: list[str] = []
    steps: dict[str, Calibrator] = {}
    before: Trial | None = None
    for step in name.split("+"):
        done.append(step)
        scores = logits if before is None else before.scores[0]
        steps["+".join(done)] = make_calibrator(step).fit(scores, labels)
        before = contest.trial(make_calibrator(step), before, keep_scores=True)
    chain = AutoCalibrator()
    chain.restore_parts(steps)
    weights = np.eye(len(steps))[-1]
    report = steps[name].fit_report_
    return chain.restore({"weights_": weights}, int(logits.shape[1]), report)


def measure(method: str, draw: Draw) -> Found | None:
    """Return how one method does on one draw, or None if it refuses the rows."""
    logits = np.asarray(draw.fit.logits, dtype=np.float64)
    started = time.process_time()
    with quietly():
        try:
            if "+" in method:
                calibrator = fit_chain(method, logits, draw.fit.labels)
            else:
                calibrator = make_calibrator(method).fit(logits, draw.fit.labels)
        except NotApplicableError:
            return None
    seconds = time.process_time() - started
    scores = scores_of(calibrator, draw.test)
    return Found(100 * scores.ece, scores.nll, seconds, calibrator)


def fit_all(
    source: Source, methods: list[str], sizes: list[int], seeds: int, slowest: float
) -> Results:
    """Fit and measure everything."""
    results: Results = defaultdict(list)
    slow: dict[str, float] = {}
    for size in sizes:
        for seed in range(source.draws(size, seeds)):
            draw = source.draw(size, seed)
            for method in methods:
                if slow.get(method, 0.0) > slowest:
                    continue
                found = measure(method, draw)
                if found is not None:
                    results[method, size].append(found)
        for method in methods:
            times = [found.seconds for found in results[method, size]]
            slow[method] = max(slow.get(method, 0.0), float(np.mean(times)) if times else 0.0)
    return results


def relative(results: Results, method: str, size: int, metric: str) -> tuple[float, float]:
    """Return the mean difference to temperature scaling and half its 95 % interval."""
    pairs = zip(results[method, size], results[BASE, size], strict=False)
    gaps = np.array([getattr(a, metric) - getattr(b, metric) for a, b in pairs])
    if len(gaps) < 2:
        return (float(gaps.mean()) if len(gaps) else np.nan), np.nan
    reach = float(student.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps)))
    return float(gaps.mean()), reach
