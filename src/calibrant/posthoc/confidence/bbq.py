"""Bayesian binning into quantiles of the top label, or of every class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, IntArray
from calibrant.posthoc.base import FitReport
from calibrant.posthoc.confidence.base import mixed_with_uniform
from calibrant.posthoc.confidence.histogram import equal_mass_edges
from calibrant.posthoc.confidence.one_vs_rest import MapOfEitherForm
from calibrant.posthoc.confidence.shapes import Steps
from calibrant.posthoc.learnt import learnt

# A prior mean at 0 or 1 would forbid one of the outcomes.
LOWEST_PRIOR_MEAN = 0.005


@dataclass(eq=False)
class BayesianBinning(MapOfEitherForm):
    """An average of many equal-mass binnings, weighted by how likely each makes the outcomes.

    A binning into B bins b with n_b rows, h_b of them right, has the marginal likelihood

        prod_b Beta(h_b + C q_b, n_b - h_b + C (1 - q_b)) / Beta(C q_b, C (1 - q_b)),

    q_b being the middle of the bin, kept in [0.005, 0.995], and C = prior_strength the weight of
    the prior in rows. All B from max(1, floor(N^(1/3) / 10)) to min(ceil(N / 5), ceil(10 N^(1/3)))
    are equally likely beforehand. The binnings are sorted by weight, the largest being 1, and kept
    as long as the drop to the next weight exceeds ``elbow`` times the variance of all weights. The
    value of a bin is (h + p) / (n + 1), where p = (sum of the confidences of its right rows + q) /
    (h + 1).

    Cuts lie midway between neighbours and never part equal confidences; binnings that come out the
    same count once. Few rows favour few bins, so small sets end near one constant.

    Args:
        prior_strength: C, in rows a bin. The paper's N' = 2 B is C = 2.
        elbow: see above; 0 keeps all binnings that fall strictly.
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`.

    Attributes:
        edges_: (B + 1,) all cuts of the binnings that were kept; bins are (lo, hi].
        values_: (B,) their weighted mean on each piece.
        bins_: (M,) numbers of bins of the binnings that were kept, best first.
        weights_: (M,) their weights, which sum to 1.

    References:
        Naeini, Cooper, Hauskrecht: Obtaining Well Calibrated Probabilities Using Bayesian Binning.
        AAAI 2015.

    Examples:
        >>> import calibrant as cb
        >>> for n in (200, 20_000):
        ...     rows = cb.synthetic.tempered(n, 10, temperature=2.0).predictions
        ...     print(cb.BayesianBinning().fit_predictions(rows).bins_[0])  # the likeliest number
        3
        14
    """

    method: ClassVar[str] = "bbq"

    prior_strength: float = argument(2.0, above=0)
    elbow: float = argument(0.001, at_least=0)

    edges_: FloatArray = learnt("e")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)
    bins_: IntArray = learnt("b", at_least=1)
    weights_: FloatArray = learnt("b", at_least=0, at_most=1)

    @property
    def levels(self) -> int:
        """Number of pieces on which the average is constant."""
        return len(self.values_)

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        n = len(confidence)
        # Ties are together in every bin, so the sums below don't depend on their order.
        running = np.concatenate([[0.0], np.cumsum(correct)])
        of_hits = np.concatenate([[0.0], np.cumsum(correct * confidence)])
        models: list[Binning] = []
        seen: set[bytes] = set()
        for n_bins in candidate_numbers_of_bins(n):
            edges = equal_mass_edges(confidence, n_bins)
            if edges.tobytes() not in seen:
                seen.add(edges.tobytes())
                strength = self.prior_strength
                models.append(score_binning(edges, confidence, running, of_hits, strength))
        log = np.array([model.log_likelihood for model in models])
        order = np.argsort(-log, kind="stable")
        relative = np.exp(log[order] - log.max())
        kept = before_the_elbow(relative, self.elbow)
        self.weights_ = relative[:kept] / relative[:kept].sum()
        chosen: list[int] = order[:kept].tolist()
        best = [models[i] for i in chosen]
        self.bins_ = np.array([len(model.values) for model in best], dtype=np.int64)
        self.edges_ = np.unique(np.concatenate([model.edges for model in best]))
        upper = self.edges_[1:]
        mean = np.zeros(len(upper))
        for weight, model in zip(self.weights_, best, strict=True):
            mean += weight * model.values[np.searchsorted(model.edges[1:-1], upper, side="left")]
        self.values_ = mixed_with_uniform(mean, n, self.n_classes_)
        return FitReport(n, "marginal likelihood", -float(log.max()) / n, len(models))

    def shape(self) -> Steps:
        """Return the values of the bins."""
        return Steps(self.edges_[1:-1], self.values_)


class Binning(NamedTuple):
    """One binning: (B + 1,) edges, (B,) values and its log marginal likelihood."""

    edges: FloatArray
    values: FloatArray
    log_likelihood: float


def candidate_numbers_of_bins(rows: int) -> range:
    """Return the numbers of bins that BBQ averages over: N^(1/3) / 10 to 10 N^(1/3)."""
    low = max(1, floor_of_cube_root(rows) // 10)
    # The first whole number that isn't below.
    ten_roots = floor_of_cube_root(1000 * rows - 1) + 1
    return range(low, max(low, min(-(-rows // 5), ten_roots)) + 1)


def floor_of_cube_root(number: int) -> int:
    """Return the largest whole number whose cube is no larger.

    In floating point processors differ: the root of 27 000 is 30 to some, and a little less to
    others.
    """
    root = round(number ** (1 / 3))
    return root if root**3 <= number else root - 1


def score_binning(
    edges: FloatArray,
    confidence: FloatArray,
    running_hits: FloatArray,
    running_confidence_of_hits: FloatArray,
    strength: float,
) -> Binning:
    """Return the values and the marginal likelihood of one binning of sorted confidences.

    Args:
        edges: (B + 1,) from 0 to 1; bins are (lo, hi].
        confidence: (N,) ascending.
        running_hits: (N + 1,) number of right rows before each row.
        running_confidence_of_hits: (N + 1,) sum of their confidences.
        strength: weight of a bin's prior, in rows.
    """
    from scipy.special import betaln

    inner = np.searchsorted(confidence, edges[1:-1], side="right")
    ends = np.concatenate([[0], inner, [len(confidence)]])
    count, hits = np.diff(ends).astype(np.float64), np.diff(running_hits[ends])
    of_hits = np.diff(running_confidence_of_hits[ends])
    middle = (edges[:-1] + edges[1:]) / 2
    prior = np.clip(middle, LOWEST_PRIOR_MEAN, 1 - LOWEST_PRIOR_MEAN)
    a, b = strength * prior, strength * (1 - prior)
    log_likelihood = float(np.sum(betaln(hits + a, count - hits + b) - betaln(a, b)))
    pseudo = (of_hits + middle) / (hits + 1)
    return Binning(edges, (hits + pseudo) / (count + 1), log_likelihood)


def before_the_elbow(weights: FloatArray, elbow: float) -> int:
    """Return how many of the descending `weights` come before they level off; at least one."""
    spread = float(np.var(weights))
    if spread == 0.0:
        return len(weights)
    flat = np.flatnonzero(weights[:-1] - weights[1:] <= elbow * spread)
    return int(flat[0]) + 1 if flat.size else len(weights)
