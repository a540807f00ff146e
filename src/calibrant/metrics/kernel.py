"""The kernel-smoothed calibration error smECE, its kernel reflected exactly at 0 and 1."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.metrics.top_label import ResidualCurves, TopLabel, top_label

CELLS = 4096
RESAMPLING_CELLS = 512
# The bandwidth is found to 2^-24; resamples, which scatter by far more, do with 2^-16.
HALVINGS = 24
RESAMPLING_HALVINGS = 16


def smooth_ece(scores: Array, labels: Array) -> float:
    """Return smECE: int |r_s(t)| dt at the bandwidth s that equals its own value, a fraction.

    r_s is the residual density (1/N) sum_i (c_i - a_i) K_s(c_i, t) under a Gaussian kernel
    reflected at 0 and 1 with all its images. The integral falls with s, so there is one fixed point
    and no parameter to choose. Confidences are put on 4 096 cells; there the reflected kernel is
    applied by a cosine transform, which treats both ends exactly: confidences at 1 keep their whole
    weight. The smooth calibration error, smCE, is another number: `smooth_calibration_error`.

    Args:
        scores: (N, K) probabilities, or (N,) confidences.
        labels: (N,) true classes, or (N,) correctness.

    References:
        Blasiok & Nakkiran: Smooth ECE. ICLR 2024.

    Examples:
        >>> import calibrant as cb
        >>> truth = cb.synthetic.top_label(20_000)  # P(right | c) = c^2
        >>> rows = truth.predictions
        >>> value = cb.smooth_ece(rows.scores, rows.predicted == rows.labels)
        >>> abs(value - truth.true_calibration_error()) < 0.02
        True
    """
    return smece_of_rows(top_label(scores, labels))


def smece_of_rows(rows: TopLabel) -> float:
    """Return the smECE of sorted rows."""
    return smece_of_curve(rows.curves())


def smece_of_curve(curve: ResidualCurves) -> float:
    """Return the smECE of one residual curve on the fine cells."""
    return float(smece_of_curves(curve, CELLS, HALVINGS)[0])


def smece_of_curves(
    curves: ResidualCurves, cells: int = RESAMPLING_CELLS, halvings: int = RESAMPLING_HALVINGS
) -> FloatArray:
    """Return the (R,) smECEs of residual curves."""
    masses = curves.between_edges(np.arange(cells + 1) / cells) / curves.total[:, None]
    # Reflection about the outer edges of the first and last cell makes the kernel a plain, periodic
    # one on twice the cells.
    spectrum = np.fft.rfft(np.concatenate([masses, masses[:, ::-1]], axis=1), axis=1)
    frequency = np.pi * np.arange(cells + 1)

    def smoothed(bandwidth: FloatArray) -> FloatArray:
        damping = np.exp(-0.5 * (bandwidth[:, None] * frequency) ** 2)
        density = np.fft.irfft(spectrum * damping, axis=1)[:, :cells]
        return np.abs(density).sum(axis=1)

    low, high = np.zeros(len(masses)), np.ones(len(masses))
    for _ in range(halvings):
        middle = (low + high) / 2
        above = smoothed(middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return smoothed(high)
