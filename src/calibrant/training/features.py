"""Any network: batches, inputs and outputs of any form, and the inputs of its last layer.

A batch is a pair (inputs, labels), or a mapping that holds the labels as "labels" or "label" and
whose other entries are the network's arguments. Inputs are a tensor, a mapping of arguments by
name, or a tuple of arguments in turn. Outputs are logits, a tuple that begins with them, a mapping
with "logits", or an object with an attribute `logits`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from calibrant.core.errors import CalibrantError, InputError, TrainingWarning, warn_caller
from calibrant.core.text import reason_of
from calibrant.training.losses.base import CalibrationLoss

LABELS = ("labels", "label")
PAIR = "(inputs, label) or a mapping with 'labels' or 'label'"
_SHOWN = 200
# What makes one row of features of many tokens, by name.
POOLINGS = ("first", "last", "mean")


def parted(batch: Any) -> tuple[Any, Tensor]:
    """Return inputs and (B,) labels of a collated batch.

    Raises:
        InputError: it is of another form.
    """
    if isinstance(batch, Mapping):
        named = dict(cast(Mapping[str, Any], batch))
        key = next((name for name in LABELS if name in named), None)
        if key is None:
            raise InputError(f"a batch must be {PAIR}, but has: {', '.join(map(str, named))}")
        labels = named.pop(key)
        inputs: Any = named
    elif isinstance(batch, tuple | list) and len(cast(Any, batch)) == 2:
        inputs, labels = cast(Any, batch)
    else:
        raise InputError(f"a batch must be {PAIR}, not {kind_of(batch)}")
    return inputs, class_numbers(labels)


def class_numbers(labels: Any) -> Tensor:
    """Return (B,) whole numbers, whatever kind of sequence they come in.

    Raises:
        InputError: text, one-hot labels, fractions.
    """
    try:
        found = torch.as_tensor(labels)
    # Text, None, lists of several lengths: torch has another word for each.
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"labels must be whole numbers from 0, one for each row, not {labels!r:.60}"
        ) from error
    if found.ndim != 1 or found.is_floating_point():
        one_hot = found.ndim == 2 and found.shape[1] > 1
        remedy = "; of one-hot labels take argmax(-1)" if one_hot else ""
        raise InputError(
            f"labels must be whole numbers, one for each row, not {found.dtype} of "
            f"{tuple(found.shape)}{remedy}"
        )
    return found


def kind_of(value: Any) -> str:
    """Return in words what a value is, a tuple or list with its length."""
    name = type(value).__name__
    return f"a {name} of {len(cast(Any, value))}" if isinstance(value, tuple | list) else name


def moved(inputs: Any, device: torch.device) -> Any:
    """Return inputs of any form on a device, images with the channels last in memory."""
    if isinstance(inputs, Tensor):
        if inputs.ndim == 4:
            return inputs.to(device, memory_format=torch.channels_last)
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        table = cast(Mapping[str, Any], inputs)
        return {name: moved(value, device) for name, value in table.items()}
    if isinstance(inputs, tuple | list):
        return tuple(moved(value, device) for value in cast(Sequence[Any], inputs))
    return inputs


def called(network: nn.Module, inputs: Any) -> Any:
    """Return what a network answers to inputs of any form."""
    if isinstance(inputs, Mapping):
        return network(**cast(Mapping[str, Any], inputs))
    if isinstance(inputs, tuple | list):
        return network(*cast(Sequence[Any], inputs))
    return network(inputs)


def answered(network: nn.Module, inputs: Any) -> Tensor:
    """Return the logits that a network gives for inputs of any form.

    Raises:
        InputError: it fails on them, and the message says what they were; or gives no logits.
    """
    try:
        outputs = called(network, inputs)
    except (CalibrantError, torch.OutOfMemoryError):
        raise
    # What a network doesn't take shows in whichever layer meets it first.
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        reason = reason_of(error, _SHOWN)
        raise InputError(
            f"the network fails on {_described(inputs)} ({reason}){_other_type(network, inputs)}"
        ) from error
    return logits_of(outputs)


def _described(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"{inputs.dtype} of {tuple(inputs.shape)}".removeprefix("torch.")
    if isinstance(inputs, Mapping):
        table = cast(Mapping[str, Any], inputs)
        return ", ".join(f"{name}={_described(value)}" for name, value in table.items())
    if isinstance(inputs, tuple | list):
        parts = [_described(value) for value in cast(Sequence[Any], inputs)]
        return f"{len(parts)} arguments: {', '.join(parts[:3])}{', ...' * (len(parts) > 3)}"
    return kind_of(inputs)


def _other_type(network: nn.Module, inputs: Any) -> str:
    """Return what to do if the weights are of another type than tensors of numbers to reckon with.

    Whole numbers of 64 bits may be meant for an embedding, so they say nothing.
    """
    kinds = (part.dtype for part in network.parameters() if part.is_floating_point())
    weights = next(kinds, None)
    given = {value.dtype for value in tensors_of(inputs)}
    odd = [kind for kind in given if kind.is_floating_point or kind == torch.uint8]
    if weights is None or all(kind == weights for kind in odd):
        return ""
    name = str(weights).removeprefix("torch.")
    return f"; its weights are {name}, so let the data set give {name} too"


def tensors_of(inputs: Any) -> list[Tensor]:
    """Return the tensors among inputs of any form."""
    if isinstance(inputs, Mapping):
        inputs = list(cast(Mapping[str, Any], inputs).values())
    parts = cast(Sequence[Any], inputs if isinstance(inputs, tuple | list) else [inputs])
    return [part for part in parts if isinstance(part, Tensor)]


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
    raise InputError(f"the network gives {kind}, which contains no logits")


@contextmanager
def frozen(network: nn.Module) -> Generator[None]:
    """Keep a network as it is: no gradients, and no running statistics or dropout either.

    Batch norm in training mode would move its running means even where nothing is learnt. The
    modes of all modules are put back on leaving, one by one: some may have been in evaluation mode.
    """
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


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
            convolutional layer that was registered, leaving out layers of losses, and warns if
            another layer could be the head.
        pool: how one row of features is made for each input if the layer gets a row for each token,
            (N, T, D): "first", "last" or "mean" of the tokens that the network's `attention_mask`
            counts (all, if it is called without one), or a function of the layer's input. None
            leaves the input as it is.
        detach: whether features carry no gradient.

    Raises:
        InputError: no such layer, or no such pooling.

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
        self,
        network: nn.Module,
        layer: str | None = None,
        *,
        pool: str | Callable[[Tensor], Tensor] | None = None,
        detach: bool = True,
    ) -> None:
        check_module(network)
        if isinstance(pool, str) and pool not in POOLINGS:
            raise InputError(
                f"pool must be one of {', '.join(POOLINGS)} or a function, not {pool!r}"
            )
        layers: dict[str, nn.Module] = dict(cast(Any, network.named_modules()))
        layer = last_layer(network, layer)
        self.layer = layer
        self._detach = detach
        self._features: Tensor | None = None
        self._layer = layers[layer]
        self._hooks = [self._layer.register_forward_pre_hook(self._keep, with_kwargs=True)]
        self._pool, self._mask = pool, cast(Tensor | None, None)
        if isinstance(pool, str):
            masked = _outermost_with_mask(network, layer)
            if masked is not None:
                self._hooks.append(
                    masked.register_forward_pre_hook(self._keep_mask, with_kwargs=True)
                )
        # torch.compile doesn't look at hooks before it takes code that it compiled for another
        # network of the same class; it does look at a forward of the layer's own.
        self._marks = "forward" not in vars(self._layer)
        if self._marks:
            vars(self._layer)["forward"] = self._layer.forward

    @property
    def features(self) -> Tensor:
        """The input of the layer in the last forward pass, (N, D) or (N, D, ...).

        Raises:
            InputError: no forward pass yet.
        """
        if self._features is None:
            raise InputError(f"no input has passed layer '{self.layer}' yet")
        if self._pool is None:
            return self._features
        if callable(self._pool):
            return self._pool(self._features)
        return pooled(self._features, self._pool, self._mask)

    def close(self) -> None:
        """Stop listening, and let go of the last features."""
        for hook in self._hooks:
            hook.remove()
        if self._marks:
            vars(self._layer).pop("forward", None)
        self._marks, self._features, self._mask = False, None, None

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
        return self.__dict__ | {"_features": None, "_mask": None}

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        features = inputs[0] if inputs else next(iter(named.values()))
        self._features = features.detach() if self._detach else features

    def _keep_mask(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        names = [*inspect.signature(module.forward).parameters][: len(inputs)]
        self._mask = (dict(zip(names, inputs, strict=False)) | named).get("attention_mask")


def tap_for(
    network: nn.Module, layer: str | None, features: str | Callable[[Tensor], Tensor] | None
) -> PenultimateFeatures:
    """Return the tap that the `layer=` and `features=` of an adapter ask for.

    Args:
        network: to listen to.
        layer: name of the last layer; None takes the last that was registered.
        features: as `pool` of `PenultimateFeatures`, or in place of `layer` its name.

    Raises:
        InputError: no such layer, or two of them.
    """
    if not isinstance(features, str) or features in POOLINGS:
        return PenultimateFeatures(network, layer, pool=features)
    if layer is not None:
        raise InputError(f"layer='{layer}' and features='{features}' name two layers; give one")
    return PenultimateFeatures(network, features)


def pooled(features: Tensor, pooling: str, mask: Tensor | None = None) -> Tensor:
    """Return (N, D) of the features (N, T, D) of tokens: those of the first or last, or the mean.

    Args:
        features: (N, T, D).
        pooling: "first", "last" or "mean".
        mask: (N, T), 1 for tokens that count; None counts all.

    Raises:
        InputError: features of another shape, or a mask that isn't theirs.
    """
    if features.ndim != 3:
        raise InputError(
            f"there are no tokens to pool: the layer is given {tuple(features.shape)}, not "
            f"(N, T, D); leave out '{pooling}'"
        )
    counted = torch.ones_like(features[..., 0]) if mask is None else mask.to(features)
    if counted.shape != features.shape[:2]:
        raise InputError(
            f"the attention mask must be {tuple(features.shape[:2])}, as the tokens of the "
            f"features, not {tuple(counted.shape)}; give features= a function"
        )
    if pooling == "mean":
        total = (features * counted[..., None]).sum(1)
        return total / counted.sum(1, keepdim=True).clamp_min(1)
    # Where several are the largest, argmax takes the first.
    at = counted.argmax(1)
    if pooling == "last":
        at = features.shape[1] - 1 - counted.flip(1).argmax(1)
    return features[torch.arange(len(features), device=features.device), at]


def _outermost_with_mask(network: nn.Module, layer: str) -> nn.Module | None:
    """Return the first module around a layer that can be called with an attention mask."""
    parts = layer.split(".")
    for depth in range(len(parts)):
        module = network.get_submodule(".".join(parts[:depth]))
        if "attention_mask" in inspect.signature(module.forward).parameters:
            return module
    return None


def last_layer(network: nn.Module, name: str | None = None, *, linear: bool = False) -> str:
    """Return the name of a network's last layer: the given one if it is there, or one looked for.

    That is the last linear or convolutional layer that was registered, without those of losses and
    those that PEFT puts beside it.
    Where another looks like a head as well, a warning names both.

    Args:
        network: any module.
        name: as in `network.named_modules()`.
        linear: whether only linear layers will do.

    Raises:
        InputError: there is none, or none of that name.
    """
    beside = _beside(network)
    every = cast(list[tuple[str, nn.Module]], list(cast(Any, network).named_modules()))
    layers = {key: part for key, part in every if part not in beside}
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


def _beside(network: nn.Module) -> set[nn.Module]:
    """Return what lies within a network and is none of its layers.

    These are the parts of losses, such as gates, and what PEFT puts beside a layer: the factors of
    an adapter beside its `base_layer`, and the `original_module` that a trained copy stands for.
    """
    found: set[nn.Module] = set()
    for module in network.modules():
        children = dict(module.named_children())
        if isinstance(module, CalibrationLoss):
            found |= set(module.modules())
        elif "base_layer" in children:
            kept = set(children["base_layer"].modules())
            found |= set(module.modules()) - kept - {module}
        elif "original_module" in children and "modules_to_save" in children:
            found |= set(children["original_module"].modules())
    return found


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
