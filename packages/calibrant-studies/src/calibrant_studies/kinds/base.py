"""The description of a kind of cell, and what it computes."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from calibrant._version import __version__
from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.metrics.metric_types import Metric
from calibrant.metrics.registry import all_metrics
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.declaration import METHOD, Study
from calibrant_studies.inputs import Inputs, StudyInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.core.result import Table


@contextmanager
def quietly() -> Generator[None]:
    """Hide the warnings of fits, of which few rows give many: the table shows what comes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def seven_digits(replicates: Iterable[float]) -> list[float]:
    """Return replicates with seven digits, which tell resamples apart and take half the room."""
    return [float(f"{value:.7g}") for value in replicates]


LEVEL = 0.95  # of intervals, where nothing else is asked for
# Settings of the intervals of a cell's numbers, where these come from resamples.
RESAMPLED = ("resamples", "level")
Better = Literal["low", "high", "neither"]


@dataclass(frozen=True)
class Need:
    """What a cell needs of what a study is given.

    Attributes:
        input: its name.
        what: what to provide, as a clause; the form in which it must be there.
        features: whether it must have features of the last layer.
    """

    input: str
    what: str
    features: bool = False

    def lacking(self, inputs: Inputs) -> bool:
        """Return whether it isn't there."""
        if self.input not in inputs:
            return True
        return self.features and not has_features(inputs[self.input])

    def digest(self, inputs: Inputs) -> str:
        """Return the digest of what is there, which results depend on."""
        return inputs[self.input].digest


PREDICTIONS = (
    "logits and labels: NAME-val.npz beside NAME-test.npz, one file that is split, or a run of "
    "`calibrant train`"
)
WITH_FEATURES = f"features of the last layer in the files of predictions ({PREDICTIONS})"


def has_features(given: StudyInput) -> bool:
    """Return whether the predictions of an input come with features."""
    return all(rows is None or rows.features is not None for rows in given.predictions())


@dataclass(frozen=True)
class Measure:
    """A number that cells of a kind have.

    Attributes:
        name: in declarations and results.
        title: in tables.
        scale: what values are multiplied by to be read, 100 for percent.
        digits: behind the point.
        better: which direction is.
        definition: its convention in a line.
    """

    name: str
    title: str
    scale: float = 1.0
    digits: int = 4
    better: Better = "low"
    definition: str = ""

    @classmethod
    def of(cls, metric: Metric) -> Measure:
        """Return a metric of the catalogue as one."""
        better: Better = "low" if metric.lower_is_better else "high"
        scale, digits = (100.0, 2) if metric.percent else (1.0, 4)
        return cls(metric.name, metric.title, scale, digits, better, metric.definition)

    def cost(self, value: float) -> float:
        """Return a number to rank values by, lower for better."""
        return -value if self.better == "high" else value

    def show(self, value: float | None) -> str:
        """Return a value as tables have it; "" for None."""
        if value is None:
            return ""
        text = f"{self.scale * value:.{self.digits}f}"
        return text.lstrip("-") if float(text) == 0 else text


