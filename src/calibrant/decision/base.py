"""What every decision has: the calibrator it is made behind, the rows, and what it adds to rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.core.result import Drawn
from calibrant.core.text import counted
from calibrant.core.weights import codes_of, times
from calibrant.evaluation.formatting import percent
from calibrant.evaluation.uncertainty import deviations, wilson_interval
from calibrant.metrics.resampling import cluster_stretch
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_top


@dataclass(frozen=True)
class Share:
    """A share of rows, or another mean, with its interval; shares are fractions.

    Examples:
        >>> from calibrant.decision import Share
        >>> str(Share(0.25, 0.2, 0.301))
        '25.0 % (20.0 to 30.1)'
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.value)} % ({percent(self.low)} to {percent(self.high)})"

    def as_dict(self) -> dict[str, float]:
        """Return the fields."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, eq=False)
class DecidedRows:
    """Calibrated rows with labels; all arrays (N,).

    Attributes:
        calibrated: the rows with calibrated probabilities.
        confidence: of the predicted class; correct: whether it is the true one.
        weight: how much each row counts; None where all count alike.
        unit: number of what each row belongs to, from 0: its cluster, or itself.
        clusters: number of clusters; None where rows are independent.
    """

    calibrated: Predictions
    confidence: FloatArray
    correct: NDArray[np.bool_]
    weight: FloatArray | None
    unit: IntArray
    clusters: int | None

    @classmethod
    def of(cls, calibrator: Calibrator, rows: Predictions) -> DecidedRows:
        """Return what a fitted calibrator makes of rows that count."""
        return cls.of_calibrated(calibrator.apply_predictions(rows.counted))

    @classmethod
    def of_calibrated(cls, after: Predictions) -> DecidedRows:
        """Return calibrated rows that count."""
        top = score_top(after)
        unit, clusters = np.arange(after.n, dtype=np.int64), None
        if after.clusters is not None:
            unit, clusters = codes_of(after.clusters)
        return cls(after, top.confidence, top.correct, after.weights, unit, clusters)

    @property
    def units(self) -> int:
        """How many independent units there are: clusters, or rows."""
        return len(self.confidence) if self.clusters is None else self.clusters

    @property
    def independent(self) -> bool:
        """Whether rows count alike and stand alone, so that errors are binomial."""
        return self.weight is None and self.clusters is None

    def per_unit(self, values: NDArray[Any]) -> FloatArray:
        """Return the (M,) weighted sums of (N,) values over each unit."""
        return np.bincount(self.unit, times(values, self.weight), self.units).astype(np.float64)

    def share(
        self, some: NDArray[np.bool_], level: float, among: NDArray[np.bool_] | None = None
    ) -> Share:
        """Return the share of rows that something is true of, among all or among some.

        Wilson's interval of as many independent rows as the variance of the ratio stands for
        (clusters and weights: its linearisation over units).
        """
        among = np.ones(len(some), dtype=bool) if among is None else among
        part, whole = self.per_unit(some & among), self.per_unit(among)
        total = float(whole.sum())
        if total == 0:
            return Share(math.nan, 0.0, 1.0)
        value, effective = float(part.sum()) / total, total
        if not self.independent:
            variance = float(((part - value * whole) ** 2).sum()) / total**2
            most = total**2 / float((whole**2).sum())
            effective = min(value * (1 - value) / variance, total) if variance > 0 else most
        return Share(value, *wilson(value, effective, level, self.clusters))


def wilson(
    value: float, rows: float, level: float, clusters: int | None = None
) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a share of so many rows, wider for few clusters."""
    wider = 1.0 if clusters is None else cluster_stretch(clusters, level)
    low, high = wilson_interval(np.array(value * rows), np.array(rows), level, wider=wider)
    return float(low), float(high)


