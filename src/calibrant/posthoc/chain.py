"""One step behind another: what each learns from, and how they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from calibrant.core.arguments import argument
from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError, heard_warnings
from calibrant.core.fit_report import FitReport
from calibrant.core.weights import times
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.array_ops import scores_behind
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.posthoc.facts import TOP_REST, Facts
from calibrant.posthoc.fitting.cross_validation import (
    folds_of,
    held_out_losses,
    seen_through,
)
from calibrant.posthoc.linear.vector import StructuredVectorScaling
from calibrant.posthoc.noise import ProbitScaling
from calibrant.posthoc.state import SAMPLE_ROWS
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions

# A step of so few numbers is hardly too sure of the rows that it was fitted to.
FEW_PARAMETERS = 2
# Between the name of a step and that of its argument.
OF = "__"


@dataclass(eq=False)
class Chain(Calibrator):
    """Steps one behind another; the log-probabilities of each are the logits of the next.

    The steps correct different errors: a linear map corrects a class that is wrong in all rows,
    top-rest scaling an error at some margins. A map with many parameters is overconfident on the
    rows that it was fitted to, and the next step would learn to undo an error that other rows don't
    have. So each step learns from outputs of the step before for rows that it wasn't fitted to
    (cross-fitting in folds, drawn with a seed); it then follows the step that is fitted to all
    rows. A step of one or two numbers doesn't overfit, and is not cross-fitted.

    `chain_of` makes the class of a chain, whose name on the command line joins those of its steps:
    ``svs+top-rest``. The chain takes the arguments of its steps, with the step's name before them:
    ``svs__ridge``, ``top_rest__knots``.

    Args:
        folds: parts for cross-fitting; with 1 each step is fitted to the outputs for the rows that
            the step before was fitted to.
        seed: for the folds.

    Attributes:
        steps_: the fitted steps, in order; each also by its name, such as `svs_`.

    Examples:
        >>> import calibrant as cb
        >>> chain = cb.make_calibrator("svs+top-rest", top_rest__knots=8)
        >>> chain.fit_predictions(cb.load_sample("validation")).n_parameters
        35
    """

    method: ClassVar[str] = ""
    # Each step says for itself what it makes of weights.
    weighs: ClassVar[bool] = True
    # Fitting several methods takes its time for half as many rows.
    sample_rows: ClassVar[int] = SAMPLE_ROWS // 2
    keeps_prediction: ClassVar[bool] = False
    kinds: ClassVar[tuple[type[Calibrator], ...]] = ()

    _: KW_ONLY
    folds: int = argument(5, at_least=1)
    seed: int = argument(0, at_least=0)

    @property
    def cross_validates(self) -> bool:
        """Whether steps are cross-fitted."""
        return self.folds > 1

    @property
    def steps_(self) -> list[Calibrator]:
        """The fitted steps, in order."""
        return list(self.parts().values())

    def _made(self) -> list[Calibrator]:
        """Return unfitted steps with their arguments."""
        made: list[Calibrator] = []
        for label, kind in zip(labels(self.kinds), self.kinds, strict=True):
            names = kind().get_params()
            made.append(kind(**{name: getattr(self, f"{label}{OF}{name}") for name in names}))
        return made

    @property
    def n_parameters(self) -> int:
        """Number of parameters of all steps."""
        return sum(step.n_parameters for step in self.steps_)

    @property
    def feature_width(self) -> int | None:
        """Number of features D that the steps were fitted for; None if none needs any."""
        widths = [step.feature_width for step in self.steps_ if step.feature_width is not None]
        return widths[0] if widths else None

    def widest(self) -> int:
        """Return the width of the widest step."""
        return max(step.widest() for step in self.steps_)

    def _fit(self, predictions: Predictions) -> FitReport:
        rows, keeps, reports = predictions, True, list[FitReport]()
        for name, step in zip(self.part_names, self._made(), strict=True):
            setattr(self, name, step.fit_predictions(rows))
            reports.append(step.fit_report_)
            keeps = keeps and step.keeps_prediction
            if name != self.part_names[-1]:
                scores = self._seen_through(step, rows, keeps)
                # The last layer makes other logits than these.
                rows = replace(rows, scores=scores, head=None)
        return FitReport.of_steps(reports)

    def _seen_through(self, step: Calibrator, rows: Predictions, keeps: bool) -> FloatArray:
        """Return the (N, K) logits for the step behind `step`, which was fitted to all rows."""
        folds = min(self.folds, rows.n)
        if folds < 2 or step.n_parameters <= FEW_PARAMETERS:
            return _behind(step, rows, keeps)
        scores = np.empty((rows.n, self.n_classes_))
        fold = folds_of(rows, folds, self.seed)
        folds = int(fold.max()) + 1
        with heard_warnings():  # what a fold lacks the whole set may have, and that was told
            for part in range(folds):
                seen, unseen = rows.take(fold != part), rows.take(fold == part)
                other = type(step)(**step.get_params()).fit_predictions(seen)
                scores[fold == part] = _behind(other, unseen, keeps)
        return scores

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return what the last step gives."""
        scores, probs, keeps = logits, logits, True
        for place, (name, step) in enumerate(self.parts().items()):
            if place:
                scores = scores_behind(xp, probs, scores, masks=masks, keeps=keeps)
            own = learnt_by(name, learnt)
            probs = step.transform(xp, scores, features, own, masks=masks)
            keeps = keeps and step.keeps_prediction
        return probs

    def restore_parts(self, parts: dict[str, Calibrator]) -> None:
        """Take over fitted steps."""
        for place, name in enumerate(self.part_names):
            if not self.may_be(place, parts[name].method):
                raise InputError(f"its step '{name}' is a '{parts[name].method}' calibrator")
        super().restore_parts(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        # A class that `chain_of` made can't be found by its name, as copies to other processes do.
        return _unfilled, (_recipe(type(self)),), self.__dict__

    @classmethod
    def may_be(cls, place: int, method: str) -> bool:
        """Return whether a step of this method can stand at a place, counted from 0."""
        return method == cls.kinds[place].method


def joined(steps: Sequence[Calibrator]) -> Calibrator:
    """Return fitted steps, each behind the one before, as one fitted calibrator.

    Args:
        steps: at least one; a single one is returned as it is.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.posthoc.chain import joined
        >>> auto = cb.AutoCalibrator().fit_predictions(cb.load_sample("validation"))
        >>> joined([auto.steps_["svs"], auto.steps_["svs+top-rest"]]).method
        'svs+top-rest'
    """
    if len(steps) == 1:
        return steps[0]
    chain = chain_of(*map(type, steps))()
    for label, step in zip(labels(chain.kinds), steps, strict=True):
        own = {f"{label}{OF}{name}": value for name, value in step.get_params().items()}
        chain.set_params(**own)
    chain.restore_parts(dict(zip(chain.part_names, steps, strict=True)))
    chain.take_fit_of(steps[0])
    chain.fit_report_ = FitReport.of_steps(step.fit_report_ for step in steps)
    return chain


def _recipe(kind: type[Calibrator]) -> Any:
    """Return what `_class_of` makes the class of: itself, or the name and steps of a chain."""
    if issubclass(kind, Chain) and vars(kind).get("put_together"):
        return kind.method, kind.facts, tuple(_recipe(step) for step in kind.kinds)
    return kind


def _class_of(recipe: Any) -> type[Calibrator]:
    if isinstance(recipe, type):
        return recipe
    name, facts, steps = recipe
    return chain_of(*map(_class_of, steps), name=name, facts=facts)


def _unfilled(recipe: Any) -> Calibrator:
    return object.__new__(_class_of(recipe))


def learnt_by(part: str, learnt: Learnt) -> dict[str, Array]:
    """Return what one part has learnt, by its own names; see `Calibrator.map_arrays`."""
    start = f"{part}/"
    return {
        name.removeprefix(start): array for name, array in learnt.items() if name.startswith(start)
    }


def _behind(step: Calibrator, rows: Predictions, keeps: bool) -> FloatArray:
    return seen_through(
        step.predict_proba(rows.scores, rows.features, kind="logits"), rows.scores, keeps
    )


def labels(kinds: Sequence[type[Calibrator]]) -> list[str]:
    """Return what steps are called in arguments and files; a second of a kind has a 2."""
    found: list[str] = []
    for kind in kinds:
        label = kind.method.replace("-", "_").replace("+", "_")
        count = sum(taken.rstrip("0123456789") == label for taken in found)
        found.append(f"{label}{count + 1}" if count else label)
    return found


def chain_of(*kinds: type[Calibrator], name: str = "", facts: Facts | None = None) -> type[Chain]:
    """Return the class of chains whose steps are of these kinds.

    Args:
        kinds: classes of calibrators, at least two.
        name: on the command line and in files; by default the steps' names joined by ``+``.
        facts: what a user should know about a chain with a name of its own.

    Examples:
        >>> import calibrant as cb
        >>> Chain = cb.posthoc.chain_of(cb.TemperatureScaling, cb.posthoc.HistogramBinning)
        >>> Chain.method
        'temperature+histogram'
        >>> chain = Chain(histogram__n_bins=10).fit_predictions(cb.load_sample("validation"))
        >>> chain.n_parameters  # 1 + 10
        11
    """
    return _made_class(kinds, name or "+".join(kind.method for kind in kinds), facts)


# One class for each name and steps: what comes out of a copy is of the class that went in.
@cache
def _made_class(kinds: tuple[type[Calibrator], ...], name: str, facts: Facts | None) -> type[Chain]:
    arguments: list[tuple[str, Any, Any]] = []
    for label, kind in zip(labels(kinds), kinds, strict=True):
        for item in fields(kind):
            if item.init:
                own = field(default=item.default, metadata=item.metadata)
                arguments.append((f"{label}{OF}{item.name}", item.type, own))
    steps = [(f"{label}_", Calibrator, field(init=False, repr=False)) for label in labels(kinds)]
    attributes = {
        "__doc__": Chain.__doc__,
        "__module__": __name__,
        "method": name,
        "facts": facts,
        "kinds": kinds,
        "put_together": True,
        "needs": tuple(dict.fromkeys(need for kind in kinds for need in kind.needs)),
        "keeps_prediction": all(kind.keeps_prediction for kind in kinds),
        "fits_masked": all(kind.fits_masked for kind in kinds),
        "part_names": tuple(name for name, *_ in steps),
    }
    bases, parts = (Chain,), [*arguments, *steps]
    return make_dataclass("Chain", parts, bases=bases, namespace=attributes, eq=False)


# Standard errors by which normal noise has to be better. Of 0, 0.25 and 0.5 the middle one lost
# least to the better choice, over six kinds of data with 50 to 5 000 rows each
# (the study `first-steps`).
CLEAR = 0.25


@dataclass(eq=False)
class ProbitTopRestScaling(Chain):
    """Probit or temperature scaling, followed by top-rest scaling.

    Top-rest scaling takes the spread over the classes below the top from temperature scaling, whose
    tails are those of Gumbel noise. Normal noise describes some networks much better and some
    worse, and the calibration rows decide: top-rest scaling after either kind of noise is fitted to
    each half of the rows and measured on the other half. Normal noise is taken if its log loss
    there is lower by more than a quarter of the standard error of the difference, even without the
    row that gains most. If the two hardly differ, the choice matters little. But a single
    surprising row costs more under normal noise, and few rows may not contain one; so one row
    doesn't decide.

    The first step's log-probabilities are the logits of the second. The first step has one number
    and hardly overfits, so both steps use the same rows, as in top-rest scaling itself. The
    predicted class is kept. docs/appendix/beyond-smart.md has measurements.

    Args:
        tails: ``"likelier"``, as above, or ``"normal"`` in any case.
        knots, penalty: of top-rest scaling.
        folds: parts in which the two are compared. With two parts the comparison takes no longer
            than a fit to all rows.
        seed: for the folds.

    Attributes:
        first_: the fitted probit or temperature scaling; top_rest_: the fitted top-rest scaling
            behind it.

    References:
        Calibrant's own; docs/appendix/beyond-smart.md measures it.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.ProbitTopRestScaling()):
        ...     probs = method.fit_predictions(val).predict_proba(test.logits)
        ...     print(f"{cb.metrics.negative_log_likelihood(probs, test.labels):.4f}")
        0.4685
        0.4669
    """

    method: ClassVar[str] = "probit-top-rest"
    facts: ClassVar[Facts | None] = Facts(
        "probit scaling, then top-rest scaling",
        TOP_REST,
        "two to three fits of top-rest, and one of probit",
        "as top-rest",
    )
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    kinds: ClassVar[tuple[type[Calibrator], ...]] = (ProbitScaling, TopRestScaling)
    part_names: ClassVar[tuple[str, ...]] = ("first_", "top_rest_")

    tails: Literal["likelier", "normal"] = argument("likelier", choices=("likelier", "normal"))
    knots: int = argument(16, at_least=1)
    penalty: float = argument(0.0, at_least=0)
    folds: int = argument(2, at_least=2)

    first_: Calibrator = field(init=False, repr=False)
    top_rest_: TopRestScaling = field(init=False, repr=False)

    def _fit(self, predictions: Predictions) -> FitReport:
        logits = predictions.scores
        rows = predictions.only_logits()
        self.first_ = ProbitScaling().fit_predictions(rows)
        scores = seen_through(self.first_.predict_proba(logits, kind="logits"), logits, keeps=True)
        if self.tails == "likelier":
            scaled = TemperatureScaling().fit_predictions(rows)
            scaled_scores = seen_through(
                scaled.predict_proba(logits, kind="logits"), logits, keeps=True
            )
            if not self._clearly_better(scores, scaled_scores, predictions):
                self.first_, scores = scaled, scaled_scores
        self.top_rest_ = self._second().fit_predictions(rows.only_logits(scores))
        return self.top_rest_.fit_report_.behind(self.first_.fit_report_)

    def _second(self) -> TopRestScaling:
        return TopRestScaling(knots=self.knots, penalty=self.penalty)

    def _clearly_better(self, scores: Array, others: Array, predictions: Predictions) -> bool:
        """Return whether the second step behind `scores` is better on rows that it hasn't seen."""
        if predictions.n < self.folds:
            return False
        fold = folds_of(predictions, self.folds, self.seed)
        own, other = (
            held_out_losses(self._second(), predictions.only_logits(z), fold)
            for z in (scores, others)
        )
        return is_gain(times(other - own, predictions.weights))

    @classmethod
    def may_be(cls, place: int, method: str) -> bool:
        """Return whether a step can stand there: the first may be temperature scaling as well."""
        return super().may_be(place, method) or (place, method) == (0, TemperatureScaling.method)


def is_gain(gains: FloatArray) -> bool:
    """Return whether (N,) gains of rows are more than noise, even without the largest of them."""
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    return bool((gains.sum() - gains.max()) / len(gains) > CLEAR * error)


StructuredVectorTopRestScaling = chain_of(
    StructuredVectorScaling,
    TopRestScaling,
    name="svs-top-rest",
    facts=Facts(
        "structured vector scaling, then top-rest scaling",
        TOP_REST,
        "svs once for each fold, then top-rest",
        "very few rows; it may change predicted classes",
    ),
)
