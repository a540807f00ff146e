"""Sums and statistics over all processes of a distributed training run."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

# Its functions have partly unknown types.
dist: Any = torch.distributed


def world_size() -> int:
    """Return the number of processes, 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is the all-reduced gradient.

    Every rank adds the same function f of the sum to its loss, so a local summand gets `world_size`
    times its derivative; averaging gradients over ranks, as `DistributedDataParallel` does, divides
    by `world_size` again and leaves the gradient of f for the whole batch.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        total = local.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def sum_over_ranks(local: Tensor) -> Tensor:
    """Return the differentiable sum of `local` over all processes; all must call it."""
    if world_size() == 1:
        return local
    return cast(Any, _SumOverRanks).apply(local)


def gather_rows(local: Tensor) -> Tensor:
    """Return (W * M, ...) the rows (M, ...) of all W processes in order, differentiably.

    All processes must call it with the same shape, as a `DistributedSampler` gives them.
    """
    world = world_size()
    if world == 1:
        return local
    # A padded sum needs one primitive only, which every backend has, and whose gradient is known.
    padded = local.new_zeros((world, *local.shape))
    mine = torch.arange(world, device=local.device) == dist.get_rank()
    mine = mine.reshape(world, *([1] * local.ndim))
    return sum_over_ranks(torch.where(mine, local, padded)).flatten(0, 1)


def gather_objects(mine: list[Any]) -> list[Any]:
    """Return the lists of all processes as one, in order; all must call it."""
    if world_size() == 1:
        return mine
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, mine)
    return [item for part in parts for item in part]


def differs_between_ranks(values: Tensor) -> bool:
    """Return whether a tensor, of one shape everywhere, holds other numbers on other processes.

    All processes must call it; it waits for the device.
    """
    if world_size() == 1:
        return False
    ends = torch.stack([values.detach(), -values.detach()])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    return not torch.equal(ends[0], -ends[1])


def moments_over_ranks(count: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
    """Return count, mean and sum of squared deviations of all rows from those of each process.

    Merging deviations rather than raw squares keeps large means exact in float32.
    """
    if world_size() == 1:
        return count, mean, squares
    parts = gather_rows(torch.stack([count.to(mean.dtype), mean, squares])[None])
    counts, means, deviations = parts.unbind(1)
    total = counts.sum()
    overall = (counts * means).sum() / total.clamp_min(1)
    between = (counts * (means - overall).square()).sum()
    return total, overall, deviations.sum() + between
