"""What FeDLaS does to each sample over the epochs of a training run, as its paper draws it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import whole
from calibrant.training.losses.collectives import sum_over_ranks
from calibrant.training.losses.gate_state import Gated
from calibrant.training.losses.inputs import check_range
from calibrant.training.losses.recorder import Recorder


@dataclass(frozen=True)
class GateEpoch:
    """One epoch of a training run under FeDLaS.

    Attributes:
        seen: samples recorded in the epoch.
        positive: share of them whose psi was 1 ("against overconfidence").
        negative: share whose psi was -1.
        flip_rate: share of the samples seen in this and the last recorded epoch whose psi changed;
            NaN in the first epoch.
        mean_alpha: mean smoothing.
        correlation: Pearson correlation of the indicator (NCI) with correctness; NaN where either
            doesn't vary.
    """

    seen: int
    positive: float
    negative: float
    flip_rate: float
    mean_alpha: float
    correlation: float


class GateRecorder(Recorder):
    """Keeps mode, smoothing, indicator and correctness of each training sample, by its index.

    ``recorder.record(loss, index, logits, target)`` after each batch, without waiting for the
    device; ``recorder.end_epoch()`` gives a `GateEpoch` and appends it to `history`. A sample seen
    twice in an epoch counts with its last values. In a distributed run all processes call both, and
    `end_epoch` joins what they saw.

    It is a module without parameters, so that a checkpoint keeps what the flip rate needs of the
    epochs before: put it beside the network and the loss, or save its `state_dict`.

    Args:
        samples: size of the training set.
        device: where to keep the values; the network's.

    Attributes:
        alpha: (samples,) smoothing at the last sight. psi: (samples,) mode. indicator: (samples,).
            correct: (samples,) 1 or 0. seen: (samples,) bool, in the current epoch.
        history: the epochs that this object has ended; not in the `state_dict`.
    """

    _values: Tensor
    seen: Tensor
    _previous_psi: Tensor
    _previous_seen: Tensor

    def __init__(self, samples: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        size = whole("samples", samples, at_least=1)
        unseen = torch.zeros(size, dtype=torch.bool, device=device)
        self.register_buffer("_values", torch.zeros(4, size, device=device))
        self.register_buffer("seen", unseen)
        self.register_buffer("_previous_psi", torch.zeros(size, device=device))
        self.register_buffer("_previous_seen", unseen.clone())
        self.history: list[GateEpoch] = []

    @property
    def alpha(self) -> Tensor:
        """(samples,) smoothing at the last sight."""
        return self._values[0]

    @property
    def psi(self) -> Tensor:
        """(samples,) mode at the last sight."""
        return self._values[1]

    @property
    def indicator(self) -> Tensor:
        """(samples,) indicator at the last sight."""
        return self._values[2]

    @property
    def correct(self) -> Tensor:
        """(samples,) whether the sample was right at the last sight."""
        return self._values[3]

    @torch.no_grad()
    def record(self, loss: Gated, index: Tensor, logits: Tensor, target: Tensor) -> None:
        """Keep what `loss` decided in its last call, of rows with finite values.

        Args:
            loss: just called with these logits and target.
            index: (N,) positions in the training set.
            logits: (N, K).
            target: (N,).

        Raises:
            InputError: `index` doesn't belong to the last call or to the training set.
        """
        state = loss.last
        if logits.ndim != 2:
            shape = tuple(logits.shape)
            raise InputError(f"the recorder keeps samples: logits must be (N, K), not {shape}")
        if index.shape != state.alpha.shape:
            raise InputError(
                f"index must name the {len(state.alpha)} rows of the last call, "
                f"not have shape {tuple(index.shape)}"
            )
        advice = "samples= is the size of the training set"
        check_range("the positions in index", index, len(self.seen), advice)
        correct = (logits.argmax(1) == target).to(state.alpha.dtype)
        fresh = torch.stack([state.alpha, state.psi, state.indicator, correct])
        # Neither does a step count that overflowed in half precision and that its scaler skipped:
        # the values would stay until the next sight, and a checkpoint takes numbers only.
        known = state.valid & fresh.isfinite().all(0)
        # Rows that don't count write back what was there.
        kept = torch.where(known, fresh.to(self._values.dtype), self._values[:, index])
        self._values[:, index] = kept
        self.seen[index] = self.seen[index] | known

    @torch.no_grad()
    def end_epoch(self) -> GateEpoch:
        """Return what happened since the last call and start afresh.

        Raises:
            InputError: nothing was recorded.
        """
        self.join_ranks()
        seen = self.seen
        count = int(seen.sum())
        if not count:
            raise InputError("no sample was recorded in this epoch")
        alpha, psi, indicator, correct = self._values[:, seen].double()
        both = seen & self._previous_seen
        flips = (self.psi != self._previous_psi)[both].double()
        nci, right = indicator - indicator.mean(), correct - correct.mean()
        spread = (nci.square().sum() * right.square().sum()).sqrt()
        epoch = GateEpoch(
            seen=count,
            positive=float((psi == 1).double().mean()),
            negative=float((psi == -1).double().mean()),
            flip_rate=float(flips.mean()) if len(flips) else float("nan"),
            mean_alpha=float(alpha.mean()),
            correlation=float((nci * right).sum() / spread),
        )
        self.history.append(epoch)
        self._previous_psi.copy_(self.psi)
        self._previous_seen.copy_(seen)
        self.seen.zero_()
        return epoch

    def columns(self) -> dict[str, float]:
        """End the epoch and return its row of the history, all names beginning with "gate"."""
        epoch = self.end_epoch()
        return {
            "gate_positive": epoch.positive,
            "gate_negative": epoch.negative,
            "gate_flip_rate": epoch.flip_rate,
            "gate_alpha": epoch.mean_alpha,
            "gate_correlation": epoch.correlation,
        }

    @torch.no_grad()
    def join_ranks(self) -> None:
        """Give each process of a distributed run what all have seen in this epoch so far.

        Before a checkpoint within an epoch, of which one process writes its own state. All must
        call it; to join twice changes nothing.
        """
        times = sum_over_ranks(self.seen.to(self._values.dtype))
        # Samplers repeat a few rows to even out the ranks; the mean of the copies will do.
        joint = sum_over_ranks(self._values * self.seen) / times.clamp_min(1)
        joint[1] = joint[1].sign()
        self._values.copy_(torch.where(times > 0, joint, self._values))
        self.seen.copy_(times > 0)
