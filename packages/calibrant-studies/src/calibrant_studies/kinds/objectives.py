"""One temperature, PTS and SMART, each fitted to an objective: SMART's Table 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from calibrant._version import __version__
from calibrant.posthoc.base import Calibrator
from calibrant_studies.cells import Cell
from calibrant_studies.kinds.posthoc import PostHoc, code_of
from calibrant_studies.smart.objectives import make_with_objective, objective_named


class Objectives(PostHoc):
    """As `posthoc`, for the methods that take an objective, named by the axis `objective`."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("input", "method", "objective", "size")
    defaults: ClassVar[Mapping[str, Any]] = {**PostHoc.defaults}

    def calibrator(self, cell: Cell) -> Calibrator:
        """Return the unfitted method of a cell, with its objective."""
        objective = objective_named(cell.at["objective"])
        made = make_with_objective(cell.method, objective, seed=cell.seed)
        return made.set_params(**self.setting(cell, "arguments").get(cell.method, {}))

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package, and the digest of the code of what is fitted."""
        return f"{__version__} {code_of(type(self.calibrator(cell)))}"


KIND = Objectives()