def mean_of(
    rows: DecidedRows,
    values: FloatArray,
    level: float,
    among: NDArray[np.bool_] | None = None,
    *,
    ends: tuple[float, float],
) -> Share:
    """Return a mean over rows, all or some, with its normal interval over units.

    Where all values are the same nothing shows their spread; the interval then reaches towards the
    least and the greatest value that there can be (`ends`), as far as so many units allow.
    """
    some = np.ones(len(values)) if among is None else among.astype(np.float64)
    part, whole = rows.per_unit(values * some), rows.per_unit(some)
    total = float(whole.sum())
    if total == 0:
        return Share(math.nan, 0.0, 1.0)
    mean = float(part.sum()) / total
    spread = math.sqrt(float(((part - mean * whole) ** 2).sum())) / total
    units = int(np.count_nonzero(whole))
    if np.ptp(values[some > 0]) == 0:
        other = 1 - ((1 - level) / 2) ** (1 / units)  # so often may a unit have another value
        return Share(mean, mean - other * (mean - ends[0]), mean + other * (ends[1] - mean))
    half = deviations(level) * spread
    if rows.clusters is not None:
        half *= cluster_stretch(rows.clusters, level)
    return Share(mean, mean - half, mean + half)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Decision(Drawn):
    """A rule that decides what to do with a row by its calibrated probabilities.

    Class attributes:
        rule: its name in files and on the command line.

    Attributes:
        calibrator: the fitted calibrator that gives the probabilities.
        source: the labelled rows on which the rule was found; n: their number.
        clusters: number of clusters among them; None where rows are independent.
        notes: other things that a user should know.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> found.rule, list(found.of_rows(cb.load_sample("validation")))
        ('risk', ['answer'])
    """

    calibrator: Calibrator = field(repr=False)
    source: str
    n: int
    clusters: int | None = None
    notes: tuple[str, ...] = ()

    rule: ClassVar[str]

    @property
    def decides(self) -> bool:
        """Whether the rule can decide anything about new rows."""
        return True

    def fault(self) -> str | None:
        """Return why the numbers of a file make no decision, as a clause, or None."""
        return None

    @abstractmethod
    def promise(self) -> str:
        """Return the promise about new rows, and its conditions."""

    @abstractmethod
    def outputs(self, xp: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return the decisions as a pure function of arrays, for graphs and programs.

        Args:
            xp: the namespace of the arrays.
            probs: (N, K) calibrated probabilities; if rows have one number each, (N, 2), wrong and
                right.
            confidence: (N,) of the predicted class.
        """

    @property
    def promised(self) -> float | None:
        """The risk that is promised for new rows; None if there is none to watch."""
        return None

    def watched(self, calibrated: Predictions) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (N,) which rows the promise covers, and which of these keep it.

        Raises:
            InputError: the decision makes no promise that rows can show.
        """
        raise InputError(
            f"a decision by {self.rule} makes no promise about new rows that could be watched; "
            "watch the confidences instead: calibrant monitor without --decision"
        )

    @property
    def beside(self) -> str | None:
        """The name of the additional column that the rule needs; None if it needs none."""
        return None

    @abstractmethod
    def columns(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the decisions for rows with calibrated probabilities, (N,) columns by name.

        Args:
            calibrated: the rows; groups: (N,) values of the column `beside`, where there is one.
        """

    def of_rows(self, rows: Predictions, groups: Array | None = None) -> dict[str, NDArray[Any]]:
        """Return the decisions for rows that aren't calibrated yet, with labels or without.

        Args:
            rows: as the calibrator takes them.
            groups: (N,) values of the column, for a decision by groups of a column; otherwise None.
        """
        return self.columns(self.calibrator.apply_predictions(rows), groups)

    def to_onnx(
        self,
        path: StrPath | None = None,
        *,
        behind: StrPath | None = None,
        output: str | None = None,
        features_output: str | None = None,
        class_names: Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        """Return calibrator and decision as one ONNX model; see `Calibrator.to_onnx`.

        The outputs of the decision come after those of the calibrator, with numbers where `columns`
        has names: ``answer`` or ``called`` (N,); ``set`` (N, K), whether each class is in it, and
        ``set_size``; ``decision``, K for handing over, ``answer`` and ``cost``.

        Examples:
            >>> import calibrant as cb
            >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
            >>> [output.name for output in found.to_onnx().graph.output][-1]
            'answer'
        """
        from calibrant.export.onnx_file import GraphOptions, to_onnx
        from calibrant.export.onnx_network import Behind

        return to_onnx(
            self.calibrator,
            path,
            GraphOptions(**options),
            class_names=class_names,
            behind=Behind.of(behind, output, features_output),
            decided=self.outputs,
        )

    def to_torch(
        self, path: StrPath | None = None, *, kind: str | None = None, dtype: str = "float32"
    ) -> Any:
        """Return calibrator and decision as a torch module, whose output is a dict.

        Args:
            path: file (.pt2) to write it to, as a program that torch alone runs; or None.
            kind: what it is given; dtype: of what the program is given. See `Calibrator.to_torch`.

        Examples:
            >>> import calibrant as cb
            >>> import torch
            >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
            >>> found.to_torch()(torch.eye(10)[:2] * 40)["answer"]
            tensor([True, True])
        """
        from calibrant.export.torch_module import CalibratorModule, DecidedModule, write_program

        top_only = self.calibrator.form_ == "toplabel"
        module = DecidedModule(CalibratorModule(self.calibrator, kind), self.outputs, top_only)
        if path is not None:
            write_program(module, path, dtype)
        return module

    def facts(self) -> dict[str, Any]:
        """Return what JSON has of every decision."""
        return {
            "n": self.n,
            "clusters": self.clusters,
            "source": self.source,
            "promise": self.promise(),
            "notes": list(self.notes),
        }

    @property
    def rows_in_words(self) -> str:
        """The rows that it was found on."""
        of = "" if self.clusters is None else f" in {counted(self.clusters, 'cluster')}"
        return f"{counted(self.n, 'row')}{of} of {self.source}"

    def below(self) -> tuple[str, ...]:
        """Return the promise, and the notes."""
        return self.promise(), *self.notes


def check_sure(sure: float) -> None:
    """Raise `InputError` unless a promise can be kept so often."""
    if not 0.5 <= sure < 1:
        raise InputError(f"sure, a fraction, must be at least 0.5 and below 1, not {sure:g}")
