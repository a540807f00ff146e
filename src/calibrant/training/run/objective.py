"""Network and loss as one module, so that both are moved, wrapped and saved together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.training.losses import CalibrationLoss
from calibrant.training.mixing import MIT, Mixup, RegMixup, refuse_mixing
from calibrant.training.nets import ImageClassifier

MIXING: dict[str, Callable[..., Mixup | RegMixup | MIT]] = {
    "mixup": Mixup,
    "regmixup": RegMixup,
    "mit": MIT,
    "mit-a": partial(MIT, variant="activations"),
}


class Objective(nn.Module):
    """The loss of a batch of images, straight or mixed.

    Args:
        network: what is trained.
        loss: with buffers and parameters of its own, if it has any.
        mixing: a name out of `MIXING`, or "none".
        mixing_arguments: its arguments but for the seed.

    Raises:
        InputError: the loss can't be used with this mixing, or with this kind of run.
    """

    def __init__(
        self,
        network: ImageClassifier,
        loss: CalibrationLoss,
        mixing: str = "none",
        mixing_arguments: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.mixing, self.mixing_arguments = mixing, dict(mixing_arguments or {})
        if "mixed" in loss.needs:
            raise InputError(
                f"{type(loss).__name__} makes mixtures of its own, which a run doesn't offer; call "
                "it from a training loop of yours"
            )
        if mixing != "none":
            refuse_mixing(loss, features=mixing == "mixup")
            self._mixer(0)

    def forward(
        self, images: Tensor, target: Tensor, index: Tensor, mixing_seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and how many images were classified rightly, both ().

        Of a mixed batch, the second is how often the network gave the label with the larger share;
        where the mixing does the forward pass itself it is 0.

        Args:
            images: (B, 3, H, W), normalised.
            target: (B,) classes.
            index: (B,) positions in the training set.
            mixing_seed: of the mixtures of this batch.
        """
        if self.mixing == "none":
            logits, features = self.network(images, return_features=True)
            return self._loss(logits.float(), target, features.float(), index), _right(
                logits, target
            )
        mixer = self._mixer(mixing_seed)
        if isinstance(mixer, Mixup):
            batch = mixer(images, target)
            logits, features = self.network(batch.inputs, return_features=True)
            major = batch.target if batch.share >= 0.5 else batch.partner_target
            return batch.loss(self.loss, logits.float(), features.float()), _right(logits, major)
        return mixer(self.network, images, target, self.loss), target.new_zeros(())

    def _loss(self, logits: Tensor, target: Tensor, features: Tensor, index: Tensor) -> Tensor:
        if "index" in self.loss.needs:
            return cast(Any, self.loss)(logits, target, features, index=index)
        return self.loss(logits, target, features)

    def _mixer(self, seed: int) -> Mixup | RegMixup | MIT:
        # Made anew for each batch: its randomness then follows from where the run is, and there is
        # no generator whose state a checkpoint would have to keep.
        try:
            return MIXING[self.mixing](**self.mixing_arguments, seed=seed)
        except TypeError as error:
            raise InputError(f"mixing '{self.mixing}': {error}") from error


@torch.no_grad()
def _right(logits: Tensor, target: Tensor) -> Tensor:
    return (logits.argmax(1) == target).sum()
