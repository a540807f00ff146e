"""Training networks whose confidence is honest: losses, mixing, features, second stages (`heads`).

Everything here needs torch. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.errors import MissingDependencyError

try:
    import torch as _torch  # pyright: ignore[reportUnusedImport]  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "calibrant.training needs torch: pip install 'calibrant[train]'"
    ) from error

if TYPE_CHECKING:
    from calibrant.training.adapters import for_trainer
    from calibrant.training.callback import CalibrationCallback
    from calibrant.training.features import PenultimateFeatures
    from calibrant.training.losses.base import CalibrationLoss
    from calibrant.training.losses.registry import LOSSES, make_loss
    from calibrant.training.mixing import MIT, Mixup, RegMixup

_HOMES = {
    "adapters": ("for_trainer",),
    "callback": ("CalibrationCallback",),
    "features": ("PenultimateFeatures",),
    "losses.base": ("CalibrationLoss",),
    "losses.registry": ("LOSSES", "make_loss"),
    "mixing": ("MIT", "Mixup", "RegMixup"),
}
_PARTS = ("data", "heads", "losses", "nets", "run")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "LOSSES",
    "MIT",
    "CalibrationCallback",
    "CalibrationLoss",
    "Mixup",
    "PenultimateFeatures",
    "RegMixup",
    "for_trainer",
    "make_loss",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name in _PARTS:
        return import_module(f"calibrant.training.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'calibrant.training' has no attribute '{name}'")
    value = getattr(import_module(f"calibrant.training.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
