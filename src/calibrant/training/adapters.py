"""Losses in the shape that other training loops ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures
from calibrant.training.losses.base import CalibrationLoss, own_loss
from calibrant.training.nets.forms import logits_of

TrainerLoss = Callable[..., Tensor]
# What a callback of the user's can see to, and how.
CALLS = {
    "epochs": "on_epoch_begin call loss.start_epoch(int(state.epoch))",
    "validation": "on_evaluate call loss.update_from_validation(logits, labels)",
}


def for_trainer(
    loss: CalibrationLoss,
    features: PenultimateFeatures | Callable[[Any], Tensor] | None = None,
    *,
    served: Collection[str] = (),
    given: Callable[[Tensor, Tensor], dict[str, Any]] | None = None,
) -> TrainerLoss:
    """Return `loss` as the `compute_loss_func` of the Hugging Face Trainer.

    The Trainer calls it with (outputs, labels, num_items_in_batch); the last is the number of
    labels in all batches that make one step, and the Trainer leaves dividing to the function. So
    the mean over this batch is weighted by its share of those labels. For losses with a batch term
    that is a weighted mean of the terms of the small batches, not the term of the large one.

    Logits may have the classes last, (N, T, K) beside labels (N, T), as token classifiers give
    them. Set ``model.calibration_loss = loss`` if the loss has parameters or state, so that
    optimiser, checkpoints and train() / eval() reach it; with several processes, set
    `ddp_find_unused_parameters=False`, since the loss works outside of the model's forward pass.

    Args:
        loss: any loss with reduction "mean" that `needs` at most features.
        features: a tap on the model, or a function of the outputs, for losses that need features;
            (N, D), or (N, T, D) beside token logits.
        served: of what the loss `needs`, what a `TrainerCallback` of yours sees to, since the
            Trainer tells a loss of neither: "epochs" (`on_epoch_begin` calls ``loss.start_epoch``),
            "validation" (`on_evaluate` calls ``loss.update_from_validation``).
            `TrainerCalibration` sees to both.
        given: a function of logits and labels that returns whatever else the loss is called with.

    Raises:
        InputError: a loss that needs other things, has another reduction, or leaves out other
            labels than -100, by which the Trainer counts.

    Examples:
        >>> import torch
        >>> from calibrant.training import for_trainer
        >>> from calibrant.training.losses import CrossEntropy
        >>> compute_loss = for_trainer(CrossEntropy())
        >>> outputs, labels = {"logits": torch.zeros(2, 4)}, torch.tensor([0, 3])
        >>> compute_loss(outputs, labels)  # log 4
        tensor(1.3863)
        >>> compute_loss(outputs, labels, num_items_in_batch=4)  # two of the four labels of a step
        tensor(0.6931)
    """
    own_loss(loss, "for_trainer")
    name = type(loss).__name__
    unknown = set(served) - CALLS.keys()
    if unknown:
        raise InputError(
            f"served must be among {', '.join(CALLS)}, not {', '.join(sorted(unknown))}"
        )
    # The optimiser's part shows once training goes on, and the loss itself watches over it.
    lacking = sorted(loss.needs - {"features", "optimiser"} - set(served))
    out_of_reach = [need for need in lacking if need not in CALLS]
    if out_of_reach and given is None:
        raise InputError(
            f"{name} needs {', '.join(out_of_reach)}, which the Trainer doesn't hand to a loss; "
            "calibrant.training.TrainerCalibration does"
        )
    for need in set(lacking) & CALLS.keys():
        raise InputError(
            f"{name} needs {need}, which the Trainer gives no loss: let a TrainerCallback's "
            f"{CALLS[need]}, and pass served=['{need}'] to say so"
        )
    if loss.reduction != "mean":
        raise InputError(f"the loss must have reduction 'mean', not '{loss.reduction}'")
    if loss.ignore_index != -100:
        raise InputError(
            f"the loss must have ignore_index -100, not {loss.ignore_index}: the Trainer counts "
            "all other labels"
        )
    if "features" in loss.needs and features is None:
        raise InputError(f"{name} needs features=, such as PenultimateFeatures(model)")

    call: Any = loss

    def compute_loss(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        logits = logits_of(outputs)
        if not isinstance(labels, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "the batch has no labels: rows must have class numbers as 'labels' or 'label'; "
                "text is left out by the Trainer's collator"
            )
        seen = features.features if isinstance(features, PenultimateFeatures) else None
        if seen is None and callable(features):
            seen = features(outputs)
        if logits.ndim == 3 and labels.ndim == 2 and labels.shape == logits.shape[:2]:
            logits = logits.flatten(0, 1)
            seen = seen.flatten(0, 1) if seen is not None and seen.ndim == 3 else seen
            labels = labels.flatten()
        mean = call(logits, labels, seen, **({} if given is None else given(logits, labels)))
        if num_items_in_batch is None:
            return mean
        return mean * ((labels != loss.ignore_index).sum() / num_items_in_batch)

    return compute_loss
