"""A calibrator for a world in which the classes are more or less frequent than in its own rows.

Where nothing but the frequencies of the classes differs, Bayes' rule says exactly what becomes of
a probability: p'_k is in proportion to p_k w_k, w_k = new / old share of class k (Elkan 2001). With
negatives of which only a share w was kept that is logit p' = logit p + log w.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arrays import Array, FloatArray
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.fit_report import FitReport
from calibrant.posthoc.applying import Learnt
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import learnt_by
from calibrant.posthoc.state import learnt
from calibrant.predictions.predictions import Predictions

SUM_TOLERANCE = 1e-6


@dataclass(eq=False)
class PriorShift(Calibrator):
    """A fitted calibrator, corrected for other shares of the classes; `with_prior` makes it.

    Attributes:
        log_ratio_: (K,) log of the new share of each class over the old one.
        base_: the calibrator.

    Examples:
        >>> import calibrant as cb
        >>> val = cb.load_sample("validation")
        >>> scaling = cb.TemperatureScaling().fit_predictions(val)
        >>> cb.posthoc.with_prior(scaling, [0.55] + [0.05] * 9, val).method
        'prior'
    """

    method = "prior"
    keeps_prediction = False
    part_names: ClassVar[tuple[str, ...]] = ("base_",)

    log_ratio_: FloatArray = learnt("K", at_least=-100.0, at_most=100.0)
    base_: Calibrator = field(init=False, repr=False)

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the calibrator; shares are given."""
        return self.base_.n_parameters

    def widest(self) -> int:
        """Return what the calibrator takes."""
        return self.base_.widest()

    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return the probabilities of the calibrator by Bayes' rule for the other shares."""
        own = learnt_by("base_", learnt)
        probs = self.base_.transform(xp, logits, features, own, masks=masks)
        ratio = learnt["log_ratio_"]
        odds = probs * xp.astype(xp.exp(ratio - xp.max(ratio)), probs.dtype)[None, :]
        return odds / xp.sum(odds, axis=1, keepdims=True)

    def _fit(self, predictions: Predictions) -> FitReport:
        raise NotApplicableError(
            "shares of classes aren't fitted: calibrant.posthoc.with_prior(calibrator, prior, "
            "before) puts them behind a fitted calibrator"
        )


def with_prior(
    calibrator: Calibrator,
    prior: Mapping[str | int, float] | Sequence[float],
    before: Predictions | Sequence[float],
) -> PriorShift:
    """Return a fitted calibrator for rows in which the classes have other, known shares.

    It is exact if only the shares differ, so that rows of one class look alike before and after.
    New rows that look different (covariate shift) break it, and so does a class that is missing
    from the rows before.

    Args:
        calibrator: a fitted calibrator that gives a probability for each class.
        prior: the share of each class in the new rows, for all classes, by name or number or in
            order.
        before: rows like those that the calibrator was fitted to, with labels, or the shares in
            them.

    Raises:
        InputError: shares that aren't above 0, don't sum to 1, or don't cover all classes.
        NotApplicableError: the calibrator takes features, or has the confidence of one class only.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> logits, labels = np.array([[0.0, 0.0], [2.0, 0.0]] * 20), np.array([0, 1] * 20)
        >>> none = cb.make_calibrator("none").fit(logits, labels)
        >>> rare = cb.posthoc.with_prior(none, {0: 0.99, 1: 0.01}, [0.5, 0.5])
        >>> rare.predict_proba(np.zeros((1, 2))).round(2)  # as likely as not, and rare
        array([[0.99, 0.01]])
    """
    names = class_names_of(calibrator)
    if isinstance(before, Predictions):
        weights = before.weights
        old: Sequence[float] = np.bincount(before.labels, weights, len(names)).tolist()
        old = [count / sum(old) for count in old]
    else:
        old = before
    if isinstance(prior, Mapping):
        by_name = {str(name): float(share) for name, share in prior.items()}
        if set(by_name) != set(names):
            raise InputError(
                f"prior needs a share of each class, {', '.join(names)}; it has "
                f"{', '.join(by_name)}"
            )
        prior = [by_name[name] for name in names]
    log_ratio = np.log(_shares(prior, len(names), "prior"))
    return shifted(calibrator, log_ratio - np.log(_shares(old, len(names), "before")))


def with_kept_negatives(calibrator: Calibrator, kept: float) -> PriorShift:
    """Return a calibrator for all rows, fitted to all positive ones and a share of the negative.

    Exact if the negatives were kept at random: logit p' = logit p + log(kept) (He et al.,
    "Practical lessons from predicting clicks on ads at Facebook", 2014).

    Args:
        calibrator: a fitted calibrator of two classes; the second is the positive one.
        kept: share of the negative rows that were kept, a fraction.

    Raises:
        InputError: a share outside (0, 1].
        NotApplicableError: there aren't two classes, or it takes features.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> none = cb.make_calibrator("none").fit(np.zeros((4, 2)), [0, 1, 0, 1])
        >>> cb.posthoc.with_kept_negatives(none, 0.1).predict_proba(np.zeros((1, 2))).round(3)
        array([[0.909, 0.091]])
    """
    if len(class_names_of(calibrator)) != 2:
        raise NotApplicableError(
            "kept negatives need two classes, a negative and a positive one; with more "
            "classes give the shares of all (prior)"
        )
    if not 0 < kept <= 1:
        raise InputError(f"kept must be above 0 and at most 1, not {kept:g}")
    return shifted(calibrator, np.array([-np.log(kept), 0.0]))


def class_names_of(calibrator: Calibrator) -> tuple[str, ...]:
    """Return the classes whose shares may change, by name or number.

    Raises:
        NotFittedError: `fit` has not been called.
        NotApplicableError: it takes features, or has the confidence of one class only.
    """
    calibrator.check_fitted()
    if calibrator.form_ == "toplabel" or "features" in calibrator.needs:
        raise NotApplicableError(
            "new class shares need a probability for every class from the logits alone, which "
            f"'{calibrator.method}' doesn't give"
        )
    return calibrator.class_names_ or tuple(map(str, range(calibrator.n_classes_)))


def shifted(calibrator: Calibrator, log_ratio: FloatArray) -> PriorShift:
    """Return (K,) logs of new over old shares behind a fitted calibrator."""
    made = PriorShift()
    made.log_ratio_ = log_ratio
    made.base_ = calibrator
    made.take_fit_of(calibrator)
    made.fit_report_ = calibrator.fit_report_
    return made


def _shares(shares: Sequence[float], classes: int, name: str) -> FloatArray:
    """Return shares of all classes, above 0, that sum to 1; `InputError` for others."""
    found = np.asarray(shares, dtype=np.float64)
    if found.shape != (classes,) or not (found > 0).all() or not np.isfinite(found).all():
        raise InputError(
            f"{name} must hold a share above 0 for each of {classes} classes, not {list(shares)}"
        )
    if abs(found.sum() - 1) > SUM_TOLERANCE:
        raise InputError(f"the shares of {name} must sum to 1, not {found.sum():g}")
    return found
