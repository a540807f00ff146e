"""Sums over all pairs of classes, without making the pairs."""

from __future__ import annotations

from math import isqrt, log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor


def _coefficients(terms: int) -> tuple[float, ...]:
    """Return c_1, c_2, ... with log(1 + x) = sum_m c_m x^m for x in [0, 1], nearly."""
    series = np.polynomial.Chebyshev.interpolate(
        lambda x: np.log1p(x) / x, terms - 1, domain=[0.0, 1.0]
    )
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef.tolist())


# By precision; with so many terms the derivative too is exact to about 1e-8 and 1e-13.
_COEFFICIENTS = {torch.float32: _coefficients(10), torch.float64: _coefficients(20)}


def pair_sum(logits: Tensor) -> Tensor:
    """Return (M,) the sum over ordered pairs of classes of log(1 + exp(z_k - z_j)), j = k included.

    Two orders of a pair with distance d = |z_k - z_j| add up to d + 2 log(1 + x), x = exp(-d). The
    distances are summed by rank. For x in [0, 1] the logarithm is a polynomial in x, and sums of
    x^m over the pairs of sorted logits are running sums that decay from class to class. So work
    and memory grow with K (sorting aside) instead of K^2. The gradient takes the same running sums
    and is made along with the value; it has no gradient of its own.

    Args:
        logits: (M, K) float32 or float64.
    """
    total, gradient = _with_gradient(logits.detach())
    # Nothing in value, the gradient in gradient.
    return total + (gradient * (logits - logits.detach())).sum(1)


@torch.no_grad()
def _with_gradient(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (M,) sums and their (M, K) gradients."""
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
