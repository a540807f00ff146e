"""Penalties on the distances between the logits of a row, and sums over all pairs of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import isqrt, log
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus, softshrink

from calibrant.core.arguments import argument
from calibrant.core.errors import InputError
from calibrant.training.losses.base import DATA_SETS, CalibrationLoss, LossName, Rows

# Up to so many classes their pairs are made one by one.
_FEW_CLASSES = 32
# Points of the grid that share a float32 logit, and their distance: sums are exact to 1e-6. Many
# classes cost more than many points of the grid do.
_MANY_CLASSES = 4000
_GRIDS = ((6, 0.25), (4, 0.07))
_MOST_CELLS = 1024
# log(1 + x) as a polynomial in x from 0 to 1; its derivative too is exact to about 1e-8 and 1e-13.
_TERMS = {torch.float32: 10, torch.float64: 20}


@cache
def _coefficients(terms: int) -> tuple[float, ...]:
    """Return c_1, c_2, ... with log(1 + x) = sum_m c_m x^m for x in [0, 1], nearly."""
    series = np.polynomial.Chebyshev.interpolate(
        lambda x: np.log1p(x) / x, terms - 1, domain=[0.0, 1.0]
    )
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef.tolist())


def pair_sum(logits: Tensor) -> Tensor:
    """Return (M,) the sum over ordered pairs of classes of log(1 + exp(z_k - z_j)), j = k included.

    Work and memory grow with K (sorting aside) instead of K^2 beyond some 30 classes: float32
    logits are spread on a grid, whose few points stand for them (`_by_grid`); others are sorted
    (`_by_decays`). The gradient is made along with the value; it has no gradient of its own.

    Args:
        logits: (M, K) float32 or float64.
    """
    return with_gradient(logits, *pair_sum_and_gradient(logits.detach()))


def with_gradient(logits: Tensor, values: Tensor, gradient: Tensor, mean: bool = False) -> Tensor:
    """Return (M,) values, or () their mean, whose gradient by the logits (M, K) is known.

    Args:
        logits: (M, K).
        values: (M,).
        gradient: (M, K) each row's value by its logits.
        mean: whether to return the mean.
    """
    if _by_itself(logits):
        return cast(Any, _Given).apply(logits, values, gradient, mean)
    slope = (gradient * logits).sum(1)
    values = slope - slope.detach() + values
    return values.mean() if mean else values


@dataclass(eq=False, repr=False)
class MadeAtOnce(CalibrationLoss):
    """A loss of rows whose gradient is made along with its value, in few passes over the classes.

    Automatic differentiation would take a dozen small steps, each as long as these sums.

    Attributes:
        at_once: logits whose losses are made at once: of more, memory would be given back and asked
            for at each batch.
    """

    at_once: ClassVar[int] = 3 << 16

    def _row_losses(self, rows: Rows) -> Tensor:
        return with_gradient(rows.logits, *self._in_parts(rows))

    def _of_rows(self, rows: Rows, shape: torch.Size) -> Tensor:
        soft = rows.soft is not None and not self.takes_soft
        if self.reduction != "mean" or not rows.whole or soft or self.class_weights is not None:
            return super()._of_rows(rows, shape)
        return with_gradient(rows.logits, *self._in_parts(rows), mean=True)

    def _in_parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return losses and gradient, of as many rows at a time as a processor's cache takes."""
        logits = rows.logits
        step = max(1, self.at_once // logits.shape[1])
        if len(logits) <= step or not on_host(logits):
            return self._with_cross_entropy(rows)
        values, gradient = logits.new_empty(len(logits)), torch.empty_like(logits)
        for start in range(0, len(logits), step):
            at = slice(start, start + step)
            values[at], gradient[at] = self._with_cross_entropy(rows.part(at))
        return values, gradient

    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) losses and their (M, K) gradient."""
        raise NotImplementedError


def _by_itself(logits: Tensor) -> bool:
    """Whether a tensor is plain: neither compiled nor within a transform such as vmap."""
    if torch.compiler.is_compiling():
        return False
    return not cast(Any, torch)._C._functorch.is_functorch_wrapped_tensor(logits)


class _Given(torch.autograd.Function):
    """Values with a gradient that is known: one node of the graph, and refused if asked twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, gradient: Tensor, mean: bool) -> Tensor:
        ctx.save_for_backward(logits, gradient)
        return values.mean() if mean else values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore
        logits, gradient = ctx.saved_tensors
        (outer,) = grad_outputs
        outer = outer[:, None] if outer.ndim else outer / len(logits)
        gradient = gradient * outer
        if torch.is_grad_enabled():  # It may be differentiated again.
            gradient = cast(Any, _Once).apply(logits, gradient)
        return gradient, None, None, None


