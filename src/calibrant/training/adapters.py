"""A network and its loss for loops of your own; losses in the shape that the Trainer wants."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures, called, logits_of, tap_for
from calibrant.training.losses.base import CalibrationLoss, own_loss
from calibrant.training.losses.collectives import gather_objects
from calibrant.training.mixing import Mixup

# What a callback of the user's can see to, and how.
CALLS = {
    "epochs": "on_epoch_begin call loss.start_epoch(int(state.epoch))",
    "validation": "on_evaluate call loss.update_from_validation(logits, labels)",
}
Pool = str | Callable[[Tensor], Tensor] | None


class HeldOutRows:
    """What a loss that learns from validation was called with in one pass over held-out rows."""

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, Tensor]] = []

    def add(self, logits: Tensor, target: Tensor) -> None:
        """Keep logits (N, K, ...) and their targets, (N, ...) or of the logits' shape."""
        if target.shape != logits.shape:
            target = target.flatten()
        # As rows, since images of a dense task may differ in size from batch to batch.
        rows = [
            values.detach().cpu().movedim(1, -1).flatten(0, -2) if values.ndim > 1 else values.cpu()
            for values in (logits, target)
        ]
        self._rows.append((rows[0].detach(), rows[1]))

    def teach(self, loss: CalibrationLoss, otherwise: str) -> None:
        """Let the loss learn from the rows of all processes, and forget them.

        Raises:
            InputError: there are none; `otherwise` ends the sentence.
        """
        rows, self._rows = gather_objects(self._rows), []
        if not rows:
            raise InputError(f"{type(loss).__name__} learns from validation rows{otherwise}")
        device = next((values.device for values in loss.buffers()), torch.device("cpu"))
        logits, target = (torch.cat(part).to(device) for part in zip(*rows, strict=True))
        loss.update_from_validation(logits, target)


def mixtures_for(
    loss: CalibrationLoss,
    inputs: Any,
    target: Tensor,
    n_classes: int,
    place: tuple[int, int],
    answer: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return what a loss that needs "mixed" is called with besides logits and targets.

    Args:
        loss: says how many mixtures of each input it wants.
        inputs: (N, ...) floating-point numbers.
        target: (N,) classes.
        n_classes: K.
        place: in the run, such as epoch and batch: mixtures follow from it, so that a run that
            goes on makes the same ones.
        answer: gives the (N, K) logits of mixed inputs.
    """
    said: list[Tensor] = []
    shares: list[Tensor] = []
    for number in range(loss.mixtures):
        mixture = Mixup(**loss.mixture_arguments, seed=(*place, number))(inputs, target)
        said.append(answer(mixture.inputs))
        shares.append(mixture.soft_target(n_classes, loss.ignore_index))
    return {"mixed_logits": torch.stack(said), "mixed_target": torch.stack(shares)}


class NetworkWithLoss(nn.Module):
    """A network and its loss as one module, which is wrapped, compiled, trained and saved.

        model = NetworkWithLoss(network, make_loss("fedlas-ls", n_classes=10), layer="fc")
        optimiser = SGD(model.parameters(), lr=0.1)
        value = model(inputs, target)

    The call gives the loss what it needs: the features that went into `layer` (FeDLaS), the
    positions of the rows (CRL), mixtures of the inputs (RankMixup). In eval mode it gives the loss
    of held-out rows and learns nothing. What belongs to an epoch stays with the loop::

        model.start_epoch(epoch)  # schedules of gamma, the seed of the mixtures
        model.end_epoch(val_logits, val_target)  # CRL's counts, AdaFocal's bins

    Its `state_dict` has the loss's state too, so a checkpoint needs nothing else.

    Args:
        network: any module whose outputs are logits, a tuple that begins with them, a mapping with
            "logits", or an object with an attribute `logits`.
        loss: one of this package's.
        layer: name of the network's last layer, as in `network.named_modules()`; None takes the
            last that was registered. Needed only for losses that need features.
        features: if that layer gets a row for each token, how they become one row: "first", "last"
            or "mean" of the tokens that the attention mask counts, or a function of the layer's
            inputs. Or, in place of `layer`, the layer's name.

    Raises:
        InputError: the loss isn't this package's, or there is no such layer.

    Examples:
        >>> import torch
        >>> from calibrant.training import NetworkWithLoss, make_loss
        >>> network = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3))
        >>> model = NetworkWithLoss(network, make_loss("fedlas-ls", n_classes=3), layer="1")
        >>> model(torch.eye(2), torch.tensor([0, 1])).isfinite()
        tensor(True)
        >>> [name for name in model.state_dict() if "running" in name]
        ['loss.running_mean', 'loss.running_std']
    """

    def __init__(
        self,
        network: nn.Module,
        loss: CalibrationLoss,
        layer: str | None = None,
        *,
        features: Pool = None,
    ) -> None:
        super().__init__()
        self.network, self.loss = network, own_loss(loss, "NetworkWithLoss")
        self._tap = tap_for(network, layer, features) if "features" in loss.needs else None
        # Epoch and batch, which mixtures follow from.
        self._place = (0, 0)

    def forward(self, inputs: Any, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Args:
            inputs: a tensor; a mapping, which gives arguments by name; or a tuple of arguments.
            target: (N,) classes or `ignore_index`.
            index: (N,) positions of the rows in the training set, for CRL; not used in eval mode.
        """
        return self.with_logits(inputs, target, index)[0]

    def with_logits(
        self, inputs: Any, target: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the logits (N, K) that it was made from."""
        logits = self._logits(inputs)
        call: Any = self.loss
        if "mixed" in self.loss.needs and self.training:
            classes, (epoch, batch) = logits.shape[1], self._place
            mixed = mixtures_for(self.loss, inputs, target, classes, self._place, self._logits)
            self._place = (epoch, batch + 1)
            return call(logits, target, **mixed), logits
        features = None if self._tap is None else self._tap.features
        if "index" in self.loss.needs:
            # Held-out rows have positions of their own, where nothing is counted.
            return call(logits, target, features, index=index if self.training else None), logits
        return call(logits, target, features), logits

    def start_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch begins, counted from 0."""
        self._place = (epoch, 0)
        self.loss.start_epoch(epoch)

    def end_epoch(self, logits: Tensor | None = None, target: Tensor | None = None) -> None:
        """Tell the loss that an epoch is over, and give it the outputs for held-out rows.

        Raises:
            InputError: the loss learns from held-out rows, and there are none.
        """
        self.loss.end_epoch()
        if "validation" not in self.loss.needs:
            return
        if logits is None or target is None:
            raise InputError(
                f"{type(self.loss).__name__} learns from held-out rows: give end_epoch their "
                "logits and targets"
            )
        self.loss.update_from_validation(logits, target)

    def _logits(self, inputs: Any) -> Tensor:
        return logits_of(called(self.network, inputs))


TrainerLoss = Callable[..., Tensor]


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
        served: which of the loss's `needs` a `TrainerCallback` of yours provides, since the Trainer
            provides neither: "epochs" (`on_epoch_begin` calls ``loss.start_epoch``), "validation"
            (`on_evaluate` calls ``loss.update_from_validation``). `TrainerCalibration` provides
            both.
        given: a function of logits and labels that returns whatever else the loss is called with.

    Raises:
        InputError: a loss with other needs, another reduction, or another `ignore_index` than -100,
            which the Trainer uses.

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

    if served:
        # That it is told of epochs; it waits for more than the first.
        loss.start_epoch(0)
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
