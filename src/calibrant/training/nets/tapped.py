"""Any module as a network with features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.features import PenultimateFeatures


class TappedNetwork(nn.Module):
    """A module of yours that also gives features, the inputs of one of its layers.

    Its outputs may be logits, a tuple that begins with them, a mapping with "logits", or an object
    with an attribute `logits`, as the models of Hugging Face give.

    Args:
        network: any module that gives (B, K) logits.
        layer: name of the last layer as in `network.named_modules()`; None takes the last linear or
            convolutional one that was registered, and warns where several could be meant.

    Raises:
        InputError: no such layer.

    Examples:
        >>> import torch
        >>> from calibrant.training.nets import TappedNetwork
        >>> own = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3))
        >>> logits, features = TappedNetwork(own)(torch.tensor([[4.0, -4.0]]), return_features=True)
        >>> features
        tensor([[4., 0.]])
    """

    def __init__(self, network: nn.Module, layer: str | None = None) -> None:
        super().__init__()
        self.network = network
        self._tap = PenultimateFeatures(network, layer)

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
            InputError: the network gives no (B, K) logits.
        """
        if isinstance(inputs, Mapping):
            outputs = self.network(**cast(Mapping[str, Any], inputs))
        elif isinstance(inputs, tuple | list):
            outputs = self.network(*cast(Sequence[Any], inputs))
        else:
            outputs = self.network(inputs)
        logits = logits_of(outputs)
        if logits.ndim != 2:
            raise InputError(f"the network must give (B, K) logits, not {tuple(logits.shape)}")
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


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model's outputs: by name, or the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        named = cast(Mapping[str, Tensor], outputs)
        if "logits" not in named:
            raise InputError(f"the network's outputs have no 'logits', only: {', '.join(named)}")
        return named["logits"]
    if hasattr(outputs, "logits"):
        return outputs.logits
    if isinstance(outputs, tuple | list) and cast(Any, outputs):
        return cast(Sequence[Tensor], outputs)[0]
    kind = type(cast(Any, outputs)).__name__
    raise InputError(f"the network gives {kind}, in which there are no logits")