class _Once(torch.autograd.Function):
    """A gradient that depends on the logits in a way that nobody has computed."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise InputError(
            "the gradient of this loss is made along with its value and can't be differentiated "
            "again, as penalties on gradients want; take cross-entropy or label-smoothing there"
        )


@torch.no_grad()
def pair_sum_and_gradient(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (M,) sums of `pair_sum` and their (M, K) gradients."""
    classes = logits.shape[1]
    if classes <= _FEW_CLASSES:
        apart = logits[:, :, None] - logits[:, None, :]
        return softplus(apart).sum((1, 2)), apart.sigmoid_().sum(2).mul_(2).sub_(classes)
    if logits.dtype == torch.float32 and on_host(logits):
        sharing, step = _GRIDS[classes >= _MANY_CLASSES]
        down = (logits.amax(1, keepdim=True) - logits).div_(step)
        # A logit that isn't finite fails the test, too.
        if (last := float(down.max())) < _MOST_CELLS:
            # Rounded up, so that batches share tables of distances.
            round_to = 1 << max(4, int(last).bit_length() - 3)
            return _by_grid(down, (int(last) // round_to + 1) * round_to, sharing, step)
    return _by_decays(logits)


def on_host(logits: Tensor) -> bool:
    """Whether values can be looked at without waiting, and by NumPy."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or not logits.numel():
        return False
    try:
        logits.detach().numpy()
    except RuntimeError:  # Within vmap there are no values.
        return False
    return True


def _by_grid(down: Tensor, cells: int, sharing: int, step: float) -> tuple[Tensor, Tensor]:
    """Return sums and gradients of logits that are spread on a grid.

    Points around a logit share it by the weights of polynomial interpolation, and it takes its
    share of what is found for them. Two orders of a pair with distance d add up to
    2 log(2 cosh(d / 2)), and push it apart with tanh(d / 2).

    Args:
        down: (M, K) steps of the grid down from the largest logit.
        cells: how many hold them.
        sharing: how many points share a logit.
        step: of the grid.
    """
    rows, classes = down.shape
    cell = down.long()
    powers = down.new_ones(sharing, rows, classes)
    torch.sub(down, cell, out=powers[1])
    for power in range(2, sharing):
        torch.mul(powers[power - 1], powers[1], out=powers[power])
    powers = powers.view(sharing, -1)
    cell = cell.add_(torch.arange(rows)[:, None], alpha=cells).view(-1)
    moments = down.new_zeros(sharing, rows * cells)
    moments.scatter_add_(1, cell.expand(sharing, -1), powers)
    points = cells + sharing - 1
    weights = _interpolation(sharing)
    # The share of each neighbour lies one point further: so do rows that are one number longer.
    shares = down.new_zeros(sharing, rows, points + 1)
    shifted = shares.as_strided((sharing, rows, cells), (rows * (points + 1) + 1, points + 1, 1))
    shifted.copy_((weights @ moments).view(sharing, rows, cells))
    mass = shares.sum(0)[:, :points]
    single, push = (mass @ _between(points, step)).chunk(2, 1)
    forces = push.unfold(1, cells, 1).transpose(0, 1).reshape(sharing, -1)
    slopes = (weights.T @ forces).index_select(1, cell).mul_(powers).sum(0)
    return (mass * single).sum(1), slopes.view(rows, classes)


@lru_cache(maxsize=8)
def _between(points: int, step: float) -> Tensor:
    """Return (P, 2 P) what points of a grid do to each other: log(2 cosh(d / 2)), tanh(d / 2)."""
    at = torch.arange(points, dtype=torch.float64).mul_(step / 2)
    half = at[:, None] - at
    single = half.abs().mul_(-2).exp_().log1p_().add_(half.abs())
    return torch.cat((single, half.tanh_()), 1).float()


@cache
def _interpolation(points: int) -> Tensor:
    """Return (P, P) weights of neighbouring points, as polynomials in the place between two."""
    place = np.arange(points) - (points // 2 - 1.0)
    return torch.tensor(np.linalg.inv(np.vander(place, increasing=True)).T, dtype=torch.float32)


def _by_decays(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums and gradients for logits of any range, on any device, in one compiled graph.

    The running sums decay from class to class; all exponents are negative.
    """
    rows, classes = logits.shape
    z, order = logits.sort(1, descending=True)
    gaps = z[:, :-1] - z[:, 1:]
    # (K - 1, 2 M): decay to the next class, downwards and upwards.
    step = torch.cat((gaps, gaps.flip(1))).neg().T.contiguous().exp()
    terms = _TERMS[z.dtype]
    coefficients = torch.tensor(_coefficients(terms), dtype=z.dtype, device=z.device)
    powers = torch.arange(1, terms + 1, dtype=z.dtype, device=z.device)
    # Over the classes above each, or below, the sum of log(1 + x) and that of x / (1 + x).
    weights = torch.stack((coefficients, coefficients * powers))
    running: Any = _running_sums(step, terms)
    sums = (weights @ running).unflatten(2, (2, rows)).permute(1, 2, 3, 0)
    logs, shares = cast(tuple[Tensor, Tensor], sums.unbind())
    none = shares.new_zeros(rows, 1)
    above = torch.cat((none, shares[0]), 1)
    below = torch.cat((shares[1].flip(1), none), 1)
    rank = torch.arange(classes, device=z.device)
    straddling = ((rank + 1) * (classes - 1 - rank))[:-1]
    # Pairs j = k give log 2 each.
    total = (gaps * straddling).sum(1) + 2 * logs[0].sum(1) + classes * log(2)
    slopes = classes - 1 - 2 * rank + 2 * (above - below)
    return total, torch.zeros_like(z).scatter(1, order, slopes)


def _running_sums(step: Tensor, terms: int) -> Tensor:
    """Return (L, terms, W) s with s_i = d_i (1 + s_(i-1)), d the powers 1, 2, ... of step (L, W).

    In blocks: all of them side by side, then what the end of one brings to the next.
    """
    length, width = step.shape
    block = max(1, isqrt(length))
    count = -(-length // block)
    decay = step.new_zeros(count * block, terms, width)
    decay[:length, 0] = step
    for power in range(1, terms):
        decay[:length, power] = decay[:length, power - 1] * step
    decay = decay.view(count, block, terms, width)
    sums = decay.clone()
    for i in range(1, block):
        sums[:, i] += decay[:, i] * sums[:, i - 1]
        decay[:, i] *= decay[:, i - 1]
    for i in range(1, count):
        sums[i] += decay[i] * sums[i - 1, -1]
    return sums.flatten(0, 1)[:length]


ClassReduction = Literal["mean", "sum"]


def margin_excess(logits: Tensor, margin: float, reduction: ClassReduction) -> Tensor:
    """Return (M,) mean or sum over classes of max(0, max z - z_k - margin)."""
    excess = (logits.amax(1, keepdim=True) - logits - margin).relu()
    return excess.mean(1) if reduction == "mean" else excess.sum(1)


@dataclass(eq=False, repr=False)
class MbLS(MadeAtOnce):
    """Margin-based label smoothing: CE + alpha R, R the gaps to the top logit above a margin.

    R = mean over classes of max(0, max z - z_k - margin) (Liu et al. 2022); the gradient flows into
    the top logit too, the first of several. It is made along with the value, and has no gradient of
    its own.

    Args:
        alpha: weight of R: 0.1 in the paper, 0.05 for Tiny-ImageNet in FeDLaS.
        margin: 6 on CIFAR, 10 on Tiny-ImageNet, ImageNet and fine-grained sets.
        class_reduction: "mean" over classes as in the authors' code, which the published alphas
            belong to, or "sum" as the formula is written elsewhere (divide alpha by K then).
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    takes_soft = True
    fails = (
        "one margin is for all rows: one that is too small lowers confidences that were "
        "right. It is infinite for classes masked by -inf"
    )
    names = (
        LossName(
            "mbls",
            "cross-entropy plus gaps to the top logit above a margin",
            "Liu et al. 2022",
            published={key: {"alpha": 0.05, "margin": 10.0} for key in DATA_SETS[2:]},
        ),
    )

    alpha: float = argument(0.1, at_least=0)
    margin: float = argument(6.0, at_least=0)
    class_reduction: ClassReduction = argument("mean", choices=get_args(ClassReduction))

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        values, gradient, gaps = rows.likelihood()
        weight = self.alpha / (gaps.shape[1] if self.class_reduction == "mean" else 1)
        excess = softshrink(gaps, self.margin)
        values.sub_(excess.sum(1), alpha=weight)
        forces = excess.sign_()  # the same on each class beyond the margin
        gradient.add_(forces, alpha=weight)
        force = forces.sum(1, keepdim=True).mul_(-weight)
        gradient.scatter_add_(1, _top_of(gaps)[:, None], force)
        return values, gradient


@dataclass(eq=False, repr=False)
class ACLS(MadeAtOnce):
    """Adaptive and conditional label smoothing (Park et al. 2023).

    CE + alpha [positive * max(0, z_max - margin)^2
    + negative / (K - 1) * sum over other k of max(0, z_max - z_k - margin)^2].

    The first square moves the top logit only, the second the others only (its z_max is a constant).
    Logits that tie for the top count as top each. The gradient is made along with the value, and
    has no gradient of its own.

    Args:
        alpha: weight of both squares.
        positive: weight of the square of the top logit.
        negative: weight of the squares of the others.
        margin: 6 on CIFAR, 10 on Tiny-ImageNet and ImageNet.
        reference: what the top logit is measured from. "raw" takes z_max itself, as the released
            code does that the published numbers come from; a constant added to all logits changes
            it. "min" takes z_max - min z with the smallest logit as a constant, which no shift
            changes.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    takes_soft = True
    fails = (
        "it measures the top logit itself by default (`reference`), so that a constant added "
        "to all logits changes it"
    )
    names = (
        LossName(
            "acls",
            "cross-entropy plus squared excess of the top logit and of the gaps",
            "Park et al. 2023",
            published={key: {"margin": 6.0} for key in DATA_SETS[:2]},
        ),
    )

    alpha: float = argument(0.1, at_least=0)
    positive: float = argument(1.0, at_least=0)
    negative: float = argument(0.1, at_least=0)
    margin: float = argument(10.0, at_least=0)
    reference: Literal["raw", "min"] = argument("raw", choices=("raw", "min"))

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        values, gradient, gaps = rows.likelihood()
        logits = rows.logits.detach()
        weight = self.alpha * self.negative / (logits.shape[1] - 1)
        excess = softshrink(gaps, self.margin)  # of the top itself there is none
        gradient.add_(excess, alpha=2 * weight)
        values.add_(excess.square_().sum(1), alpha=weight)
        floor = logits.amin(1, keepdim=True) if self.reference == "min" else 0.0
        peak = (logits.amax(1, keepdim=True) - floor - self.margin).relu_()
        weight = self.alpha * self.positive
        # By signs: comparing takes a processor many times as long.
        below = gaps.sign_()
        tops = below.sum(1, keepdim=True).add_(logits.shape[1])
        force = 2 * weight * peak
        gradient.add_(force).addcmul_(below, force)
        values.add_((tops * peak.square_())[:, 0], alpha=weight)
        return values, gradient


def _top_of(logits: Tensor) -> Tensor:
    """Return (M,) the class of the largest logit, the first of several."""
    # NumPy looks for it six times as fast as torch does on a processor.
    if on_host(logits):
        return cast(Any, torch).from_numpy(logits.numpy().argmax(1))
    return logits.argmax(1)


@dataclass(eq=False, repr=False)
class CPC(MadeAtOnce):
    """Pairwise constraints between logits (Cheng and Vasconcelos 2022).

    CE + discrimination * BDC + exclusion * BEC. BDC is the mean over j other than y of
    log(1 + exp(z_j - z_y)). BEC is 1 / ((K - 1)(K - 2)) times the sum over ordered pairs j, k other
    than y, j = k included, of log(1 + exp(z_k - z_j)) / 2: it pulls the wrong classes together.
    With two classes there is no BEC. Beyond 32 classes the pairs aren't made one by one
    (`pair_sum`): work and memory grow with N K log K.

    Args:
        discrimination: weight of BDC. 1 in the paper's code; 0.1 in BalCAL's comparison.
        exclusion: weight of BEC; 1 in both.
        reduction, ignore_index, class_weights: see `CalibrationLoss`.
    """

    fails = (
        "it bounds differences of logits, not confidences, and has no label of how sure a row "
        "should be; with two classes one of its terms is missing"
    )
    names = (
        LossName(
            "cpc",
            "cross-entropy plus pairwise constraints between logits; work N K log K",
            "Cheng and Vasconcelos 2022",
        ),
    )

    at_once: ClassVar[int] = 1 << 15  # each is several powers and shares

    discrimination: float = argument(1.0, at_least=0)
    exclusion: float = argument(1.0, at_least=0)

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) cross-entropy with both penalties, and its (M, K) gradient."""
        values, gradient, below = rows.likelihood()
        column, classes = rows.target[:, None], below.shape[1]
        gaps = below - below.gather(1, column)
        weight, each = self.discrimination / (classes - 1), 0.0
        if classes > 2:
            # All pairs but those with the true class, in both orders.
            each = self.exclusion / (2 * (classes - 1) * (classes - 2))
            weight -= 2 * each
            pairs, slopes = pair_sum_and_gradient(rows.logits.detach())
            gradient.add_(slopes.add_(1), alpha=each)
            values.add_(pairs.add_(gaps.sum(1)), alpha=each)
        # What the true class does to itself is no pair: log 2, and no force.
        values.add_(softplus(gaps).sum(1), alpha=weight).sub_((weight + each) * log(2))
        gradient.add_(gaps.sigmoid_(), alpha=weight)
        # A shift of all logits changes nothing: the forces of a row add up to 0.
        gradient.scatter_add_(1, column, gradient.sum(1, keepdim=True).neg_())
        return values, gradient
