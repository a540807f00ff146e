"""A calibrator is a classifier of logits, as scikit-learn means the word.

It can stand at the end of a pipeline, be cloned, searched over and cross-validated. scikit-learn
asks for none of this by type, so nothing here imports it until it asks for the tags itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from importlib import import_module
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, as_array, to_numpy
from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError, NotFittedError, PredictionsError
from calibrant.predictions.names import numbered


class ClassifierOfLogits:
    """What scikit-learn wants of a classifier, for a dataclass that fits and predicts.

    X are logits of shape (N, K), y the numbers of the true classes.
    """

    method: ClassVar[str]
    n_classes_: int
    # What the classes are called, if the rows of the fit said so.
    class_names_: tuple[str, ...] | None = None
    # The same if `fit` was told the truth by names, which `predict` then returns.
    called_: tuple[str, ...] | None = None

    @abstractmethod
    def predict_confidence(
        self, logits: Array, features: Array | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) probability that each is right."""

    @property
    def classes_(self) -> NDArray[Any]:
        """(K,) what `predict` can return: numbers of classes, or their names if `fit` saw names."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit first")
        return np.arange(self.n_classes_) if self.called_ is None else np.array(self.called_)

    @property
    def n_features_in_(self) -> int:
        """Number of columns that `fit` saw: K, one for each class."""
        return len(self.classes_)

    def predict(self, logits: Array, features: Array | None = None) -> NDArray[Any]:
        """Return the (N,) predicted classes, as `classes_` has them.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: see `predict_proba`.
        """
        return self.classes_[self.predict_confidence(logits, features)[0]]

    def score(self, logits: Array, labels: Array, sample_weight: Array | None = None) -> float:
        """Return the share of right predictions, which is what scikit-learn scores classifiers by.

        Many methods keep every prediction; to choose among those by cross-validation, take
        ``scoring="neg_log_loss"``.

        Args:
            logits: (N, K) logits.
            labels: (N,) true labels, numbers or names as in `fit`.
            sample_weight: (N,) how much each row counts; equally if None.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: unusable logits, labels or weights.
        """
        predicted = self.predict_confidence(logits)[0]
        numbers = numbered(labels, self.called_, "score")
        truth = check_labels(numbers, len(predicted), self.n_classes_, "score")
        right = (predicted == truth).astype(np.float64)
        if sample_weight is None:
            return float(right.mean())
        weights = np.asarray(to_numpy(as_array(sample_weight)), dtype=np.float64)
        if weights.shape != right.shape or not (weights >= 0).all() or not weights.sum() > 0:
            raise PredictionsError(
                f"score: sample_weight must be {len(right)} numbers of at least 0, not all of "
                "them 0"
            )
        return float(np.average(right, weights=weights))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments (scikit-learn's contract)."""
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self)) if f.init}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and return the calibrator itself."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(
                    f"method '{self.method}' has no argument '{name}'; "
                    f"it has: {', '.join(known) or 'none'}"
                )
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_report_")

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn asks, so it is there. `Any`, because it has no types.
        said: Any = import_module("sklearn.utils")
        return said.Tags(
            estimator_type="classifier",
            target_tags=said.TargetTags(required=True),
            classifier_tags=said.ClassifierTags(),
        )
