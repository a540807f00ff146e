"""What linear maps read of a row: its log-probabilities, or its centred logits.

The scores W x + b depend on the origin of x as soon as the weights of two classes differ, and the
origin of logits is arbitrary. So each row gets one: either its logits are centred, or they are the
log-probabilities that temperature scaling gives, ``x = z - logsumexp(beta z) / beta``, in the units
of the logits. The difference between the two says how sure the row is: the more sure, the further
the log-probabilities of the other classes lie below 0.
"""

from __future__ import annotations

from typing import Any, Literal

import array_api_compat.numpy as xnp
import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, for_row_chunks, unmasked_mean
from calibrant.posthoc.pieces import (
    below_top,
    centred,
    exp_of,
    largest,
    less,
    sums,
    zero_where_masked,
)

Inputs = Literal["log-probabilities", "centred"]
INPUTS: tuple[str, ...] = ("log-probabilities", "centred")


def linear_inputs(xp: Any, logits: Array, inputs: str, beta: Array | float, masks: bool) -> Array:
    """Return (n, K) x of floating logits, 0 where a class is masked.

    Args:
        xp: array namespace.
        logits: (n, K) logits.
        inputs: one of `INPUTS`.
        beta: inverse temperature of the log-probabilities; not read for centred logits.
        masks: whether a logit may be minus infinity.
    """
    if inputs == "centred":
        return centred(xp, logits, masks)
    # In two steps: a large common offset mustn't cost the digits of a narrow float.
    gaps = below_top(xp, logits)
    return zero_where_masked(xp, logits, less(xp, gaps, _log_total(xp, gaps, beta)), masks)


def origins(logits: NDArray[Any], inputs: str, beta: float) -> FloatArray:
    """Return (N, 1) what `linear_inputs` takes off each row of (N, K) NumPy logits, as float64."""
    found = np.empty((len(logits), 1))

    def work(part: slice) -> None:
        chunk = logits[part].astype(np.float64)
        if inputs == "centred":
            found[part] = unmasked_mean(chunk)[0]
        else:
            most = largest(xnp, chunk)
            found[part] = most + _log_total(xnp, chunk - most, beta)

    for_row_chunks(logits, work)
    return found


def _log_total(xp: Any, gaps: Array, beta: Array | float) -> Array:
    """Return (n, 1) what logsumexp(beta z) / beta lies above the largest z, given z less that."""
    return xp.log(sums(xp, exp_of(xp, gaps * beta))[:, None]) / beta
