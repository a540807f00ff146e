"""Penalties on the distances between the logits of a row, and sums over all pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, log
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.training.losses.base import DATA_SETS, CalibrationLoss, LossName, Rows


def _coefficients(terms: int) -> tuple[float, ...]:
    """Return c_1, c_2, ... with log(1 + x) = sum_m c_m x^m for x in [0, 1], nearly."""
    series = np.polynomial.Chebyshev.interpolate(
        lambda x: np.log1p(x) / x, terms - 1, domain=[0.0, 1.0]
    )
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef.tolist())


# By precision; with so many terms the derivative too is exact to about 1e-8 and 1e-13.
_COEFFICIENTS = {torch.float32: _coefficients(10), torch.float64: _coefficients(20)}
# Where sums of powers are taken as they are, fewer serve float32, of their own for log(1 + x) and
# for x / (1 + x): those with the smallest largest error, 2.1e-7 and 1.2e-6 (linear programmes).
_LOGS = (0.999981137, -0.499471772, 0.328242132, -0.225897814, 0.134674251, -0.055144999)
_SHARES = (0.999890921, -0.996904924, 0.969688073, -0.853356779, 0.589545982, -0.262729198)
_MANY = (*_LOGS, 0.010764458), (*_SHARES, 0.053867138)
# So many classes that an error in each pair is lost in what a loss's gradient makes of K^2 of them.
_MANY_CLASSES = 16
# exp of these is about the largest number, exp of minus these not yet the smallest.
_LARGEST_EXPONENT = {np.float32: 87.0, np.float64: 708.0}
# float32 has 23 bits behind the point, float64 has 52.
_FREE_BITS = (1 << 29) - 1
# Powers that are taken at once: few calls, and the numbers stay in a processor's cache.
_AT_ONCE = 3 << 16
# Logits whose losses are made at once: more, and memory is given back and asked for at each batch.
_LOGITS_AT_ONCE = 3 << 14


def pair_sum(logits: Tensor) -> Tensor:
    """Return (M,) the sum over ordered pairs of classes of log(1 + exp(z_k - z_j)), j = k included.

    Two orders of a pair with distance d = |z_k - z_j| add up to d + 2 log(1 + x), x = exp(-d). The
    distances are summed by rank. For x in [0, 1] the logarithm is a polynomial in x, and sums of
    x^m over the pairs of sorted logits are running sums. So work and memory grow with K (sorting
    aside) instead of K^2. The gradient takes the same running sums and is made along with the
    value; it has no gradient of its own.

    Args:
        logits: (M, K) float32 or float64.
    """
    return with_gradient(logits, *pair_sum_and_gradient(logits.detach()))


def with_gradient(logits: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
    """Return (M,) values whose gradient by the logits (M, K) is what it is said to be."""
    if _by_itself(logits):
        return cast(Any, _Given).apply(logits, values, gradient)
    slope = (gradient * logits).sum(1)
    return slope - slope.detach() + values


def made_at_once(rows: Rows, make: Callable[[Rows], tuple[Tensor, Tensor]]) -> Tensor:
    """Return the (M,) losses of rows, with their gradient made along with them.

    Args:
        rows: M of them; as many at a time as a processor's cache takes.
        make: gives losses and their gradient by the logits, of any of the rows.
    """
    logits = rows.logits
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])
    if len(logits) <= step or not on_host(logits):
        return with_gradient(logits, *make(rows))
    values, gradient = logits.new_empty(len(logits)), torch.empty_like(logits)
    for start in range(0, len(logits), step):
        at = slice(start, start + step)
        values[at], gradient[at] = make(rows.part(at))
    return with_gradient(logits, values, gradient)


def _by_itself(logits: Tensor) -> bool:
    """Whether a tensor is plain: neither compiled nor within a transform such as vmap."""
    if torch.compiler.is_compiling():
        return False
    return not cast(Any, torch)._C._functorch.is_functorch_wrapped_tensor(logits)


class _Given(torch.autograd.Function):
    """Values with a gradient that is known: one node of the graph, and refused if asked twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(logits, gradient)
        return values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:  # pyright: ignore
        logits, gradient = ctx.saved_tensors
        gradient = gradient * grad_outputs[0][:, None]
        if torch.is_grad_enabled():  # It may be differentiated again.
            gradient = cast(Any, _Once).apply(logits, gradient)
        return gradient, None, None


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
    if not on_host(logits):
        return _by_decays(logits)
    rows = max(1, _AT_ONCE // (2 * logits.shape[1] * len(_powers(logits)[0])))
    if len(logits) <= rows:
        return _by_powers(logits)
    parts = [_by_powers(logits[i : i + rows]) for i in range(0, len(logits), rows)]
    totals, gradients = zip(*parts, strict=True)
    return torch.cat(totals), torch.cat(gradients)


def on_host(logits: Tensor) -> bool:
    """Whether values can be looked at without waiting, and by NumPy."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or not logits.numel():
        return False
    try:
        logits.detach().numpy()
    except RuntimeError:  # Within vmap there are no values.
        return False
    return True


def _by_powers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums and gradients; the work of a few passes over the logits.

    Of sorted classes, sum_l<i exp(-m (z_i - z_l)) is exp(-m y_i) times the running sum of
    exp(m y_l), y the distance from the top. No difference is taken: nothing is lost. By NumPy but
    for the running sums, all powers at once: on small arrays it is calls that cost.
    """
    classes = logits.shape[1]
    down, order = _down_from_the_top(logits.numpy())
    logs, shares = _powers(logits)
    half = down[:, -1:] / 2
    # Sums of the largest power are to be finite; a logit that isn't finite fails the test, too.
    largest = half.max() * len(logs) + log(classes)
    if not largest < _LARGEST_EXPONENT[np.float64]:
        return _by_decays(logits)
    narrow = logits.dtype == torch.float32 and largest < _LARGEST_EXPONENT[np.float32]
    # Centred, for the largest range.
    centred = (down - half).astype(np.float32 if narrow else np.float64)
    log_sums, share_sums = _weighted_sums(np.exp(centred), logs, shares)
    rank = np.arange(1 - classes, classes, 2, dtype=np.float64)
    slopes = share_sums[:, :, 0] - share_sums[:, ::-1, 1]
    slopes *= 2
    slopes -= rank.astype(slopes.dtype)
    # The distances of all pairs, those of their logarithms, and log 2 for each pair j = k.
    total = down @ rank + 2 * log_sums + classes * log(2)
    gradient = torch.empty_like(logits)
    gradient.scatter_(1, _tensor(order), _tensor(slopes).to(logits.dtype))
    return _tensor(total).to(logits.dtype), gradient


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return the same numbers, where they lie."""
    return cast(Any, torch).from_numpy(array)


def _down_from_the_top(logits: NDArray[Any]) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return (M, K) distances from the largest logit, increasing, and whose they are."""
    if logits.dtype != np.float32:
        by_value = np.argsort(-logits, axis=1)
        sorted_logits = np.take_along_axis(logits, by_value, axis=1)
        return sorted_logits[:, :1] - sorted_logits, by_value
    # In float64, float32 leaves the last 29 bits free: they carry the class through the sorting.
    values = np.negative(logits, dtype=np.float64)
    bits: NDArray[np.int64] = values.view(np.int64)
    classes = np.arange(logits.shape[1], dtype=np.int64)
    np.bitwise_or(bits, classes, out=bits)
    values.sort(axis=1)
    # They stay in the distances, where they are far below what a float32 tells apart.
    return values - values[:, :1], np.bitwise_and(bits, _FREE_BITS)


def _powers(logits: Tensor) -> tuple[Sequence[float], Sequence[float]]:
    """Return the coefficients of log(1 + x) and of x / (1 + x)."""
    if logits.dtype == torch.float32 and logits.shape[1] >= _MANY_CLASSES:
        return _MANY
    exact = _COEFFICIENTS[logits.dtype]
    return exact, [m * coefficient for m, coefficient in enumerate(exact, start=1)]


def _weighted_sums(
    growth: NDArray[Any], logs: Sequence[float], shares: Sequence[float]
) -> tuple[FloatArray, NDArray[Any]]:
    """Return sums of log(1 + x) and of x / (1 + x) over the classes before each.

    Args:
        growth: (M, K) exp of the distances that the classes have from the first.
        logs, shares: coefficients of the powers of x in the two.

    Returns:
        (M,) the first over all classes, (M, K, 2) the second: from the first class on, and from
        the last one backwards.
    """
    rows, classes = growth.shape
    terms, dtype = len(logs), growth.dtype
    powers, sums = np.empty((2, terms, rows, classes, 2), dtype)
    powers[0, :, :, 0] = growth
    np.divide(1, growth[:, ::-1], out=powers[0, :, :, 1])
    for lower, power in pairwise(powers):
        np.multiply(lower, powers[0], out=power)
    # NumPy's running sums take ten times as long. Two of them are one of complex numbers.
    pairs, sums_of_pairs = (torch.view_as_complex(_tensor(each)) for each in (powers, sums))
    torch.cumsum(pairs, 2, out=sums_of_pairs)
    sums /= powers
    # Halves, as both directions have the same pairs.
    by_power = sums.reshape(terms * rows, -1) @ np.full(2 * classes, 0.5, dtype)
    first = np.array(logs) @ by_power.reshape(terms, rows)
    second = np.array(shares, dtype) @ sums.reshape(terms, -1)
    # Each class is its own neighbour, with x = 1.
    first -= classes * sum(logs)
    second -= sum(shares)
    return first, second.reshape(rows, classes, 2)


def _by_decays(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums and gradients for logits of any range, on any device, in one compiled graph.

    The running sums decay from class to class; all exponents are negative.
    """
    rows, classes = logits.shape
    z, order = logits.sort(1, descending=True)
    gaps = z[:, :-1] - z[:, 1:]
    # (K - 1, 2 M): decay to the next class, downwards and upwards.
    step = torch.cat((gaps, gaps.flip(1))).neg().T.contiguous().exp()
    coefficients = torch.tensor(_COEFFICIENTS[z.dtype], dtype=z.dtype, device=z.device)
    terms = len(coefficients)
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
class MbLS(CalibrationLoss):
    """Margin-based label smoothing: CE + alpha R, R the gaps to the top logit above a margin.

    R = mean over classes of max(0, max z - z_k - margin) (Liu et al. 2022); the gradient flows into
    the top logit too. It is made along with the value, and has no gradient of its own.

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

    def _row_losses(self, rows: Rows) -> Tensor:
        return made_at_once(rows, self._with_cross_entropy)

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) losses and their (M, K) gradient, in few passes over the classes."""
        values, gradient, gaps = rows.likelihood()
        weight = self.alpha / (gaps.shape[1] if self.class_reduction == "mean" else 1)
        below, tops = _below_the_top(gaps)
        excess = gaps.sub_(self.margin).relu_()
        values.add_(excess.sum(1), alpha=weight)
        forces = excess.sign_()  # the same on each class beyond the margin
        gradient.sub_(forces, alpha=weight)
        _add_to_tops(gradient, below, weight * forces.sum(1, keepdim=True) / tops)
        return values, gradient


@dataclass(eq=False, repr=False)
class ACLS(CalibrationLoss):
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

    def _row_losses(self, rows: Rows) -> Tensor:
        return made_at_once(rows, self._with_cross_entropy)

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) losses and their (M, K) gradient, in few passes over the classes."""
        values, gradient, gaps = rows.likelihood()
        logits = rows.logits.detach()
        below, tops = _below_the_top(gaps)
        floor = logits.amin(1, keepdim=True) if self.reference == "min" else 0.0
        peak = (logits.amax(1, keepdim=True) - floor - self.margin).relu()
        weight = self.alpha * self.positive
        values.add_((tops * peak.square())[:, 0], alpha=weight)
        _add_to_tops(gradient, below, 2 * weight * peak)
        excess = gaps.sub_(self.margin).relu_()  # of the top itself there is none
        weight = self.alpha * self.negative / (logits.shape[1] - 1)
        gradient.sub_(excess, alpha=2 * weight)
        values.add_(excess.square_().sum(1), alpha=weight)
        return values, gradient


def _below_the_top(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Return (M, K) 1 for classes below the largest logit, else 0, and (M, 1) how many tie for it.

    By signs, since processors compare, and look for places, many times slower than they subtract.
    """
    below = gaps.sign()
    return below, gaps.shape[1] - below.sum(1, keepdim=True)


def _add_to_tops(gradient: Tensor, below: Tensor, force: Tensor) -> None:
    """Add (M, 1) forces to the classes that aren't below the top."""
    gradient.add_(force).addcmul_(below, force, value=-1)


@dataclass(eq=False, repr=False)
class CPC(CalibrationLoss):
    """Pairwise constraints between logits (Cheng and Vasconcelos 2022).

    CE + discrimination * BDC + exclusion * BEC. BDC is the mean over j other than y of
    log(1 + exp(z_j - z_y)). BEC is 1 / ((K - 1)(K - 2)) times the sum over ordered pairs j, k other
    than y, j = k included, of log(1 + exp(z_k - z_j)) / 2: it pulls the wrong classes together.
    With two classes there is no BEC. The pairs aren't made one by one (`pair_sum`): work and memory
    grow with N K log K.

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

    discrimination: float = argument(1.0, at_least=0)
    exclusion: float = argument(1.0, at_least=0)

    def _row_losses(self, rows: Rows) -> Tensor:
        # By hand: a dozen small steps of automatic differentiation would take as long as the sums.
        return with_gradient(rows.logits, *self._with_cross_entropy(rows))

    @torch.no_grad()
    def _with_cross_entropy(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (M,) cross-entropy with both penalties, and its (M, K) gradient."""
        logits, column = rows.logits.detach(), rows.target[:, None]
        classes = logits.shape[1]
        gaps = logits - logits.gather(1, column)
        apart, share = softplus(gaps).sum(1), gaps.sigmoid()
        weight, each = self.discrimination / (classes - 1), 0.0
        gradient, values = rows.log_probs.detach().exp(), -rows.true_log_prob.detach()
        if classes > 2:
            # All pairs but those with the true class, in both orders.
            each = self.exclusion / (2 * (classes - 1) * (classes - 2))
            weight -= 2 * each
            pairs, slopes = pair_sum_and_gradient(logits)
            gradient.add_(slopes.add_(1), alpha=each)
            values.add_(pairs.add_(gaps.sum(1)), alpha=each)
        gradient.add_(share, alpha=weight)
        # What the true class does to itself is no pair: log 2, and no force.
        values.add_(apart, alpha=weight).sub_((weight + each) * log(2))
        # A shift of all logits changes nothing: the forces of a row add up to 0.
        gradient.scatter_add_(1, column, gradient.sum(1, keepdim=True).neg_())
        return values, gradient
