"""Heads as files: safetensors with a JSON header, read back as a module ready for use."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import fspath
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from calibrant.core.errors import CalibratorFileError, InputError, NotFittedError
from calibrant.files.atomic import StrPath
from calibrant.files.parameters import ParameterFormat
from calibrant.training.second_stages.balanced_head import BalancedHead
from calibrant.training.second_stages.scaling import Rescale
from calibrant.training.second_stages.tensors import head_logits, random_state_kept
from calibrant.training.second_stages.variational_head import VariationalHead

if TYPE_CHECKING:
    from calibrant.training.second_stages.stage import SecondStage

FORMAT = ParameterFormat("calibrant-head", 1, "a head", "torch")
Description = list[Any]
# The deepest head that this package trains has four.
MOST_LAYERS = 16


def save_head(stage: SecondStage, path: StrPath) -> None:
    """Write the head of a fitted second stage to `path`, which must end in ``.safetensors``.

    Raises:
        NotFittedError: it has not been fitted.
        InputError: another extension, or a folder that doesn't exist.
    """
    FORMAT.check_extension(path)
    if not hasattr(stage, "head_"):
        raise NotFittedError(f"this {type(stage).__name__} has not been fitted")
    header = {
        "method": stage.method,
        "architecture": json.dumps(describe(stage.head_)),
        "dtype": str(next(stage.head_.parameters()).dtype).removeprefix("torch."),
        # NumPy's numbers are fine as arguments, and JSON doesn't know them.
        "arguments": json.dumps(stage.get_params(), default=lambda number: number.item()),
        "chosen": json.dumps(stage.summary()),
        "history": json.dumps([record.as_dict() for record in stage.history_]),
        "notes": json.dumps(stage.notes_),
    }
    state = {name: value.contiguous() for name, value in stage.head_.state_dict().items()}
    FORMAT.write(path, header, state)


def load_head(path: StrPath) -> nn.Module:
    """Return a head that `save` wrote: (N, D) features in, (N, K) logits out, on the CPU.

    Nothing is unpickled or imported by name: the header describes layers that are known here.

    Raises:
        CalibratorFileError: the file is missing, damaged, not a head, or of a newer format.
    """
    source = fspath(path)
    header, state = FORMAT.read(path)
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CalibratorFileError(f"{source}: parameter '{name}' holds NaN or infinity")
    try:
        description = json.loads(header["architecture"])
        with random_state_kept():
            head = build(description, _elements(state))
        head.to({"float32": torch.float32, "float64": torch.float64}[header["dtype"]])
        head.load_state_dict(state)
        head.eval()
        _try_out(head, description[0][1])
    # A header that was tampered with may fail in any way.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CalibratorFileError(
            f"{source}: the header doesn't fit the parameters ({reason})"
        ) from error
    return head


def _try_out(head: nn.Module, width: int) -> None:
    """Raise `ValueError` unless a head makes finite logits of a row of zeros.

    Layers may each fit their parameters and not one another, numbers may be finite in the file and
    not in the head's dtype, and a variance may be negative.
    """
    logits = head_logits(head, torch.zeros(1, width))
    if logits.ndim != 2 or not bool(torch.isfinite(logits).all()):
        raise ValueError("it gives a row of zeros no finite logits")


def describe(head: nn.Module) -> list[Description]:
    """Return the layers of a head as JSON takes them: names and sizes, no code.

    Raises:
        InputError: a layer of a kind that files don't hold.
    """
    layers = list(head) if isinstance(head, nn.Sequential) else [head]
    return [_describe_layer(layer) for layer in layers]


def _describe_layer(layer: nn.Module) -> Description:
    if isinstance(layer, nn.Linear):
        return ["linear", layer.in_features, layer.out_features]
    if isinstance(layer, nn.ReLU):
        return ["relu"]
    if isinstance(layer, Rescale):
        return ["rescale", len(layer.mean)]
    if isinstance(layer, VariationalHead):
        samples, latent = layer.noise.shape
        first = cast(nn.Linear, layer.mean[0])
        return ["variational", first.in_features, latent, layer.classifier.out_features, samples]
    if isinstance(layer, BalancedHead):
        kernel = cast(nn.Conv2d, layer.adaptor[2]).kernel_size[0]
        return ["balanced", layer.linear.in_features, layer.linear.out_features, kernel]
    raise InputError(f"a head with a layer of type {type(layer).__name__} can't be saved")


def build(description: list[Description], elements: int) -> nn.Module:
    """Return untrained layers as `describe` named them; the inverse of it.

    Args:
        description: names and sizes of the layers.
        elements: how many numbers the file holds. What all layers hold together is counted before
            any of them is made: no damaged header may reserve memory for more.

    Raises:
        ValueError: an unknown layer, too many of them, or sizes that ask for more numbers.
    """
    if len(description) > MOST_LAYERS:
        raise ValueError(f"{len(description)} layers, where heads have at most {MOST_LAYERS}")
    needed = 0
    for name, *sizes in description:
        if not all(type(size) is int and 0 < size <= elements for size in sizes):
            raise ValueError(f"sizes {sizes} of layer '{name}'")
        needed += SIZES[name](*sizes)
    if needed > elements:
        raise ValueError(f"sizes of the layers ask for {needed} numbers, there are {elements}")
    layers: list[nn.Module] = [MAKERS[name](*sizes) for name, *sizes in description]
    single = len(layers) == 1 and isinstance(layers[0], (VariationalHead, BalancedHead))
    return layers[0] if single else nn.Sequential(*layers)


def _elements(state: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in state.values())


def _rescale(width: int) -> Rescale:
    return Rescale(torch.zeros(width), 1.0)


def _numbers_of_rescale(width: int) -> int:
    return width + 1


def _numbers_of_linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _numbers_of_variational(features: int, latent: int, n_classes: int, samples: int) -> int:
    wide = 3 * latent
    code = _numbers_of_linear(features, wide) + _numbers_of_linear(wide, latent)
    return 2 * code + _numbers_of_linear(latent, n_classes) + samples * latent


def _numbers_of_balanced(channels: int, n_classes: int, kernel: int) -> int:
    narrow = max(1, channels // 2)
    convolutions = 2 * channels * narrow * kernel**2
    norms = 4 * (2 * channels + narrow) + 3  # each also counts its batches
    return _numbers_of_linear(channels, n_classes) + convolutions + norms + channels * n_classes + 1


MAKERS: dict[str, Callable[..., nn.Module]] = {
    "linear": nn.Linear,
    "relu": nn.ReLU,
    "rescale": _rescale,
    "variational": VariationalHead,
    "balanced": BalancedHead,
}
# How many numbers a layer of these sizes holds, buffers too.
SIZES: dict[str, Callable[..., int]] = {
    "linear": _numbers_of_linear,
    "relu": lambda: 0,
    "rescale": _numbers_of_rescale,
    "variational": _numbers_of_variational,
    "balanced": _numbers_of_balanced,
}
