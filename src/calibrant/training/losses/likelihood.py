"""Losses of the likelihood of a row's target: cross-entropy, its closest kin, the focal family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from calibrant.core.arguments import argument, within
from calibrant.core.errors import InputError
from calibrant.training.losses.base import CalibrationLoss, LossName, Rows, own_loss
from calibrant.training.losses.collectives import world_size


@dataclass(eq=False, repr=False)
class CrossEntropy(CalibrationLoss):
    """Minus the log probability of the target: -log p_y."""

    takes_soft = True
    fails = (
        "a network that fits its training rows lowers it further by making confidences "
        "larger, also where it is wrong on new rows"
    )
    names = (LossName("cross-entropy", "minus log probability of the target"),)

    def _row_losses(self, rows: Rows) -> Tensor:
        return rows.cross_entropy


@dataclass(eq=False, repr=False)
class BrierLoss(CalibrationLoss):
    """Sum over classes of (p_k - 1[k = y])^2, between 0 and 2 (Brier 1950).

    Of a soft target q that is sum_k p_k^2 - 2 sum_k q_k p_k + 1.

    Its gradient is bounded and vanishes for rows that are wrong with certainty, so it trains slower
    than cross-entropy; published recipes give it more epochs.
    """

    takes_soft = True
    fails = (
        "its gradient vanishes at rows that are wrong with a confidence near 1, so that these "
        "are hardly corrected"
    )
    names = (
        LossName(
            "brier",
            "squared distance of probabilities and one-hot label, summed over classes",
            "Brier 1950",
        ),
    )

    def _row_losses(self, rows: Rows) -> Tensor:
        probs = rows.log_probs.exp()
        if rows.soft is not None:
            return (probs * (probs - 2 * rows.soft)).sum(1) + 1
        return (probs - one_hot(rows.target, probs.shape[1])).square().sum(1)


@dataclass(eq=False, repr=False)
class LabelSmoothing(CalibrationLoss):
    """Cross-entropy with smoothed labels: (1 - alpha) CE + alpha E, E = -mean_k log p_k.

    Each class gets alpha / K, the true one too (Szegedy et al. 2016; Mueller et al. 2019). Some
    code gives alpha / (K - 1) to the other classes only: that is alpha K / (K - 1) here.

    Args:
        alpha: share of the label spread over the classes, in [0, 1]. 0.05 in most calibration
            papers, 0.1 for CIFAR-100 in FeDLaS.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    takes_soft = True
    fails = (
        "it lowers confidences where labels are certain too: its best confidence is 1 - alpha "
        "(K - 1) / K. It is infinite for classes masked by -inf"
    )
    names = (
        LossName(
            "label-smoothing",
            "a share alpha of the label spread over all classes",
            "Szegedy et al. 2016",
            published={"cifar100": {"alpha": 0.1}},
        ),
    )

    alpha: float = argument(0.05, at_least=0, at_most=1)

    def _row_losses(self, rows: Rows) -> Tensor:
        if rows.soft is None:  # torch's own takes fewer passes over the classes
            return cross_entropy(
                rows.logits, rows.target, reduction="none", label_smoothing=self.alpha
            )
        uniform = -rows.log_probs.mean(1)
        return (1 - self.alpha) * rows.cross_entropy + self.alpha * uniform


