"""The curve of degree five through values and two derivatives at both ends."""

from __future__ import annotations

from calibrant.core.arrays import FloatArray


def quintic(ends: FloatArray, t: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Interpolate between two knots; derivatives are by t in [0, 1].

    Args:
        ends: (N, 2, 3) value and two derivatives at both knots.
        t: (N,) or () position between them.
    """
    (f0, d0, s0), (f1, d1, s1) = ends[:, 0, :].T, ends[:, 1, :].T
    rise = f1 - f0
    c2 = s0 / 2
    c3 = 10 * rise - 6 * d0 - 4 * d1 - 1.5 * s0 + 0.5 * s1
    c4 = -15 * rise + 8 * d0 + 7 * d1 + 1.5 * s0 - s1
    c5 = 6 * rise - 3 * (d0 + d1) + 0.5 * (s1 - s0)
    value = f0 + t * (d0 + t * (c2 + t * (c3 + t * (c4 + t * c5))))
    first = d0 + t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))
    second = 2 * c2 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5))
    return value, first, second
