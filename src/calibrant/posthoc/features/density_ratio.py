"""ProCal's density ratio: how dense right and wrong rows lie around a confidence and proximity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import NotApplicableError
from calibrant.posthoc.confidence.base import mixed_with_uniform
from calibrant.posthoc.features.proximity import ProximityMap
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.pieces import sums

# The row that stands for knowing nothing counts like one that lies so many bandwidths away.
FARTHEST_BANDWIDTHS = 3.0


@dataclass(eq=False)
class ProximityDensityRatio(ProximityMap):
    """c' = n_1 d_1 / (n_1 d_1 + n_0 d_0), densities of right and wrong rows: ProCal, continuous.

    Here d_1 and d_0 are densities of the n_1 right and the n_0 wrong calibration rows over
    confidence c and proximity D, estimated with Gaussian product kernels. Bandwidths are those of
    the normal reference rule, 1.06 * sd * n^(-1/6), for each axis and for right and wrong rows
    apart. Keeps the predicted class.

    All is computed as logarithms. One imagined row takes part as well: right with probability c,
    and with the weight of a kernel three bandwidths away. Where there are calibration rows it
    changes next to nothing; far from all of them c' returns to c. The paper's code floors its
    densities there, which gives 0.

    Args:
        neighbours: k, for the proximity.
        reference_rows: how many reference rows to keep at most.
        convention: of the proximity: "paper", exp(-mean distance), or "released", mean
            exp(-distance^2).
        scaling: "temperature" maps the confidence after temperature scaling, "none" the network's.

    Attributes:
        right_, wrong_: (n, 2) confidence and proximity of the calibration rows.
        bandwidths_: (3, 2) of right rows, of wrong rows and of all.

    References:
        Xiong, Deng, Koh, Wu, Li, Xu, Hooi: Proximity-Informed Calibration for Deep Neural Networks.
        NeurIPS 2023.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation").take(slice(1_000)), cb.load_sample("test")
        >>> procal = cb.ProximityDensityRatio().fit(val.logits, val.labels, val.features)
        >>> confidence = procal.predict_confidence(test.logits[:2_000], test.features[:2_000])[1]
        >>> [f"{said.mean():.2f}" for said in (test.probs.max(1), confidence)]  # 84 % are right
        ['0.90', '0.85']
    """

    method: ClassVar[str] = "procal-dr"

    right_: FloatArray = learnt("r", 2)
    wrong_: FloatArray = learnt("w", 2)
    bandwidths_: FloatArray = learnt(3, 2, above=0)

    @property
    def n_parameters(self) -> int:
        """The temperature and four bandwidths; the calibration rows themselves aside."""
        return 4 + (self.scaling == "temperature")

    def _fit_map(self, confidence: FloatArray, proximity: FloatArray, correct: FloatArray) -> None:
        points = np.stack([confidence, proximity], axis=1)
        self.right_, self.wrong_ = points[correct > 0], points[correct == 0]
        if not (len(self.right_) and len(self.wrong_)):
            raise NotApplicableError(
                "the density ratio needs right and wrong calibration rows, and all "
                f"{len(points)} are {'right' if len(self.right_) else 'wrong'}"
            )
        of_all = bandwidth(points)
        each = [bandwidth(self.right_), bandwidth(self.wrong_)]
        # Rows that all coincide on an axis, or a single one, leave their bandwidth to all rows.
        floors = [of_all * (len(points) / len(p)) ** (1 / 6) for p in (self.right_, self.wrong_)]
        usable = [np.where(h > 1e-9 * f, h, f) for h, f in zip(each, floors, strict=True)]
        widths = np.stack([*usable, of_all])
        # Where no two rows differ, the axis says nothing.
        self.bandwidths_ = np.where(of_all > 1e-9, widths, 1.0)

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, and the number of classes."""
        return super().map_arrays() | {"n_classes": np.asarray(float(self.n_classes_))}

    def widest(self) -> int:
        """Return the kernels of all calibration rows, if those are most."""
        return max(super().widest(), len(self.right_), len(self.wrong_))

    def mapped(
        self, xp: Any, confidence: Array, proximity: Array, learnt: Mapping[str, Array]
    ) -> Array:
        """Return the share of the right rows' density."""
        points = xp.stack([confidence, proximity], axis=1)
        of_right, of_wrong, of_all = (learnt["bandwidths_"][i] for i in range(3))
        right = log_kernel_sum(xp, points, learnt["right_"], of_right)
        wrong = log_kernel_sum(xp, points, learnt["wrong_"], of_wrong)
        unknown = -0.5 * FARTHEST_BANDWIDTHS**2 - xp.log(2 * math.pi * xp.prod(of_all))
        top = xp.maximum(xp.maximum(right, wrong), unknown)
        right, wrong, weight = xp.exp(right - top), xp.exp(wrong - top), xp.exp(unknown - top)
        # Even what is known for certain only rests on so many rows.
        rows = int(learnt["right_"].shape[0]) + int(learnt["wrong_"].shape[0])
        prior = mixed_with_uniform(confidence, rows, learnt["n_classes"])
        return (right + weight * prior) / (right + wrong + weight)


def bandwidth(points: FloatArray) -> FloatArray:
    """Return the (d,) bandwidths of (n, d) points by the normal reference rule."""
    n, dimensions = points.shape
    return 1.06 * points.std(axis=0) * n ** (-1 / (4 + dimensions))


def log_kernel_sum(xp: Any, queries: Array, points: Array, widths: Array) -> Array:
    """Return (m,) log of the sum of Gaussian product kernels of (n, d) points at (m, d) queries."""
    scaled, places = queries / widths, points / widths
    exponent = -0.5 * (scaled[:, :1] - places[None, :, 0]) ** 2
    for axis in range(1, int(points.shape[1])):
        exponent = exponent - 0.5 * (scaled[:, axis, None] - places[None, :, axis]) ** 2
    top = xp.max(exponent, axis=1, keepdims=True)
    total = xp.log(sums(xp, xp.exp(exponent - top)))
    scale = xp.log(xp.prod(widths)) + 0.5 * int(points.shape[1]) * math.log(2 * math.pi)
    return top[:, 0] + total - scale
