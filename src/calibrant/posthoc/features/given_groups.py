"""Groups that are given: a logistic recalibration that knows which group a row is of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core import numpy_namespace as xnp
from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import (
    NotIdentifiedWarning,
)
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, quantiles, total
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.facts import FEATURES, Facts
from calibrant.posthoc.features.base import in_float64
from calibrant.posthoc.fitting.smooth_logistic import (
    Penalty,
    fit_penalised,
)
from calibrant.posthoc.log_odds import EventMap, event_log_odds, event_outcomes
from calibrant.posthoc.state import LARGEST, learnt
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.temperature import warn_of

# A column of more values than this is cut into quantiles; of fewer each value is a group.
MOST_VALUES, QUANTILES = 20, 5
# Groups of fewer rows have no numbers of their own; no more groups than this.
FEWEST_ROWS, MOST_CELLS = 10, 100
# The pairs of more columns, as the features of a network are, would take minutes.
MOST_PAIRED = 20


class Cells(NamedTuple):
    """Groups of one column, or of two: rows with low <= value <= high in both.

    Attributes:
        columns: (C, 2) columns, the same twice for groups of one.
        low, high: (C, 2) ends of the values.
    """

    columns: IntArray
    low: FloatArray
    high: FloatArray


@dataclass(eq=False)
class GivenGroups(EventMap):
    """logit(p') = x + w . b(x), b holding 1 and x, of all rows and of each group that a row is in.

    x are the log odds of being right, or of class 1 of two. Features are columns that say which
    groups a row is of: each value of a column with few values, the fifths of one with many, and
    with `pairs` each group of two columns. Every group has an intercept and a slope, held to 0 by a
    ridge whose strength, like that of the ridge on the numbers of all rows, is weighed by evidence
    (`fit_by_evidence`). So a group with few rows, or a calibrated one, is left nearly as it is. The
    objective is convex; a row of no known group gets the map of all rows.

    It mends what `calibrant.metrics.multicalibration` finds, in one convex fit where boosting takes
    rounds of trees. Of more than 100 groups the largest are taken; with more than 20 columns pairs
    are left out, and the report of the fit says so. It works best after another map:
    ``temperature+given-groups``. It fails where groups aren't among the columns.

    Args:
        pairs: whether groups of two columns are counted, too.
        penalty: 0 weighs penalties by evidence; a positive number is taken for both.

    Attributes:
        columns_, low_, high_: (C, 2) see `Cells`. scale_: of the log odds.
        weights_: (2 (C + 1),) an intercept of all rows and of each group, then slopes.
        penalties_: (2,) of groups and of all rows; 0 where nothing was fitted.

    References:
        Calibrant's own. Multicalibration: Hebert-Johnson et al., ICML 2018.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> group, x = rng.integers(2, size=4000), rng.normal(size=4000)
        >>> right = rng.uniform(size=4000) < 1 / (1 + np.exp(-x - group))
        >>> logits = np.stack([0 * x, x], axis=1)
        >>> mended = cb.posthoc.GivenGroups().fit(logits, right.astype(int), group[:, None])
        >>> mended.predict_proba(np.zeros((2, 2)), np.array([[0], [1]]))[:, 1].round(1)
        array([0.5, 0.7])
    """

    method: ClassVar[str] = "given-groups"
    facts: ClassVar[Facts | None] = Facts(
        "logistic recalibration of given groups",
        FEATURES,
        "tens of ridge logistic regressions on N x 2 groups",
        "groups that aren't among the columns",
    )
    needs: ClassVar[tuple[str, ...]] = ("features",)
    fits_top_label: ClassVar[bool] = False
    fits_scores: ClassVar[bool] = False

    pairs: bool = argument(True)
    penalty: float = argument(0.0, at_least=0)

    width_: int = learnt(at_least=1)
    columns_: IntArray = learnt("c", 2, at_least=0)
    low_: FloatArray = learnt("c", 2)
    high_: FloatArray = learnt("c", 2)
    scale_: float = learnt(above=0)
    weights_: FloatArray = learnt("w")
    penalties_: FloatArray = learnt(2, at_least=0)

    @property
    def feature_width(self) -> int | None:
        """Number of columns D that it was fitted for."""
        return self.width_

    @property
    def n_parameters(self) -> int:
        """Two for each group, and two for all rows."""
        return len(self.weights_)

    def widest(self) -> int:
        """Return the number of groups."""
        return 2 * len(self.low_)

    def _fit(self, predictions: Predictions) -> FitReport:
        features = in_float64(predictions.features)
        self.width_ = int(features.shape[1])
        weights = predictions.weights
        cells, notes = cells_of(features, self.pairs, weights)
        self.columns_, self.low_, self.high_ = cells
        log_odds, outcome = event_log_odds(predictions.scores), event_outcomes(predictions)
        rows = len(outcome)
        self.scale_ = float(np.sqrt(mean(log_odds * log_odds, weights))) or 1.0
        self.weights_, self.penalties_ = np.zeros(2 * (len(cells.low) + 1)), np.zeros(2)
        if not 0 < outcome.sum() < rows:
            message = "all outcomes are alike; took the confidences as they are"
            loss = mean(np.logaddexp(0.0, (1 - 2 * outcome) * log_odds), weights)
            notes += warn_of(NotIdentifiedWarning(message))
            return FitReport(rows, "event nll", loss, notes=notes)
        inside = np.concatenate([np.ones((rows, 1)), _inside(xnp, features, *cells)], axis=1)
        columns = np.concatenate([inside, inside * (log_odds / self.scale_)[:, None]], axis=1)
        of_all = np.zeros(columns.shape[1])
        of_all[[0, inside.shape[1]]] = 1.0
        penalty = Penalty(np.diag(1.0 - of_all), np.diag(of_all))
        found = fit_penalised(columns, log_odds, outcome, penalty, self.penalty, weights)
        self.weights_, self.penalties_ = found.weights, np.array(found.strengths)
        loss = found.loss / total(rows, weights)
        report = FitReport(rows, "event nll", loss, found.steps, found.converged, notes)
        return report.warned(self.method)

    def mapped_log_odds(self, xp: Any, log_odds: Array, learnt: Learnt) -> Array:
        """Return what a row of no group gets."""
        weights = learnt["weights_"]
        slope = weights[int(weights.shape[0]) // 2]
        return log_odds + weights[0] + slope * (log_odds / learnt["scale_"])

    def mapped_rows(
        self, xp: Any, log_odds: Array, features: Array | None, learnt: Learnt
    ) -> Array:
        """Return x + w . b(x)."""
        known = xp.astype(features, xp.float64)
        inside = _inside(xp, known, learnt["columns_"], learnt["low_"], learnt["high_"])
        count = int(inside.shape[1])
        weights = learnt["weights_"]
        shift = weights[0] + inside @ weights[1 : count + 1]
        slope = weights[count + 1] + inside @ weights[count + 2 :]
        return log_odds + shift + slope * (log_odds / learnt["scale_"])


def cells_of(
    features: FloatArray, pairs: bool, weights: FloatArray | None = None
) -> tuple[Cells, tuple[str, ...]]:
    """Return the groups of (N, D) columns that have enough rows; and what is left out, in words."""
    of_columns: list[list[tuple[float, float]]] = []
    for column in features.T:
        values = np.unique(column)
        if len(values) <= MOST_VALUES:
            ends = [(float(value), float(value)) for value in values]
        else:
            cuts = np.unique(quantiles(column, np.arange(1, QUANTILES) / QUANTILES, weights))
            lows = [-LARGEST, *cuts.tolist()]
            highs = [*np.nextafter(cuts, -np.inf).tolist(), LARGEST]
            ends = list(zip(lows, highs, strict=True))
        of_columns.append(ends)
    every = [((d, d), (end, end)) for d, ends in enumerate(of_columns) for end in ends]
    notes: list[str] = []
    if pairs and len(of_columns) > MOST_PAIRED:
        notes.append(
            f"groups of two columns are left out: {len(of_columns)} columns have too many pairs "
            f"(pairs of {MOST_PAIRED} columns or fewer are counted)"
        )
    elif pairs:
        every += [
            ((a, b), (one, other))
            for a, b in combinations(range(len(of_columns)), 2)
            for one in of_columns[a]
            for other in of_columns[b]
        ]
    columns = np.array([place for place, _ in every], dtype=np.int64).reshape(-1, 2)
    low = np.array([[end[0] for end in ends] for _, ends in every]).reshape(-1, 2)
    high = np.array([[end[1] for end in ends] for _, ends in every]).reshape(-1, 2)
    counts = np.ones(len(features)) if weights is None else weights
    sizes = np.array(
        [
            float(counts @ _inside(xnp, features, columns[[c]], low[[c]], high[[c]])[:, 0])
            for c in range(len(every))
        ]
    )
    # A column of one value is all rows.
    kept = np.flatnonzero((sizes >= FEWEST_ROWS) & (sizes < counts.sum()))
    kept = np.sort(kept[np.argsort(-sizes[kept], kind="stable")][:MOST_CELLS])
    few = int(((sizes > 0) & (sizes < FEWEST_ROWS)).sum())
    if few:
        notes.append(f"groups of fewer than {FEWEST_ROWS} rows have no numbers of their own: {few}")
    return Cells(columns[kept], low[kept], high[kept]), tuple(notes)


def _inside(xp: Any, features: Array, columns: Array, low: Array, high: Array) -> Array:
    """Return (n, C) 1.0 where a row is of a group, else 0.0."""
    found = None
    for side in (0, 1):
        values = xp.take(features, xp.astype(columns[:, side], xp.int64), axis=1)
        here = (values >= low[:, side][None, :]) & (values <= high[:, side][None, :])
        found = here if found is None else found & here
    return xp.astype(found, xp.float64)
