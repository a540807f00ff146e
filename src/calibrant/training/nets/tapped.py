"""Any module as a network with features."""

from __future__ import annotations

from typing import Any, cast

from torch import nn
from torch.nn.parameter import is_lazy

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures, check_module
from calibrant.training.nets.forms import answered


class TappedNetwork(nn.Module):
    """A module of yours that also gives features, the inputs of one of its layers.

    Its outputs may be logits, a tuple that begins with them, a mapping with "logits", or an object
    with an attribute `logits`, as the models of Hugging Face give.

    Args:
        network: any module that gives (B, K) logits.
        layer: name of the last layer as in `network.named_modules()`; None takes the last linear or
            convolutional one that was registered, and warns where several could be meant.
        n_classes: K; None takes whatever the network gives.

    Raises:
        InputError: no such layer, or a network whose parameters have no shape yet.

    Examples:
        >>> import torch
        >>> from calibrant.training.nets import TappedNetwork
        >>> own = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3))
        >>> logits, features = TappedNetwork(own)(torch.tensor([[4.0, -4.0]]), return_features=True)
        >>> features
        tensor([[4., 0.]])
    """

    def __init__(
        self, network: nn.Module, layer: str | None = None, *, n_classes: int | None = None
    ) -> None:
        super().__init__()
        check_module(network)
        if any(is_lazy(parameter) for parameter in network.parameters()):
            raise InputError(
                "the network has lazy layers, whose parameters have no shape yet; call it with a "
                "batch once before"
            )
        self._tap = PenultimateFeatures(network, layer)
        self.network, self._n_classes = network, n_classes

    @property
    def layer(self) -> str:
        """Name of the layer whose inputs are the features."""
        return self._tap.layer

    @property
    def head(self) -> nn.Linear | None:
        """The layer, if it is linear."""
        modules: dict[str, nn.Module] = dict(cast(Any, self.network.named_modules()))
        layer = modules[self.layer]
        return layer if isinstance(layer, nn.Linear) else None

    def forward(self, inputs: Any, return_features: bool = False) -> Any:
        """Return (B, K) logits, and if asked (B, D) detached features.

        Args:
            inputs: a tensor; a mapping, which gives arguments by name; or a tuple of arguments.
            return_features: whether to return both.

        Raises:
            InputError: the network fails on these inputs, or gives no (B, K) logits.
        """
        logits = answered(self.network, inputs)
        if logits.ndim != 2 or self._n_classes not in (None, logits.shape[1]):
            single = logits.ndim and logits.numel() == len(logits)
            raise InputError(
                f"the network must give (B, {self._n_classes or 'K'}) logits, one for each class, "
                f"not {tuple(logits.shape)}"
                + "; of a single logit z of (B,) make torch.stack([0 * z, z], 1)"
                * bool(single)
            )
        if not return_features:
            return logits
        features = self._tap.features.flatten(1)
        if len(features) != len(logits):
            raise InputError(
                f"layer '{self.layer}' was given {len(features)} rows for {len(logits)} inputs; "
                "name the last layer with layer="
            )
        return logits, features

    def close(self) -> None:
        """Stop listening to the network."""
        self._tap.close()
