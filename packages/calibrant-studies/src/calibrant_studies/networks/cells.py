"""What kinds of cells about trained networks have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from calibrant._version import __version__
from calibrant_studies.cells import Cell, cells_of
from calibrant_studies.declaration import METHOD, Study
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Kind, Need
from calibrant_studies.networks.left_out import left_out
from calibrant_studies.networks.plans import DEFAULTS, Plan, plan_of
from calibrant_studies.networks.sources import Source, check_names, is_trained, need_of, source_of
from calibrant_studies.networks.trained import Network, network_of

# Of a training: how far it has come, in percent of its epochs.
PROGRESS = "progress"


class NetworkKind(Kind):
    """A kind whose cells are about one network, which is found or trained.

    Attributes:
        takes_recorded: whether numbers that were kept of a network will do in place of it.
    """

    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method")
    defaults: ClassVar[Mapping[str, Any]] = {**DEFAULTS, "resamples": 400, "level": 0.95}
    takes_recorded: ClassVar[bool] = False

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return the network, as something to be found or as the images to train it on."""
        return (need_of(plan_of(cell), recorded=self.takes_recorded), *self.more_needs(cell))

    def own_rows(self, named: Sequence[str], study: Study, inputs: Inputs) -> list[str]:
        """Return the data sets; runs and sets of unknown images are no rows."""
        cells = cells_of(study)
        beside = {plan_of(cell).name for cell in cells}
        beside |= {f"{cell.input}-c" for cell in cells}  # its corrupted images
        beside |= {need.input for cell in cells for need in self.more_needs(cell)}
        return [name for name in named if name not in beside and not is_trained(inputs[name])]

    def check_inputs(self, study: Study, inputs: Inputs) -> None:
        """Refuse predictions that would be those of two networks."""
        check_names((plan_of(cell) for cell in cells_of(study)), inputs)

    def left_out(self, study: Study, inputs: Inputs) -> list[str]:
        """Return the runs that no cell is about."""
        return left_out((plan_of(cell) for cell in cells_of(study)), inputs)

    def subject(self, cell: Cell) -> Any:
        """Return the network with what stands behind it, and what else there is."""
        own = {axis: name for axis, name in cell.at.items() if axis in self.axes}
        own = {axis: name for axis, name in own.items() if axis not in ("network", METHOD)}
        return (
            own,
            plan_of(cell).configuration(),
            {key: of for key, of in cell.settings.items() if key not in (*DEFAULTS, METHOD)},
        )

    def more_needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return what is needed besides the network."""
        return ()

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return the plan, where its network comes from, and what `measuring` says."""
        plan = plan_of(cell)
        source = self.source(plan, inputs)
        return plan.configuration() | {"source": source.kind} | self.measuring(cell)

    def source(self, plan: Plan, inputs: Inputs) -> Source:
        """Return where the network of a plan comes from."""
        source = source_of(plan, inputs, recorded=self.takes_recorded)
        assert source is not None  # or the cell would lack what it needs
        return source

    @abstractmethod
    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return what the numbers depend on besides the network."""

    def method_version(self, cell: Cell) -> str:
        """Return the version of the package."""
        return __version__

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return what is measured of the network, or was kept of it."""
        plan = plan_of(cell)
        source = self.source(plan, inputs)
        if source.recorded is not None:
            return self.from_recorded(cell, source)
        return self.measure(cell, network_of(plan, inputs, work), inputs)

    def from_recorded(self, cell: Cell, source: Source) -> dict[str, Any]:
        """Return the result of numbers that were kept."""
        raise NotImplementedError

    @abstractmethod
    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return the result of a cell, see `Kind.run`."""


def at_progress(cell: Cell, epochs: list[Any]) -> Any:
    """Return the record of the epoch at which so many percent of the training were done."""
    share = float(cell.at[PROGRESS]) / 100
    return epochs[max(0, min(len(epochs), round(share * len(epochs))) - 1)]
