"""What each kappa that MaC-Cal tries leads to, on the held-out rows by which it chooses one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from calibrant.core.errors import InputError
from calibrant.files.atomic import replacing
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.trained import Network, locked

_MEASURES = (
    Measure("retention", "last retention", 1, 2, "neither", "share of connections that are kept"),
    Measure("accuracy", "accuracy", 100, 2, "high", "held-out rows"),
    Measure("confidence", "confidence", 100, 2, "neither", "held-out rows"),
    Measure("ece", "ECE", 100, 2, "low", "held-out rows, 15 equal bins"),
    Measure("nll", "NLL", 1, 4, "low", "held-out rows"),
    Measure("chosen", "chosen", 100, 0, "neither", "whether it is the one that was chosen"),
)


class KappaCurve(NetworkKind):
    """Train MaC-Cal with a list of kappas (stage_arguments.kappas), and look at one of them."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = (*RESAMPLED, "after")
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "kappa")

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Share kept, metrics, and whether it was chosen."""
        return {measure.name: measure for measure in _MEASURES}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return which kappa."""
        return {"kappa": float(cell.at["kappa"])}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return the numbers of a candidate."""
        kappa, found = float(cell.at["kappa"]), _curve(network)
        for point in found["curve"]:
            if abs(point["kappa"] - kappa) < 1e-9:
                point["chosen"] = float(abs(found["chosen"] - kappa) < 1e-9)
                return {"values": {m.name: {"value": point[m.name]} for m in _MEASURES}}
        raise InputError(f"{cell}: kappa {kappa:g} is none of those that are tried")


def _curve(network: Network) -> dict[str, Any]:
    """Return all candidates; they are trained together, once for all cells."""
    told = [network.plan.digest(network.source.digest), network.plan.configuration()]
    name = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]
    file = network.place / f"curve-{name}.json"
    with locked(file):
        if not file.is_file():
            summary = network.fit_stage().summary()
            found = {"curve": summary["kappa_curve"], "chosen": summary["kappa"]}
            with replacing(file) as temporary:
                temporary.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


KIND = KappaCurve()
