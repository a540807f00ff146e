"""Penalties on the distances between the logits of a row, and sums over all pairs of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isqrt, log
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus, softshrink

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import InputError
from calibrant.training.losses.base import DATA_SETS, MANY_CLASSES, CalibrationLoss, LossName, Rows

# Up to so many classes their pairs are made one by one.
_FEW_CLASSES = 32
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

    The gradient is made along with the value; it has no gradient of its own. See `_pairs`.

    Args:
        logits: (M, K) float32 or float64.
    """
    values = logits.detach()
    column = values.argmax(1, keepdim=True)
    return with_gradient(
        logits, lambda: _pairs(values - values.gather(1, column), column, 1.0, 0.0)
    )


Made = tuple[Tensor, Tensor]  # (M, 1) values and their (M, K) gradient by the logits


def with_gradient(logits: Tensor, make: Callable[[], Made], mean: bool = False) -> Tensor:
    """Return (M,) values, or () their mean, whose gradient by the logits (M, K) is made with them.

    Args:
        logits: (M, K).
        make: what makes them; it is called without gradients.
        mean: whether to return the mean.
    """
    if _by_itself(logits):
        return cast(Any, _Given).apply(logits, make, mean)
    with torch.no_grad():
        values, gradient = make()
    slope = (gradient * logits).sum(1)
    values = slope - slope.detach() + values.squeeze(1)
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
        return with_gradient(rows.logits, lambda: self._in_parts(rows))

    def _of_rows(self, rows: Rows, shape: torch.Size) -> Tensor:
        soft = rows.soft is not None and not self.takes_soft
        left_out = rows.ignored is not None
        if self.reduction != "mean" or left_out or soft or self.class_weights is not None:
            return super()._of_rows(rows, shape)
        return with_gradient(rows.logits, lambda: self._in_parts(rows), mean=True)

    def _in_parts(self, rows: Rows) -> Made:
        """Return losses and gradient, of as many rows at a time as a processor's cache takes."""
        logits = rows.logits
        step = max(1, self.at_once // logits.shape[1])
        if len(logits) <= step or on_host(logits.detach()) is None:
            return self._with_cross_entropy(rows)
        values, gradient = logits.new_empty(len(logits), 1), torch.empty_like(logits)
        for start in range(0, len(logits), step):
            at = slice(start, start + step)
            values[at], gradient[at] = self._with_cross_entropy(rows.part(at))
        return values, gradient

    def _with_cross_entropy(self, rows: Rows) -> Made:
        """Return losses and their gradient; this is called without gradients."""
        raise NotImplementedError


def _by_itself(logits: Tensor) -> bool:
    """Whether a tensor is plain: neither compiled nor within a transform such as vmap."""
    if torch.compiler.is_compiling():
        return False
    return not cast(Any, torch)._C._functorch.is_functorch_wrapped_tensor(logits)


class _Given(torch.autograd.Function):
    """Values with a gradient that is known: one node of the graph, and refused if asked twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, make: Callable[[], Made], mean: bool) -> Tensor:
        values, gradient = make()
        ctx.save_for_backward(logits, gradient)
        return values.mean() if mean else values.squeeze(1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore
        logits, gradient = ctx.saved_tensors
        (outer,) = grad_outputs
        outer = outer.unsqueeze(1) if outer.ndim else outer / len(logits)
        gradient = gradient * outer
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


def _pairs(below: Tensor, column: Tensor, each: float, true: float) -> Made:
    """Return sums over pairs of classes, and what they do to each logit.

    Values are each sum_jk log(1 + exp(z_k - z_j)), over ordered pairs with j = k included, plus
    true sum_k log(2 cosh((z_k - z_y) / 2)), y the class in `column`; the force of the latter on y
    itself is left out. Work and memory grow with K (sorting aside) instead of K^2 beyond some 30
    classes: float32 logits are spread on a grid, whose few points stand for them (`_by_grid`);
    others are sorted (`_by_decays`).

    Args:
        below: (M, K) z_k - max z.
        column: (M, 1) y.
        each: weight of the first sum.
        true: weight of the second.
    """
    classes = below.shape[1]
    grid = _grid_of(below) if classes > _FEW_CLASSES else None
    # As a heavier charge of that class, unless it would outweigh all pairs in a sum of float32.
    heavier = grid is not None and abs(true) <= 8 * each * classes
    if grid is not None:
        values, slopes = _by_grid(below, column, each, true / (2 * each) if heavier else 0.0, grid)
    else:
        values, slopes = (_one_by_one if classes <= _FEW_CLASSES else _by_decays)(below)
        values, slopes = values.mul_(each), slopes.mul_(each)
    if not heavier:
        apart = below - below.gather(1, column)
        # log(2 cosh(x / 2)) = log(1 + exp(x)) - x / 2
        values.add_(softplus(apart).sub_(apart, alpha=0.5).sum(1), alpha=true)
        slopes.add_(apart.sigmoid_().sub_(0.5), alpha=true)
    return values.unsqueeze(1), slopes


def _one_by_one(logits: Tensor) -> tuple[Tensor, Tensor]:
    apart = logits[:, :, None] - logits[:, None, :]
    return softplus(apart).sum((1, 2)), apart.sigmoid_().sum(2).mul_(2).sub_(logits.shape[1])


def on_host(logits: Tensor) -> NDArray[Any] | None:
    """Return values, where they can be looked at without waiting and by NumPy; they are shared."""
    if not logits.is_cpu or torch.compiler.is_compiling() or not logits.numel():
        return None
    try:
        return logits.numpy()
    except RuntimeError:  # Within vmap there are no values.
        return None


class _Grid(NamedTuple):
    """Points at equal distances that stand for logits, those around a logit for each.

    Attributes:
        points: how many there are.
        split: cells between two points; in each, polynomials say how much of a logit a point gets.
        terms: of these polynomials.
        force_terms: of those that say how much of the force on a point acts on a logit.
    """

    points: int
    split: int
    terms: int
    force_terms: int

    @property
    def cells(self) -> int:
        """How many there are."""
        return (self.points - _SHARING + 1) * self.split


# The distance of points, and how many share a logit: sums are exact to 1e-6 of themselves, forces
# to 5e-6 of the largest.
_STEP, _SHARING, _MOST_POINTS = 0.5, 10, 512
# Split, terms and terms of the force: terms cost something for each logit, cells for each point.
# Where logits are more than a quarter of the square of the points, more cells are the quicker ones.
_FEW_CELLS, _MANY_CELLS, _MOST_FOR_CELLS = (1, 5, 4), (5, 3, 3), 128


def _grid_of(below: Tensor) -> _Grid | None:
    """Return a grid that holds (M, K) logits below their top, if one will do."""
    if below.dtype != torch.float32 or on_host(below) is None:
        return None
    last = -float(below.amin()) / _STEP
    if not last < _MOST_POINTS:  # nor of a logit that isn't finite
        return None
    # Rounded up, so that batches share tables, and so that float32 may round as well.
    round_to = 1 << max(3, int(last).bit_length() - 3)
    points = ((int(last) + 1) // round_to + 1) * round_to + _SHARING - 1
    many = points <= min(_MOST_FOR_CELLS, 2 * isqrt(below.shape[1]))
    return _Grid(points, *(_MANY_CELLS if many else _FEW_CELLS))


def _by_grid(
    below: Tensor, column: Tensor, each: float, extra: float, grid: _Grid
) -> tuple[Tensor, Tensor]:
    """Return (M,) sums and (M, K) gradients of logits that are spread on a grid.

    Args:
        below: (M, K) z_k - max z.
        column: (M, 1) a class that counts 1 + extra times, but not for pairs with itself.
        each: weight of a pair.
        extra: see `column`.
        grid: that holds them.
    """
    spread, bonds, forces = _tables(grid)
    rows = len(below)
    place = below.mul(-grid.split / _STEP)
    cell = place.int().long()  # twice as quick as at once
    place.frac_()
    moments = place.new_zeros(rows, grid.terms, grid.cells)
    charge = torch.ones_like(place).scatter_(1, column, 1 + extra)
    for term in range(grid.terms):
        moments[:, term].scatter_add_(1, cell, charge.mul_(place) if term else charge)
    mass = moments.view(rows, -1) @ spread
    values = (mass @ bonds).mul_(mass).sum(1).sub_(extra**2 * log(2)).mul_(each)
    found = (mass.mul_(each) @ forces).view(rows, grid.force_terms, -1)
    slopes = found[:, -1].gather(1, cell)
    for term in reversed(range(grid.force_terms - 1)):
        slopes = slopes.mul_(place).add_(found[:, term].gather(1, cell))
    return values, slopes


@lru_cache(maxsize=8)
def _tables(grid: _Grid) -> tuple[Tensor, ...]:
    """Return tables of a grid, with C cells and P points, T and U terms.

    Returns:
        (T C, P) powers in cells to points, (P, P) what points cost each other, (P, U C) points to
        the force in cells as a polynomial.
    """
    at = _STEP * np.arange(grid.points)
    apart = at[:, None] - at
    tables = [np.zeros((terms, grid.cells, grid.points)) for terms in grid[2:]]
    for table, of in zip(tables, (_bond, _force), strict=True):
        for part in range(grid.split):
            shares, cells = _shares(of, part, grid.split, len(table)), grid.cells // grid.split
            for point in range(_SHARING):
                to = range(point, point + cells)
                table[:, range(part, grid.cells, grid.split), to] = shares[:, point, None]
    spread, found = (table.reshape(-1, grid.points) for table in tables)
    made = spread, _bond(apart), 2 * _force(apart) @ found.T
    return tuple(torch.tensor(table, dtype=torch.float32) for table in made)


def _shares(
    of: Callable[[FloatArray], FloatArray], part: int, split: int, terms: int
) -> FloatArray:
    """Return (T, S) w with f(d - h (i + t) / n) ~ sum_ms t^m w_ms f(d - h x_s), t from 0 to 1.

    The x_s are the points around the cell i of n, h the step: least squares over distances d.
    """
    places = np.linspace(0, 1, 33)
    around = np.arange(_SHARING) - (_SHARING // 2 - 1.0)
    distances = np.linspace(-12, 12, 241)[:, None]
    known, wanted = (of(distances - _STEP * at) for at in (around, (part + places) / split))
    shares = np.linalg.lstsq(known, wanted, 1e-9)[0]
    powers = np.vander(places, terms, increasing=True)
    return cast(FloatArray, np.linalg.lstsq(powers, shares.T, None)[0])


def _bond(distance: FloatArray) -> FloatArray:
    """Return log(2 cosh(d / 2)), which a pair costs in each of its orders, on average."""
    half = np.abs(distance) / 2
    return half + np.log1p(np.exp(-2 * half))


def _force(distance: FloatArray) -> FloatArray:
    """Return the derivative of `_bond`."""
    return np.tanh(distance / 2) / 2


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

    def _with_cross_entropy(self, rows: Rows) -> Made:
        top, place = _top_of(rows.logits.detach())
        values, gradient, gaps, _ = rows.likelihood((top, place))
        weight = self.alpha / (gaps.shape[1] if self.class_reduction == "mean" else 1)
        excess = softshrink(gaps, self.margin)
        values.sub_(excess.sum(1, keepdim=True), alpha=weight)
        # The force is the same on each class beyond the margin. In place, as numbers: into booleans
        # comparing takes a processor many times as long.
        beyond = excess.lt_(0)
        gradient.sub_(beyond, alpha=weight)
        gradient.scatter_add_(1, place, beyond.sum(1, keepdim=True).mul_(weight))
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

    def _with_cross_entropy(self, rows: Rows) -> Made:
        values, gradient, gaps, top = rows.likelihood()
        weight = self.alpha * self.negative / (gaps.shape[1] - 1)
        excess = softshrink(gaps, self.margin)  # of the top itself there is none
        gradient.add_(excess, alpha=2 * weight)
        values.add_(excess.square_().sum(1, keepdim=True), alpha=weight)
        if self.reference == "min":
            top = gaps.amin(1, keepdim=True).neg_()
        peak = top.sub_(self.margin).relu_()
        weight = self.alpha * self.positive
        tops = gaps.ge_(0)
        gradient.addcmul_(tops, peak, value=2 * weight)
        values.addcmul_(tops.sum(1, keepdim=True).mul_(peak), peak, value=weight)
        return values, gradient


def _top_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return (M, 1) the largest logit and its class, the first of several."""
    values = None if logits.shape[1] < MANY_CLASSES else on_host(logits)
    if values is None:
        return logits.max(1, keepdim=True)
    place = cast(Tensor, cast(Any, torch).from_numpy(values.argmax(1))).unsqueeze(1)
    return logits.gather(1, place), place


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

    at_once: ClassVar[int] = 1 << 16  # each needs several tensors of its size

    discrimination: float = argument(1.0, at_least=0)
    exclusion: float = argument(1.0, at_least=0)

    def _with_cross_entropy(self, rows: Rows) -> Made:
        values, gradient, below, _ = rows.likelihood()
        column, classes = rows.target.unsqueeze(1), below.shape[1]
        # Of all pairs those with the true class are taken off, in both orders, and come back with
        # the other weight; log(1 + exp(x)) = log(2 cosh(x / 2)) + x / 2.
        apart, each = self.discrimination / (classes - 1), 0.0
        if classes > 2:
            each = self.exclusion / (2 * (classes - 1) * (classes - 2))
        pairs, slopes = _pairs(below, column, each, apart - 2 * each)
        gaps = below.sum(1, keepdim=True).sub_(below.gather(1, column), alpha=classes)
        # What the true class does to itself is no pair: log 2, and no force.
        values.add_(pairs).add_(gaps, alpha=apart / 2).sub_((apart - each) * log(2))
        gradient.add_(slopes).add_(apart / 2)
        # A shift of all logits changes nothing: the forces of a row add up to 0.
        gradient.scatter_add_(1, column, gradient.sum(1, keepdim=True).neg_())
        return values, gradient
