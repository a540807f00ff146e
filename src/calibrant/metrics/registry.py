"""Every metric by name, in the two shapes that there are: a mean over rows, a function of the residual curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibrant.arrays import FloatArray
from calibrant.errors import UnknownMethodError
from calibrant.metrics.binned import adaece_of_curves, ece_of_curves
from calibrant.metrics.kernel import smece_of_curves, smece_of_rows
from calibrant.metrics.smooth import smce_of_curves, smce_of_rows
from calibrant.metrics.top_label import ResidualCurves, TopLabel
from calibrant.scoring import RowScores


@dataclass(frozen=True)
class Metric:
    """What is measured, and how to say it.

    Attributes:
        name: key in results, JSON and on the command line.
        title: heading in tables.
        definition: the convention in one line.
        percent: whether people read it in percent (values are fractions all the same).
        lower_is_better: the direction of improvement.
        needs_rows: whether it needs a score for every class.
    """

    name: str
    title: str
    definition: str
    percent: bool = True
    lower_is_better: bool = True
    needs_rows: bool = False


@dataclass(frozen=True)
class MeanMetric(Metric):
    """The mean of one number a row: unbiased, so it has no floor.

    Attributes:
        per_row: returns the (N,) numbers.
    """

    per_row: Callable[[RowScores], FloatArray] = lambda rows: rows.confidence


@dataclass(frozen=True)
class CurveMetric(Metric):
    """A function of the residual curve, zero only in the limit: biased upwards, with a floor.

    Attributes:
        of_curves: returns the (R,) values of R curves; may be coarser than `of_rows`.
        of_rows: returns the value itself; `of_curves` of one curve if None.
    """

    of_curves: Callable[[ResidualCurves], FloatArray] = ece_of_curves
    of_rows: Callable[[TopLabel], float] | None = None

    def value(self, rows: TopLabel) -> float:
        """Return the value on sorted rows."""
        if self.of_rows is not None:
            return self.of_rows(rows)
        return float(self.of_curves(rows.curves())[0])


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        CurveMetric(
            "ece",
            "ECE",
            "top label, 15 equal-width bins (lo, hi], L1",
            of_curves=ece_of_curves,
        ),
        CurveMetric(
            "adaece",
            "AdaECE",
            "top label, 15 equal-mass bins by rank, L1",
            of_curves=adaece_of_curves,
        ),
        CurveMetric(
            "smce",
            "smCE",
            "top label, exact maximum over 1-Lipschitz witnesses",
            of_curves=smce_of_curves,
            of_rows=smce_of_rows,
        ),
        CurveMetric(
            "smece",
            "smECE",
            "top label, reflected Gaussian kernel at its fixed-point bandwidth",
            of_curves=smece_of_curves,
            of_rows=smece_of_rows,
        ),
        MeanMetric(
            "nll",
            "NLL",
            "mean of -log p_y in nats",
            percent=False,
            needs_rows=True,
            per_row=lambda rows: rows.nll,
        ),
        MeanMetric(
            "brier",
            "Brier",
            "mean of sum_k (p_k - onehot_k)^2, in [0, 2]",
            percent=False,
            needs_rows=True,
            per_row=lambda rows: rows.brier,
        ),
        MeanMetric(
            "accuracy",
            "accuracy",
            "share of rows whose predicted label is the true one",
            lower_is_better=False,
            per_row=lambda rows: rows.correct.astype(float),
        ),
    )
}


def metrics_named(names: Sequence[str] | None) -> list[Metric]:
    """Return the metrics of `names`, all of them for None.

    Raises:
        UnknownMethodError: no metric goes by a name; the message lists those that there are.
    """
    if names is None:
        return list(METRICS.values())
    for name in names:
        if name not in METRICS:
            raise UnknownMethodError(
                f"no metric is called '{name}'; there are: {', '.join(METRICS)}"
            )
    return [METRICS[name] for name in names]
