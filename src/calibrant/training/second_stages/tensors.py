"""The few things of torch whose types are incomplete, said once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array, or of a copy if that is read-only."""
    given = array if array.flags.writeable else np.array(array)
    return cast(Tensor, cast(Any, torch).from_numpy(given))


def row_parts(tensor: Tensor, rows: int) -> list[Tensor]:
    """Return views of so many rows each, the last one of what is left."""
    return list(cast(Any, tensor).split(rows))


@contextmanager
def random_state_kept() -> Generator[None]:
    """Put torch's own generator back on leaving: building a layer draws from it."""
    with cast(Any, torch.random).fork_rng(devices=[]):
        yield


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take one step of an optimiser down the gradient of a loss."""
    optimizer.zero_grad(set_to_none=True)
    cast(Any, loss).backward()
    cast(Any, optimizer).step()


def width_of(head: nn.Module) -> int | None:
    """Return how many features a head takes, by its first linear layer; None if it has none."""
    linear = (part.in_features for part in head.modules() if isinstance(part, nn.Linear))
    return next(linear, None)


def head_logits(head: nn.Module, features: Tensor) -> Tensor:
    """Return the logits of a head without gradients, computed in the dtype of its parameters."""
    reference = next(head.parameters())
    with torch.no_grad():
        return head(features.to(reference.device, reference.dtype)).to(features.device)
