"""What a fit is worth: numbers before and after it, on rows that it hasn't seen.

A calibrator looks good on the rows that it was fitted to. So these are divided into parts, each is
mapped by a calibrator that was fitted to the others, and what it then says is measured. The fit
that is kept has seen a fifth more rows than these, and is hardly worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.progress import Watcher
from calibrant.core.result import Drawn, Table
from calibrant.evaluation.bootstrap import drawn_once
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import (
    compared,
    in_percent,
    interval_of,
    percent,
    sentence,
    show,
    with_unit,
)
from calibrant.evaluation.results import Evaluation, finding, state_of
from calibrant.evaluation.sample import RowSample, losses_of
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL, PairedDifference, paired_difference
from calibrant.metrics.metric_types import MeanMetric, Metric
from calibrant.metrics.proper import ACCURACY, NLL, TOP_NLL
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import (
    Worth,
    difference_of_losses,
    folds_of,
    held_out,
)
from calibrant.posthoc.needs import with_copies_together
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions, rows_of_first_part
from calibrant.predictions.scoring import RowScores
from calibrant.scale.engines import Engine
from calibrant.scale.shards import Shards

# Resamples behind the intervals of the ECE; the other ones need none.
FOLDS, RESAMPLES = 5, 200
# A method that holds rows out itself takes long; of more rows than this, parts may be larger.
FEWER_FOLDS, FEW_ROWS = 3, 2_000
# Of more rows than this a sample is taken: its NLL is known to about .003, and the gain better.
SAMPLE_ROWS = 50_000


def _confidence_of_rows(rows: RowScores) -> FloatArray:
    return rows.confidence


CONFIDENCE = MeanMetric(
    name="confidence",
    title="mean confidence",
    definition="mean of c",
    per_row=_confidence_of_rows,
)

State = Literal["gain", "no gain", "loss"]
WORDS: Mapping[State, str] = {
    "gain": "gains",
    "no gain": "shows no gain in {} beyond noise",
    "loss": "makes it worse",
}


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidated(Drawn):
    """What a fit changes on held-out rows; prints as a table.

    Attributes:
        method: what was fitted.
        source: where the rows came from; folds: number of parts in the cross-validation.
        score: the metric that decides: the NLL, or for top labels the NLL of being right.
        before: the network's own confidences; after: the method's, on the same resamples.
        differences: of metrics and ``"confidence"``, after minus before, with intervals. Intervals
            of means are normal, and wider because fits share rows (`difference_of_losses`); the
            interval of the ECE is from the paired bootstrap.
        note: other information, such as how a sample was drawn.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.posthoc.cross_validated("temperature", cb.load_sample("validation"))
        >>> found.state, round(found.differences["nll"].value, 2)
        ('gain', -0.06)
    """

    method: str
    source: str
    folds: int
    score: str
    before: Evaluation
    after: Evaluation
    differences: Mapping[str, PairedDifference]
    note: str = ""

    @property
    def state(self) -> State:
        """Whether the score falls, or rises, by more than noise."""
        difference = self.differences[self.score]
        return "gain" if difference.high < 0 else "loss" if difference.low > 0 else "no gain"

    def headline(self) -> str:
        """Return the finding in two sentences: the score and the ECE; confidence and accuracy."""
        score, ece = self.before[self.score].metric, self.before["ece"].metric
        moved = WORDS[self.state].format(score.title)
        first = f"On held-out rows {self.method} {moved}: {self._change(score, self.score)}, "
        first += self._change(ece, "ece")
        if self.after["ece"].at_floor:
            first += "; the ECE that is left may be noise"
        said = [f"{percent(e.mean_confidence)} %" for e in (self.before, self.after)]
        right = [f"{percent(e.accuracy)} %" for e in (self.before, self.after)]
        second = f"mean confidence goes from {said[0]} to {said[1]}"
        change = self.differences["accuracy"]
        if change.value == 0 and change.low == change.high:
            second += f"; accuracy stays {right[0]}"
        else:
            second += f"; accuracy goes from {right[0]} to {right[1]}, "
            second += compared(ACCURACY, change.ends)
        return f"{first}. {sentence(second)}"

    def _change(self, metric: Metric, name: str) -> str:
        values = (with_unit(metric, each[name].value) for each in (self.before, self.after))
        low = compared(metric, self.differences[name].ends)
        return "{} {} to {}, {}".format(metric.title, *values, low)

    def advice(self) -> str:
        """Return advice if there is no gain; otherwise nothing."""
        if self.state == "gain":
            return ""
        state = state_of(self.before)
        if state in ("honest", "unknown"):
            return "The confidences can't be told from calibrated ones before the fit."
        return f"The confidences are {finding(self.before)}, and more rows may show a gain."

    def as_table(self) -> Table:
        """Return the table, a number a row."""
        interval = interval_of(self.before.level)
        head = ["held out", "before", interval, "after", interval, "change", interval]
        rows: list[list[str]] = []
        for metric in self._shown():
            ends = [*self._ends("before", metric), *self._ends("after", metric)]
            values = [show(metric, number) for number in ends]
            change = [show(metric, number) for number in self.differences[metric.name].ends]
            cells = [values[:3], values[3:], change]
            flat = [text for v, low, high in cells for text in (v, low and f"{low} .. {high}")]
            rows.append([metric.title, *flat])
        how = f"{self.folds}-fold cross-validation of {self.before.n} rows of {self.source}"
        notes = f"{sentence(how)} {in_percent(self._shown())}"
        return Table(head, rows, notes=f"{notes} {sentence(self.note)}" if self.note else notes)

    def _shown(self) -> list[Metric]:
        metrics = {name: result.metric for name, result in self.before.results.items()}
        return [metrics.get(name, CONFIDENCE) for name in self.differences]

    def _ends(self, when: Literal["before", "after"], metric: Metric) -> list[float | None]:
        found: Evaluation = getattr(self, when)
        if metric is CONFIDENCE:
            return [found.mean_confidence, None, None]
        return list(found[metric.name].ends)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each number, in fractions."""
        return [{"metric": name} | row for name, row in self.as_dict()["metrics"].items()]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions, not percent."""
        found: dict[str, dict[str, Any]] = {}
        for metric in self._shown():
            row: dict[str, Any] = {}
            for when in ("before", "after"):
                numbers = zip(("", "_low", "_high"), self._ends(when, metric), strict=True)
                row |= {f"{when}{end}": number for end, number in numbers if number is not None}
            difference = self.differences[metric.name]
            row |= {"change": difference.value, "low": difference.low, "high": difference.high}
            found[metric.name] = row
        return {
            "method": self.method,
            "rows": self.before.n,
            "folds": self.folds,
            "level": self.before.level,
            "state": self.state,
            "decided_by": self.score,
            "finding": self.headline(),
            "note": self.note,
            "metrics": found,
        }

    def above(self) -> tuple[str, ...]:
        """Return the finding and the advice."""
        return (f"{self.headline()} {self.advice()}".strip(),)


# Parameters: what is fitted, to which rows, and how `evaluate` draws.
def cross_validated(
    calibrator: str | Calibrator,
    predictions: Predictions | Shards,
    *,
    folds: int = 0,
    resamples: int = RESAMPLES,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    engine: Engine | None = None,
    watch: Watcher | None = None,
) -> CrossValidated:
    """Return what a fit is worth: metrics before and after it, on held-out rows.

    It takes as many fits as there are folds: five, each to four fifths of the rows, or three if the
    method cross-validates itself and has more than 2 000 rows. Clusters, and copies of a row, are
    held out together. If there are more than 50 000 rows, a uniform sample is used.

    Args:
        calibrator: a method's name, or a calibrator; it is copied, and isn't fitted itself.
        predictions: the rows.
        folds: number of parts; 0 for the numbers above.
        resamples, level, seed: as `evaluate` takes them; the seed also draws the folds.
        engine: what reads `Shards`.
        watch: called with a `Progress` as each fold begins.

    Raises:
        InputError: fewer than two rows or clusters, or folds.
        PredictionsError, NotApplicableError: what `fit_predictions` refuses.

    Examples:
        >>> import calibrant as cb
        >>> found = cb.posthoc.cross_validated("smart", cb.load_sample("validation"))
        >>> found.before["ece"].value > 5 * found.after["ece"].value
        True
    """
    if not isinstance(predictions, Predictions):
        from calibrant.posthoc.shards import ShardWork

        skips = bool(predictions.broken)  # a fit has left some out
        work = ShardWork.on(predictions, engine, None, skip_broken=skips)
        whole, predictions = work.rows, work.sampled(SAMPLE_ROWS, None, seed)[0]
    else:
        whole = predictions.n
        if whole > SAMPLE_ROWS:  # more would take long, and tell no more
            rows = predictions
            some = rows_of_first_part(rows.n, SAMPLE_ROWS, seed, None, rows.source, rows.clusters)
            predictions = rows.take(np.flatnonzero(some))
    note = ""
    if predictions.n < whole:
        note = f"measured on a uniform sample of {predictions.n} of {whole} rows"
    labels = predictions.known_labels
    if labels is not None and not predictions.top_only and (labels == labels[:1]).all():
        alike = f"all {predictions.n} labels are the same, so this says nothing about other classes"
        note = f"{note}; {alike}" if note else alike
    like = make_calibrator(calibrator) if isinstance(calibrator, str) else calibrator
    rows, parts = _parted(predictions.counted, folds or _folds_for(like, predictions.n), seed)
    mapped = held_out(like, rows, parts, watch)
    score = TOP_NLL if rows.kind == "toplabel" else NLL
    options: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    names = [score.name, "ece", ACCURACY.name]
    with drawn_once():
        before = evaluate(rows, metrics=names, **options)
        after = evaluate(mapped, metrics=names, **options)
    means = [score, ACCURACY, CONFIDENCE]
    first, second = (losses_of(RowSample.of(each), means) for each in (rows, mapped))
    worth, number = Worth.of(rows), int(parts.max()) + 1
    differences: dict[str, PairedDifference] = {}
    for name in (score.name, "ece", CONFIDENCE.name, ACCURACY.name):
        if name == "ece":
            pair = after["ece"], before["ece"]
            values = pair[0].value, pair[1].value
            found = paired_difference(pair[0].replicates, pair[1].replicates, values, level)
        else:
            value, error = difference_of_losses(second[name], first[name], number, worth)
            found = PairedDifference.normal(value, error, level)
        differences[name] = found
    return CrossValidated(
        like.method, rows.source, number, score.name, before, after, differences, note
    )


def _folds_for(calibrator: Calibrator, rows: int) -> int:
    """Return the number of folds that `cross_validated` takes unless it is told."""
    return FEWER_FOLDS if calibrator.cross_validates and rows > FEW_ROWS else FOLDS


def cross_fitted(
    calibrator: Calibrator,
    predictions: Predictions,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Predictions:
    """Return rows, each as a calibrator says that was fitted to the rows of the other parts.

    See `cross_validated`.
    """
    rows, parts = _parted(predictions.counted, folds, seed)
    return held_out(calibrator, rows, parts, watch)


def _parted(rows: Predictions, folds: int, seed: int) -> tuple[Predictions, IntArray]:
    """Return the rows, copies of one as a cluster, and the (N,) part that each is held out in."""
    if rows.kind == "score":
        raise InputError(
            f"{rows.source}: scores aren't probabilities, so the fit can't be compared with them"
        )
    if not folds >= 2:
        raise InputError(f"folds must be at least 2, not {folds}")
    if rows.n < 2:
        raise InputError(f"{rows.source}: cross-validation takes at least two rows")
    given, _ = with_copies_together(rows.as_correctness().as_logits())
    if rows.clusters is None and given.clusters is not None:
        rows = replace(rows, clusters=given.clusters)
    # Blind ones: a gain mustn't come of folds that tell of each other.
    return rows, folds_of(given, folds, seed, blind=True)
