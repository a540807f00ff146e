"""A network and its loss as one module, for training loops of one's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures
from calibrant.training.losses.base import CalibrationLoss, own_loss
from calibrant.training.mixing import Mixup
from calibrant.training.nets.forms import called, logits_of


class NetworkWithLoss(nn.Module):
    """A network and its loss as one module: wrapped, compiled, learnt and saved together.

        model = NetworkWithLoss(network, make_loss("fedlas-ls", n_classes=10), layer="fc")
        optimiser = SGD(model.parameters(), lr=0.1)
        value = model(inputs, target)

    The call gives the loss what it asks for: the features that went into `layer` (FeDLaS), the
    positions of the rows (CRL), mixtures of the inputs (RankMixup). In eval mode it gives the loss
    of held-out rows and learns nothing. What belongs to an epoch stays with the loop::

        model.start_epoch(epoch)  # schedules of gamma, the seed of the mixtures
        model.end_epoch(val_logits, val_target)  # CRL's counts, AdaFocal's bins

    Its `state_dict` has all that the loss remembers, so a checkpoint needs nothing else.

    Args:
        network: any module whose outputs are logits, a tuple that begins with them, a mapping with
            "logits", or an object with an attribute `logits`.
        loss: one of this package's.
        layer: name of the network's last layer, as in `network.named_modules()`; None takes the
            last that was registered. Needed only for losses that need features.

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

    def __init__(self, network: nn.Module, loss: CalibrationLoss, layer: str | None = None) -> None:
        super().__init__()
        self.network, self.loss = network, own_loss(loss, "NetworkWithLoss")
        self._tap = PenultimateFeatures(network, layer) if "features" in loss.needs else None
        # Epoch and batch: mixtures follow from them, and a run that goes on makes the same ones.
        self._place = (0, 0)

    def forward(self, inputs: Any, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Args:
            inputs: a tensor; a mapping, which gives arguments by name; or a tuple of arguments.
            target: (N,) classes or `ignore_index`.
            index: (N,) positions of the rows in the training set, for CRL; not looked at in eval
                mode.
        """
        return self.with_logits(inputs, target, index)[0]

    def with_logits(
        self, inputs: Any, target: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the logits (N, K) that it was made from."""
        logits = self._logits(inputs)
        call: Any = self.loss
        if "mixed" in self.loss.needs and self.training:
            return call(logits, target, **self._mixtures(inputs, target, logits)), logits
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
        """Tell the loss that an epoch is over, and what the network says of held-out rows.

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

    def _mixtures(self, inputs: Any, target: Tensor, logits: Tensor) -> dict[str, Tensor]:
        said: list[Tensor] = []
        shares: list[Tensor] = []
        epoch, batch = self._place
        for number in range(self.loss.mixtures):
            seed = (epoch, batch, number)
            mixture = Mixup(**self.loss.mixture_arguments, seed=seed)(inputs, target)
            said.append(self._logits(mixture.inputs))
            shares.append(mixture.soft_target(logits.shape[1], self.loss.ignore_index))
        self._place = (epoch, batch + 1)
        return {"mixed_logits": torch.stack(said), "mixed_target": torch.stack(shares)}
