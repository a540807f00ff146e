"""Networks by name.

===============  ==========================  ====  ======================
name             images                      D     parameters, K = 10
===============  ==========================  ====  ======================
resnet8          32x32, quick on a CPU       192   682,018
resnet20         32x32                       64    272,474
resnet50         32x32                       2048  23,520,842
resnet101        32x32                       2048  42,512,970
resnet110        32x32                       2048  45,864,522
wrn-26-10        32x32                       640   36,481,434
densenet121      32x32                       1024  6,956,298
resnet50-tiny    64x64                       8192  25,138,952 (K = 200)
resnet101-tiny   64x64                       8192  44,131,080 (K = 200)
===============  ==========================  ====  ======================

Examples:
    >>> import torch
    >>> from calibrant.training import nets
    >>> nets.make_network("resnet8", n_classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
"""

from __future__ import annotations

from collections.abc import Callable

from calibrant.core.arguments import named
from calibrant.core.errors import InputError
from calibrant.training.nets.base import ImageClassifier
from calibrant.training.nets.densenet import densenet121
from calibrant.training.nets.resnet import (
    resnet8,
    resnet20,
    resnet50,
    resnet50_tiny,
    resnet101,
    resnet101_tiny,
    resnet110,
    wide_resnet_26_10,
)
from calibrant.training.nets.tapped import TappedNetwork

__all__ = ["NETS", "ImageClassifier", "TappedNetwork", "make_network"]

NETS: dict[str, Callable[[int], ImageClassifier]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnet110": resnet110,
    "wrn-26-10": wide_resnet_26_10,
    "densenet121": densenet121,
    "resnet50-tiny": resnet50_tiny,
    "resnet101-tiny": resnet101_tiny,
}


def make_network(name: str, n_classes: int) -> ImageClassifier:
    """Return a freshly initialised network that reads (B, 3, H, W) images.

    Its weights are drawn from torch's global generator.

    Args:
        name: one of `NETS`.
        n_classes: K, at least 2.

    Raises:
        UnknownMethodError: no network goes by this name.
        InputError: fewer than two classes.
    """
    make = named(NETS, name, "network")
    if n_classes < 2:
        raise InputError(f"a network needs at least 2 classes, not {n_classes}")
    return make(n_classes)
