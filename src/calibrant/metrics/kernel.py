"""The kernel-smoothed calibration error smECE, its kernel reflected exactly at 0 and 1."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.metrics.metric_types import BIASED, CELLS_COST, CurveMetric
from calibrant.metrics.pairs import PairKind, top_label
from calibrant.metrics.top_label import ResidualCurves, TopLabel

CELLS = 4096
RESAMPLING_CELLS = 256
# Steps to the bandwidth, which they find to 1e-9; resamples do with fewer. Of 300 rows or more that
# was off by 1e-6 on average and 3e-5 at most, where resamples scatter by 5e-4 and more.
STEPS, RESAMPLING_STEPS = 16, 3
TINY = float(np.finfo(np.float64).tiny)
# A product of frequency and bandwidth at which a Gaussian is 2e-22.
DAMPED = 10.0
# Of anything less the exponential counts as 4e-44: smaller numbers take four times as long.
LEAST_EXPONENT = -100.0


def smooth_ece(
    scores: Array,
    labels: Array,
    *,
    kind: PairKind | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Return smECE: int |r_s(t)| dt at the bandwidth s that equals its own value, a fraction.

    r_s is the residual density (1/N) sum_i (c_i - a_i) K_s(c_i, t) under a Gaussian kernel
    reflected at 0 and 1 with all its images. The integral falls with s, so there is one fixed point
    and no parameter to choose. Confidences are put on 4 096 cells; there the reflected kernel is
    applied by a cosine transform, which treats both ends exactly: confidences at 1 keep their whole
    weight. The smooth calibration error, smCE, is another number: `smooth_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.
        kind: of (N,) scores, ``"confidence"``, or ``"prob"`` of the positive class, with labels 0
            and 1 in place of correctness.
        sample_weight: (N,) how much each row counts; by default all alike.

    References:
        Blasiok & Nakkiran: Smooth ECE. ICLR 2024.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.top_label(20_000)  # P(right | c) = c^2
        >>> rows = truth.predictions
        >>> right = rows.predicted == rows.labels
        >>> value = cb.metrics.smooth_ece(rows.scores, right, kind="confidence")
        >>> abs(value - truth.true_calibration_error()) < 0.02
        True
    """
    return smece_of_rows(top_label(scores, labels, kind, sample_weight=sample_weight))


def smece_of_rows(rows: TopLabel) -> float:
    """Return the smECE of sorted rows."""
    return smece_of_curve(rows.curves())


def smece_of_curve(curve: ResidualCurves) -> float:
    """Return the smECE of one residual curve on the fine cells."""
    return float(smece_of_curves(curve, CELLS, STEPS)[0])


def smece_of_curves(
    curves: ResidualCurves, cells: int = RESAMPLING_CELLS, steps: int = RESAMPLING_STEPS
) -> FloatArray:
    """Return the (R,) smECEs of residual curves."""
    masses = curves.between_edges(np.arange(cells + 1) / cells) / curves.total[:, None]
    # Reflection about the outer edges of the first and last cell makes the kernel a plain one on
    # cosines.
    transform = CosineTransform.of(cells)
    spectrum = transform.forwards(masses)
    frequencies = np.pi * np.arange(cells)

    def smoothed(bandwidth: FloatArray) -> FloatArray:
        # Higher frequencies are damped by more than 1e-21, or all of them are there.
        kept = int(np.searchsorted(frequencies * float(bandwidth.min()), DAMPED))
        damped: FloatArray = np.multiply.outer(
            bandwidth * bandwidth, -0.5 * frequencies[:kept] ** 2
        )
        np.maximum(damped, LEAST_EXPONENT, out=damped)
        np.exp(damped, out=damped)
        damped *= spectrum[:, :kept]
        density = transform.backwards(damped)  # in any order
        return np.abs(density).sum(axis=1)

    # The integral lies between the sum's size and the sum of sizes, so the fixed point does too.
    # As it falls with the bandwidth, the fixed point isn't below the integral at the upper end.
    high: FloatArray = np.abs(masses).sum(axis=1)
    reached = smoothed(high)
    low: FloatArray = np.maximum(np.abs(masses.sum(axis=1)), reached)
    above, below = smoothed(low) - low, reached - high
    for _ in range(steps):
        # Where the chord crosses 0, but never so near an end that the other one stays for long.
        share = np.clip(above / np.maximum(above - below, TINY), 0.02, 0.98)
        middle = low + share * (high - low)
        rest = smoothed(middle) - middle
        left = rest > 0
        # An end that stays counts less, which draws the next step towards it (Anderson, Bjorck).
        end = np.where(left, above, below)
        less = 1 - np.divide(rest, end, out=np.zeros_like(rest), where=end != 0)
        less = np.where(less > 0, less, 0.5)
        above, below = np.where(left, rest, above * less), np.where(left, below * less, rest)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return low + np.clip(above / np.maximum(above - below, TINY), 0, 1) * (high - low)


class CosineTransform(NamedTuple):
    """The cosine transform of C numbers a row, and back, by real Fourier transforms of C numbers.

    SciPy has it too, but loading that takes as long as a thousand resamples of ten thousand rows.

    Attributes:
        order: (C,) the even places in ascending, then the odd ones in descending order (Makhoul, A
            fast cosine transform in one and two dimensions. IEEE Trans. ASSP, 1980).
        turns: (C / 2 + 1,) factors between the two transforms.
    """

    order: IntArray
    turns: NDArray[np.complex128]

    @classmethod
    @cache
    def of(cls, cells: int) -> CosineTransform:
        """Return the transform of an even number of cells."""
        places = np.arange(cells)
        order = np.concatenate([places[::2], places[::-2]])
        return cls(order, np.exp(-0.5j * np.pi * np.arange(cells // 2 + 1) / cells))

    def forwards(self, rows: FloatArray) -> FloatArray:
        """Return (R, C) sums over j of r_j cos(pi k (j + 1/2) / C)."""
        turned = np.fft.rfft(rows[:, self.order]) * self.turns
        found = np.empty(rows.shape)
        half = len(self.turns)
        found[:, :half] = turned.real
        found[:, half:] = -turned.imag[:, half - 2 : 0 : -1]
        return found

    def backwards(self, spectrum: FloatArray) -> FloatArray:
        """Return the (R, C) rows, in the places `order`, of which `forwards` makes this.

        Args:
            spectrum: (R, F) numbers of the F <= C lowest frequencies; those of others are 0.
        """
        width, given = len(self.order), spectrum.shape[1]
        kept = min(given, len(self.turns))
        turned = np.zeros((len(spectrum), kept), dtype=np.complex128)
        turned.real = spectrum[:, :kept]
        first = max(1, width - given + 1)
        if first < kept:
            turned.imag[:, first:] = -spectrum[:, width - first : width - kept : -1]
        turned *= self.turns[:kept].conj()
        return np.fft.irfft(turned, width)


SMECE = CurveMetric(
    name="smece",
    title="smECE",
    definition="top label, reflected Gaussian kernel at its fixed-point bandwidth",
    function=smooth_ece,
    effort=CELLS_COST,
    fails=f"{BIASED}; its bandwidth shrinks with the error that it finds",
    omnibus=True,
    of_curves=smece_of_curves,
    at_breakpoints=True,
    exact=smece_of_curve,
)
