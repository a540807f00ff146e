"""Batches, inputs and outputs of any form: what a loader gives, what a network takes and answers.

A batch is a pair (inputs, labels), or a mapping that holds the labels as "labels" or "label" and
whose other entries are the network's arguments. Inputs are a tensor, a mapping of arguments by
name, or a tuple of arguments in turn. Outputs are logits, a tuple that begins with them, a mapping
with "logits", or an object with an attribute `logits`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError, InputError

LABELS = ("labels", "label")
PAIR = "(inputs, label) or a mapping with 'labels' or 'label'"
_SHOWN = 200


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
        reason = str(error).strip().partition("\n")[0][:_SHOWN] or type(error).__name__
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
    raise InputError(f"the network gives {kind}, in which there are no logits")


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
