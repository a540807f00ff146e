"""What a batch of logits, targets and features must look like, for losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.core.errors import InputError

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def is_soft(logits: Tensor, target: Tensor) -> bool:
    """Whether a target gives each class a probability: floating point, of the logits' shape."""
    return target.is_floating_point() and target.shape == logits.shape and logits.ndim >= 2


def check_batch(logits: Tensor, target: Tensor) -> bool:
    """Check logits (N, K, ...) and a target (N, ...), or a soft (N, K, ...); return which it is.

    Returns:
        Whether the target is soft.

    Raises:
        InputError: they don't belong together.
    """
    shape = (logits.shape[0], *logits.shape[2:]) if logits.ndim >= 2 else None
    soft = is_soft(logits, target)
    if not soft and (shape is None or target.shape != shape):
        raise InputError(
            "logits must be (N, K) or (N, K, ...) and target (N,) or (N, ...), "
            f"not {tuple(logits.shape)} and {tuple(target.shape)}{_remedy(logits, target)}"
        )
    if logits.shape[1] < 2:
        raise InputError(
            "logits must have at least two classes, not one; calibrant.training.losses.ManyLabels "
            "takes a single logit of a binary classifier, or one for each of many labels"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, not {logits.dtype}")
    if not soft and target.dtype not in _INTEGERS:
        raise InputError(
            f"target must be whole numbers, not {target.dtype}; target.long() makes them so"
        )
    return soft


def _remedy(logits: Tensor, target: Tensor) -> str:
    if logits.shape == target.shape:
        return "; one-hot labels: target.argmax(1) or, as probabilities, target.float()"
    if logits.ndim > 2 and target.shape == logits.shape[:-1]:
        return "; the classes come second: logits.movedim(-1, 1)"
    if logits.ndim == 2 and target.shape == (len(logits), 1):
        return "; target.squeeze(1) fits"
    return ""


def check_features(features: Tensor, target: Tensor) -> None:
    """Check that features are (N, D) or (N, D, ...) beside target (N,) or (N, ...).

    Raises:
        InputError: they are not.
    """
    if features.ndim < 2 or (features.shape[0], *features.shape[2:]) != target.shape:
        tokens = features.ndim == 3 and target.shape == features.shape[:1]
        remedy = (
            "; these are rows of tokens: PenultimateFeatures takes pool='last', 'first' or 'mean', "
            "or a function, and NetworkWithLoss, CalibrationCallback and TrainerCalibration take "
            "the same as features="
        )
        raise InputError(
            f"features must be (N, D) or (N, D, ...) beside target {tuple(target.shape)}, "
            f"not {tuple(features.shape)}{remedy if tokens else ''}"
        )


# How far the probabilities of a soft target may be from 1 in sum, as half precision leaves them.
_SOFT_TOLERANCE = 1e-2


def check_soft(soft: Tensor) -> None:
    """Check that (M, K) soft targets are probabilities, where looking is free: on the host.

    Raises:
        InputError: one is negative or no number, or a row doesn't sum to 1.
    """
    if soft.device.type != "cpu" or torch.compiler.is_compiling() or not soft.numel():
        return
    try:
        wrong = ~((soft >= 0).all(1) & ((soft.sum(1) - 1).abs() <= _SOFT_TOLERANCE))
        row = int(wrong.int().argmax()) if bool(wrong.any()) else None
    except RuntimeError:  # Within vmap there are no values.
        return
    if row is not None:
        least, total = float(soft[row].min()), float(soft[row].sum())
        raise InputError(
            "a soft target must be probabilities from 0 that sum to 1 in each row, but the least "
            f"of row {row} is {least:g} and their sum {total:g}; for many labels in a row take "
            "calibrant.training.losses.ManyLabels"
        )


def known_ends(values: Tensor) -> tuple[int, int] | None:
    """Return the least and the largest of whole numbers, or None where looking isn't free.

    On an accelerator it would wait, within torch.compile it would end the graph, and within vmap
    there are no values.
    """
    if not values.is_cpu or torch.compiler.is_compiling() or not values.numel():
        return None
    try:
        low, high = values.aminmax()
        return int(low), int(high)
    except RuntimeError:
        return None


def check_range(what: str, values: Tensor, size: int, advice: str) -> None:
    """Check that whole numbers lie in 0 to size - 1, where looking is free: on the host.

    An accelerator refuses such a number itself, in words of its own.

    Args:
        what: the values' name and of what they are numbers.
        values: (M,) whole numbers.
        size: how many there are to choose from.
        advice: ends the sentence.

    Raises:
        InputError: one lies outside.
    """
    ends = known_ends(values)
    if ends is None:
        return
    low, high = ends
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise InputError(f"{what} must lie in 0 to {size - 1}, but one is {wrong}; {advice}")


def weights_of_classes(weights: Sequence[float] | Tensor | None) -> Tensor | None:
    """Return class weights as a float32 tensor of their own, checked; None stays None.

    Raises:
        InputError: they aren't at least two finite numbers from 0, one of them above.
    """
    if weights is None:
        return None
    try:
        table = torch.as_tensor(weights).detach().float().clone()
    # Torch's errors for words, or for rows of several lengths.
    except (TypeError, ValueError, RuntimeError):
        table = torch.empty(0)
    if table.ndim != 1 or len(table) < 2:
        raise InputError(f"class_weights must be one number for each class, not {weights!r}")
    if not table.isfinite().all() or table.min() < 0 or table.max() == 0:
        raise InputError(
            "class_weights must be finite, from 0, and not all 0, but lie "
            f"between {float(table.min())} and {float(table.max())}"
        )
    return table
