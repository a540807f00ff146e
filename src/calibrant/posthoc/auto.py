"""The method is chosen by cross-validation: the simplest that can't be told from the best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray, namespace, to_numpy
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.text import counted
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Difference,
    Score,
    Trial,
    difference_of_losses,
)
from calibrant.predictions.predictions import Predictions

# What every other candidate has to beat, and what is taken where the rows can't say.
FALLBACK = "temperature"
DEFAULT_CANDIDATES = (
    "temperature, temperature-laplace, ets, top-rest, smart, predicted-class, svs, svs-top-rest"
)
# With fewer rows, or fewer wrong or right ones among them, there is nothing to choose by.
FEWEST_ROWS, FEWEST_OF_EITHER = 150, 5
# Rows that the repeats together go through, so that the draw of the folds hardly matters.
ROWS_OVER_REPEATS, MOST_REPEATS = 1500, 3


class _AsChosen:
    """A class attribute that every fitted instance answers as its choice does."""

    def __init__(self, before: bool) -> None:
        self.before = before

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: AutoCalibrator | None, owner: type) -> bool:
        chosen = None if instance is None else vars(instance).get("chosen_")
        return self.before if chosen is None else bool(getattr(chosen, self.name))


@dataclass(eq=False)
class AutoCalibrator(Calibrator):
    """Chooses a method by repeated cross-validation on the calibration rows, and fits it to all.

    Each candidate is fitted to the rows of all folds but one and scored on that one, by a proper
    score (ECE is none: it rewards maps that say the same of all rows). Averaged over the repeats,
    every row has one loss from every candidate, and candidates are compared row by row. The rule:
    of the candidates whose mean loss is within one standard error of the lowest, take the simplest.
    The standard error is that of the paired difference to the lowest, see
    `difference_of_losses`. Simpler is what keeps the predicted
    class, then what has fewer parameters, then what was named first. A candidate that is not
    temperature scaling must also score better than it, whatever the standard error.

    Temperature scaling is always a candidate. With fewer than 150 rows, or fewer than 5 that are
    wrong or 5 that are right, it is taken without a contest: such a contest would be decided by two
    or three rows, which no standard error warns of. So the choice costs at most noise, and gains
    where rows are many. It knows only what the calibration rows show; of a shift of the data it
    knows nothing.
    `fit_report_.notes` gives the scores, the runner-up and the rule in words.

    Args:
        candidates: names of methods separated by commas, with their default arguments. Methods that
            refuse the rows, or need more than logits, are left out and named in the report.
        score: ``"nll"`` or ``"brier"``.
        same_prediction: leave out candidates that may change the predicted class.
        folds: parts of each repeat.
        repeats: 0 for as many as go through 1 500 rows, at most 3.
        seed: of the folds.

    Attributes:
        chosen_: the fitted calibrator that was chosen; `keeps_prediction` is its.

    References:
        One-standard-error rule: Breiman, Friedman, Olshen, Stone: Classification and Regression
        Trees. 1984, Section 3.4.3; there with the error of the lowest loss, not of differences.
    """

    method: ClassVar[str] = "auto"
    keeps_prediction: ClassVar[bool] = cast(bool, _AsChosen(False))
    fits_masked: ClassVar[bool] = True
    part_names: ClassVar[tuple[str, ...]] = ("chosen_",)

    candidates: str = DEFAULT_CANDIDATES
    score: Score = argument("nll", choices=("nll", "brier"))
    same_prediction: bool = argument(False)
    folds: int = argument(5, at_least=2)
    repeats: int = argument(0, at_least=0)
    seed: int = argument(0, at_least=0)

    chosen_: Calibrator = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Those of the choice."""
        return self.chosen_.n_parameters

    def _fit(self, predictions: Predictions) -> FitReport:
        candidates, left_out = self._make_candidates()
        reason = _too_few(predictions)
        if reason:
            note = f"took {FALLBACK} without a contest: {reason}"
            return self._take(candidates[FALLBACK], predictions, (note,))
        contest = CrossValidation(
            predictions, self.folds, self._repeats(predictions.n), self.score, self.seed
        )
        trials: dict[str, Trial] = {}
        for name, candidate in candidates.items():
            try:
                trials[name] = contest.trial(candidate)
            except NotApplicableError as refusal:
                left_out[name] = str(refusal)
        outcome = choose(trials, self.folds, FALLBACK)
        how = f"{len(contest.assignments)} x {self.folds}-fold cross-validation"
        notes = (outcome.sentence(self.score, how), outcome.all_scores(self.score))
        notes += tuple(f"left out {name}: {why}" for name, why in left_out.items())
        return self._take(candidates[outcome.chosen], predictions, notes)

    def _take(
        self, chosen: Calibrator, predictions: Predictions, notes: tuple[str, ...]
    ) -> FitReport:
        self.chosen_ = chosen.fit(predictions.scores, predictions.labels)
        report = self.chosen_.fit_report_
        return replace(report, notes=notes + report.notes)

    def _repeats(self, rows: int) -> int:
        return self.repeats or int(np.clip(-(-ROWS_OVER_REPEATS // rows), 1, MOST_REPEATS))

    def _make_candidates(self) -> tuple[dict[str, Calibrator], dict[str, str]]:
        """Return unfitted candidates by name, and why others that were named are none."""
        from calibrant.posthoc.registry import calibrator_class  # which knows this class

        names = [name.strip() for name in str(self.candidates).split(",") if name.strip()]
        made = {FALLBACK: calibrator_class(FALLBACK)()}
        left_out: dict[str, str] = {}
        for name in names:
            kind = calibrator_class(name)
            if issubclass(kind, AutoCalibrator):
                raise InputError(f"candidates must not hold '{name}', which does the choosing")
            if kind.needs:
                left_out[name] = "it needs more than logits"
            elif self.same_prediction and not kind.keeps_prediction:
                left_out[name] = "it may change the predicted class"
            else:
                made[name] = kind()
        return made, left_out

    def _apply(self, logits: Array, features: Array | None) -> Array:
        return self.chosen_.predict_proba(logits, features)

    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """See `Calibrator.predict_confidence`; as the choice says it."""
        checked = self._checked(logits)
        return self.chosen_.predict_confidence(checked, features)


def _too_few(predictions: Predictions) -> str:
    """Return why the rows can't choose a method, or nothing."""
    if predictions.n < FEWEST_ROWS:
        rows = counted(predictions.n, "calibration row")
        return f"{rows}, where a choice takes at least {FEWEST_ROWS}"
    scores = predictions.scores
    predicted = to_numpy(namespace(scores).argmax(scores, axis=1))
    right = int((predicted == predictions.labels).sum())
    for count, kind in ((predictions.n - right, "wrong"), (right, "right")):
        if count < FEWEST_OF_EITHER:
            return (
                f"{count} of {predictions.n} rows are {kind}, and a choice takes at least "
                f"{FEWEST_OF_EITHER}"
            )
    return ""


class Choice(NamedTuple):
    """Outcome of `choose`.

    Attributes:
        chosen: the simplest candidate within one standard error of the best.
        best: the one of the lowest mean loss.
        runner_up: the one of the lowest mean loss but the chosen; None if there is no other.
        means: name to mean loss, simplest first.
        to_best: name to paired difference to the best.
    """

    chosen: str
    best: str
    runner_up: str | None
    means: dict[str, float]
    to_best: dict[str, Difference]

    def sentence(self, score: str, how: str) -> str:
        """Return the choice and its reason."""
        mean = self.means[self.chosen]
        text = f"chose {self.chosen}, {score} {mean:.4f} by {how}: "
        if self.chosen == self.best:
            text += "it has the lowest, and no simpler method is within one standard error of it"
        else:
            gap = self.to_best[self.chosen]
            text += (
                f"the simplest method within one standard error of the lowest, "
                f"{self.means[self.best]:.4f} of {self.best} (difference {gap.value:.4f} "
                f"+- {gap.error:.4f})"
            )
        if self.runner_up not in (None, self.best):
            gap = self.to_best[self.runner_up]
            text += (
                f"; runner-up {self.runner_up} {self.means[self.runner_up]:.4f} "
                f"(above the lowest by {gap.value:.4f} +- {gap.error:.4f})"
            )
        return text

    def all_scores(self, score: str) -> str:
        """Return every candidate's mean loss, simplest first."""
        scores = ", ".join(f"{name} {mean:.4f}" for name, mean in self.means.items())
        return f"{score} of all, simplest first: {scores}"


def choose(trials: dict[str, Trial], folds: int, fallback: str) -> Choice:
    """Apply the one-standard-error rule to the `trials` of candidates by name.

    Args:
        trials: at least that of `fallback`.
        folds: of the cross-validation.
        fallback: the method that any other choice must score better than.
    """
    simplest_first = sorted(
        trials, key=lambda name: (not trials[name].keeps_prediction, trials[name].parameters)
    )
    means = {name: float(trials[name].losses.mean()) for name in simplest_first}
    best = min(means, key=lambda name: means[name])
    to_best = {
        name: difference_of_losses(trials[name].losses, trials[best].losses, folds)
        for name in means
    }
    close = [name for name, gap in to_best.items() if gap.value <= gap.error]
    chosen = next(name for name in close if name == fallback or means[name] < means[fallback])
    others = [name for name in means if name != chosen]
    runner_up = min(others, key=lambda name: means[name]) if others else None
    return Choice(chosen, best, runner_up, means, to_best)
