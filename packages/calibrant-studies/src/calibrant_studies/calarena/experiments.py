"""HDF5 files of many experiments: held-out and test probabilities of many models on many data sets.

The layout is that of CalArena (https://github.com/probkit/CalArena), one file a benchmark: groups
``DATASET/MODEL`` with `probas_cal`, `labels_cal`, `probas_test` and `labels_test`, and the
attribute `problem_type`, ``binary`` or ``multiclass``, on the file. Binary probabilities are (N,),
(N, 1) or (N, 2), others (N, K).
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import NotApplicableError, PredictionsError
from calibrant.files.formats.hdf5 import Hdf5Reader
from calibrant.files.gate import optional, readable
from calibrant.files.opening import name_of, open_binary
from calibrant.files.options import ReadOptions
from calibrant.metrics.binned import ece_of_curves
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.scoring import RowScores, score_rows

Part = Literal["cal", "test"]
PARTS: tuple[Part, ...] = ("cal", "test")
KEYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
PROBLEMS = ("binary", "multiclass")
# Numbers that are read at once.
BLOCK = 1 << 20


class Experiment(NamedTuple):
    """One model on one data set.

    Attributes:
        benchmark: what the file is called, without extension.
        dataset: name of the data set.
        model: name of the model.
        fit_rows: number of rows to fit on.
        test_rows: number of rows to measure on.
        n_classes: number of classes; 2 for binary ones.
        binary: whether the probabilities are those of one positive class.
    """

    benchmark: str
    dataset: str
    model: str
    fit_rows: int
    test_rows: int
    n_classes: int
    binary: bool

    @property
    def name(self) -> str:
        """Benchmark, data set and model."""
        return f"{self.benchmark}/{self.dataset}/{self.model}"


class StoredExperiments:
    """An open file of experiments, read one at a time. Close it, or use it as a context.

    Args:
        where: path or URL of the HDF5 file.

    Attributes:
        benchmark: what the file is called, without extension.
        experiments: what it holds, known before a row is read, in the order of their names.

    Raises:
        PredictionsError: no such file, another layout, or arrays that don't go together.
        MissingDependencyError: h5py isn't installed.
    """

    def __init__(self, where: str) -> None:
        self.where = str(where)
        self.benchmark = name_of(self.where).rpartition(".")[0] or name_of(self.where)
        problem = _problem(self.where)
        with readable("the file", self.where):
            self._file = Hdf5Reader(self.where, ReadOptions())
        try:
            self.experiments = self._listed(problem)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StoredExperiments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.held.close()

    def _listed(self, problem: str | None) -> list[Experiment]:
        groups = {name.rpartition("/")[0] for name in self._file.names()}
        found = [
            self._experiment(group, problem)
            for group in sorted(groups)
            if any(f"{group}/{key}" in self._file.names() for key in KEYS)
        ]
        if not found:
            raise PredictionsError(
                f"{self.where}: holds no experiment; expected groups DATASET/MODEL with "
                f"{', '.join(KEYS)}"
            )
        return found

    def _experiment(self, group: str, problem: str | None) -> Experiment:
        where = f"{self.where}: '{group}'"
        dataset, _, model = group.rpartition("/")
        missing = [key for key in KEYS if f"{group}/{key}" not in self._file.names()]
        if missing:
            raise PredictionsError(f"{where} has no '{missing[0]}'; expected {', '.join(KEYS)}")
        if not dataset:
            raise PredictionsError(
                f"{where} isn't in a group of its data set; expected DATASET/MODEL"
            )
        probs, labels, test_probs, test_labels = (
            self._file.shape(f"{group}/{key}") for key in KEYS
        )
        widths: list[int] = []
        for part, scores, truth in zip(
            PARTS, (probs, test_probs), (labels, test_labels), strict=True
        ):
            if (
                len(scores) not in (1, 2)
                or 0 in scores
                or truth not in (scores[:1], (*scores[:1], 1))
            ):
                raise PredictionsError(
                    f"{where}: 'probas_{part}' of shape {scores} and 'labels_{part}' of shape "
                    f"{truth} don't go together; expected (N,) or (N, K), and (N,)"
                )
            widths.append(scores[1] if len(scores) == 2 else 1)
        if widths[0] != widths[1]:
            raise PredictionsError(
                f"{where}: 'probas_cal' has {widths[0]} columns, but 'probas_test' {widths[1]}"
            )
        binary = widths[0] == 1 if problem is None else problem == "binary"
        if binary and widths[0] > 2:
            raise PredictionsError(
                f"{where}: 'probas_cal' has {widths[0]} columns, but the file says that its "
                "problems are binary"
            )
        if not binary and widths[0] == 1:
            raise PredictionsError(
                f"{where}: 'probas_cal' has one column, but the file says that its problems are "
                "multiclass"
            )
        return Experiment(
            self.benchmark, dataset, model, probs[0], test_probs[0], max(widths[0], 2), binary
        )

    def named(self, dataset: str, model: str) -> Experiment:
        """Return an experiment.

        Raises:
            PredictionsError: there is none of that name.
        """
        for each in self.experiments:
            if (each.dataset, each.model) == (dataset, model):
                return each
        raise PredictionsError(f"{self.where}: there is no experiment '{dataset}/{model}'")

    def fit(self, experiment: Experiment) -> Predictions:
        """Return the rows to fit on."""
        return self._rows(experiment, "cal", slice(0, experiment.fit_rows))

    def test(self, experiment: Experiment, block: int = BLOCK) -> Iterator[Predictions]:
        """Yield the rows to measure on, so many numbers at a time."""
        rows = max(1, block // experiment.n_classes)
        for start in range(0, experiment.test_rows, rows):
            yield self._rows(
                experiment, "test", slice(start, min(start + rows, experiment.test_rows))
            )

    def digest(self, experiment: Experiment) -> str:
        """Return a digest of all numbers of an experiment."""
        digest = hashlib.sha256()
        for part, rows in zip(PARTS, (experiment.fit_rows, experiment.test_rows), strict=True):
            size = max(1, BLOCK // experiment.n_classes)
            for start in range(0, rows, size):
                for array in self._arrays(experiment, part, slice(start, min(start + size, rows))):
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _arrays(
        self, experiment: Experiment, part: Part, rows: slice
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        group = f"{experiment.dataset}/{experiment.model}"
        scores, labels = (
            self._file.array(f"{group}/{key}_{part}").read(rows.start, rows.stop)
            for key in ("probas", "labels")
        )
        return scores, labels.reshape(-1)

    def _rows(self, experiment: Experiment, part: Part, rows: slice) -> Predictions:
        group = f"{experiment.dataset}/{experiment.model}"
        source = f"{self.where}: '{group}/probas_{part}'"
        if rows.start:
            source += f" from row {rows.start} on"
        with readable("the file", self.where):
            scores, labels = self._arrays(experiment, part, rows)
        if not experiment.binary:
            return Predictions.from_probs(scores, labels, source=source)
        if scores.ndim == 2 and scores.shape[1] == 2:
            scores = scores[:, 1]
        return Predictions.from_binary(scores, labels, kind="prob", source=source)


def _problem(where: str) -> str | None:
    """Return what the file says that its problems are, if it does."""
    h5py: Any = optional("h5py", "h5py", "hdf5")
    with readable("the file", where), open_binary(where) as opened, h5py.File(opened, "r") as file:
        problem = file.attrs.get("problem_type")
    if isinstance(problem, bytes):
        problem = problem.decode(errors="replace")
    if problem is not None and problem not in PROBLEMS:
        raise PredictionsError(
            f"{where}: 'problem_type' is {problem!r}; expected {' or '.join(PROBLEMS)}"
        )
    return problem


# A few experiments of known truth, in place of a file of CalArena.

MADE = {"made-binary": 2, "made-multiclass": 5}
_FIT, _TEST = 300, 500
_DATASETS, _MODELS = ("a", "b", "c"), {"sharp": 1.8, "flat": 0.6}


class MadeExperiments:
    """What `StoredExperiments` is, without a file: models that are too sure, or not sure enough.

    Args:
        name: one of `MADE`.
    """

    def __init__(self, name: str) -> None:
        self.benchmark = name
        classes = MADE[name]
        self.experiments = [
            Experiment(name, dataset, model, _FIT, _TEST, classes, classes == 2)
            for dataset in _DATASETS
            for model in _MODELS
        ]

    def __enter__(self) -> MadeExperiments:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def fit(self, experiment: Experiment) -> Predictions:
        """Return the rows to fit on."""
        return self._rows(experiment).take(np.arange(_FIT))

    def test(self, experiment: Experiment) -> Iterator[Predictions]:
        """Yield the rows to measure on."""
        yield self._rows(experiment).take(np.arange(_FIT, _FIT + _TEST))

    def _rows(self, experiment: Experiment) -> Predictions:
        rng = np.random.default_rng([ord(experiment.dataset), experiment.n_classes])
        honest = rng.normal(scale=1.6, size=(_FIT + _TEST, experiment.n_classes))
        truth = softmax(honest)
        labels = (truth.cumsum(axis=1) > rng.random((len(truth), 1))).argmax(axis=1)
        probs = softmax(_MODELS[experiment.model] * honest)
        if experiment.binary:
            return Predictions.from_binary(probs[:, 1], labels, source=experiment.name)
        return Predictions.from_probs(probs, labels, source=experiment.name)


# Methods on CalArena's experiments: fitted on the one part, measured on the other.


class Experiments(Protocol):
    """Experiments that are read one at a time, such as `StoredExperiments`."""

    experiments: list[Experiment]

    def fit(self, experiment: Experiment) -> Predictions:
        """Return the rows to fit on."""
        ...

    def test(self, experiment: Experiment) -> Iterator[Predictions]:
        """Yield the rows to measure on."""
        ...


def scores_of(
    stored: Experiments, experiment: Experiment, calibrator: Calibrator
) -> dict[str, float]:
    """Fit a method on the calibration rows of an experiment and score it on the test rows.

    Returns:
        ``brier`` (sum over classes, two for binary problems), ``logloss`` (nats), ``accuracy`` and
        ``ece-15`` (fractions; of the positive class for binary problems, of the top label for
        others) and ``time`` (seconds to fit and to apply). The test rows are read block by block.

    Raises:
        PredictionsError: rows that can't be read, or that the method refuses.
        NotApplicableError: the method needs what such files don't hold.
    """
    fit = stored.fit(experiment)
    reason = calibrator.lacks(fit)
    if reason is not None:
        raise NotApplicableError(reason)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit_predictions(fit)
    seconds = time.perf_counter() - started
    scored: list[RowScores] = []
    for block in stored.test(experiment):
        started = time.perf_counter()
        calibrated = calibrator.apply_predictions(block)
        seconds += time.perf_counter() - started
        rows = score_rows(calibrated)
        scored.append(rows.of_positive() if experiment.binary else rows)
    right = np.concatenate([rows.correct for rows in scored])
    top = TopLabel.sort(_joined(scored, "confidence"), right)
    accuracy = right
    if experiment.binary:
        # `of_positive` asks whether the class is 1; the prediction is right where both agree.
        accuracy = (_joined(scored, "confidence") > 0.5) == right
    return {
        "brier": float(_joined(scored, "brier").mean()),
        "logloss": float(_joined(scored, "nll").mean()),
        "accuracy": float(accuracy.mean()),
        "ece-15": float(ece_of_curves(top.curves())[0]),
        "time": seconds,
    }


def _joined(scored: Sequence[RowScores], name: str) -> np.ndarray:
    return np.concatenate([getattr(rows, name) for rows in scored])
