"""Rows and classifiers of scikit-learn, by name, for the study of its wrapper.

Sets that ship with scikit-learn are parted anew for each seed, those that it makes are made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_TEST_ROWS = 1000

Rows = tuple[NDArray[Any], NDArray[Any]]


def _made(name: str, **arguments: Any) -> Callable[[int, int], Rows]:
    """Return a maker of fresh rows, by their number and a seed."""

    def make(rows: int, seed: int) -> Rows:
        library: Any = import_module("sklearn.datasets")
        if name == "make_classification":
            # Its seed draws the problem as well as the rows: one problem, other rows of it.
            features, truth = library.make_classification(20 * rows, **arguments, random_state=1)
            chosen = np.random.default_rng(seed).permutation(len(truth))[:rows]
            return features[chosen], truth[chosen]
        features, truth = getattr(library, name)(n_samples=rows, random_state=seed, **arguments)
        return features, (truth > 0).astype(int) if name == "make_hastie_10_2" else truth

    return make


MADE: dict[str, Callable[[int, int], Rows]] = {
    "two unequal classes": _made(
        "make_classification",
        n_features=20,
        n_informative=4,
        n_redundant=4,
        flip_y=0.1,
        class_sep=0.8,
        weights=[0.8],
    ),
    "six classes": _made(
        "make_classification", n_features=20, n_informative=8, n_classes=6, flip_y=0.05
    ),
    "hastie": _made("make_hastie_10_2"),
    "moons": _made("make_moons", noise=0.35),
    "shells": _made("make_gaussian_quantiles", n_features=6, n_classes=4),
}
# Sets and classifiers that nothing was decided by, to be asked for by name.
FRESH: dict[str, Callable[[int, int], Rows]] = {
    "circles": _made("make_circles", noise=0.2, factor=0.6),
    "four classes": _made(
        "make_classification",
        n_features=12,
        n_redundant=0,
        n_informative=6,
        n_classes=4,
        n_clusters_per_class=1,
        flip_y=0.15,
        class_sep=0.7,
    ),
}
ESTIMATORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "naive Bayes": ("naive_bayes", "GaussianNB", {}),
    "linear SVM": ("svm", "LinearSVC", {"random_state": 0}),
    "forest": ("ensemble", "RandomForestClassifier", {"random_state": 0}),
    "boosting": (
        "ensemble",
        "HistGradientBoostingClassifier",
        {"random_state": 0, "max_iter": 50},
    ),
    "tree": ("tree", "DecisionTreeClassifier", {"random_state": 0, "min_samples_leaf": 5}),
}
FRESH_ESTIMATORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "quadratic discriminant": ("discriminant_analysis", "QuadraticDiscriminantAnalysis", {}),
    "AdaBoost": ("ensemble", "AdaBoostClassifier", {"random_state": 0}),
    "extra trees": ("ensemble", "ExtraTreesClassifier", {"random_state": 0, "n_estimators": 50}),
}


def rows_of(name: str, rows: int, seed: int) -> tuple[Rows, Rows]:
    """Return rows to fit on and others to measure on."""
    made = MADE | FRESH
    if name in made:
        whole = made[name](rows + MOST_TEST_ROWS, seed)
    else:
        whole = getattr(import_module("sklearn.datasets"), f"load_{name}")(return_X_y=True)
    part: Any = import_module("sklearn.model_selection").train_test_split
    size = min(rows, len(whole[1]) // 2)
    seen, new, truth, new_truth = part(
        *whole, train_size=size, random_state=seed, stratify=whole[1]
    )
    return (seen, truth), (new[:MOST_TEST_ROWS], new_truth[:MOST_TEST_ROWS])


def classifier(name: str) -> Any:
    """Return an unfitted classifier by its name; an SVM sees scaled features."""
    module, kind, arguments = (ESTIMATORS | FRESH_ESTIMATORS)[name]
    made = getattr(import_module(f"sklearn.{module}"), kind)(**arguments)
    if name != "linear SVM":
        return made
    scaler = import_module("sklearn.preprocessing").StandardScaler()
    return import_module("sklearn.pipeline").make_pipeline(scaler, made)
