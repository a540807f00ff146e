"""Binning: histogram, Bayesian binning into quantiles, and scaling-binning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray, IntArray, sigmoid
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import mean, times
from calibrant.metrics.binned import (
    Strategy,
    bin_edges,
    bin_index,
    equal_mass_cuts,
    logit,
    mass_cuts,
)
from calibrant.posthoc.confidence.base import ConfidenceMap, Steps, mixed_with_uniform
from calibrant.posthoc.confidence.either_form import MapOfEitherForm, ShrunkMap, shrunk
from calibrant.posthoc.facts import CONFIDENCE, SORT, Facts
from calibrant.posthoc.fitting.minimizing import Minimum, least_log_loss
from calibrant.posthoc.log_odds import smoothed_targets
from calibrant.posthoc.state import learnt


@dataclass(eq=False)
class HistogramBinning(ShrunkMap):
    """The confidence is replaced by the accuracy of its bin.

    The value of a bin with few rows is drawn towards the others: h right rows of n give (h + s m) /
    (n + s), with s = prior_strength and m the accuracy on all rows (where bins differ in size, m is
    shifted a little so that the mean confidence stays the accuracy). Then all bins are mixed with 1
    / K at weight 1 / (N + 1).

    Args:
        n_bins: number of bins; fewer are used where rows or distinct confidences are fewer.
        strategy: ``"quantile"`` puts as many rows in each bin, cut midway between neighbours;
            ``"uniform"`` takes (b / B, (b + 1) / B]. An empty bin keeps its middle.
        form: ``"top-label"`` maps the confidence of the predicted class and keeps it;
            ``"one-vs-rest"`` maps the probability of every class, see `MapOfEitherForm`. With many
            classes equal-mass bins lose accuracy there, because the few rows of a class share one
            bin.
        prior_strength: s, in rows per bin. 0 is the map as published, which gives 1 for a bin
            without errors; a later error there has an infinite log loss. In the one-vs-rest form s
            is a quarter of it, because bins differ more: most have almost only rows of the class,
            or almost none. There m is about the share of rows of the class.

    Attributes:
        edges_: (B + 1,) edges of the bins (lo, hi]; values_: (B,) the map on them.

    References:
        Zadrozny & Elkan, ICML 2001.

    Examples:
        >>> import calibrant as cb
        >>> import numpy as np
        >>> logits = np.log([[0.9, 0.1]] * 999)  # says 90 %
        >>> binning = cb.posthoc.HistogramBinning().fit(logits, [0] * 666 + [1] * 333)
        >>> binning.predict_confidence(logits[:1])[1].round(2)  # 2 of 3 were right
        array([0.67])
    """

    method: ClassVar[str] = "histogram"
    facts: ClassVar[Facts | None] = Facts(
        "histogram binning",
        CONFIDENCE,
        SORT,
        "ranking: all rows of a bin get one confidence, which costs likelihood and AURC",
    )
    weighs: ClassVar[bool] = True

    n_bins: int = argument(15, at_least=1)
    strategy: Strategy = argument("quantile", choices=get_args(Strategy))

    edges_: FloatArray = learnt("e")
    values_: FloatArray = learnt("v", at_least=0, at_most=1)

    @property
    def levels(self) -> int:
        """Number of bins."""
        return len(self.values_)

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        self.edges_ = (
            bin_edges(self.n_bins)
            if self.strategy == "uniform"
            else equal_mass_edges(confidence, self.n_bins, weights)
        )
        index = bin_index(confidence, self.edges_)
        count = np.bincount(index, weights, len(self.edges_) - 1)
        hits = np.bincount(index, times(correct, weights), len(count))
        middle = (self.edges_[:-1] + self.edges_[1:]) / 2
        value = np.where(count > 0, hits / np.where(count > 0, count, 1), middle)
        self.values_ = shrunk(value, count, self.prior_strength, self.n_classes_)
        loss = mean((self.values_[index] - correct) ** 2, weights)
        return FitReport(len(confidence), "closed form", loss)

    def shape(self) -> Steps:
        """Return the values of the bins."""
        return Steps(self.edges_[1:-1], self.values_)


def equal_mass_edges(
    confidence: FloatArray, n_bins: int, weights: FloatArray | None = None
) -> FloatArray:
    """Return edges from 0 to 1 that cut sorted confidences into equally filled bins.

    Cuts lie midway between neighbours; one that would part equal confidences is dropped, and so is
    one through a row whose weight lies on both sides.
    """
    if weights is None:
        cuts = equal_mass_cuts(len(confidence), min(n_bins, len(confidence)))[1:-1]
        below, above = confidence[cuts - 1], confidence[cuts]
    else:
        reached = np.cumsum(weights)
        every = reached[-1:]
        cuts = mass_cuts(every, min(n_bins, max(int(every[0]), 1)))[1:-1]
        last = len(confidence) - 1
        below = confidence[np.minimum(np.searchsorted(reached, cuts, side="left"), last)]
        above = confidence[np.minimum(np.searchsorted(reached, cuts, side="right"), last)]
    inner = ((below + above) / 2)[below < above]
    return np.concatenate([[0.0], np.unique(inner), [1.0]])


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
        ...     likeliest = cb.posthoc.BayesianBinning().fit_predictions(rows).bins_[0]
        ...     print(likeliest)
        3
        14
    """

    method: ClassVar[str] = "bbq"
    facts: ClassVar[Facts | None] = Facts(
        "Bayesian binning",
        CONFIDENCE,
        SORT,
        "as histogram, more smoothly; few rows leave few bins",
    )

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
            mean += weight * model.values[bin_index(upper, model.edges)]
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


