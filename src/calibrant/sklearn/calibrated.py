"""Any classifier of scikit-learn, with a calibrator behind it."""

# pyright: basic, reportMissingTypeStubs=false
# scikit-learn has no types, and a subclass of its classes can't be checked strictly.

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    indexable,
)

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.core.errors import InputError
from calibrant.posthoc.auto import DEFAULT_CANDIDATES, AutoCalibrator
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.sklearn.scores import Pool, Response, Scores, floor_of, response_of, scores_of

FEWEST_FOLDS = 2
# Networks err at a margin or with a class; margins of linear models and the probabilities of simple
# ones bend differently for each class.
CANDIDATES = f"{DEFAULT_CANDIDATES}, isotonic:one-vs-rest, svs+isotonic:one-vs-rest"


class Calibrated(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated on rows that it wasn't fitted to.

    With `cv` folds, each row is scored by a classifier that was fitted to the others, and one
    calibrator is fitted to all these scores together. With `ensemble` the probabilities are the
    mean of the calibrated probabilities of the folds' classifiers. The mean is sharpened, because
    the mean of several classifiers is better than each (`calibrant.sklearn.scores`; one more
    classifier, fitted to the rows that the first two folds share, shows by how much). Without
    `ensemble` they are the calibrated probabilities of one classifier that is fitted to all rows.
    With two classes the calibrator gets one score for each row.

    scikit-learn's `CalibratedClassifierCV` fits each calibrator of an ensemble to the scores of one
    fold, a fifth of the rows, and takes the plain mean.

    Args:
        estimator: a classifier with `decision_function` or `predict_proba`.
        method: of calibration, by its name on the command line (`calibrant methods`), or an
            unfitted calibrator. It may need logits only. "auto" averages several methods by
            likelihood; for more than two classes isotonic regression for each class is among them.
        cv: number of folds, or a splitter or splits as in scikit-learn; "prefit" if `estimator` is
            already fitted, to other rows. If a class has fewer rows than there are folds, fewer
            folds are used.
        ensemble: True keeps the folds' classifiers; False fits one to all rows instead, which
            predicts faster; "auto" keeps them.
        response: the method of `estimator` to calibrate; "auto" takes `decision_function` where it
            has one.
        n_jobs: processes that fit the folds, as in scikit-learn.

    Attributes:
        classes_: (K,) labels, sorted.
        calibrator_: the fitted calibrator; it takes the outputs of `response` of a classifier, and
            can be saved and exported alone. It has the class names of `classes_`; with two classes
            the second is the positive one.
        estimators_: the fitted classifiers.
        pool_: how much their mean is sharpened (`pool_.factor`).
        n_features_in_, feature_names_in_: taken from the first classifier, if it has them.

    Raises:
        InputError: `fit` finds fewer than two classes, a class with a single row, or an estimator
            that gives no scores.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from calibrant.sklearn import Calibrated
        >>> X, y = load_iris(return_X_y=True)
        >>> model = Calibrated(GaussianNB(), method="temperature").fit(X, y)
        >>> print(round(model.predict_proba(X[:1]).sum(), 6), len(model.estimators_))
        1.0 5
    """

    def __init__(
        self,
        estimator: Any,
        method: str | Calibrator = "auto",
        *,
        cv: Any = 5,
        ensemble: bool | Literal["auto"] = "auto",
        response: Response = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.response: Response = response
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit classifiers and the calibrator.

        Args:
            X: (N, D) rows, of whatever kind `estimator` takes.
            y: (N,) labels of any kind.
            sample_weight: (N,) how much each row counts, in the fit of the classifiers and of the
                calibrator.
            fit_params: for the `fit` of `estimator`.
        """
        check_classification_targets(y)
        X, y = indexable(X, y)
        labels = column_or_1d(y, warn=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if self.ensemble not in (True, False, "auto"):
            raise InputError(f"ensemble must be True, False or 'auto', not {self.ensemble!r}")
        if self._is_fitted_already():
            self._fit_behind(X, labels, weights)
        else:
            self._fit_folds(X, labels, weights, fit_params)
        first = self.estimators_[0]
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(first, name):
                setattr(self, name, getattr(first, name))
        return self

    def _is_fitted_already(self) -> bool:
        # A frozen estimator is not fitted again, whatever the folds.
        return (isinstance(self.cv, str) and self.cv == "prefit") or _is_frozen(self.estimator)

    def _fit_behind(self, X: Any, labels: NDArray[Any], weights: FloatArray | None) -> None:
        """Fit the calibrator to a fitted classifier's scores of rows that it hasn't seen."""
        check_is_fitted(self.estimator)
        self.classes_ = np.asarray(self.estimator.classes_)
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            raise InputError(
                f"y holds '{labels[unknown][0]!s}', which is none of the classes that "
                f"{type(self.estimator).__name__} was fitted on"
            )
        self.estimators_, self.pool_ = [self.estimator], Pool()
        self._response = response_of(self.estimator, self.response)
        scores = scores_of(self.estimator, X, self._response, self.classes_)
        self._fit_calibrator(scores, np.searchsorted(self.classes_, labels), weights)

    def _fit_folds(
        self,
        X: Any,
        labels: NDArray[Any],
        weights: FloatArray | None,
        fit_params: dict[str, Any],
    ) -> None:
        """Fit a classifier for each fold, and the calibrator to their scores of the other rows."""
        self.classes_, truth = np.unique(labels, return_inverse=True)
        params = _for_fit(self.estimator, weights, fit_params)
        splits = list(self._splitter(truth).split(X, truth))
        shared = None if self.ensemble is False else _shared_rows(splits, truth)
        # Of `ensemble`, one more classifier tells how much the others differ on rows that are new
        # to both; else, one that has seen all rows is the one to keep.
        more = [None] if self.ensemble is False else [shared] if shared is not None else []
        fit_fold = delayed(_fit_fold)
        trains = [*(train for train, _ in splits), *more]
        work = (fit_fold(clone(self.estimator), X, labels, train, params) for train in trains)
        every_one: Any = list(Parallel(n_jobs=self.n_jobs)(work))
        fitted, further = every_one[: len(splits)], every_one[len(splits) :]
        self._response = response_of(fitted[0], self.response)
        every = np.concatenate([test for _, test in splits])
        scores = [
            scores_of(one, _safe_indexing(X, test), self._response, self.classes_)
            for one, (_, test) in zip(fitted, splits, strict=True)
        ]
        together = Scores(np.concatenate([part.values for part in scores]), scores[0].probabilities)
        self._fit_calibrator(together, truth[every], None if weights is None else weights[every])
        self.estimators_, self.pool_ = fitted, Pool()
        if self.ensemble is False:
            self.estimators_ = further
        elif further:
            new = np.concatenate([test for _, test in splits[:2]])
            own = self._calibrated(Scores(together.values[: len(new)], together.probabilities))
            others = self._probabilities(further[0], _safe_indexing(X, new))
            heavy = None if weights is None else weights[new]
            self.pool_ = Pool.learn(own, others, len(fitted), heavy)

    def _splitter(self, truth: IntArray) -> Any:
        if len(self.classes_) < 2:
            found = f"one class only, '{self.classes_[0]!s}'" if len(truth) else "no rows"
            raise InputError(f"y holds {found}; a classifier needs at least two classes")
        rarest = int(np.bincount(truth).argmin())
        rows = int((truth == rarest).sum())
        if not isinstance(self.cv, int | np.integer):
            return check_cv(self.cv, truth, classifier=True)
        if self.cv < FEWEST_FOLDS:
            raise InputError(f"cv must be at least {FEWEST_FOLDS} folds or 'prefit', not {self.cv}")
        if rows < FEWEST_FOLDS:
            raise InputError(
                f"class '{self.classes_[rarest]!s}' has a single row, which can't be held out "
                "and learnt from; leave it out, or give fitted classifiers with cv='prefit'"
            )
        return check_cv(min(int(self.cv), rows), truth, classifier=True)

    def _fit_calibrator(self, scores: Scores, truth: IntArray, weights: FloatArray | None) -> None:
        self._floor = floor_of(scores)
        calibrator: Any = clone(self._unfitted())
        rows = Predictions.from_logits(
            scores.logits(self._floor),
            truth,
            source="the scores of these rows",
            sample_weight=weights,
        )
        if len(self.classes_) == 2:
            rows = rows.as_binary()
        names = tuple(map(str, self.classes_.tolist()))
        if names != tuple(map(str, range(len(names)))):
            rows = replace(rows, class_names=names)
        self.calibrator_: Calibrator = calibrator.fit_predictions(rows)
        if scores.probabilities:  # so that it takes alone what the classifier gives
            self.calibrator_.kind_, self.calibrator_.placing_ = "probs", (self._floor,)

    def _unfitted(self) -> Calibrator:
        if not isinstance(self.method, str):
            return self.method
        many = self.method == AutoCalibrator.method and len(self.classes_) > 2
        return make_calibrator(self.method, **{"candidates": CANDIDATES} if many else {})

    def _calibrated(self, scores: Scores) -> FloatArray:
        probs = self.calibrator_.predict_proba(scores.logits(self._floor), kind="logits")
        return cast(FloatArray, probs)  # of float64 logits

    def _probabilities(self, classifier: Any, X: Any) -> FloatArray:
        return self._calibrated(scores_of(classifier, X, self._response, self.classes_))

    def predict_proba(self, X: Any) -> FloatArray:
        """Return (N, K) calibrated probabilities, a column for each of `classes_`."""
        check_is_fitted(self)
        return self.pool_.mean([self._probabilities(one, X) for one in self.estimators_])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the (N,) labels of greatest probability."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        return tags


def _shared_rows(splits: list[tuple[IntArray, IntArray]], truth: IntArray) -> IntArray | None:
    """Return the rows that both of the first two classifiers learn from, if they can teach a third.

    That one and each of the two see other rows for the first time.
    """
    shared = np.intersect1d(splits[0][0], splits[1][0])
    return shared if len(np.unique(truth[shared])) == len(np.unique(truth)) else None


def _is_frozen(estimator: Any) -> bool:
    from sklearn.frozen import FrozenEstimator

    return isinstance(estimator, FrozenEstimator)


def _for_fit(
    estimator: Any, weights: FloatArray | None, fit_params: dict[str, Any]
) -> dict[str, Any]:
    """Return what goes to the `fit` of the classifier."""
    if weights is None:
        return fit_params
    if not has_fit_parameter(estimator, "sample_weight"):
        raise InputError(
            f"{type(estimator).__name__} takes no sample_weight; leave it out, or give a fitted "
            "classifier with cv='prefit'"
        )
    return {**fit_params, "sample_weight": weights}


def _fit_fold(
    estimator: Any, X: Any, y: NDArray[Any], train: IntArray | None, params: dict[str, Any]
) -> Any:
    """Return the estimator, fitted to the rows `train`, or to all."""
    if train is None:
        return estimator.fit(X, y, **params)
    own = _check_method_params(X, params=params, indices=train)
    return estimator.fit(_safe_indexing(X, train), _safe_indexing(y, train), **own)
