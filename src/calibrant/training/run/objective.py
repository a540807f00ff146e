"""Network and loss as one module, so that both are moved, wrapped and saved together."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures
from calibrant.training.losses import CalibrationLoss
from calibrant.training.mixing import MIT, MIXING, Mixup, RegMixup, refuse_mixing
from calibrant.training.nets import ImageClassifier, TappedNetwork
from calibrant.training.run.averaging import WeightAverage


class Objective(nn.Module):
    """The loss of a batch of images, straight or mixed.

    Args:
        network: what is trained.
        loss: with buffers and parameters of its own, if it has any.
        mixing: a name out of `MIXING`, or "none".
        mixing_arguments: its arguments but for the seed, or those of the mixtures that the loss
            needs.
        samples: size of the training set.

    Attributes:
        recorder: of what the loss does to each image, if it has any; None with mixtures, of which
            each belongs to several images.
        average: of the network's weights, if the average is what is kept.

    Raises:
        InputError: the loss can't be used with this mixing, or the arguments aren't its own.
    """

    def __init__(
        self,
        network: ImageClassifier | TappedNetwork,
        loss: CalibrationLoss,
        mixing: str = "none",
        mixing_arguments: dict[str, Any] | None = None,
        *,
        samples: int,
    ) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.mixing, self.mixing_arguments = mixing, dict(mixing_arguments or {})
        self.average: WeightAverage | None = None
        self._tap: PenultimateFeatures | None = None
        self.recorder = loss.make_recorder(samples) if mixing == "none" else None
        if mixing != "none":
            refuse_mixing(loss, features=mixing in ("mixup", "regmixup"))
            self._mixer(0)
            layer = f"network.{network.layer}" if isinstance(network, TappedNetwork) else "fc"
            if mixing == "regmixup" and "features" in loss.needs:
                self._tap = PenultimateFeatures(network, layer)
        elif "mixed" in loss.needs:
            self._ranked(0)
        elif self.mixing_arguments:
            raise InputError(f"{type(loss).__name__} mixes nothing that could have arguments")

    def forward(
        self, images: Tensor, target: Tensor, index: Tensor, mixing_seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and how many images were classified rightly, both ().

        Of a batch under mixup, the second is how often the network gave the label with the larger
        share; under RegMixup that of the unmixed half; under MIT, whose outputs answer to no image
        (`knows_accuracy` is False), 0.

        Args:
            images: (B, 3, H, W), normalised.
            target: (B,) classes.
            index: (B,) positions in the training set.
            mixing_seed: of the mixtures of this batch.
        """
        if "mixed" in self.loss.needs:
            return self._ranking(images, target, mixing_seed)
        if self.mixing == "none":
            logits, features = self.network(images, return_features=True)
            loss = self._loss(logits.float(), target, features.float(), index)
            if self.recorder is not None:
                self.recorder.record(self.loss, index, logits, target)
            return loss, _right(logits, target)
        mixer = self._mixer(mixing_seed)
        if isinstance(mixer, Mixup):
            batch = mixer(images, target)
            logits, features = self.network(batch.inputs, return_features=True)
            major = batch.target if batch.share >= 0.5 else batch.partner_target
            return batch.loss(self.loss, logits.float(), features.float()), _right(logits, major)
        if isinstance(mixer, RegMixup):
            value, raw = mixer.with_logits(self.network, images, target, self.loss, self._tap)
            return value, _right(raw, target)
        # The stages of a network of one's own are its, and not those of what listens to it.
        network: nn.Module = self.network
        if self.mixing == "mit-a" and isinstance(network, TappedNetwork):
            network = network.network
        return mixer(network, images, target, self.loss), target.new_zeros(())

    def close(self) -> None:
        """Take away what it put on the network to hand out features."""
        if self._tap is not None:
            self._tap.close()

    @property
    def knows_accuracy(self) -> bool:
        """Whether the network answers to single images, so that right answers can be counted."""
        return not self.mixing.startswith("mit")

    def recorded_columns(self) -> dict[str, float]:
        """Return the columns of the history that the loss adds, and end the recorder's epoch.

        All processes must call it. Without a recorder there are none.
        """
        return {} if self.recorder is None else self.recorder.columns()

    def _ranking(self, images: Tensor, target: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, for a loss that compares inputs with mixtures of them."""
        mixtures = [mixer(images, target) for mixer in self._ranked(seed)]
        # One pass over all, so that batch norm sees them together.
        logits = self.network(torch.cat([images, *(mixture.inputs for mixture in mixtures)]))
        raw, mixed = logits[: len(target)].float(), logits[len(target) :].float()
        classes, left_out = raw.shape[1], self.loss.ignore_index
        shares = torch.stack([mixture.soft_target(classes, left_out) for mixture in mixtures])
        mixed = mixed.unflatten(0, shares.shape[:2])
        loss = cast(Any, self.loss)(raw, target, mixed_logits=mixed, mixed_target=shares)
        return loss, _right(raw, target)

    def _ranked(self, seed: int) -> list[Mixup]:
        arguments: dict[str, Any] = {**self.loss.mixture_arguments, **self.mixing_arguments}
        try:
            return [Mixup(**arguments, seed=seed + number) for number in range(self.loss.mixtures)]
        except TypeError as error:
            raise InputError(f"the mixtures of {type(self.loss).__name__}: {error}") from error

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
