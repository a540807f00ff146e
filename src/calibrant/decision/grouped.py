"""A decision for each group of rows, and which group a new row is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, BoolArray, FloatArray, IntArray, as_array, to_numpy
from calibrant.core.errors import (
    CalibrationWarning,
    InputError,
    NotApplicableError,
    PredictionsError,
    warn_caller,
)
from calibrant.core.result import Table
from calibrant.core.text import counted
from calibrant.decision.base import Decision, Share
from calibrant.decision.risk import (
    ABOVE_ALL,
    RiskDecision,
)
from calibrant.decision.sets import SetDecision
from calibrant.evaluation.formatting import interval_of, percent, percent_asked
from calibrant.evaluation.grouping import grouping, quantile_groups, values_cut
from calibrant.evaluation.groups import QUANTILES
from calibrant.predictions.predictions import Predictions

Kind = Literal["predicted", "confidence", "margin", "column"]
# A quantile that every class is below.
EVERY_CLASS = 1e30


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupedDecision(Decision):
    """A decision for each group of rows, under one promise; prints as a table.

    Attributes:
        by: what the groups are, or the name of their column.
        kind: what gives the group of a new row: its predicted class, its confidence or margin, or
            an additional column.
        groups: the decision of each group, by name.
        cuts: where each group of confidences or margins begins, except the first; empty for other
            groups.
        too_small: groups that are left out, with their number of rows; needed: rows that a group
            needs.
        wanted: the risk, or the coverage of sets; sure: probability that all groups keep it.
        level: coverage of the intervals.

    Examples:
        >>> import calibrant as cb
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> test = cb.load_sample("test")
        >>> from calibrant.decision import decide_by
        >>> found = decide_by(scaling, test, "predicted", risk=0.05)
        >>> found.groups["5"].threshold > found.groups["8"].threshold  # a dog, and a ship
        True
    """

    by: str
    kind: str
    groups: dict[str, RiskDecision | SetDecision]
    cuts: tuple[float, ...] = ()
    too_small: dict[str, int]
    needed: int
    wanted: float
    sure: float
    level: float

    rule: ClassVar[str] = "groups"

    @property
    def each(self) -> str:
        """The rule of every group, ``"risk"`` or ``"set"``."""
        return self._first.rule

    @property
    def _first(self) -> RiskDecision | SetDecision:
        return next(iter(self.groups.values()))

    @property
    def acted(self) -> str:
        """What is done with rows above the threshold of their group: "Answered" or "Called"."""
        of = self._first.of if isinstance(self._first, RiskDecision) else None
        return "Answered" if of is None else "Called"

    @property
    def decides(self) -> bool:
        """Whether the rule can decide anything about new rows, in any group."""
        return any(each.decides for each in self.groups.values())

    def fault(self) -> str | None:
        """Return why the numbers of a file make no decision, as a clause, or None."""
        if self.kind not in get_args(Kind):
            return f"groups of '{self.kind[:20]}'"
        if not self.groups or not self.decides:
            return "no group that anything is decided of"
        if not (0 < self.wanted < 1 and 0.5 <= self.sure < 1):
            return f"{self.wanted:g} wanted, {self.sure:g} sure"
        if len({(each.rule, getattr(each, "of", None)) for each in self.groups.values()}) > 1:
            return "groups by different rules"
        if (len(self.cuts) > 0) != (self.kind in ("confidence", "margin")) or any(
            a >= b for a, b in zip(self.cuts, self.cuts[1:], strict=False)
        ):
            return "ends of groups that aren't in order"
        for name, each in self.groups.items():
            if each.decides and (fault := each.fault()) is not None:
                return f"{fault} in {name}"
        return None

    @property
    def measured(self) -> dict[str, tuple[Share, Share | None]]:
        """Of each group how much it is answered, or how large its sets are, and its risk.

        Sets have their coverage for a risk; a group without a threshold has none.
        """
        found: dict[str, tuple[Share, Share | None]] = {}
        for name, each in self.groups.items():
            if isinstance(each, SetDecision):
                found[name] = each.size, each.coverage
            else:
                found[name] = each.coverage, each.error if each.decides else None
        return found

    def headline(self) -> str:
        """Return how many groups have a decision, and the range of their results."""
        many = counted(len(self.groups), "group")
        size = {name: share.value for name, (share, _) in self.measured.items()}
        low, high = min(size, key=lambda n: size[n]), max(size, key=lambda n: size[n])
        alike = size[low] == size[high]
        if self.each == "set":
            ends = f"from {size[low]:.3g} classes in {low} to {size[high]:.3g} classes in {high}"
            return (
                f"Sets that hold the true class in {percent_asked(self.wanted)} % of rows of each "
                f"of {many} have {f'{size[low]:.3g} classes' if alike else ends} on average."
            )
        first = cast(RiskDecision, self._first)
        act = "answered" if first.of is None else f"called {first.class_name}"
        ends = f"goes from {percent(size[low])} % in {low} to {percent(size[high])} % in {high}"
        return (
            f"At {self._wanted} in each of {many}, the share of rows {act} "
            f"{f'is {percent(size[low])} %' if alike else ends}."
        )

    @property
    def _wanted(self) -> str:
        first = cast(RiskDecision, self._first)
        if first.of is not None:
            return f"a {first.measure} of at least {percent_asked(1 - self.wanted)} %"
        of = "mean loss" if first.measure == "loss" else "risk"
        return f"a {of} of {percent_asked(self.wanted)} %"

    def promise(self) -> str:
        """Return what it promises of new rows, and under which conditions."""
        most = percent_asked(self.wanted)
        what = f"at least {most} % of the sets of new rows hold the true class"
        left = "get all classes"
        if isinstance(self._first, RiskDecision):
            what = {
                "error": f"at most {most} % of the new rows that are answered are wrong",
                "loss": f"the mean loss of new rows that are answered is at most {most} %",
                "precision": f"at most {most} % of the new rows called so are of other classes",
                "recall": f"at most {most} % of the new rows of the class aren't called so",
            }[self._first.measure]
            left = "are not answered" if self._first.of is None else "are not called so"
        return (
            f"The promise: in every group, {what}. It holds for all groups at once in "
            f"{percent(self.sure)} % of cases (draws of the rows that thresholds are found on); "
            f"for that, each of {counted(len(self.groups), 'group')} is decided on at "
            f"{100 * (1 - (1 - self.sure) / len(self.groups)):.4g} %. Rows of other groups "
            f"{left}. The promise ends when the data change."
        )

    @property
    def beside(self) -> str | None:
        """The column that says which group a new row is of."""
        return self.by if self.kind == "column" else None

    @property
    def promised(self) -> float | None:
        """The risk that all rows together keep if every group does; None of a loss."""
        if self.each == "set":
            return 1 - self.wanted
        return None if cast(RiskDecision, self._first).measure == "loss" else self.wanted

    def watched(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> tuple[BoolArray, BoolArray]:
        """Return (N,) which rows the promise is about, and which of these keep it."""
        about, kept = np.zeros((2, calibrated.n), dtype=np.bool_)
        member = self._member(calibrated, groups)
        for number, each in enumerate(self.groups.values()):
            at = np.flatnonzero(member == number)
            about[at], kept[at] = each.watched(calibrated.take(at))
        return about, kept

    def _member(self, calibrated: Predictions, groups: Array | None) -> IntArray:
        """Return the (N,) number of each row's group; that of unknown groups is one more."""
        if self.kind == "column":
            if groups is None:
                raise InputError(
                    f"this decision has a rule for each '{self.by}'; give the (N,) values of that "
                    "column as groups"
                )
            names, member = groups_of(calibrated, groups)
        elif self.kind == "predicted":
            names, member = groups_of(calibrated, "predicted")
        else:
            values = values_cut(calibrated, self.kind)
            names = [str(number + 1) for number in range(len(self.cuts) + 1)]
            member = np.searchsorted(self.cuts, values, side="right")
        numbers = self._numbers(names)
        found = numbers[member]
        unknown: list[int] = np.unique(member[found == len(self.groups)]).tolist()
        new = [names[k] for k in unknown if names[k] not in self.too_small]
        if new and self.kind == "column":
            rows = int((found == len(self.groups)).sum())
            warn_caller(
                CalibrationWarning(
                    f"{calibrated.source}: {self.by} has groups that are new to this decision: "
                    f"{', '.join(new[:8])}{', ...' if len(new) > 8 else ''}; their rows "
                    f"{'get all classes' if self.each == 'set' else 'are not answered'} "
                    f"({counted(rows, 'row')}, including groups that are too small)"
                )
            )
        return found

    def _numbers(self, names: list[str]) -> IntArray:
        """Return the number of each group by its name; of cut groups what is before the colon."""
        order = {
            name if self.kind in ("predicted", "column") else name.partition(":")[0]: number
            for number, name in enumerate(self.groups)
        }
        return np.array([order.get(name, len(order)) for name in names], dtype=np.int64)

    @property
    def _limits(self) -> FloatArray:
        """The (G + 1,) thresholds or quantiles of all groups, and that of rows of no group."""
        last = EVERY_CLASS if self.each == "set" else ABOVE_ALL
        if isinstance(self._first, RiskDecision) and self._first.measure == "recall":
            last = ABOVE_ALL
        return np.array([*(each.limit for each in self.groups.values()), last])

    def columns(
        self, calibrated: Predictions, groups: Array | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the decision of each row by the rule of its group, (N,) columns by name."""
        limits = self._limits[self._member(calibrated, groups)]
        first = self._first
        if isinstance(first, SetDecision):
            return first.columns_at(limits[:, None], calibrated)
        return first.columns_at(limits, calibrated)

    def outputs(self, xp: Any, probs: Array, confidence: Array) -> dict[str, Array]:
        """Return what the rule of its group makes of each row, of groups that scores show.

        Raises:
            NotApplicableError: groups of a column, which no graph of scores is given.
        """
        if self.kind not in ("predicted", "confidence") or self.calibrator.form_ == "toplabel":
            raise NotApplicableError(
                f"a decision by groups of '{self.by}' can't be exported to a graph, which gets "
                "scores and no groups; export the calibrator (calibrant fit --out) and use the "
                "thresholds of `calibrant decide --json`, or use calibrant apply"
            )
        if self.kind == "predicted":
            names = self.calibrator.class_names_
            classes = range(self.calibrator.n_classes_)
            numbers = self._numbers([str(k) for k in classes] if names is None else list(names))
            member = xp.argmax(probs, axis=1)
        else:
            numbers = self._numbers([str(number + 1) for number in range(len(self.cuts) + 1)])
            above = confidence[:, None] >= _placed(xp, np.array(self.cuts), probs)[None, :]
            member = xp.sum(xp.astype(above, xp.int64), axis=1)
        limits = xp.take(_placed(xp, self._limits[numbers], probs), member, axis=0)
        first = self._first
        if isinstance(first, SetDecision):
            return first.outputs_at(limits[:, None], xp, probs)
        return first.outputs_at(limits, probs, confidence)

    def as_table(self) -> Table:
        """Return a line for each group."""
        if self.each == "set":
            head = ["group", "rows", "coverage", "low", "high", "size"]
            lines = [
                [n, str(d.n), *map(percent, vars(d.coverage).values()), f"{d.size.value:.2f}"]
                for n, d in cast(dict[str, SetDecision], self.groups).items()
            ]
            what = "Coverage in percent with its"
        else:
            first = cast(RiskDecision, self._first)
            acted = "answered" if first.of is None else "called"
            lost = {"error": "wrong", "loss": "loss", "precision": "others", "recall": "missed"}
            head = ["group", "rows", "threshold", acted, lost[first.measure], "low", "high"]
            lines = list[list[str]]()
            for n, d in cast(dict[str, RiskDecision], self.groups).items():
                cells = ["none", "0.0", "", "", ""]
                if d.threshold is not None:
                    wrong = map(percent, vars(d.error).values())
                    cells = [f"{d.threshold:.4g}", percent(d.coverage.value), *wrong]
                lines.append([n, str(d.n), *cells])
            what = {
                "error": "In percent: answered, of all rows; wrong, of the answered rows, with its",
                "loss": "In percent: answered, of all rows; mean loss of these, with its",
                "precision": "In percent: called so, of all rows; others, of these, with its",
                "recall": "In percent: called so, of all rows; missed, of the class, with its",
            }[first.measure]
        return Table(head, lines, notes=f"{what} {interval_of(self.level)}.")

    def records(self) -> list[dict[str, Any]]:
        """Return a row a group; fractions, not percent."""
        found = list[dict[str, Any]]()
        for name, each in self.groups.items():
            row: dict[str, Any] = {"group": name, "n": each.n}
            if isinstance(each, SetDecision):
                of = {"quantile": each.quantile, "size": each.size.value}
                of |= {"coverage": each.coverage.value}
                share = each.coverage
            else:
                of = {"threshold": each.threshold, "coverage": each.coverage.value}
                of |= {"error": each.error.value}
                share = each.error
            found.append(row | of | {"low": share.low, "high": share.high})
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "rule": self.rule,
            "each": self.each,
            "by": self.by,
            "kind": self.kind,
            "cuts": list(self.cuts),
            "wanted": self.wanted,
            "sure": self.sure,
            "groups": {name: each.as_dict() for name, each in self.groups.items()},
            "too_small": self.too_small,
            "needed": self.needed,
            **self.facts(),
        }

    @property
    def small_in_words(self) -> str:
        """The groups that are left out, in a sentence; empty if there are none."""
        few = ", ".join(f"{name} ({n})" for name, n in self.too_small.items())
        return f"Too small, with fewer than {self.needed} rows or clusters: {few}." if few else ""

    def below(self) -> tuple[str, ...]:
        """Return the promise, the notes, and the groups that are left out."""
        return *super().below(), *([self.small_in_words] if self.too_small else [])


def groups_of(rows: Predictions, groups: Array | str) -> tuple[list[str], IntArray]:
    """Return the groups' names and the (N,) number of each row's group.

    Whole numbers have one name, whichever type a file gives them.
    """
    if isinstance(groups, str):
        if groups == "label":
            raise InputError("the true label of a new row isn't known; take groups by 'predicted'")
        return grouping(rows, groups, QUANTILES)
    column = as_column(groups, rows.n, rows.source)
    if column.dtype.kind == "f" and np.isfinite(column).all() and (column % 1 == 0).all():
        column = column.astype(np.int64)
    return grouping(rows, column, QUANTILES)


def as_column(groups: Array, rows: int, source: str) -> NDArray[Any]:
    """Return a column of as many entries as there are rows."""
    column = to_numpy(as_array(groups))
    if column.shape != (rows,):
        raise PredictionsError(f"{source}: groups must have shape ({rows},), not {column.shape}")
    return column


def cuts_of(rows: Predictions, kind: str) -> tuple[float, ...]:
    """Return where each group of confidences or margins but the first begins."""
    if kind not in ("confidence", "margin"):
        return ()
    return tuple(quantile_groups(values_cut(rows, kind), QUANTILES)[1].tolist())


def _placed(xp: Any, values: FloatArray, like: Any) -> Any:
    """Return numbers as an array of a namespace, of the type and at the place of another."""
    return xp.asarray(values, dtype=like.dtype, device=getattr(like, "device", None))