@dataclass(eq=False, repr=False)
class ConfidencePenalty(CalibrationLoss):
    """Cross-entropy minus beta times the entropy H(p) (Pereyra et al. 2017; "ECP").

    Args:
        beta: weight of the entropy; 0.1 in the paper and its descendants.
        legacy_class_mean: average -p_k log p_k over the classes instead of summing it, as widely
            copied code does: beta is K times weaker then. Off, since the paper sums.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    takes_soft = True
    fails = (
        "it lowers the confidence of all rows by one strength, whether they are overconfident "
        "or not"
    )
    names = (
        LossName(
            "confidence-penalty", "cross-entropy minus beta times entropy", "Pereyra et al. 2017"
        ),
    )

    beta: float = argument(0.1, at_least=0)
    legacy_class_mean: bool = False

    def _row_losses(self, rows: Rows) -> Tensor:
        # A masked class has probability 0 and log probability -inf; its share of the entropy is 0.
        possible = rows.log_probs > -float("inf")
        logs = rows.log_probs.masked_fill(~possible, 0)
        terms = -(rows.log_probs.exp() * logs)
        entropy = terms.mean(1) if self.legacy_class_mean else terms.sum(1)
        return rows.cross_entropy - self.beta * entropy


# Below this 1 - p the derivative of (1 - p)^gamma with gamma < 1 would overflow.
_SMALLEST_REST = 1e-12


def rest(log_prob: Tensor) -> Tensor:
    """Return 1 - p of log p, exact where p is close to 1."""
    return -torch.expm1(log_prob)


@dataclass(eq=False, repr=False)
class Focal(CalibrationLoss):
    """(1 - p_y)^gamma times cross-entropy (Lin et al. 2017; Mukhoti et al. 2020).

    The gradient flows through the weight too.

    Args:
        gamma: exponent, 0 is cross-entropy; or a schedule {epoch: gamma}, each holding from its
            epoch, counted from 0, on. The published one on CIFAR is {0: 5, 100: 3, 250: 1}. A
            schedule needs `start_epoch` to be called.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.

    Attributes:
        gamma: the exponent in use.
    """

    takes_soft = True
    fails = (
        "its minimum isn't the true probability: for gamma above 0 it makes confidences "
        "smaller than that"
    )
    names = (
        LossName(
            "focal",
            "(1 - p)^gamma times cross-entropy",
            "Lin et al. 2017, Mukhoti et al. 2020",
        ),
        LossName(
            "scheduled-focal",
            "the same, gamma by epoch (`start_epoch`)",
            "Mukhoti et al. 2020",
            {"gamma": {0: 5.0, 100: 3.0, 250: 1.0}},
            {"tiny-imagenet": {"gamma": {0: 5.0, 30: 3.0, 70: 1.0}}},
        ),
    )

    gamma: float | Mapping[int, float] = 3.0

    def __post_init__(self) -> None:
        steps = self.gamma if isinstance(self.gamma, Mapping) else {0: self.gamma}
        if 0 not in steps:
            raise InputError("a schedule of gamma must say what holds from epoch 0")
        self.schedule = {
            int(within("epoch of gamma", epoch, whole=True, at_least=0)): float(
                within("gamma", steps[epoch], at_least=0)
            )
            for epoch in sorted(steps)
        }
        self.gamma = self.schedule[0]
        super().__post_init__()
        if len(self.schedule) > 1:
            self.needs = frozenset({"epochs"})

    def start_epoch(self, epoch: int) -> None:
        """Take the gamma of the schedule that holds in `epoch`, counted from 0."""
        super().start_epoch(epoch)
        self.gamma = [gamma for start, gamma in self.schedule.items() if start <= epoch][-1]

    def _row_losses(self, rows: Rows) -> Tensor:
        gamma = cast(float, self.gamma)
        if self.needs:
            self._expect_epochs("", f"it stays at gamma {gamma:g}")
        return rows.expected(lambda log: -(rest(log).clamp_min(_SMALLEST_REST) ** gamma) * log)


@dataclass(eq=False, repr=False)
class FLSD(CalibrationLoss):
    """Focal loss whose gamma depends on the row's p_y (Mukhoti et al. 2020; "FLSD-53").

    gamma is a constant to the gradient.

    Args:
        boundaries: increasing p_y at which the next gamma begins.
        gammas: one more than boundaries. FLSD-53 is the default; FLSD-52 is (5, 3, 2).
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    takes_soft = True
    fails = (
        "its minimum isn't the true probability, as that of `focal`, and its value jumps "
        "where p_y crosses a boundary"
    )
    names = (LossName("flsd", 'focal, gamma by the row\'s p ("FLSD-53")', "Mukhoti et al. 2020"),)

    boundaries: Sequence[float] = (0.2, 0.5)
    gammas: Sequence[float] = (5.0, 3.0, 3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("boundaries", self.boundaries), ("gammas", self.gammas)):
            if not isinstance(values, (list, tuple)):
                raise InputError(f"{name} must be several numbers, not {values!r}")
        self.boundaries = tuple(
            float(within("boundary", edge, above=0, at_most=1)) for edge in self.boundaries
        )
        self.gammas = tuple(float(within("gamma", gamma, at_least=0)) for gamma in self.gammas)
        increasing = sorted(self.boundaries) == list(self.boundaries)
        if len(self.gammas) != len(self.boundaries) + 1 or not increasing:
            raise InputError(
                "boundaries must increase and gammas must be one more, "
                f"not {self.boundaries} and {self.gammas}"
            )

    def _row_losses(self, rows: Rows) -> Tensor:
        return rows.expected(self._of_label)

    def _of_label(self, log_prob: Tensor) -> Tensor:
        likely = log_prob.detach().exp()
        gamma = torch.full_like(likely, self.gammas[0])
        for edge, exponent in zip(self.boundaries, self.gammas[1:], strict=True):
            gamma = gamma.masked_fill(likely >= edge, exponent)
        return -(rest(log_prob).clamp_min(_SMALLEST_REST) ** gamma) * log_prob


