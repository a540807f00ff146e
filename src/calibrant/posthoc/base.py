"""The contract of every calibrator.

A calibrator is a dataclass: its constructor only stores its arguments, `fit` returns the
calibrator itself, what it has learnt ends in an underscore. It is a classifier of logits as
scikit-learn means the word: it can stand at the end of a pipeline, be cloned, searched over and
cross-validated. Families matter more than methods: a new method says how it is fitted and gives its
family a temperature, a linear map or a map of the confidence; how that is applied to any kind of
array, saved and exported is the family's business.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import check_arguments
from calibrant.core.arrays import (
    Array,
    FloatArray,
    IntArray,
    as_array,
    namespace,
    to_numpy,
)
from calibrant.core.checks import check_labels
from calibrant.core.errors import InputError, NotApplicableError, PredictionsError
from calibrant.core.fit_report import FitReport
from calibrant.core.outputs import StrPath
from calibrant.core.progress import watched
from calibrant.core.text import counted
from calibrant.core.threads import one_blas_thread
from calibrant.core.weights import check_weights, mean
from calibrant.files.rewriting import write_predictions
from calibrant.posthoc.applying import Learnt, apply_map, refuse_tracing
from calibrant.posthoc.fitted_rows import sketch_of
from calibrant.posthoc.needs import (
    check_classes,
    check_width,
    checked_features,
    fitted_form,
    holds_zeros,
    lacking,
    note_of_zeros,
    placing_of,
    read_scores,
    refuse_masks,
    rows_for,
    rows_of,
    rows_of_event,
    with_copies_together,
)
from calibrant.posthoc.state import Estimator, FittedKind, save
from calibrant.predictions.names import are_words, numbered
from calibrant.predictions.plausibility import looked_at
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.export.torch_module import CalibratorModule
    from calibrant.posthoc.shards import AppliedShards, ShardWork
    from calibrant.scale.engines import Engine, EngineFields, Watcher
    from calibrant.scale.shards import Shards


@dataclass(eq=False)
class Calibrator(Estimator):
    """A map from logits to probabilities, fitted on held-out rows.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.posthoc.VectorScaling()):
        ...     probs = method.fit(val.logits, val.labels).predict_proba(test.logits)
        ...     kept = bool((probs.argmax(1) == test.logits.argmax(1)).all())
        ...     print(method.method, method.n_parameters, kept, method.keeps_prediction)
        temperature 1 True True
        vector 20 False False
    """

    # Parameters: what may be known of rows, each by itself, as scikit-learn's `fit` takes it.
    def fit(
        self,
        scores: Array,
        labels: Array,
        features: Array | None = None,
        *,
        kind: FittedKind | None = None,
        head: tuple[Array, Array] | None = None,
        reference: Array | None = None,
        sample_weight: Array | None = None,
        clusters: Array | None = None,
    ) -> Self:
        """Fit on held-out rows and return the calibrator itself.

        Args:
            scores: (N, K) of any array kind; a logit of -inf masks a class that a row can't have.
                Or (N,) log odds or probabilities of the positive class; then `kind` says which.
            labels: (N,) true labels in [0, K), or names of the columns in a table of logits.
            features: (N, D) penultimate features, for methods that need them.
            kind: what they are: ``"logits"``, which (N, K) are for None, or ``"probs"``; or
                ``"score"`` of (N,) that are no probabilities, with `labels` that say which rows are
                right, 0 and 1.
            head: the network's last layer (`calibrant.predictions.Head`), for methods that need it.
            reference: (M, D) features of other rows, for methods that measure distances to them.
            sample_weight, clusters: as `evaluate` takes them; folds keep clusters whole.

        Raises:
            PredictionsError: unusable arrays, or a need that isn't met.
            InputError: an argument of the constructor is out of range.
            NotApplicableError: the method is not meant for such data.
        """
        more: dict[str, Any] = {"sample_weight": sample_weight, "clusters": clusters}
        more |= {"features": features, "head": head, "reference": reference}
        self.fit_predictions(looked_at(rows_of(scores, labels, kind, **more)))
        self.called_ = self.class_names_ if are_words(labels) else None
        return self

    # Parameters: all but the first are about many files, and are those of `apply_predictions`.
    def fit_predictions(
        self,
        predictions: Predictions | Shards,
        *,
        sample: int | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        skip_broken: bool = False,
        watch: Watcher | None = None,
    ) -> Self:
        """Fit on held-out rows, with everything that is known about them; see `fit`.

        Many files are read in bounded memory. One temperature is fitted to sums over all rows, as
        exactly as for one file. Maps of the confidence in their top-label form are fitted to counts
        of all rows in 65 536 cells of log odds. Everything else is fitted to a uniform sample, as
        the fit report says. Fits don't depend on how the rows are split into files.

        Args:
            predictions: rows in memory, or many files.
            sample: rows of the sample of many files; None for two million, one million for chains
                and `auto`, and no more than 67 million numbers in all.
            seed: for the sample.
            engine, skip_broken, watch: as `evaluate` takes them.

        Raises:
            PredictionsError, InputError: as `fit` does.

        Examples:
            >>> import numpy as np
            >>> import calibrant as cb
            >>> val = cb.load_sample("validation")
            >>> for i in range(2):
            ...     half = val.take(slice(2500 * i, 2500 * (i + 1)))
            ...     np.savez(f"val-{i}.npz", logits=half.logits, labels=half.labels)
            >>> shards, one = cb.Shards("val-*.npz"), cb.Engine(workers=1)
            >>> found = cb.TemperatureScaling().fit_predictions(shards, engine=one)
            >>> whole = cb.TemperatureScaling().fit_predictions(val)
            >>> abs(found.temperature_ - whole.temperature_) < 1e-6
            True
        """
        if not isinstance(predictions, Predictions):
            from calibrant.posthoc.shards import ShardWork

            if sample is not None and sample < 1:
                raise InputError(f"sample must be at least 1 row, not {sample}")
            work = ShardWork.on(predictions, engine, watch, skip_broken)
            return self._fit_shards(work, sample, seed)
        if sample is not None:
            raise InputError("a sample is drawn of Shards only; take(...) gives rows of these")
        with watched(watch, predictions.n):
            self._fit_memory(predictions)
        return self

    def _fit_memory(self, predictions: Predictions) -> None:
        """Fit to rows in memory; `PerLabel`, which is no map of its own, has another way."""
        self.class_names_ = None if predictions.top_only else predictions.class_names
        self.called_ = self.class_names_
        rows = self._prepared(predictions)
        copies_found = None
        if self.cross_validates and predictions.kind == "logits":
            rows, copies_found = with_copies_together(rows)
        with one_blas_thread():
            self.fit_report_ = self._fit(rows)
        self.fitted_to_ = sketch_of(predictions)
        for note in (copies_found, note_of_zeros(self)):
            if note:
                self._note(note)
        if self.n_parameters > rows.n:
            self._note(
                f"{counted(rows.n, 'row')} can't determine the {self.n_parameters} parameters of "
                f"'{self.method}'; a method with fewer is safer"
            )

    @property
    def cross_validates(self) -> bool:
        """Whether `fit` cross-validates."""
        return False

    def settled(self, predictions: Predictions, fold: IntArray | None = None) -> Calibrator:
        """Return it unfitted, with settings chosen by these rows; it may begin (N,) folds' fits."""
        return self

    def _fit_shards(self, work: ShardWork, sample: int | None, seed: int) -> Self:
        summed = work.shards.kind != "score" and not holds_zeros(work.shards)
        report = self._fit_sums(work) if summed else None
        if report is None:
            rows, note = work.sampled(self.sample_rows, sample, seed)
            self.fit_predictions(rows)._note(note)
        else:
            self.fit_report_ = report
        for name in sorted(work.broken or {}):
            self._note(f"left out: {(work.broken or {})[name]}")
        work.shards.broken.update(work.broken or {})
        return self

    def _fit_sums(self, work: ShardWork) -> FitReport | None:
        """Learn from sums over all rows of many files, or return None to be given a sample."""
        return None

    def _note(self, note: str) -> None:
        self.fit_report_ = self.fit_report_.noting(note)

    def _prepared(self, predictions: Predictions) -> Predictions:
        """Return the rows as `_fit` takes them, once they and the arguments are fine."""
        reason = self.lacks(predictions)
        if reason is not None:
            raise PredictionsError(f"method '{self.method}' can't be fitted: {reason}")
        check_arguments(self)
        predictions = rows_for(self, predictions)
        self.placing_ = placing_of(self, predictions)
        rows = rows_of_event(self, predictions)
        if not self.fits_masked:
            refuse_masks(self, rows.scores)
        self.n_classes_, self.form_ = int(rows.scores.shape[1]), fitted_form(predictions)
        self.kind_ = "probs" if predictions.kind == "toplabel" else predictions.kind
        return rows

    def lacks(self, predictions: Predictions, *, to_apply: bool = False) -> str | None:
        """Return what `predictions` lack of what `fit` needs, as a clause, or None.

        Args:
            predictions: the rows.
            to_apply: ask about `predict_proba`, which needs less.
        """
        return lacking(self, predictions, to_apply=to_apply)

    @overload
    def predict_proba(
        self, scores: NDArray[Any], features: Array | None = None, *, kind: FittedKind | None = None
    ) -> NDArray[np.floating]: ...

    @overload
    def predict_proba(
        self, scores: Array, features: Array | None = None, *, kind: FittedKind | None = None
    ) -> Array: ...

    def predict_proba(
        self, scores: Array, features: Array | None = None, *, kind: FittedKind | None = None
    ) -> Array:
        """Return (N, K) calibrated probabilities, of the same array kind as `scores`.

        Args:
            scores: what the calibrator was fitted to: (N, K) logits or probabilities; for binary
                predictions and the top-label form also (N,). A single row (K,), with (D,) features,
                gives (K,).
            features: (N, D), for methods that need them.
            kind: what the scores are, ``"logits"`` or ``"probs"``, if they differ from what the
                calibrator was fitted to (`kind_`). A calibrator fitted to a ``"score"`` takes
                nothing else.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: another number of classes or features than in `fit`, a row that isn't
                finite, or probabilities that don't sum to 1.

        Examples:
            >>> import calibrant as cb
            >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
            >>> scaling = cb.TemperatureScaling().fit(val.probs, val.labels, kind="probs")
            >>> scaling.kind_
            'probs'
            >>> same = scaling.predict_proba(test.logits[:5], kind="logits")
            >>> bool(abs(scaling.predict_proba(test.probs[:5]) - same).max() < 1e-6)
            True
        """
        logits, known, single = self._read(scores, features, kind)
        probs = self._probabilities(logits, known)
        return probs[0, :] if single else probs

    def _read(
        self, scores: Array, features: Array | None, kind: FittedKind | None
    ) -> tuple[Array, Array | None, bool]:
        refuse_tracing(scores)
        self.check_fitted()
        return read_scores(self, scores, features, kind)

    def _probabilities(self, logits: Array, features: Array | None) -> Array:
        return apply_map(self.transform, logits, features, self.map_arrays(), self.widest())

    @abstractmethod
    def transform(
        self, xp: Any, logits: Array, features: Array | None, learnt: Learnt, *, masks: bool = True
    ) -> Array:
        """Return (n, K) probabilities: the map as one pure function of arrays.

        Written against the array-API standard, so that NumPy, torch (eager, compiled, exported) and
        graph tracers run the same code. Of `self` it reads the arguments of the constructor and
        which parts there are, never a learnt number. It checks nothing.

        Args:
            xp: array namespace of all arrays.
            logits: (n, K) floats.
            features: (n, D), for methods that need them.
            learnt: what `map_arrays()` returns, as float64 (or integer) arrays of this kind. What
                is combined with (n, K) rows is cast to their type, so that these aren't widened.
            masks: whether a logit may be minus infinity. A caller who knows that none is saves
                passes over the rows.

        Returns:
            Probabilities in the type of `logits`.
        """

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `transform` reads, by name; those of parts as ``part/name``."""
        found = self.state()
        for name, part in self.parts().items():
            found |= {f"{name}/{inner}": array for inner, array in part.map_arrays().items()}
        return found

    def widest(self) -> int:
        """Return how many numbers `transform` holds a row, where that is more than K; else 0."""
        return 0

    @overload
    def apply_predictions(
        self, predictions: Predictions, out: StrPath | None = None, **how: Unpack[EngineFields]
    ) -> Predictions: ...

    @overload
    def apply_predictions(
        self, predictions: Shards, out: StrPath, **how: Unpack[EngineFields]
    ) -> AppliedShards: ...

    def apply_predictions(
        self,
        predictions: Predictions | Shards,
        out: StrPath | None = None,
        *,
        engine: Engine | None = None,
        skip_broken: bool = False,
        watch: Watcher | None = None,
    ) -> Predictions | AppliedShards:
        """Return the same rows with calibrated probabilities for scores.

        Everything else stays, except the last layer, which gives other scores.

        For many files, each is written to a file of the same name and format in a folder; folders
        below the one that all files share stay. A file appears only when it is complete. If the
        call is repeated after an interruption, it writes the missing files, and writes those again
        whose inputs have changed.

        Args:
            predictions: rows in memory, or many files (``Shards(..., labelled=False)`` where there
                are no labels).
            out: for rows in memory a file to write, or None; for many files the folder, a path or
                URL.
            engine, skip_broken, watch: as `evaluate` takes them.

        Raises:
            PredictionsError: what `predict_proba` refuses, or another form than it was fitted to.
            InputError: a folder that holds something else.

        Examples:
            >>> import numpy as np
            >>> import calibrant as cb
            >>> for i in range(2):
            ...     np.savez(f"part-{i}.npz", logits=np.eye(3) * 4, labels=[0, 1, 2 - i])
            >>> shards, one = cb.Shards("part-*.npz"), cb.Engine(workers=1)
            >>> scaling = cb.TemperatureScaling().fit_predictions(shards, engine=one)
            >>> print(scaling.apply_predictions(shards, "calibrated", engine=one))
            6 rows in calibrated: 2 files written
            >>> print(scaling.apply_predictions(shards, "calibrated", engine=one))
            6 rows in calibrated: 0 files written, 2 there before
            >>> cb.Shards("calibrated")
            <Shards: 2 files, 6 rows x 3 classes, probs>
        """
        self.check_fitted()
        if not isinstance(predictions, Predictions):
            from calibrant.posthoc.shards import ShardWork, apply_to_shards

            work = ShardWork.on(predictions, engine, watch, skip_broken)
            check_width(self, work.shards)
            return apply_to_shards(self, work, out)
        check_width(self, predictions)
        with watched(watch, predictions.n):
            after = self._applied(predictions)
        if out is not None:
            write_predictions(after, out)
        return after

    def _applied(self, predictions: Predictions) -> Predictions:
        reason = self.lacks(predictions, to_apply=True)
        if reason is not None:
            raise PredictionsError(f"method '{self.method}' can't be applied: {reason}")
        logits = rows_of_event(self, predictions).logits
        features = checked_features(self, predictions.features, predictions.n)
        return predictions.recalibrated(self._probabilities(self._checked(logits), features))

    def predict_confidence(
        self, scores: Array, features: Array | None = None, *, kind: FittedKind | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return the (N,) predicted labels and the (N,) probability that each is right.

        See `predict_proba`. Maps of the confidence may give less than 1 / K, unlike there.
        """
        logits, known, _ = self._read(scores, features, kind)
        return self._confidences(logits, known)

    def _confidences(self, logits: Array, features: Array | None) -> tuple[IntArray, FloatArray]:
        probs = self._probabilities(logits, features)
        xp = namespace(probs)
        # Two logits may differ by so little that their probabilities are rounded to a tie.
        ranked = logits if self.keeps_prediction else probs
        label, confidence = xp.argmax(ranked, axis=1), xp.max(probs, axis=1)
        return to_numpy(label).astype(np.int64), to_numpy(confidence).astype(np.float64)

    def save(self, path: StrPath) -> None:
        """Write the fitted calibrator to a safetensors file; `calibrant.load` reads it."""
        save(self, path)

    @abstractmethod
    def _fit(self, predictions: Predictions) -> FitReport:
        """Learn from checked predictions."""

    def _checked(self, logits: Array) -> Array:
        self.check_fitted()
        return check_classes(self, as_array(logits))

    def predict(
        self, scores: Array, features: Array | None = None, *, kind: FittedKind | None = None
    ) -> NDArray[Any]:
        """Return the (N,) predicted classes, as `classes_` has them.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: see `predict_proba`.
        """
        return self.classes_[self.predict_confidence(scores, features, kind=kind)[0]]

    def score(self, scores: Array, labels: Array, sample_weight: Array | None = None) -> float:
        """Return the accuracy, by which scikit-learn scores classifiers.

        Many methods keep every prediction, so choose among them by ``scoring="neg_log_loss"``.

        Args:
            scores: as `predict_proba` takes them.
            labels: (N,) true labels, numbers or names as in `fit`.
            sample_weight: (N,) how much each row counts; equally if None.

        Raises:
            NotFittedError: `fit` has not been called.
            PredictionsError: unusable logits, labels or weights.
        """
        predicted = self.predict_confidence(scores)[0]
        numbers = numbered(labels, self.called_, "score")
        truth = check_labels(numbers, len(predicted), self.n_classes_, "score")
        right = (predicted == truth).astype(np.float64)
        if sample_weight is None:
            return float(right.mean())
        weights = np.asarray(to_numpy(as_array(sample_weight)), dtype=np.float64)
        return mean(right, check_weights(weights, len(right), "score", "sample_weight"))

    def interval_arrays(self, level: float) -> dict[str, NDArray[Any]] | None:
        """Return the arrays that `interval` reads, for intervals of a level; None without any."""
        return None

    def interval(
        self, xp: Any, logits: Array, learnt: Learnt, *, masks: bool = True
    ) -> tuple[Array, Array]:
        """Return the (n,) lower and upper ends, in float64, for the confidence of each row.

        A pure function of arrays, as `transform` is; only of methods with `interval_arrays`.
        """
        raise NotApplicableError(f"method '{self.method}' has no interval for a row")

    def bare(self) -> Self:
        """Return a calibrator of the same arguments and parts that has learnt nothing."""
        other = type(self)(**self.get_params())
        other.take_fit_of(self)
        other.restore_parts({name: part.bare() for name, part in self.parts().items()})
        return other

    def to_torch(
        self,
        path: StrPath | None = None,
        *,
        kind: FittedKind | None = None,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> CalibratorModule:
        """Return the calibrator as a torch module, and write it as a program if there is a path.

        The module runs the same `transform` as `predict_proba`; the learnt numbers are its buffers.
        It can be moved, cast, compiled, exported and differentiated with respect to the logits. To
        put it behind a network use `calibrant.posthoc.CalibratedModule`, whose `state_dict`
        safetensors saves and loads.

        Args:
            path: a file (.pt2) for the program that `torch.export` makes of the module, for any
                number of rows. `torch.export.load` reads it, without unpickling and without
                Calibrant. None writes nothing.
            kind: the input, ``"logits"`` or ``"probs"``; None for what the calibrator was fitted
                to.
            dtype: type of the program's scores and features.

        Raises:
            NotFittedError: `fit` has not been called.
            NotApplicableError: the map is too large, or torch can't follow it.
            InputError: another extension or dtype.
            MissingDependencyError: torch isn't installed.

        Examples:
            >>> import calibrant as cb
            >>> import torch
            >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
            >>> _ = scaling.to_torch("calibrator.pt2")
            >>> program = torch.export.load("calibrator.pt2").module()
            >>> program(torch.zeros(1, 10))[0, :2]
            tensor([0.1000, 0.1000])
        """
        from calibrant.export.torch_module import CalibratorModule, write_program

        module = CalibratorModule(self, kind)
        if path is not None:
            write_program(module, path, dtype)
        return module

    # Parameters: they are the user's choices, each by itself, and the command line's options.
    def to_onnx(
        self,
        path: StrPath | None = None,
        *,
        kind: FittedKind | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        level: float = 0.95,
        masks: bool = True,
        class_names: Sequence[str] | None = None,
        behind: StrPath | None = None,
        output: str | None = None,
        features_output: str | None = None,
    ) -> Any:
        """Return the calibrator as an ONNX model, and write it to a file if there is a path.

        The graph is traced from `transform`, the map that `predict_proba` applies, so it gives the
        same numbers: within 1e-6 in float32. It takes any number of rows and checks none of them:
        NaN in gives NaN out. Outputs: ``probs`` (N, K), ``label`` (N,), the predicted class,
        ``confidence`` (N,), its probability, and for methods with an interval for each row ``low``
        and ``high`` (N,). Metadata: method, version, classes, class names, form, kind and level. A
        calibrator of binary predictions takes two columns, [0, z] for log odds z or [1 - p, p]. In
        the top-label form z are the log odds of the confidence, and class 1 is "right".

        Args:
            path: file to write (.onnx), whole or not at all; None writes nothing.
            kind: what the input (N, K) is: ``"logits"``, which is its name as well, or ``"probs"``,
                and its name is ``probs_in``; None for what it was fitted to. Methods that read
                features have an input ``features`` (N, D), too.
            dtype: type of inputs and outputs.
            level: probability of the intervals, where the method has a choice.
            masks: whether a logit may be minus infinity; without masks the graph has fewer nodes.
            class_names: K names for the metadata, by default those of the calibrator.
            behind: an ONNX file of the network. Both are then joined in one graph with the
                network's inputs; the network's own outputs come last.
            output: name of the network's output that is the logits (or probs); None finds it by its
                shape. features_output: the same for the features.

        Raises:
            NotFittedError: `fit` has not been called.
            NotApplicableError: the map can't be a graph, or is too large for a file.
            InputError: an option is out of range, or the network has no output of the right shape.
            MissingDependencyError: the package `onnx` isn't installed.

        Examples:
            >>> import calibrant as cb
            >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
            >>> model = scaling.to_onnx("calibrator.onnx")
            >>> [output.name for output in model.graph.output]
            ['probs', 'label', 'confidence']
        """
        from calibrant.export.onnx_file import GraphOptions, to_onnx
        from calibrant.export.onnx_network import Behind

        return to_onnx(
            self,
            path,
            GraphOptions(kind, dtype, level, masks),
            class_names=class_names,
            behind=Behind.of(behind, output, features_output),
        )
