"""Rows and classifiers of scikit-learn, by name, for the study of its wrapper.

Sets that ship with scikit-learn are parted anew for each seed, those that it makes are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant._version import __version__
from calibrant.core.arrays import FloatArray
from calibrant.core.result import Table
from calibrant_studies.cells import Cell, CellResults
from calibrant_studies.estimates import all_pairs
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import Measure, Simulated, quietly, seven_digits

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


# `Calibrated` against scikit-learn's `CalibratedClassifierCV`, on held-out rows.
#
# Both wrappers get the same rows with their default arguments (five folds that are averaged),
# `CalibratedClassifierCV` once with each of its three methods, and say probabilities of the same
# other rows. A probability of the true class of 0 counts as 2.2e-16, as in scikit-learn's
# `log_loss`.

OURS = "calibrated"
SMALLEST = float(np.finfo(np.float64).eps)
_MEASURES = (
    Measure("log-loss", "log loss", 1, 4, "low", "nats, mean over rows"),
    Measure("brier", "Brier score", 1, 4, "low", "summed over classes, mean over rows"),
)


class Wrappers(Simulated):
    """Wrap a classifier, fit both to some rows of a set, and measure on others."""

    version: ClassVar[str] = "1"
    axes: ClassVar[tuple[str, ...]] = ("set", "classifier", "method")
    defaults: ClassVar[Mapping[str, Any]] = {"rows": 1000, "resamples": 2000}

    own_measures: ClassVar[tuple[Measure, ...]] = _MEASURES

    def method_version(self, cell: Cell) -> str:
        return f"{__version__}, scikit-learn {import_module('sklearn').__version__}"

    def run(self, cell: Cell, inputs: Inputs, work: Path) -> dict[str, Any]:
        data, method = cell.at["set"], cell.method
        (seen, truth), (new, new_truth) = rows_of(data, self.setting(cell, "rows"), cell.seed)
        bare = classifier(cell.at["classifier"])
        model: Any = (
            import_module("calibrant.sklearn").Calibrated(bare)
            if method == OURS
            else import_module("sklearn.calibration").CalibratedClassifierCV(bare, method=method)
        )
        with quietly():
            of_rows = losses(model.fit(seen, truth).predict_proba(new), new_truth)
        n = of_rows.shape[1]
        # The same resamples for all wrappers of these rows.
        rng = np.random.default_rng(cell.seed)
        counts = rng.multinomial(n, np.full(n, 1 / n), self.setting(cell, "resamples"))
        found: dict[str, Any] = {"values": {}, "replicates": {}}
        for measure, loss in zip(_MEASURES, of_rows, strict=True):
            replicates = counts @ loss / n
            low, high = np.quantile(replicates, [0.025, 0.975]).tolist()
            value = {"value": float(loss.mean()), "low": low, "high": high}
            found["values"][measure.name] = value
            found["replicates"][measure.name] = seven_digits(replicates)
        return found | {"pairing": f"{data} {cell.seed} {n}"}

    def tables(self, result: CellResults) -> list[tuple[str, Table]]:
        counts: dict[tuple[str, str], list[int]] = {}
        for pair in all_pairs(result):
            for measure, found in pair.found.items():
                if found is not None:
                    of = counts.setdefault((pair.words, measure.title), [0, 0, 0])
                    of[0 if found.low > 0 else 2 if found.high < 0 else 1] += 1
        rows = [[*where, *map(str, of)] for where, of in counts.items()]
        notes = "Of all sets and classifiers, by the intervals of the differences."
        head = ["difference", "score", "higher", "open", "lower"]
        return [("How often", Table(head, rows, set(), notes, 2))] if rows else []


def losses(probs: FloatArray, truth: NDArray[Any]) -> FloatArray:
    """Return (2, N): log loss and Brier score of each row."""
    index = np.arange(len(truth))
    right = probs[index, truth]
    wrong = probs.copy()
    wrong[index, truth] -= 1
    return np.stack([-np.log(np.clip(right, SMALLEST, 1)), (wrong**2).sum(axis=1)])
