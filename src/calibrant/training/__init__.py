"""Training networks whose confidence is calibrated: losses, mixing, features, `second_stages`.

Everything here needs torch. The public names stand in `__init__.pyi`; each is imported when it is
first used.
"""

from calibrant.core.errors import MissingDependencyError
from calibrant.core.lazy import public_face

try:
    import torch as _torch  # pyright: ignore[reportUnusedImport]  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "calibrant.training needs torch: pip install 'calibrant[train]'"
    ) from error

__getattr__, __dir__ = public_face(__name__, __file__)