@dataclass(eq=False, repr=False)
class DualFocal(CalibrationLoss):
    """(1 - p_y + p_j)^gamma times cross-entropy, p_j the next below p_y (Tao et al. 2023).

    p_j is the largest probability strictly below p_y, 0 if none is. Gradients flow through both.

    Args:
        gamma: exponent, 0 is cross-entropy. The authors take 5 on CIFAR-10 and 3 on 20 Newsgroups
            and cross-validate elsewhere; the 0 that their code starts from is never meant.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    fails = "its minimum isn't the true probability, as that of `focal`"
    names = (
        LossName(
            "dual-focal", "(1 - p + next smaller p)^gamma times cross-entropy", "Tao et al. 2023"
        ),
    )

    gamma: float = argument(5.0, at_least=0)

    def _row_losses(self, rows: Rows) -> Tensor:
        below = rows.log_probs < rows.true_log_prob[:, None]
        next_smaller = rows.log_probs.exp().masked_fill(~below, 0).max(1).values
        base = (rest(rows.true_log_prob) + next_smaller).clamp_min(_SMALLEST_REST)
        return base**self.gamma * rows.cross_entropy


def focal_gamma(probability: float) -> float:
    """Return the gamma at which focal loss pulls a row of that p_y as hard as cross-entropy does.

    Solves (1 - p)^gamma - gamma p (1 - p)^(gamma - 1) log p = 1 for gamma > 0 by Lambert's W; rows
    less likely are pulled harder, the others less (Mukhoti et al. 2020). There is none
    from p = 1/2 on.

    Raises:
        InputError: `probability` isn't between 0 and 1/2.
    """
    from math import exp, log, log1p

    from scipy.special import lambertw

    p: float = within("probability", probability, above=0)
    if p >= 0.5:
        raise InputError(f"probability must lie below 1/2, where a gamma exists, not {p}")
    # exp(a g) (1 + b g) = 1; besides g = 0 the other real branch of W solves it.
    a, b = log1p(-p), -p * log(p) / (1 - p)
    other: Any = lambertw(a / b * exp(a / b), k=-1)
    return float(other.real / a - 1 / b)


@dataclass(eq=False, repr=False)
class AdaFocal(CalibrationLoss):
    """Focal loss with a gamma per bin, moved by validation calibration (Ghosh et al. 2022).

    A row takes the gamma of the bin of its p_y: (1 - p_y)^gamma CE for gamma >= 0, and the
    "inverse" (1 + p_y)^|gamma| CE below, where the bin is underconfident. After each epoch call
    `update_from_validation`: bins become equal-mass bins of validation confidence, and with the
    gap E_b = mean confidence - accuracy of bin b

        gamma_b <- gamma_b exp(rate E_b)  if gamma_b > 0, else  gamma_b exp(-rate E_b),

    then |gamma_b| < switch jumps to the other sign at magnitude `switch`, and gamma_b is clipped.
    The bins are of top-label confidence but looked up by p_y, as in the paper. The validation rows
    are used up by this: don't also report on them.

    Args:
        n_bins: number of bins.
        rate: lambda of the update.
        gamma_min: lower limit of gamma.
        gamma_max: upper limit of gamma.
        switch: magnitude below which gamma changes sign.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.

    Attributes:
        edges: (bins + 1,) buffer. gammas: (bins,) buffer. Equal widths and 1 at first.
    """

    takes_soft = True
    fails = (
        "it needs validation rows in training, which can't be reported on afterwards; few of "
        "them give noisy gammas"
    )
    names = (
        LossName(
            "adafocal", "focal, gamma by bin, moved by validation calibration", "Ghosh et al. 2022"
        ),
    )
    state = "bins, gammas"
    distributed = "row; bins of process 0"
    needs = frozenset({"validation"})

    n_bins: int = argument(15, at_least=1)
    rate: float = argument(1.0, at_least=0)
    gamma_min: float = argument(-2.0, at_most=0)
    gamma_max: float = argument(20.0, above=0)
    switch: float = argument(0.2, at_least=0)

    edges: Tensor = field(init=False)
    gammas: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("edges", torch.linspace(0, 1, self.n_bins + 1))
        self.register_buffer("gammas", torch.ones(self.n_bins))

    def _row_losses(self, rows: Rows) -> Tensor:
        self._expect_epochs(
            "loss.update_from_validation(logits, target)", "its gammas stay as they are"
        )
        return rows.expected(self._of_label)

    def _of_label(self, log_prob: Tensor) -> Tensor:
        likely = log_prob.exp()
        inner = self.edges[1:-1].to(likely.dtype)
        band = torch.bucketize(likely.detach(), inner, right=True)
        gamma = self.gammas.to(likely.dtype)[band]
        base = torch.where(gamma >= 0, rest(log_prob), 1 + likely).clamp_min(1e-12)
        return -(base ** gamma.abs()) * log_prob

    @torch.no_grad()
    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Move bins and gammas by how far off the network is on held-out rows.

        In a distributed run all processes call it; the outcome of process 0, which therefore needs
        the whole validation set, is taken by all.

        Args:
            logits: (N, K) or (N, K, ...) of the validation set, network in eval mode.
            target: (N,) or (N, ...).

        Raises:
            InputError: no row that counts, logits that are no numbers, or shapes that don't fit.
        """
        self._ended = True
        rows = self._rows(logits, target, None)
        # On the host: once an epoch, and not every accelerator has float64.
        confidence = rows.confidence[rows.valid].cpu().double()
        correct = rows.correct[rows.valid].cpu().double()
        if not len(confidence):
            raise InputError("the validation set of AdaFocal has no row that counts")
        if confidence.isnan().any():
            raise InputError("the validation logits of AdaFocal must be numbers, but some are NaN")
        edges = _equal_mass_edges(confidence, self.n_bins)
        # Bins are (lo, hi]; the smallest confidence, equal to the first edge, is in none.
        band = torch.bucketize(confidence, edges) - 1
        inside = band >= 0
        gaps = torch.zeros(self.n_bins, dtype=torch.float64)
        sizes = gaps.clone()
        gaps.index_add_(0, band[inside], (confidence - correct)[inside])
        sizes.index_add_(0, band[inside], torch.ones_like(confidence)[inside])
        gamma = self.gammas.cpu().double()
        gamma = gamma * torch.exp(gamma.sign() * self.rate * gaps / sizes.clamp_min(1))
        jump = self.switch * torch.where(gamma > 0, -torch.ones_like(gamma), 1)
        gamma = torch.where(gamma.abs() < self.switch, jump, gamma)
        self.gammas.copy_(gamma.clamp(self.gamma_min, self.gamma_max))
        self.edges.copy_(edges)
        if world_size() > 1:
            dist.broadcast(self.gammas, 0)
            dist.broadcast(self.edges, 0)


