"""What a training run keeps of a loss's dealings with each training image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Recorder(nn.Module):
    """Keeps what a loss did to each sample; a module, so that checkpoints hold what it has seen.

    In a distributed run all processes call all of it.
    """

    def record(self, loss: Any, index: Tensor, logits: Tensor, target: Tensor) -> None:
        """Keep what `loss` did in its last call, with these (N, K) logits and (N,) targets.

        Args:
            loss: the one that made this recorder.
            index: (N,) positions in the training set.
            logits: (N, K).
            target: (N,).
        """
        raise NotImplementedError

    def join_ranks(self) -> None:
        """Give each process what all have seen so far: before a checkpoint within an epoch."""
        raise NotImplementedError

    def columns(self) -> dict[str, float]:
        """End the epoch and return what the run's history says of it, by column."""
        raise NotImplementedError
