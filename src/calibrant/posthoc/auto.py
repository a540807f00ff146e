"""Methods and chains of them are averaged, or one is chosen, by what they say of rows held out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.core.fit_report import FitReport
from calibrant.core.text import names_by_text, names_in
from calibrant.metrics.registry import METRICS
from calibrant.posthoc import model_selection
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import as_type, scores_behind
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import joined, learnt_by
from calibrant.posthoc.facts import AVERAGED, Facts
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Difference,
    Score,
    Trial,
    fit_to_compare,
)
from calibrant.posthoc.model_selection import (
    AVERAGE,
    FALLBACK,
    FALLBACK_OF_SCORES,
    Rule,
    choose,
    parted,
    sentence_of_weights,
    weights_of_average,
    with_prefixes,
)
from calibrant.posthoc.state import SAMPLE_ROWS, Comparison, by_instance, learnt
from calibrant.predictions.predictions import Predictions

DEFAULT_CANDIDATES = (
    "temperature, ets, top-rest, svs+top-rest, probit, probit+svs+top-rest, mcct+top-rest, "
    "mcct+svs+top-rest, smart, ridge, ridge+top-rest, ets+top-rest, mcct+ridge+top-rest"
)
# Of one event: which way do its log odds bend, and does a map without a formula do better?
CANDIDATES_OF_EVENTS = "temperature, platt, beta, quadratic, venn-abers"
# Of scores that are no log odds, which a temperature would take them for.
CANDIDATES_OF_SCORES = "platt, beta, quadratic, venn-abers"
USUAL = "usual"
# Parts of a repeat; fewer from so many rows on, and the fewest beyond so many logits, where fits
# take long. With 5 000 rows of three networks three folds took the chain that five folds took.
FOLDS, FEWER_FOLDS, FEWEST_FOLDS = 5, 3, 2
ROWS_FOR_FEWER = 3000
# Rows that the repeats together go through, so that the draw of the folds hardly matters.
ROWS_OVER_REPEATS, MOST_REPEATS = 1500, 3


def _all_keep(fitted: AutoCalibrator) -> bool:
    steps: dict[str, Calibrator] | None = vars(fitted).get("steps_")
    if steps is None:
        return False
    return fitted.form_ == "toplabel" or all(step.keeps_prediction for step in steps.values())


@dataclass(eq=False)
class AutoCalibrator(Calibrator):
    """Averages several methods, weighted by their likelihood in cross-validation.

    A candidate is a method, or a chain of methods joined by ``+``. Each step takes the
    log-probabilities of the step before as logits, and learns from that step's outputs for rows
    that it wasn't fitted to. The default has thirteen, which answer six questions differently: do
    the logits err as if by normal noise (`probit`)? Does even a confident row have a small chance
    of any class (`ets`)? Are some ranks wrong, for example because labels are noisy (`mcct`)? Is a
    class wrong in all rows (`svs`)? Are classes confused in a lasting pattern (`ridge`)? Are
    confidences (`top-rest`) or temperatures (`smart`) wrong at some margins?

    Repeated cross-validation gives every row one loss from every candidate, by a proper score. (ECE
    isn't proper: it rewards a map that gives all rows the same confidence.) Their probabilities are
    then averaged. At first temperature scaling has half of the weight; then the weights follow the
    likelihood of the held-out rows, discounted because the folds share rows. If few rows can't
    distinguish the candidates, the average hedges: a few other rows change it a little, while a
    choice would jump. Candidates may also be right on different rows. So the mixture of the highest
    likelihood takes part as one more candidate; its weights come from other folds than the rows
    that measure it. If many rows show that it is better than each of its parts, it gets all the
    weight (`calibrant.posthoc.model_selection.weights_of_average` has the formulas).

    An average of calibrated probabilities is underconfident where its parts differ. So with more
    than two classes a smooth map of its confidences, `natural-spline`, follows if it lowers the
    loss of held-out rows by more than a standard error; else, from 1 000 rows on, `temperature`.

    `chain` returns each of them as a separate calibrator; here they share their first steps, so
    that each step is computed once. A chain isn't tried if it would stay behind the best even if
    its last step gained as much as it gains alone, nor if its first step alone is clearly worse
    than temperature scaling.

    Temperature scaling is always a candidate; for scores that aren't probabilities `platt` is. It
    is used without cross-validation if there are fewer than 150 rows, or fewer than 5 right or 5
    wrong rows (two or three rows would decide), if all labels are the same, or if no candidate
    predicts the labels better than the class frequencies. `auto` can't notice that new rows differ
    from the rows of the fit. `fit_report_.notes` gives weights, scores and the reason in words.

    Args:
        candidates: names, as a sequence or separated by commas, with default arguments; another
            form of a method behind a colon (``isotonic:one-vs-rest``). Methods that refuse the
            rows, or need more than logits, are left out and named in the report. ``"usual"`` is the
            thirteen. For two classes and top labels it is temperature, platt, beta, quadratic and
            venn-abers (either class may be the positive one), and for scores the same without
            temperature.
        rule: ``"average"``; or one candidate, the one of the ``"lowest"`` loss or the
            ``"simplest"`` that is within one standard error of it, see
            `calibrant.posthoc.model_selection.choose`.
        loss: of a row, ``"nll"`` or ``"brier"``.
        same_prediction: leave out candidates that may change the predicted class.
        folds: parts of each repeat, at least 2; 0 for 5, 3 from 3 000 rows on, or 2 with more than
            four million logits. With so many, candidates are compared on a sample of the rows.
        repeats: 0 for as many as go through 1 500 rows, at most 3.
        seed: for the folds.

    Attributes:
        steps_: the fitted last step of each chain, by the chain's name, such as
            ``"probit+top-rest"``; last ``"average+natural-spline"`` or ``"average+temperature"``,
            if one of them follows the average.
        weights_: (S,) weight of each of these chains, 0 for a chain that is only the beginning of
            others.

    References:
        Calibrant's own; docs/appendix/calibration-size.md measures it.

    Examples:
        >>> import calibrant as cb
        >>> few = cb.load_sample("validation").take(slice(100))
        >>> auto = cb.AutoCalibrator().fit_predictions(few)
        >>> list(auto.steps_)
        ['temperature']
        >>> print(auto.fit_report_.notes[0])
        took temperature without comparing methods: 100 calibration rows, and
        a choice needs at least 150
    """

    method: ClassVar[str] = "auto"
    facts: ClassVar[Facts | None] = Facts(
        "average by held-out likelihood",
        AVERAGED,
        "three folds of thirteen methods: 1 s at 5 000 x 10, 4 s at 5 000 x 100",
        "fewer rows than about 200: then it is temperature scaling; it may change predictions",
    )
    weighs: ClassVar[bool] = True
    # Fitting several methods takes its time for half as many rows.
    sample_rows: ClassVar[int] = SAMPLE_ROWS // 2
    keeps_prediction: ClassVar[bool] = by_instance(False, _all_keep)
    fits_masked: ClassVar[bool] = True
    fits_top_label: ClassVar[bool] = True
    fits_scores: ClassVar[bool] = True
    part_names: ClassVar[tuple[str, ...]] = ("steps_",)

    candidates: str | Sequence[str] = USUAL
    rule: Rule = argument("average", choices=("average", "lowest", "simplest"))
    loss: Score = argument("nll", choices=("nll", "brier"))
    same_prediction: bool = argument(False)
    folds: int = argument(0, at_least=0)
    repeats: int = argument(0, at_least=0)
    seed: int = argument(0, at_least=0)

    steps_: dict[str, Calibrator] = field(init=False, repr=False)
    weights_: FloatArray = learnt("S", at_least=0, at_most=1)

    @property
    def averaged_(self) -> dict[str, float]:
        """The averaged chains with their weights, the largest first."""
        weights = zip(self.steps_, self.weights_.tolist(), strict=True)
        return dict(sorted(((n, w) for n, w in weights if w > 0), key=lambda pair: -pair[1]))

    @property
    def cross_validates(self) -> bool:
        """Whether it chooses by rows held out: always."""
        return True

    def chain(self, name: str = "") -> Calibrator:
        """Return one of the chains that are averaged, fitted, as a calibrator of its own.

        It shares what it has learnt with the average.

        Args:
            name: such as ``"probit+top-rest"``; by default the one of the largest weight.

        Raises:
            InputError: it isn't averaged.
        """
        name = name or next(iter(self.averaged_))
        if name not in self.averaged_:
            known = ", ".join(self.averaged_)
            raise InputError(f"'{name}' isn't averaged here; there are: {known}")
        found = copy(joined([self.steps_[part] for part in with_prefixes([name])]))
        found.take_fit_of(self)
        return found

    @property
    def n_parameters(self) -> int:
        """Number of parameters of all steps, and of free weights."""
        own = sum(step.n_parameters for step in self.steps_.values())
        return own + len(self.averaged_) - 1

    def _fit(self, predictions: Predictions) -> FitReport:
        fallback = FALLBACK_OF_SCORES if self.kind_ == "score" else FALLBACK
        chains, left_out = self._chains(fallback)
        if self.candidates == USUAL and predictions.origin and predictions.origin.positions:
            mine = [name for name in chains if model_selection.learns_positions(name)]
            left_out |= dict.fromkeys(mine, "a class here is the position of a choice")
            chains = [name for name in chains if name not in mine]
        if self.candidates == USUAL and self.n_classes_ == 2:
            predictions = predictions.as_binary()  # of two classes either may be the event
        if reason := model_selection.too_few(predictions):
            note = f"took {fallback} without comparing methods: {reason}"
            return self._keep({fallback: 1.0}, {}, {}, predictions, predictions, (note,))
        folds, some = self._folds(predictions), model_selection.some_rows(predictions, self.seed)
        contest = CrossValidation(some, folds, self._repeats(some.n), self.loss, self.seed)
        named = {*chains, *left_out}
        trials, settled = model_selection.trials_of(contest, chains, left_out, fallback)
        entered = {name: trials[name] for name in chains if name in trials}
        if fallback == FALLBACK and model_selection.says_no_more(contest, entered):
            note = f"took {fallback}: {model_selection.BY_CHANCE}"
            return self._keep({fallback: 1.0}, {}, {}, predictions, predictions, (note,))
        how, times = f"{folds}-fold cross-validation", len(contest.assignments)
        how = how if times == 1 else f"{times} x {how}"
        averages = self.rule == "average"
        ranking = choose(entered, folds, fallback, "simplest" if averages else self.rule)
        if not averages:
            weights, note = {ranking.chosen: 1.0}, ranking.sentence(self.loss, how)
        else:
            weights = weights_of_average(entered, contest, fallback)
            note = sentence_of_weights(weights, entered, self.loss, how, fallback)
        notes = (note, ranking.all_scores(self.loss))
        missing = names_by_text((n, why) for n, why in left_out.items() if n in named)
        notes += tuple(f"left out {names}: {why}" for why, names in missing.items())
        if some is not predictions:
            notes += (f"the methods were compared on {some.n} of {predictions.n} rows",)
        report = self._keep(weights, trials, settled, predictions, some, notes)
        if averages and self.n_classes_ > 2 and self.kind_ != "score":
            report = self._end(
                model_selection.end_of_average(trials, contest, weights), some, report
            )
        return report

    def _end(
        self,
        found: tuple[Calibrator, FloatArray, Difference | None] | None,
        some: Predictions,
        report: FitReport,
    ) -> FitReport:
        """Put what was found behind the average, fitted to its held-out scores."""
        if found is None:
            return report
        end, scores, gain = found
        self.steps_[f"{AVERAGE}+{end.method}"] = end.fit_predictions(some.only_logits(scores))
        self.weights_ = np.append(self.weights_, 0.0)
        first, *others = report.notes
        first += f"; {end.method} follows it"
        if gain is not None:
            first += f", which lowers the held-out {METRICS[self.loss].title} "
            first += f"by {gain.value:.4f} +- {gain.error:.4f}"
        return replace(report, notes=(first, *others))

    def _keep(
        self,
        weights: dict[str, float],
        trials: dict[str, Trial],
        settled: dict[str, Calibrator],
        predictions: Predictions,
        some: Predictions,
        notes: tuple[str, ...],
    ) -> FitReport:
        """Fit the steps of all chains that have a weight, and keep them.

        First steps see all rows; later ones `some`, of which the contest knows held-out scores.
        """
        taken = {name: weight for name, weight in weights.items() if weight > 0}
        self.steps_, reports = {}, list[FitReport]()
        for name in with_prefixes(taken):
            before, step = parted(name)
            held_out = trials[before].scores[0] if before else None
            given = (some if before else predictions).only_logits(held_out)
            unfitted = settled.get(name) or model_selection.make_step(step)
            if unfitted.begins_at_others and name in trials:
                begun = Comparison([*trials[name].fits], is_over=True)
                self.steps_[name] = fit_to_compare(unfitted, given, begun)
            else:
                self.steps_[name] = unfitted.fit_predictions(given)
            reports.append(self.steps_[name].fit_report_)
        self.weights_ = np.array([taken.get(name, 0.0) for name in self.steps_])
        report = FitReport.of_steps(reports)
        return replace(report, notes=tuple(dict.fromkeys(notes + report.notes)))

    def _folds(self, predictions: Predictions) -> int:
        if self.folds == 1:
            raise InputError("folds must be at least 2, or 0 to have them chosen")
        if self.folds or model_selection.many(predictions):
            return self.folds or FEWEST_FOLDS
        return FEWER_FOLDS if predictions.n >= ROWS_FOR_FEWER else FOLDS

    def _repeats(self, rows: int) -> int:
        return self.repeats or int(np.clip(-(-ROWS_OVER_REPEATS // rows), 1, MOST_REPEATS))

    def _chains(self, fallback: str) -> tuple[list[str], dict[str, str]]:
        """Return the chains that take part, and why others that were named don't."""
        usual = DEFAULT_CANDIDATES if self.n_classes_ > 2 else CANDIDATES_OF_EVENTS
        if self.kind_ == "score":
            usual = CANDIDATES_OF_SCORES
        named: Any = usual if self.candidates == USUAL else self.candidates
        if not isinstance(named, Sequence):
            raise InputError(
                "candidates must be names, as a sequence or separated by commas, "
                f"not {self.candidates!r}"
            )
        names = names_in(cast(Sequence[object], named))
        return model_selection.entrants(
            names, same_prediction=self.same_prediction, judge=self.method, fallback=fallback
        )

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return the weighted mean of what the chains give, through the step behind it if any."""
        inputs, keeps = {"": logits}, {"": True}
        total = xp.zeros_like(logits)
        for place, (name, step) in enumerate(self.steps_.items()):
            before = parted(name)[0]
            if before == AVERAGE:  # it is the last
                every = all(keeps.values())
                scores = scores_behind(xp, total, logits, masks=masks, keeps=every)
                return step.transform(xp, scores, None, learnt_by(name, learnt), masks=masks)
            scores = inputs[before]
            probs = step.transform(xp, scores, None, learnt_by(name, learnt), masks=masks)
            keeps[name] = keeps[before] and step.keeps_prediction
            inputs[name] = scores_behind(xp, probs, scores, masks=masks, keeps=keeps[name])
            total = total + probs * as_type(xp, learnt["weights_"][place], logits)
        return total

    def _confidences(self, logits: Array, features: Array | None) -> tuple[IntArray, FloatArray]:
        """Return (N,) labels and confidences; of a method that was taken alone, its own."""
        if len(self.steps_) == 1:
            return next(iter(self.steps_.values()))._confidences(logits, features)
        return super()._confidences(logits, features)

    @classmethod
    def state_names(cls) -> tuple[str, ...]:
        """Return the one name of what a file holds beside the steps: their weights."""
        return ("weights_",)

    def parts(self) -> dict[str, Calibrator]:
        """Return the fitted steps by the chain that each ends."""
        return dict(self.steps_)

    @classmethod
    def wanted_parts(cls, found: Collection[str]) -> str | None:
        """Return what is missing if a step has none before it to stand behind, or None."""
        known = {""}
        for name in found:
            before, step = parted(name)
            if before not in known or not step:
                return "steps, each behind one that comes before it"
            known = {AVERAGE, *known, name} if before != AVERAGE else set[str]()
        return None if found else "at least one step"

    def restore_parts(self, parts: dict[str, Calibrator]) -> None:
        """Take over fitted steps, each named by the chain that it ends.

        Raises:
            InputError: a step of another method than its name says, or one that needs features.
        """
        for name, part in parts.items():
            if part.method != parted(name)[1].partition(model_selection.OF_FORM)[0]:
                raise InputError(f"its part '{name}' is a '{part.method}' calibrator")
            if part.needs:
                raise InputError(f"its part '{name}' needs more than logits")
        self.steps_ = dict(parts)

    def restore(
        self, state: dict[str, NDArray[np.generic]], n_classes: int, report: FitReport
    ) -> Self:
        """Take over the weights of another one of this kind, and return self.

        Raises:
            InputError: not a weight for each step, or weights that don't sum to 1.
        """
        weights = np.asarray(state["weights_"], dtype=np.float64)
        if len(weights) != len(self.steps_) or abs(float(weights.sum()) - 1) > 1e-9:
            raise InputError("'weights_' must be one for each step, and sum to 1")
        if any(
            w for name, w in zip(self.steps_, weights, strict=True) if parted(name)[0] == AVERAGE
        ):
            raise InputError("'weights_' must be 0 for the step behind the average")
        self.weights_, self.n_classes_, self.fit_report_ = weights, n_classes, report
        return self
