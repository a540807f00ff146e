"""The optimiser of the fits that have no solver of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from calibrant.core.arrays import FloatArray
from calibrant.core.threads import one_blas_thread


def minimize(
    value_and_gradient: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    *,
    bounds: Any = None,
    **options: float,
) -> Any:
    """Return SciPy's result of L-BFGS-B, its BLAS kept to one thread.

    Args:
        value_and_gradient: of (d,) parameters, a number and (d,).
        start: (d,).
        bounds: (low, high) of each parameter, None for an open end.
        options: of SciPy's L-BFGS-B, such as maxiter, gtol, ftol, maxcor.
    """
    # Imported when needed: `import calibrant` should cost nothing.
    from scipy import optimize

    with one_blas_thread():
        return cast(Any, optimize).minimize(
            value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options=options,
        )
