"""What of a proper score is miscalibration, and what calibration can't mend: top-label splits.

Any proper score S splits into S = miscalibration - discrimination + uncertainty, by comparing it
with the score S_C after the best recalibration and the score S_R of always saying the accuracy:
S - S_C, S_R - S_C and S_R. `corp_decomposition` recalibrates by isotonic regression, which needs
no choice; `murphy_decomposition` by bins. For the split of the full NLL by a temperature see
`calibrant.metrics.refit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from calibrant.core.arguments import within
from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.binned import DEFAULT_BINS, BinSums
from calibrant.metrics.metric_types import BIASED, CurveMetric, Part
from calibrant.metrics.top_label import PairKind, ResidualCurves, top_label
from calibrant.predictions.predictions import SMALLEST_PROBABILITY

Score = Literal["brier", "log"]


@dataclass(frozen=True)
class ScoreDecomposition:
    """score = miscalibration - discrimination + uncertainty; lower scores are better.

    Attributes:
        score: the mean score of the confidences.
        miscalibration: gain of recalibration, >= 0 (reliability).
        discrimination: gain of the recalibrated confidences over a constant, >= 0 (resolution).
        uncertainty: score of the constant.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.metrics import corp_decomposition
        >>> parts = corp_decomposition([0.6, 0.6, 0.9, 0.9], [0, 1, 1, 1], kind="confidence")
        >>> round(parts.uncertainty, 4)  # .75 * .25
        0.1875
        >>> total = parts.miscalibration - parts.discrimination + parts.uncertainty
        >>> abs(total - parts.score) < 1e-9
        True
    """

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float

    @property
    def refinement(self) -> float:
        """The score after recalibration."""
        return self.uncertainty - self.discrimination


def corp_decomposition(
    scores: Array,
    labels: Array,
    score: Score = "brier",
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> ScoreDecomposition:
    """Split the top-label Brier score or log score by isotonic recalibration on the same rows.

    The Brier score here is that of the event "the prediction is right", (c - a)^2, in [0, 1], not
    the multiclass one. Recalibrating and scoring on the same rows makes the miscalibration too
    large on average; its floor shows by how much.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        score: ``"brier"`` or ``"log"`` (nats; probabilities below 1.2e-38 are raised to it).

    Raises:
        PredictionsError: unusable arrays.
        InputError: unknown score.

    References:
        Dimitriadis, Gneiting, Jordan: Stable reliability diagrams. PNAS 2021.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.metrics import corp_decomposition
        >>> parts = corp_decomposition([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0], kind="confidence")
        >>> round(parts.miscalibration, 4)  # (.9 - .75)^2
        0.0225
        >>> abs(parts.discrimination) < 1e-9  # one value for all rows tells none apart
        True
    """
    within("score", score, choices=get_args(Score))
    rows = top_label(scores, labels, kind, sample_weight=sample_weight)
    position, count, correct = rows.curves().ties()
    total = float(_score(position, count, correct, score).sum() / rows.total)
    refined = _isotonic_score(count[0], correct[0], score) / rows.total
    base = np.array([rows.accuracy])
    constant = float(
        _score(base, np.array([rows.total]), correct.sum(axis=1), score)[0] / rows.total
    )
    return ScoreDecomposition(
        total, max(total - refined, 0.0), max(constant - refined, 0.0), constant
    )


def murphy_decomposition(
    scores: Array,
    labels: Array,
    n_bins: int = DEFAULT_BINS,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> ScoreDecomposition:
    """Split the top-label Brier score, with each confidence replaced by its bin's mean.

    Reliability sum_b (n_b / N) gap_b^2, resolution sum_b (n_b / N) (acc_b - acc)^2, uncertainty acc
    (1 - acc). The split is exact for `score`, the Brier score of the bin means. The Brier score of
    the confidences themselves differs by their variation within bins.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: what (N,) scores are: ``"confidence"``, or ``"prob"`` of the positive class; then
            labels are 0 and 1 instead of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.
        n_bins: number of equal-width bins (lo, hi].

    Raises:
        PredictionsError: unusable arrays.
        InputError: fewer than one bin.

    References:
        Murphy, J. Appl. Meteorol. 1973.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.metrics import murphy_decomposition
        >>> parts = murphy_decomposition([0.4, 0.4, 0.9, 0.9], [0, 0, 1, 1], kind="confidence")
        >>> round(parts.miscalibration, 4)  # (.4^2 + .1^2) / 2
        0.085
        >>> round(parts.discrimination, 4), round(parts.uncertainty, 4)  # bins tell all
        (0.25, 0.25)
    """
    return murphy_of_sums(
        BinSums.of(top_label(scores, labels, kind, sample_weight=sample_weight), n_bins)
    )


def murphy_of_sums(sums: BinSums) -> ScoreDecomposition:
    """Return the same of (B,) bin sums."""
    used = sums.count > 0
    share = sums.count[used] / sums.total
    said, hit = sums.mean_confidence[used], sums.accuracy[used]
    base = float((share * hit).sum())
    reliability = float((share * (said - hit) ** 2).sum())
    resolution = float((share * (hit - base) ** 2).sum())
    uncertainty = base * (1 - base)
    return ScoreDecomposition(
        reliability - resolution + uncertainty, reliability, resolution, uncertainty
    )


def _score(said: FloatArray, count: FloatArray, correct: FloatArray, score: Score) -> FloatArray:
    """Return the summed score of saying `said` to `count` rows of which `correct` are right."""
    if score == "brier":
        return correct * (1 - said) ** 2 + (count - correct) * said**2
    low = SMALLEST_PROBABILITY
    return -(
        correct * np.log(np.maximum(said, low))
        + (count - correct) * np.log(np.maximum(1 - said, low))
    )


def _isotonic_score(count: FloatArray, correct: FloatArray, score: Score) -> float:
    """Return the summed score after isotonic recalibration of runs in ascending order."""
    from scipy.optimize import isotonic_regression

    used = count > 0
    count, correct = count[used], np.clip(correct[used], 0.0, count[used])
    fitted = np.asarray(isotonic_regression(correct / count, weights=count).x, dtype=np.float64)
    return float(_score(np.clip(fitted, 0.0, 1.0), count, correct, score).sum())


class CorpOfCurves:
    """The CORP parts of the top-label Brier score of R residual curves, each once asked for.

    On all rows, for the recalibration fits whatever noise it sees: on cells it would see less of it
    in the resamples than in the data, and a floor would be too low.

    Args:
        curves: R residual curves.
    """

    def __init__(self, curves: ResidualCurves) -> None:
        self._ties, self._n = curves.ties(), curves.total

    @cached_property
    def miscalibration(self) -> FloatArray:
        """(R,) what isotonic recalibration gains."""
        total = _score(*self._ties, "brier").sum(axis=1)
        return np.maximum(total / self._n - self.refinement, 0.0)

    @cached_property
    def refinement(self) -> FloatArray:
        """(R,) scores after isotonic recalibration."""
        _, count, correct = self._ties
        refined = [
            _isotonic_score(rows, hits, "brier")
            for rows, hits in zip(np.broadcast_to(count, correct.shape), correct, strict=True)
        ]
        return np.array(refined) / self._n


corp_miscalibrations_of_curves: Part[FloatArray] = Part(CorpOfCurves, "miscalibration")
corp_refinements_of_curves: Part[FloatArray] = Part(CorpOfCurves, "refinement")


BRIER_CALIBRATION = CurveMetric(
    name="brier_calibration",
    title="Brier, calibration",
    definition="how much isotonic recalibration lowers the top-label score (c - a)^2",
    function=corp_decomposition,
    effort="a sort; then isotonic regression",
    fails=f"{BIASED}; of the top label only",
    percent=False,
    of_curves=corp_miscalibrations_of_curves,
)
BRIER_REFINEMENT = CurveMetric(
    name="brier_refinement",
    title="Brier, refinement",
    definition="top-label score (c - a)^2 after isotonic recalibration",
    function=corp_decomposition,
    effort="a sort; then isotonic regression",
    fails="it says how well confidence ranks, not whether it is calibrated",
    percent=False,
    of_curves=corp_refinements_of_curves,
    has_floor=False,
)
