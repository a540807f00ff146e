"""Features of any network, caught on their way into its last layer."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.losses.base import CalibrationLoss


class PenultimateFeatures:
    """Keeps the input of one layer at each forward pass, without changing the network.

        tap = PenultimateFeatures(network, layer="fc")
        logits = network(inputs)
        loss(logits, target, tap.features)

    Works through `DistributedDataParallel` and other wrappers, as long as `network` is the module
    inside, and through torch.compile. `close()` or a ``with`` block takes the hook away again.
    Copies and pickles of the network keep listening, but without the last features.

    Args:
        network: any module.
        layer: name of the layer as in `network.named_modules()`; None takes the last linear or
            convolutional layer that was registered, those of losses left out.
        detach: hand out features that carry no gradient.

    Raises:
        InputError: no such layer.
    """

    def __init__(
        self, network: nn.Module, layer: str | None = None, *, detach: bool = True
    ) -> None:
        layers: dict[str, nn.Module] = dict(cast(Any, network.named_modules()))
        if layer is None:
            kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
            gates = _modules_of_losses(network)
            found = [
                name
                for name, module in layers.items()
                if isinstance(module, kinds) and module not in gates
            ]
            if not found:
                raise InputError("the network has no linear layer; name one with layer=")
            layer = found[-1]
        if layer not in layers:
            last = ", ".join(list(layers)[-5:])
            raise InputError(f"the network has no layer '{layer}'; its last ones are: {last}")
        self.layer = layer
        self._detach = detach
        self._features: Tensor | None = None
        self._hook = layers[layer].register_forward_pre_hook(self._keep, with_kwargs=True)

    @property
    def features(self) -> Tensor:
        """What went into the layer in the last forward pass, (N, D) or (N, D, ...).

        Raises:
            InputError: no forward pass yet.
        """
        if self._features is None:
            raise InputError(f"no input has passed layer '{self.layer}' yet")
        return self._features

    def close(self) -> None:
        """Stop listening, and let go of the last features."""
        self._hook.remove()
        self._features = None

    def __enter__(self) -> PenultimateFeatures:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Tensors with a history can't be copied, and features of another network help nobody.
        return self.__dict__ | {"_features": None}

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        features = inputs[0] if inputs else next(iter(named.values()))
        self._features = features.detach() if self._detach else features


def _modules_of_losses(network: nn.Module) -> set[nn.Module]:
    """Return all parts of the losses that were registered within a network, such as gates."""
    losses = (module for module in network.modules() if isinstance(module, CalibrationLoss))
    return {part for loss in losses for part in loss.modules()}
