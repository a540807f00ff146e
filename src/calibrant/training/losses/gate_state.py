"""What FeDLaS decides for each row of a batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class GateState(NamedTuple):
    """What FeDLaS decided for each row of its last call; all (M,), without gradient.

    Attributes:
        alpha: smoothing of the row, in (0, 2 alpha).
        psi: 1 where smoothing grows with the indicator ("against overconfidence"), -1 where it
            falls with it, 0 where the gate is exactly undecided.
        indicator: normalised confidence indicator (NCI).
        valid: False where the target was ignored; the rest means nothing there.
    """

    alpha: Tensor
    psi: Tensor
    indicator: Tensor
    valid: Tensor

    def share(self, mode: int) -> Tensor:
        """Return the () share of valid rows whose psi is `mode` (1 or -1), left on the device."""
        chosen = (self.psi == mode) & self.valid
        return chosen.sum() / self.valid.sum().clamp_min(1)


class Gated(Protocol):
    """A loss that tells what its gate decided."""

    @property
    def last(self) -> GateState:
        """What it decided in its last call."""
        ...
