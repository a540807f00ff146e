"""`Calibrated` against scikit-learn's `CalibratedClassifierCV`, on held-out rows.

    python -m calibrant.studies.scikit_learn [--data digits,hastie] [--estimators nb,svm]
        [--draws 5] [--rows 1000] [--markdown docs/results/scikit-learn.md]

For each set and classifier, both wrappers get the same rows with their default arguments (five
folds that are averaged), `CalibratedClassifierCV` once with each of its three methods, and say
probabilities of the same other rows. Sets that ship with scikit-learn are parted anew for each
draw, those that it makes are made anew. Differences of log loss and Brier score are paired, row by
row; their 95 % intervals come from a bootstrap in two steps: draws with replacement, and within
each draw rows with replacement. A probability of the true class of 0 counts as 2.2e-16, as in
scikit-learn's `log_loss`. Needs scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.text import format_table
from calibrant.files import replacing
from calibrant.studies.program import parser_for, run_study

RIVALS = ("sigmoid", "isotonic", "temperature")
SCORES = ("log loss", "Brier score")
RESAMPLES = 2000
MOST_TEST_ROWS = 1000
SMALLEST = float(np.finfo(np.float64).eps)

Rows = tuple[NDArray[Any], NDArray[Any]]


def _made(name: str, **arguments: Any) -> Callable[[int, int], Rows]:
    """Return a maker of fresh rows, by their number and a seed."""

    def make(rows: int, seed: int) -> Rows:
        library: Any = import_module("sklearn.datasets")
        fixed = {"random_state": seed} if name != "make_classification" else {"random_state": 1}
        if name == "make_classification":
            # Its seed draws the problem as well as the rows: one problem, other rows of it.
            features, truth = library.make_classification(20 * rows, **arguments, **fixed)
            chosen = np.random.default_rng(seed).permutation(len(truth))[:rows]
            return features[chosen], truth[chosen]
        features, truth = getattr(library, name)(n_samples=rows, **arguments, **fixed)
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
SHIPPED = ("breast_cancer", "digits", "wine")
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


class Cell(NamedTuple):
    """One score of one classifier on one set.

    Attributes:
        ours: mean of it with `Calibrated`, lower is better.
        differences: ours less theirs, with an interval, by their method.
    """

    ours: float
    differences: dict[str, tuple[float, float, float]]


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


def losses(probs: FloatArray, truth: NDArray[Any]) -> FloatArray:
    """Return (2, N): log loss and Brier score of each row."""
    index = np.arange(len(truth))
    right = probs[index, truth]
    wrong = probs.copy()
    wrong[index, truth] -= 1
    return np.stack([-np.log(np.clip(right, SMALLEST, 1)), (wrong**2).sum(axis=1)])


def measure(data: str, estimator: str, rows: int, seed: int) -> dict[str, FloatArray]:
    """Return the (2, N) losses of all wrappers on one draw."""
    theirs: Any = import_module("sklearn.calibration").CalibratedClassifierCV
    ours: Any = import_module("calibrant.sklearn").Calibrated
    (seen, truth), (new, new_truth) = rows_of(data, rows, seed)
    wrapped = {method: theirs(classifier(estimator), method=method) for method in RIVALS}
    wrapped["ours"] = ours(classifier(estimator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: losses(model.fit(seen, truth).predict_proba(new), new_truth)
            for name, model in wrapped.items()
        }


def cells(draws: list[dict[str, FloatArray]], seed: int = 0) -> list[Cell]:
    """Return one cell for each of `SCORES` from the losses of all draws."""
    found: list[Cell] = []
    for place in range(len(SCORES)):
        ours = float(np.mean([draw["ours"][place].mean() for draw in draws]))
        differences: dict[str, tuple[float, float, float]] = {}
        for method in RIVALS:
            gaps = [draw["ours"][place] - draw[method][place] for draw in draws]
            value = float(np.mean([gap.mean() for gap in gaps]))
            differences[method] = (value, *_interval(gaps, seed))
        found.append(Cell(ours, differences))
    return found


def _interval(gaps: list[FloatArray], seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    means = np.empty((len(gaps), RESAMPLES))
    for draw, gap in enumerate(gaps):
        counts = rng.multinomial(len(gap), np.full(len(gap), 1 / len(gap)), RESAMPLES)
        means[draw] = counts @ gap / len(gap)
    chosen = rng.integers(len(gaps), size=(RESAMPLES, len(gaps)))
    pooled = means[chosen, np.arange(RESAMPLES)[:, None]].mean(axis=1)
    low, high = np.quantile(pooled, [0.025, 0.975])
    return float(low), float(high)


def verdict(low: float, high: float) -> str:
    """Return what an interval of ours less theirs says: a win is lower."""
    return "win" if high < 0 else "loss" if low > 0 else "tie"


def table(found: dict[tuple[str, str], list[Cell]], place: int) -> list[list[str]]:
    """Return the rows of the table of one score."""
    rows: list[list[str]] = []
    for (data, estimator), pair in found.items():
        cell = pair[place]
        shown = [
            f"{value:+.4f} ({low:+.4f} to {high:+.4f}) {verdict(low, high)}"
            for value, low, high in (cell.differences[method] for method in RIVALS)
        ]
        rows.append([f"{data.replace('_', ' ')}, {estimator}", f"{cell.ours:.4f}", *shown])
    return rows


def counts(found: dict[tuple[str, str], list[Cell]], place: int) -> str:
    """Return how often ours wins, ties and loses, in a sentence."""
    said: list[str] = []
    for method in RIVALS:
        results = [verdict(*pair[place].differences[method][1:]) for pair in found.values()]
        told = ", ".join(f"{results.count(word)} {word}" for word in ("win", "tie", "loss"))
        said.append(f"{method}: {told}")
    return f"{SCORES[place]} against " + "; ".join(said) + "."


def main(words: Sequence[str] | None = None) -> None:
    """Print, and write if asked to, a table of differences for each score."""
    parser = parser_for("scikit_learn", __doc__)
    parser.add_argument("--data", default=",".join([*SHIPPED, *MADE]))
    parser.add_argument("--estimators", default=",".join(ESTIMATORS))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args(words)
    found: dict[tuple[str, str], list[Cell]] = {}
    for data in arguments.data.split(","):
        for estimator in arguments.estimators.split(","):
            seeds = range(arguments.draws)
            draws = [measure(data, estimator, arguments.rows, seed) for seed in seeds]
            found[data, estimator] = cells(draws)
            for place, score in enumerate(SCORES):
                (line,) = table({(data, estimator): found[data, estimator]}, place)
                print(f"{score}: {'  '.join(line)}", flush=True)
    head = ["set, classifier", "ours", *(f"less {method}" for method in RIVALS)]
    pages: list[str] = []
    for place, score in enumerate(SCORES):
        rows = table(found, place)
        print(f"\n{score}\n\n{format_table(head, rows)}\n\n{counts(found, place)}", flush=True)
        lines: list[list[str]] = [head, ["---"] * len(head), *rows]
        pages.append(
            f"## {score[:1].upper()}{score[1:]}\n\n"
            + "\n".join(f"| {' | '.join(line)} |" for line in lines)
            + f"\n\n{counts(found, place)}\n"
        )
    if arguments.markdown is not None:
        with replacing(arguments.markdown) as temporary:
            temporary.write_text("\n".join(pages), encoding="utf-8")


if __name__ == "__main__":
    run_study(main)
