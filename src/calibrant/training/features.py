"""Features of any network, caught on their way into its last layer."""

from __future__ import annotations

from difflib import get_close_matches
from types import TracebackType
from typing import Any, cast

from torch import Tensor, nn

from calibrant.core.errors import InputError, TrainingWarning, warn_caller
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
            convolutional layer that was registered, those of losses left out, and warns if another
            looks like a head as well.
        detach: hand out features that carry no gradient.

    Raises:
        InputError: no such layer.

    Examples:
        >>> import torch
        >>> from calibrant.training import PenultimateFeatures
        >>> network = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3))
        >>> tap = PenultimateFeatures(network, layer="1")
        >>> _ = network(torch.tensor([[4.0, -4.0]]))
        >>> tap.features  # what the linear layer was given
        tensor([[4., 0.]])
    """

    def __init__(
        self, network: nn.Module, layer: str | None = None, *, detach: bool = True
    ) -> None:
        check_module(network)
        layers: dict[str, nn.Module] = dict(cast(Any, network.named_modules()))
        layer = last_layer(network, layer)
        self.layer = layer
        self._detach = detach
        self._features: Tensor | None = None
        self._layer = layers[layer]
        self._hook = self._layer.register_forward_pre_hook(self._keep, with_kwargs=True)
        # torch.compile doesn't look at hooks before it takes code that it compiled for another
        # network of the same class; it does look at a forward of the layer's own.
        self._marks = "forward" not in vars(self._layer)
        if self._marks:
            vars(self._layer)["forward"] = self._layer.forward

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
        if self._marks:
            vars(self._layer).pop("forward", None)
        self._marks, self._features = False, None

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


def last_layer(network: nn.Module, name: str | None = None, *, linear: bool = False) -> str:
    """Return the name of a network's last layer: the given one if it is there, or one looked for.

    That is the last linear or convolutional layer that was registered, those of losses left out.
    Where another looks like a head as well, a warning names both.

    Args:
        network: any module.
        name: as in `network.named_modules()`.
        linear: whether only linear layers will do.

    Raises:
        InputError: there is none, or none of that name.
    """
    gates = _modules_of_losses(network)
    every = cast(list[tuple[str, nn.Module]], list(cast(Any, network).named_modules()))
    layers = {key: part for key, part in every if part not in gates}
    kinds = (nn.Linear,) if linear else (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    found = [key for key, part in layers.items() if isinstance(part, kinds)]
    if name is None:
        if not found:
            raise InputError("the network has no linear layer; name one with layer=")
        heads = _heads(layers, found)
        if len(heads) > 1:
            warn_caller(
                TrainingWarning(
                    f"the network has several layers that could be its last: {', '.join(heads)}"
                    f"; features are taken from '{found[-1]}', the last one registered; name the "
                    "right one with layer="
                )
            )
        return found[-1]
    known = found if linear else [key for key in layers if key]
    if name not in known and not (name in layers and not linear):
        kind = "linear layer" if linear else "layer"
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise InputError(
            f"the network has no {kind} '{name}'; {hint}its last ones are: {', '.join(known[-5:])}"
        )
    return name


def check_module(network: Any) -> None:
    """Raise `InputError` unless this is a module, and say so where it is the class of one."""
    if isinstance(network, nn.Module):
        return
    named = isinstance(network, type)
    what = f"the class {network.__name__}; call it" if named else type(network).__name__
    raise InputError(f"a network must be a torch.nn.Module, not {what}")


def _heads(layers: dict[str, nn.Module], found: list[str]) -> list[str]:
    """Return which of the layers `found` could give a network's outputs, the last one included.

    Layers of the same kind as the last, hardly deeper in the network, whose outputs are no other
    one's inputs by their number.
    """
    last = cast(Any, layers[found[-1]])
    linear = isinstance(last, nn.Linear)
    sizes = ("in_features", "out_features") if linear else ("in_channels", "out_channels")
    alike = [name for name in found if isinstance(layers[name], nn.Linear) == linear]
    taken = {getattr(layers[name], sizes[0]) for name in alike}
    depth = found[-1].count(".") + 1
    return [
        name
        for name in alike
        if name == found[-1]
        or (getattr(layers[name], sizes[1]) not in taken and name.count(".") <= depth)
    ]


def _modules_of_losses(network: nn.Module) -> set[nn.Module]:
    """Return all parts of the losses that were registered within a network, such as gates."""
    losses = (module for module in network.modules() if isinstance(module, CalibrationLoss))
    return {part for loss in losses for part in loss.modules()}
