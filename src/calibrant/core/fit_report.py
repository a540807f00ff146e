"""The report of a fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import reduce
from math import isnan
from typing import Any

from calibrant.core.errors import ConvergenceWarning, warn_caller
from calibrant.core.text import counted, wrap


@dataclass(frozen=True, repr=False)
class FitReport:
    """What a fit did.

    Attributes:
        n: number of calibration rows.
        objective: name of what was minimised, or "closed form".
        value: its final value (NaN where there is none).
        iterations: steps of the optimiser.
        converged: whether it reached its tolerance.
        notes: what a user should know, such as a bound that the fit reached.
        worth: the gain of the fit on held-out rows (`calibrant.posthoc.cross_validated`), as in
            JSON; None if it wasn't measured.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> report = cb.TemperatureScaling().fit_predictions(val).fit_report_
        >>> report.n, report.objective, report.converged
        (5000, 'nll', True)
        >>> report  # notes follow, a paragraph each
        fitted to 5000 rows by nll, 0.4... after ... iterations
    """

    n: int
    objective: str
    value: float = float("nan")
    iterations: int = 0
    converged: bool = True
    notes: tuple[str, ...] = ()
    worth: dict[str, Any] | None = None

    def __repr__(self) -> str:
        steps = f" after {counted(self.iterations, 'iteration')}" if self.iterations else ""
        value = "" if isnan(self.value) else f", {self.value:.4g}"
        end = "" if self.converged else "; it stopped before it converged"
        begin = f"fitted to {counted(self.n, 'row')} by {self.objective}{value}{steps}{end}"
        return "\n\n".join(map(wrap, [begin, *self.notes]))

    def behind(self, first: FitReport) -> FitReport:
        """Return the report of a fit in two steps; this one is the report of the second step."""
        return replace(
            self,
            iterations=first.iterations + self.iterations,
            converged=first.converged and self.converged,
            notes=tuple(dict.fromkeys(first.notes + self.notes)),
        )

    @staticmethod
    def of_steps(reports: Iterable[FitReport]) -> FitReport:
        """Return the report of fits one behind another."""
        return reduce(lambda first, later: later.behind(first), reports)

    def noting(self, *notes: str) -> FitReport:
        """Return the report with more notes; each is said once."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))

    def warned(self, method: str) -> FitReport:
        """Return the report itself, after a warning if the fit ended short of its minimum."""
        if not self.converged:
            warn_caller(ConvergenceWarning(f"'{method}' stopped after {self.iterations} steps"))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON can hold."""
        found = asdict(self) | {"notes": list(self.notes)}
        if self.worth is None:
            del found["worth"]
        return found
