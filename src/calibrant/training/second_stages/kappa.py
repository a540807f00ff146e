"""MaC-Cal's kappa: how the share of kept connections follows it, and how it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.training.second_stages.held_out import Held
from calibrant.training.second_stages.records import EpochRecord

# Candidates as factors on training accuracy, the same for every network. Denser towards 1, where
# networks that generalise well have their kappa.
KAPPAS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6)
# Candidates as shares of what a head without masks would need, its confidence over its accuracy on
# the training rows. A kappa above that takes no connection away, so all of them give one head.
# A network that was 11 points too confident needed 0.91.
SHARES = (
    *(0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.91, 0.9, 0.89, 0.88),
    *(0.86, 0.84, 0.82, 0.79, 0.75, 0.7),
)
Adaptation = Literal["none", "static", "decaying"]


def step_bound(
    epoch: int, epochs: int, largest: float, smallest: float, adaptation: Adaptation
) -> float:
    """Return how far retention may move after an epoch, counted from 0.

    ``largest * (smallest / largest) ** (epoch / epochs)`` if the bound decays, `largest` if the
    adaptation is static, and 0 if there is none.
    """
    if adaptation == "none":
        return 0.0
    if adaptation == "static":
        return largest
    return largest * (smallest / largest) ** (epoch / epochs)


def next_retention(
    retention: FloatArray,
    accuracy: FloatArray,
    confidence: FloatArray,
    kappa: FloatArray,
    bound: float,
    lowest: float,
    highest: float = 1.0,
) -> FloatArray:
    """Return the retention of the next epoch for each of R heads; all arrays are (R,).

    It falls where confidence exceeds `kappa` times accuracy on the training rows, because a head
    with fewer connections is less confident; it moves by at most `bound` and stays between
    `lowest` and `highest`.
    """
    step = np.clip(kappa * accuracy - confidence, -bound, bound)
    return np.clip(retention + step, lowest, highest)


class Kappas:
    """The kappas of heads that are trained side by side.

    They are as given, or shares of what a head without masks would need: its confidence over its
    accuracy on the training rows, epoch by epoch. That head is a twin at the first place, of the
    same layers and spared all masks, or one that is trained beside them.

    Args:
        factors: the kappas, or the shares.
        follow: gives what the epoch that has ended showed of the head without masks; None for
            kappas as they are given, and for shares that follow a twin.
        twin: whether the first head is such a twin.
    """

    def __init__(
        self,
        factors: Sequence[float],
        follow: Callable[[], EpochRecord] | None = None,
        *,
        twin: bool = False,
    ) -> None:
        self._factors = np.array([1.0, *factors] if twin else factors)
        self._follow, self._twin, self._now = follow, twin, self._factors
        self.count, self.heads = len(self._factors), range(int(twin), len(self._factors))

    @property
    def shares(self) -> list[float] | list[None]:
        """The shares without that of a twin, or as many Nones where kappas are as given."""
        if self._twin or self._follow is not None:
            return [float(self._factors[head]) for head in self.heads]
        return [None] * len(self.heads)

    @property
    def last(self) -> FloatArray:
        """The kappas of the last epoch, without that of a twin."""
        return self._now[self.heads.start :]

    def after(self, accuracy: FloatArray, confidence: FloatArray) -> FloatArray:
        """Return (R,) kappas once an epoch has ended; the arguments are as in `next_retention`."""
        if self._twin:
            self._now = shares_of(float(accuracy[0]), float(confidence[0]), self._factors)
        elif self._follow is not None:
            seen = self._follow()
            self._now = shares_of(seen.accuracy, seen.confidence, self._factors)
        return self._now

    def spared(self, retention: FloatArray) -> FloatArray:
        """Return (R,) retention with that of a twin put to 1."""
        return np.where(np.arange(self.count) < self.heads.start, 1.0, retention)


def shares_of(accuracy: float, confidence: float, shares: FloatArray) -> FloatArray:
    """Return shares of the kappa that takes no connection away; none is above 1."""
    return np.minimum(1.0, shares * confidence / max(accuracy, 1e-12))


@dataclass(frozen=True, kw_only=True)
class Candidate(Held):
    """A head to choose among, measured on held-out rows.

    Attributes:
        loss: accuracy lost against the network's own head, or if nothing is known of that against
            the plainly retrained one; a fraction.
        loss_error: standard error of the loss, paired row by row: rows that both predict right, or
            both wrong, add nothing to it.
    """

    loss: float
    loss_error: float

    @property
    def gap(self) -> float:
        """How far held-out confidence and accuracy are apart."""
        return abs(self.confidence - self.accuracy)

    def keeps(self, tolerance: float) -> bool:
        """Return whether the loss is at most `tolerance`, as far as the rows can tell."""
        return self.loss - self.loss_error <= tolerance


@dataclass(frozen=True, kw_only=True)
class KappaPoint(Candidate):
    """What one kappa led to.

    Attributes:
        kappa: the factor on training accuracy; of the last epoch where it follows a head without
            masks.
        share: what it is of that head's kappa; None where kappas are as given.
        retention: of the last epoch.
    """

    kappa: float
    share: float | None = None
    retention: float


def accuracy_lost(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the accuracy lost from one (N,) set of outcomes to another, and its paired error."""
    lost = before.astype(np.float64) - after
    return float(lost.mean()), float(lost.std() / len(lost) ** 0.5)


@dataclass(frozen=True)
class Choice:
    """Which head to take.

    Attributes:
        index: place of its kappa among the points; None for the plainly retrained head.
        note: what there is to say about it, or None.
    """

    index: int | None
    note: str | None


def choose(points: Sequence[KappaPoint], plain: Candidate, tolerance: float) -> Choice:
    """Return the head whose held-out confidence is nearest to its accuracy, if it keeps accuracy.

    That is what kappa is there for, and the gap varies less from sample to sample than a binned
    error. The plainly retrained head is a candidate like any other, and what is left if none keeps
    the accuracy (see `Candidate.keeps`).
    """
    best = min(range(len(points)), key=lambda index: points[index].gap)
    kept = [index for index, point in enumerate(points) if point.keeps(tolerance)]
    chosen = min(kept, key=lambda index: points[index].gap) if kept else None
    if chosen is not None and plain.keeps(tolerance) and plain.gap <= points[chosen].gap:
        chosen = None
    nearest = points[best]
    if chosen == best or (plain.keeps(tolerance) and plain.gap <= nearest.gap):
        return Choice(chosen, None)
    ruled_out = (
        f"kappa {nearest.kappa:.3g} brings held-out confidence nearest to accuracy but loses "
        f"{_points(nearest)} of it"
    )
    if chosen is not None:
        return Choice(chosen, f"{ruled_out}; backed off to {points[chosen].kappa:.3g}")
    if not kept:
        return Choice(
            None,
            f"no kappa keeps held-out accuracy within {100 * tolerance:g} points; backed off to "
            f"plain retraining, which loses {_points(plain)}",
        )
    return Choice(None, f"{ruled_out}; backed off to plain retraining")


def warning_of(point: KappaPoint, tolerance: float) -> str | None:
    """Return what to say of a kappa that was given and is kept whatever it does."""
    if point.keeps(tolerance):
        return None
    return (
        f"kappa {point.kappa:g} loses {_points(point)} of held-out accuracy, more than the "
        f"tolerance of {100 * tolerance:g}"
    )


def _points(candidate: Candidate) -> str:
    return f"{100 * candidate.loss:.2f} ± {100 * candidate.loss_error:.2f} points"