class Kind(ABC):
    """A kind of cell: what it needs, on what its numbers depend, and how they are computed.

    Attributes:
        version: another one for whatever changes the numbers; it is part of every cell's address.
        axes: those that it knows; any other must bring settings with each of its values.
        defaults: what can be set, with the values that hold otherwise.
        unread: of these, what changes none of its numbers; to set one is refused.
        own_measures: what it measures; the catalogue of metrics if it says nothing.
    """

    version: ClassVar[str]
    axes: ClassVar[tuple[str, ...]] = ("input", "method")
    defaults: ClassVar[Mapping[str, Any]] = {}
    unread: ClassVar[tuple[str, ...]] = ()
    own_measures: ClassVar[tuple[Measure, ...]] = ()

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What it measures, by name."""
        found = self.own_measures or map(Measure.of, all_metrics().values())
        return {measure.name: measure for measure in found}

    def own_rows(self, named: Sequence[str], study: Study, inputs: Inputs) -> list[str]:
        """Return which of the inputs that were given by name are rows, or among them."""
        return list(named)

    def check(self, study: Study) -> None:
        """Refuse a study that this kind can't compute.

        Raises:
            InputError: a metric, a setting or an axis that it doesn't know.
        """
        where = f"{study.name}: kind {study.kind}"
        for name in study.metrics:
            if name not in self.measures:
                raise InputError(f"{where}: {unknown(self.measures, name, 'metric')}")
        values = [value for axis in study.axes.values() for value in axis]
        known = [name for name in (*self.defaults, METHOD) if name not in self.unread]
        for name in dict.fromkeys(
            [*study.settings, *study.forced, *(key for v in values for key in v.set)]
        ):
            if name in self.unread:
                raise InputError(f"{where}: doesn't read {name}; to set it would do nothing")
            if name not in known:
                raise InputError(f"{where}: {unknown(known, name, 'setting')}")
        for name in study.forced:
            if name in study.axes:
                raise InputError(
                    f"{where}: {name} is an axis of the study, whose values say it: ask for "
                    f"some of them with --only {name}=..., not with --set"
                )
        for axis, of_axis in study.axes.items():
            if axis not in self.axes and not all(value.set for value in of_axis):
                raise InputError(
                    f"{where}: has no axis {axis}; it has {', '.join(self.axes)}. Values of "
                    "another axis need settings of their own (set = {...})"
                )

    def check_inputs(self, study: Study, inputs: Inputs) -> None:  # noqa: B027
        """Refuse inputs that can't be what a study would take them for.

        Raises:
            InputError: there are such.
        """

    def level(self, cell: Cell) -> float:
        """Return the level of the intervals of a cell's numbers.

        It is a setting where they come from resamples; another kind may call a level what it
        measures.
        """
        settable = self.defaults.keys() - {*self.unread}
        return float(self.setting(cell, "level")) if settable.issuperset(RESAMPLED) else LEVEL

    def subject(self, cell: Cell) -> Any:
        """Return what a cell is about, besides its seed and whatever it is called."""
        own = {axis: name for axis, name in cell.at.items() if axis in self.axes}
        own |= {METHOD: cell.method} if METHOD in cell.at else {}
        return own, {key: of for key, of in cell.settings.items() if key != METHOD}

    def left_out(self, study: Study, inputs: Inputs) -> list[str]:
        """Return what was given and no cell takes, with reasons, where a kind looks for it."""
        return []

    def setting(self, cell: Cell, name: str) -> Any:
        """Return a setting of a cell."""
        return cell.settings.get(name, self.defaults[name])

    def settings(self, cell: Cell, *names: str) -> dict[str, Any]:
        """Return several settings of a cell by name, or all of them."""
        return {name: self.setting(cell, name) for name in names or self.defaults}

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return what a cell needs; predictions by the name of its input if it says nothing."""
        return (Need(cell.input, PREDICTIONS),)

    @abstractmethod
    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return all that the result depends on besides the data, as JSON takes it.

        What doesn't change the numbers stays out, such as the seed of what is deterministic:
        cells that agree in this are computed once.
        """

    def method_version(self, cell: Cell) -> str:
        """Return the version of the method; another one is computed anew."""
        return ""

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        """Return tables of its own, each with a heading, to stand below those of every study."""
        return []

    def document(self, result: CellResults) -> dict[str, Any]:
        """Return what stands in the JSON of a result besides that of every study."""
        return {}

    def draw(self, result: CellResults) -> Figure | None:
        """Return a figure of its own for a study's result; None for what the study declares."""
        return None

    @abstractmethod
    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        """Return the result of a cell as JSON takes it.

        Args:
            cell: what to compute.
            inputs: those that it needs are there.
            work: a folder of its own for what takes long and resumes; it isn't there yet.

        Returns:
            ``values``: measure to a dict with ``value``, and where they exist ``low``, ``high``,
            ``floor`` and ``floor_95``. Optional: ``replicates``, measure to values on resamples,
            and ``pairing``, a text that cells on the same resamples share, for paired differences;
            ``apart``, true where what was published is about something else than this cell;
            ``notes``, a list of sentences; anything else for figures and tables of its own.

        Raises:
            CalibrantError: the cell can't be computed; its one sentence is recorded.
        """


class Simulated(Kind):
    """A kind whose rows are drawn: it needs no input, and all its settings change its numbers."""

    def needs(self, cell: Cell) -> tuple[Need, ...]:
        """Return nothing: rows are drawn."""
        return ()

    def configuration(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """Return where the cell stands, its seed and its settings."""
        method = {METHOD: cell.method} if METHOD in cell.at else {}
        return {**cell.at, **method, "seed": cell.seed, **self.settings(cell)}

    def method_version(self, cell: Cell) -> str:
        """Return the version of Calibrant, whose intervals and tests these kinds try."""
        return __version__
