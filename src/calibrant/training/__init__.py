"""Training networks whose confidence is honest: losses, mixing, features, second stages (`heads`).

Everything here needs torch. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.errors import MissingDependencyError
from calibrant.lazy import lazy_names

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


__getattr__ = lazy_names("calibrant.training", _HOMES, _PARTS)


def __dir__() -> list[str]:
    return sorted(__all__)