# Beyond these odds float32 confidences no longer say what the odds are.
NEAREST_TO_CERTAIN = 1e-6
# Holds the slope near 1 where the rows don't determine it, in units of one row at even odds.
RIDGE = 1e-3


@dataclass(eq=False)
class ScalingBinning(ConfidenceMap):
    """Platt scaling; each bin then gives its mean confidence instead of its accuracy.

    First g(c) = sigmoid(slope * logit(c) + offset) is fitted to the correctness by likelihood, with
    c kept within 1e-6 of certainty and with Platt's targets (h + 1) / (h + 2) and 1 / (w + 2) for h
    right and w wrong rows, which keep the fit finite where all rows are right. Then rows are cut
    into equal-mass bins, and the map on a bin is the mean of g over its rows: less noisy than the
    mean outcome, and still a step function, so that its calibration error can be measured. Like g,
    it can't follow anything but a sigmoid in the log odds.

    These steps aren't a `Chain`: a chain passes on whole rows of probabilities, in which the
    predicted class can't have less than the others, while g may give .3 with two classes. The bins
    average g as it is, without labels.

    Args:
        n_bins: number of bins; fewer are used where rows or distinct confidences are fewer.
        split: ``"none"`` uses all rows for all three steps, as the authors' code does;
            ``"thirds"`` a third for each, as the paper's theorem asks: every third row in the order
            of confidence. A bin without rows of its own then takes g at its middle.

    Attributes:
        slope_, offset_: of g. edges_: (B + 1,) edges of the bins (lo, hi]. values_: (B,) the map.

    References:
        Kumar, Liang, Ma: Verified Uncertainty Calibration. NeurIPS 2019.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> scaling = cb.posthoc.ScalingBinning(n_bins=5).fit_predictions(val)
        >>> len(set(scaling.predict_confidence(test.logits)[1]))  # a step for each bin
        5
    """

    method: ClassVar[str] = "scaling-binning"
    facts: ClassVar[Facts | None] = Facts(
        "scaling-binning",
        CONFIDENCE,
        SORT,
        "where Platt's curve doesn't fit: the bins don't correct its error",
    )
    weighs: ClassVar[bool] = True

    n_bins: int = argument(15, at_least=1)
    split: Literal["none", "thirds"] = argument("none", choices=("none", "thirds"))

    slope_: float = learnt()
    offset_: float = learnt()
    edges_: FloatArray = learnt("b+1")
    values_: FloatArray = learnt("b", at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """Number of bins and two of the sigmoid."""
        return len(self.values_) + 2

    def _fit_map(
        self, confidence: FloatArray, correct: FloatArray, weights: FloatArray | None = None
    ) -> FitReport:
        n = len(confidence)
        # Equal confidences are sorted by outcome: the thirds don't depend on the order of rows.
        order = np.lexsort((correct, confidence))
        confidence, correct = confidence[order], correct[order]
        weights = np.ones(n) if weights is None else weights[order]
        unweighted = bool((weights == 1).all())
        parted = self.split == "thirds" and n >= 3
        parts = [slice(i, None, 3) for i in range(3)] if parted else [slice(None)] * 3
        fit = fit_sigmoid(
            logit(confidence[parts[0]], NEAREST_TO_CERTAIN), correct[parts[0]], weights[parts[0]]
        )
        self.slope_, self.offset_ = fit.place.tolist()
        second = None if unweighted else weights[parts[1]]
        self.edges_ = equal_mass_edges(confidence[parts[1]], self.n_bins, second)
        averaged, counted = confidence[parts[2]], weights[parts[2]]
        index = bin_index(averaged, self.edges_)
        count = np.bincount(index, counted, len(self.edges_) - 1)
        total = np.bincount(index, self.scale(averaged) * counted, len(count))
        middle = self.scale((self.edges_[:-1] + self.edges_[1:]) / 2)
        value = np.where(count > 0, total / np.where(count > 0, count, 1), middle)
        self.values_ = mixed_with_uniform(value, float(weights.sum()), self.n_classes_)
        loss = mean((self.map_confidence(confidence) - correct) ** 2, weights)
        return FitReport(n, "nll of the sigmoid", loss, fit.steps, fit.converged)

    def scale(self, confidence: FloatArray) -> FloatArray:
        """Return g of (N,) confidences, what the bins average."""
        return sigmoid(self.slope_ * logit(confidence, NEAREST_TO_CERTAIN) + self.offset_)

    def shape(self) -> Steps:
        """Return the values of the bins."""
        return Steps(self.edges_[1:-1], self.values_)


def fit_sigmoid(x: FloatArray, correct: FloatArray, weights: FloatArray) -> Minimum:
    """Return slope and offset of Platt's logistic regression, the slope held near 1."""
    target = smoothed_targets(correct, weights)
    design = np.stack([x, np.ones_like(x)], axis=1)
    ridge, start = np.array([RIDGE, 0.0]), np.array([1.0, 0.0])
    return least_log_loss(design, target, weights, ridge, start)[0]
