"""Every loss by its command-line name, with its description."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from calibrant.core.arguments import named, unknown
from calibrant.core.errors import InputError
from calibrant.core.plug_ins import WithPlugIns
from calibrant.training.losses.base import DATA_SETS, CalibrationLoss, LossName
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

CLASSES: tuple[type[CalibrationLoss], ...] = (
    CrossEntropy,
    BrierLoss,
    LabelSmoothing,
    ConfidencePenalty,
    Focal,
    FLSD,
    AdaFocal,
    DualFocal,
    MbLS,
    ACLS,
    CPC,
    MMCE,
    MDCA,
    SoftECE,
    SoftAvUC,
    CRL,
    RankMixup,
    FeDLaS,
)
_NAMED = {entry.name: (entry, kind) for kind in CLASSES for entry in kind.names}


def _maker(entry: LossName, kind: type[CalibrationLoss]) -> Callable[..., CalibrationLoss]:
    return partial(kind, **entry.arguments) if entry.arguments else kind


def _checked(name: str, kind: Any) -> Callable[..., CalibrationLoss]:
    """Return what makes the loss of an entry point, or raise for the reason why it is none."""
    if not (inspect.isclass(kind) and issubclass(kind, CalibrationLoss)):
        raise TypeError("it is not a class derived from calibrant.training.CalibrationLoss")
    entry = next((entry for entry in kind.names if entry.name == name), None)
    if entry is None:
        raise ValueError(f"{kind.__name__}.names holds no LossName('{name}', ...)")
    return _maker(entry, kind)


LOSSES = WithPlugIns(
    "calibrant.losses",
    "loss",
    {name: _maker(entry, kind) for name, (entry, kind) in _NAMED.items()},
    _checked,
)
"""What makes each loss, by name; those of other packages too (entry points `calibrant.losses`)."""


def entry_of(name: str) -> tuple[LossName, type[CalibrationLoss]]:
    """Return the description of a loss, and its class."""
    if name in _NAMED:
        return _NAMED[name]
    made: Any = LOSSES[name]
    kind: type[CalibrationLoss] = getattr(made, "func", made)
    return next(entry for entry in kind.names if entry.name == name), kind


def list_of_losses() -> list[tuple[str, ...]]:
    """Return a row for each name: name, class, in words, state, distributed, paper."""
    return [
        (name, kind.__name__, entry.words, kind.state, kind.distributed, entry.paper)
        for name, (entry, kind) in ((name, entry_of(name)) for name in LOSSES)
    ]


def make_loss(
    name: str, n_classes: int, *, dataset: str | None = None, **arguments: Any
) -> CalibrationLoss:
    """Return a loss by its command-line name.

    Args:
        name: one of `LOSSES`.
        n_classes: K; most losses take it from the logits.
        dataset: one of `DATA_SETS`: start from the settings that papers give for it.
        arguments: arguments of the loss; they override the settings of the data set. `base="focal"`
            and `base_gamma=3` build the base of a penalised loss.

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
    settings = {**entry_of(name)[0].published.get(dataset or "", {}), **arguments}
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