def _equal_mass_edges(confidence: Tensor, n_bins: int) -> Tensor:
    """Return (bins + 1,) edges between sorted confidences, interpolated at equal ranks."""
    ordered = confidence.sort().values
    last = len(ordered) - 1
    rank = torch.linspace(0, len(ordered), n_bins + 1, dtype=torch.float64)
    rank = rank.clamp_max(last)
    low = rank.floor().long()
    high = (low + 1).clamp_max(last)
    return torch.lerp(ordered[low], ordered[high], rank - low)


@dataclass(eq=False, repr=False)
class ManyLabels(CalibrationLoss):
    """Every label of every row as a classification of its own, into no and yes.

    A label with logit z has the two logits (0, z), so its probability is sigmoid(z), and the loss
    is that of `base` with K = 2: of `CrossEntropy` binary cross-entropy, of `Focal` the focal loss
    of object detectors. "mean" is over all labels of all rows. Logits (N,) are those of a binary
    classifier with a single logit.

    Args:
        base: a loss of rows, cross-entropy by default; `FeDLaS` with ``n_classes=2``. Its own
            reduction, ignore_index and class weights aren't used.
        reduction, ignore_index: see `CalibrationLoss`.
        class_weights: what a no and a yes count; ``(1, w)`` is torch's ``pos_weight=w`` but for the
            mean, which divides by the sum of the weights.

    Raises:
        InputError: `base` compares rows, such as `MMCE`.

    Examples:
        >>> import torch
        >>> from calibrant.training.losses import ManyLabels
        >>> logits, target = torch.tensor([[0.0, 9.0]]), torch.tensor([[1, -100]])
        >>> ManyLabels()(logits, target)  # log 2, and a label that nobody knows
        tensor(0.6931)
    """

    takes_soft = True
    _: KW_ONLY
    # By factory, since nothing of a module's name may lie on the class.
    base: CalibrationLoss = field(default_factory=CrossEntropy)

    def __post_init__(self) -> None:
        super().__post_init__()
        base = own_loss(self.base, "ManyLabels")
        if not base.per_sample:
            raise InputError(
                f"{type(base).__name__} compares rows; ManyLabels takes a loss of single rows"
            )
        self.needs, self.accumulation_steps = base.needs, base.accumulation_steps

    def forward(self, logits: Tensor, target: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            logits: (N, L), (N, L, ...) or (N,), one for each label.
            target: of that shape: 0, 1 or `ignore_index` in whole numbers, or probabilities.
            features: (N, D), for a base whose `needs` has "features".

        Raises:
            InputError: shapes that don't fit, or targets that are neither.
        """
        logits = _of_one_label(logits, target)
        if logits.shape != target.shape or logits.ndim == 0:
            raise InputError(
                "logits and target of many labels must both be (N, L), (N, L, ...) or (N,), not "
                f"{tuple(logits.shape)} and {tuple(target.shape)}"
            )
        if features is not None and features.ndim == 2:
            labels = logits.shape[1:]
            features = features.reshape(*features.shape, *(1 for _ in labels))
            features = features.expand(-1, -1, *labels)
        return super().forward(_no_and_yes(logits), _of_both(target), features)

    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Give the base loss the outputs for held-out rows, shaped as in `forward`."""
        if target.is_floating_point():
            target = target.round()
        logits = _of_one_label(logits, target)
        self.base.update_from_validation(_no_and_yes(logits), target.long())

    def _row_losses(self, rows: Rows) -> Tensor:
        return self.base._over_labels(rows)


def _of_one_label(logits: Tensor, target: Tensor) -> Tensor:
    """Return logits, those of a single label (N, 1) beside target (N,) as (N,)."""
    one = logits.ndim == 2 and logits.shape[1] == 1 and target.ndim == 1
    return logits[:, 0] if one else logits


def _no_and_yes(logits: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(logits), logits], 1)


def _of_both(target: Tensor) -> Tensor:
    """Return classes as they are, and probabilities of yes as those of no and yes."""
    if target.is_floating_point():
        return torch.stack([1 - target, target], 1)
    return target.long() if target.dtype == torch.bool else target
