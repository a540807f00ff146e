"""Every loss by its command-line name, with the settings that papers give for a data set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from calibrant.core.arguments import named, unknown
from calibrant.core.errors import InputError
from calibrant.training.losses.base import CalibrationLoss
from calibrant.training.losses.fedlas import FeDLaS
from calibrant.training.losses.likelihood import (
    FLSD,
    AdaFocal,
    BrierLoss,
    ConfidencePenalty,
    CrossEntropy,
    DualFocal,
    Focal,
    LabelSmoothing,
)
from calibrant.training.losses.margins import ACLS, CPC, MbLS
from calibrant.training.losses.penalised import MDCA, MMCE, SoftAvUC, SoftECE
from calibrant.training.losses.ranking import CRL, RankMixup

LOSSES: dict[str, Callable[..., CalibrationLoss]] = {
    "cross-entropy": CrossEntropy,
    "brier": BrierLoss,
    "label-smoothing": LabelSmoothing,
    "confidence-penalty": ConfidencePenalty,
    "focal": Focal,
    "scheduled-focal": partial(Focal, gamma={0: 5.0, 100: 3.0, 250: 1.0}),
    "flsd": FLSD,
    "adafocal": AdaFocal,
    "dual-focal": DualFocal,
    "mbls": MbLS,
    "acls": ACLS,
    "cpc": CPC,
    "mmce": MMCE,
    "mdca": MDCA,
    "soft-ece": SoftECE,
    "soft-avuc": SoftAvUC,
    "crl": CRL,
    "rankmixup": RankMixup,
    "fedlas-ls": partial(FeDLaS, base="ls"),
    "fedlas-mbls": partial(FeDLaS, base="mbls"),
}

DATA_SETS = ("cifar10", "cifar100", "tiny-imagenet", "cub", "aircraft")
_LARGE = DATA_SETS[2:]


def _same(settings: dict[str, Any], data_sets: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(data_sets, settings)


PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "label-smoothing": {"cifar100": {"alpha": 0.1}},
    "scheduled-focal": {"tiny-imagenet": {"gamma": {0: 5.0, 30: 3.0, 70: 1.0}}},
    "mbls": _same({"alpha": 0.05, "margin": 10.0}, _LARGE),
    "acls": _same({"margin": 6.0}, DATA_SETS[:2]),
    "rankmixup": {"tiny-imagenet": {"margin": 1.0}},
    "fedlas-ls": {
        "cifar100": {"alpha": 0.1, "theta": 0.5},
        **_same({"theta": 0.5}, _LARGE),
    },
    "fedlas-mbls": {
        "cifar100": {"beta": 1.0, "theta": 0.5},
        **_same({"alpha": 0.05, "theta": 0.5, "margin": 10.0}, _LARGE),
    },
}
"""Where a data set's published settings differ from the defaults of the loss.

On CUB and Aircraft the FeDLaS paper uses the settings of Tiny-ImageNet; its code has theta = 0.001
there, under which the starting values of mean and deviation last for
thousands of steps. The paper is followed.
"""


def make_loss(
    name: str, n_classes: int, *, dataset: str | None = None, **arguments: Any
) -> CalibrationLoss:
    """Return a loss by its command-line name.

    Args:
        name: one of `LOSSES`.
        n_classes: K; most losses take it from the logits.
        dataset: one of `DATA_SETS`: start from the settings that papers give for it.
        arguments: of the loss; they win over those of the data set. `base="focal"` and
            `base_gamma=3` build the base of a penalised loss.

    Raises:
        UnknownMethodError: no such loss or data set.
        InputError: no such argument, one missing, or a value out of range.

    Examples:
        >>> import torch
        >>> from calibrant.training import make_loss
        >>> logits, target = torch.tensor([[0.0, 0.0]]), torch.tensor([1])
        >>> make_loss("cross-entropy", n_classes=2)(logits, target)  # log 2
        tensor(0.6931)
        >>> make_loss("focal", n_classes=2, gamma=1.0)(logits, target)  # (1 - .5) log 2
        tensor(0.3466)
    """
    make = named(LOSSES, name, "loss")
    if dataset is not None and dataset not in DATA_SETS:
        raise unknown(DATA_SETS, dataset, "data set")
    signature = inspect.signature(make)
    settings = PUBLISHED.get(name, {}).get(dataset or "", {}) | arguments
    if "n_classes" in signature.parameters:
        settings["n_classes"] = n_classes
    base = signature.parameters.get("base")
    if base is not None and not isinstance(base.default, str):  # it takes a loss
        settings = _with_base(settings, n_classes, dataset)
    for argument in settings:
        if argument not in signature.parameters:
            known = ", ".join(signature.parameters)
            raise InputError(f"loss '{name}' has no argument '{argument}'; it has: {known}")
    for argument, parameter in signature.parameters.items():
        if parameter.default is inspect.Parameter.empty and argument not in settings:
            raise InputError(f"loss '{name}' needs the argument '{argument}'")
    return make(**settings)


def _with_base(settings: dict[str, Any], n_classes: int, dataset: str | None) -> dict[str, Any]:
    """Return settings whose base, if given by name, is a loss made of the `base_` arguments."""
    prefix = "base_"
    inner = {key.removeprefix(prefix): settings[key] for key in settings if key.startswith(prefix)}
    outer = {key: settings[key] for key in settings if not key.startswith(prefix)}
    if isinstance(outer.get("base"), str):
        outer["base"] = make_loss(outer["base"], n_classes, dataset=dataset, **inner)
    elif inner:
        raise InputError(f"{prefix}{next(iter(inner))} needs base=, the name of a loss")
    return outer
