"""What a calibrator has learnt: arrays, and calibrators that it is made of.

Files are written from both and read back into them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core.fit_report import FitReport

FittedForm = Literal["rows", "binary", "toplabel"]


@dataclass(eq=False)
class Contents:
    """Learnt arrays and parts by name.

    Class attributes:
        part_names: learnt attributes that are fitted calibrators themselves; a file holds them with
            their own method and arguments.
    """

    part_names: ClassVar[tuple[str, ...]] = ()

    n_classes_: int = field(init=False, repr=False)
    form_: FittedForm = field(default="rows", init=False, repr=False)
    fit_report_: FitReport = field(init=False, repr=False)

    @classmethod
    def state_names(cls) -> tuple[str, ...]:
        """Return the names of the learnt attributes that a file must hold as arrays."""
        kept = {"n_classes_", "form_", "fit_report_", *cls.part_names}
        return tuple(f.name for f in fields(cls) if not f.init and f.name not in kept)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, as arrays by name."""
        return {name: np.asarray(getattr(self, name)) for name in self.state_names()}

    def parts(self) -> dict[str, Any]:
        """Return the fitted calibrators that this one is made of, by name."""
        return {name: getattr(self, name) for name in self.part_names}

    @classmethod
    def wanted_parts(cls, found: Collection[str]) -> str | None:
        """Return what it is made of, if it can't be made of the parts named `found`, or None."""
        return (
            None if set(found) == set(cls.part_names) else ", ".join(cls.part_names) or "no others"
        )

    def restore_parts(self, parts: dict[str, Any]) -> None:
        """Take over fitted parts with names that `wanted_parts` is content with.

        Raises:
            InputError: parts that don't fit each other.
        """
        for name, part in parts.items():
            setattr(self, name, part)

    def restore(self, state: dict[str, NDArray[Any]], n_classes: int, report: FitReport) -> Self:
        """Take over what another calibrator of this kind had learnt, and return self."""
        for name in self.state_names():
            value = state[name]
            setattr(self, name, value.item() if value.ndim == 0 else value)
        self.n_classes_, self.fit_report_ = n_classes, report
        return self


class OfParts:
    """A class attribute that a fitted instance answers as all its parts together do."""

    def __init__(self, before: bool) -> None:
        self.before = before

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Contents | None, owner: type) -> bool:
        steps = None if instance is None else vars(instance).get("steps_")
        if steps is None or (instance is not None and instance.form_ == "toplabel"):
            return self.before or steps is not None
        return all(getattr(step, self.name) for step in steps.values())
