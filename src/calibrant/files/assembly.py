"""From raw fields of a file to `Predictions` and back: the rules that hold for every format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, namespace, row_sums
from calibrant.core.checks import ROW_SUM_TOLERANCE, row_number
from calibrant.core.errors import PredictionsError
from calibrant.core.text import first_few
from calibrant.core.weights import MOST_WEIGHT, check_each_weight
from calibrant.files.formats.base import (
    CLASS_NAMES,
    HEAD,
    LABEL_NAMES,
    REFERENCE,
    CellRule,
    Columns,
    native,
)
from calibrant.files.options import ReadOptions
from calibrant.files.schema import ONE_SCORE, TOP_ONLY, WEIGHT, ColumnMap
from calibrant.predictions.binary import labels_of_columns
from calibrant.predictions.grids import unnamed
from calibrant.predictions.implausible import FEW
from calibrant.predictions.names import are_words, of_one_hot
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rounding import allowed_by_rounding, divided_by_sums

CLUSTER = "cluster"
DIGITS = re.compile(r"[0-9]{1,18}")
# What says in words that a row is right, or not.
YES, NO = (
    ("true", "yes", "correct", "right", "y", "t"),
    ("false", "no", "incorrect", "wrong", "n", "f"),
)
# Logarithms of probabilities may be off by this, in the sum of their exponentials.
LOG_TOLERANCE = 1e-3


def array_of(map: ColumnMap, role: str, columns: Mapping[str, NDArray[Any]]) -> Any:
    """Return the array of a role, (N, K) of several columns; None where there is none."""
    fields = map.fields.get(role)
    if fields is None or fields[0] not in columns:
        return None
    if role in map.wide:
        deep = next((name for name in fields if columns[name].ndim > 1), None)
        if deep is not None:
            raise PredictionsError(f"column '{deep}' must hold numbers, not lists of them")
        return np.stack([columns[name] for name in fields], axis=1)
    return columns[fields[0]]


class Assembler:
    """Builds `Predictions` of the batches of one file, the same whether it is one or many.

    Args:
        map: what is read.
        options: how.
        where: the file, which begins all messages.
        first: returns the raw scores of the first rows, which say how far scores are rounded.

    Attributes:
        tolerance: how far off 1 the sum of a row of probabilities may be.
    """

    def __init__(
        self, map: ColumnMap, options: ReadOptions, where: str, first: Callable[[], Any]
    ) -> None:
        self.map, self.options, self.where, self._first = map, options, where, first
        self.tolerance = ROW_SUM_TOLERANCE["float64"]
        self._rounded = False
        self._seen: dict[str, dict[str, str]] = {}
        self._signs: set[int] = set()

    def build(
        self, columns: Columns, *, network: Columns | None = None, part: bool = False
    ) -> Predictions:
        """Return the predictions that some rows hold.

        Args:
            columns: the raw fields of these rows.
            network: what isn't of rows, by role.
            part: whether these aren't all rows, so that all weights may be 0.

        Raises:
            PredictionsError: what they hold isn't usable.
        """
        map = self.map

        def get(role: str) -> Any:
            return array_of(map, role, columns)

        scores, weight = self._summing(self._undone(get("scores"))), get("weight")
        network = network or {}
        names: Any = map.class_names
        if "names" in network:
            held = native(network["names"])
            names = tuple(str(name) for name in held.ravel().tolist())
        labels = self._labels("labels", get("labels"), names)
        predicted = self._labels("predicted", get("predicted"), names)
        self._check_exact(labels, predicted)
        if map.form in ONE_SCORE or (scores.ndim == 2 and scores.shape[1] == 2):
            self._check_signs(labels)
        if map.form in TOP_ONLY:
            for values in (labels, predicted):
                self._check_signs(values)
        # How many rows there are says the file, not the batch.
        if labels is not None and labels.ndim == 2 and not map.grid and len(self._first()) >= FEW:
            labels = of_one_hot(labels, self.where)
        given = None if part else weight
        rows = self._of_form(scores, labels, predicted, names, given, get, network)
        if part and weight is not None:
            # Of a batch all weights may be 0, of a file not.
            rows = replace(rows, weights=check_each_weight(weight, rows.n, self.where))
        return rows

    def _of_form(
        self,
        scores: Any,
        labels: Any,
        predicted: Any,
        names: Any,
        weight: Any,
        get: Any,
        network: Columns,
    ) -> Predictions:
        map, where, options = self.map, self.where, self.options
        log = map.form in ("logits", "logit")
        if map.form in TOP_ONLY:
            top = map.form == "toplabel"
            of_top = Predictions.from_confidence if top else Predictions.from_scores
            return of_top(
                scores,
                predicted=predicted,
                labels=labels,
                source=where,
                correct=self._correct(get("correct")),
                sample_weight=weight,
            )
        if map.kind == "many-labels":
            if labels is not None and len(labels.shape) == 1 and tuple(scores.shape)[1:] == (1,):
                labels = labels[:, None]  # a table has no other form for one label
            return Predictions.from_many_labels(
                scores,
                labels,
                kind="logit" if log else "prob",
                label_names=names,
                source=where,
                sample_weight=weight,
            )
        if map.kind == "tokens":
            if labels is not None and scores.ndim == 2 and (labels == options.ignore_index).any():
                # A row a prediction, some of them to leave out.
                scores, labels = scores[:, None], labels.reshape(-1, 1)
            return Predictions.from_tokens(
                scores,
                labels,
                kind="logits" if log else "probs",
                ignore_index=options.ignore_index,
                class_axis=options.class_axis,
                source=where,
                keep_all=not options.labelled,
                sample_weight=weight,
                class_names=names,
            )
        if map.form in ONE_SCORE:
            return Predictions.from_binary(
                scores,
                labels,
                kind="logit" if log else "prob",
                positive=options.positive,
                features=get("features"),
                source=where,
                sample_weight=weight,
            )
        if map.binary and labels is not None:
            labels, names = labels_of_columns(labels, where, options.positive)
        build = Predictions.from_logits if log else Predictions.from_probs
        rows = build(
            scores,
            labels,
            get("features"),
            where,
            head=(network[HEAD[0]], network[HEAD[1]]) if HEAD[0] in network else None,
            reference=network.get(REFERENCE),
            sample_weight=weight,
            class_names=None if map.binary else names,
        )
        return replace(rows.as_binary(), class_names=names) if map.binary else rows

    # --- scores

    def _undone(self, scores: Any) -> Any:
        """Return scores without what they were said to be: percent, or logarithms."""
        if self.map.are is None:
            return scores
        if scores.dtype.kind not in "fiu":
            raise PredictionsError(f"{self.where}: scores must be numbers, not {scores.dtype}")
        if self.map.are == "percent":
            scores = scores.astype(np.float64)
            outside = ~((scores >= 0) & (scores <= 100))
            if outside.any():
                place = tuple(int(i[0]) for i in np.nonzero(outside))
                raise PredictionsError(
                    f"{self.where}: percent must lie between 0 and 100, but row "
                    f"{row_number(place[0])} holds {scores[place]}"
                )
            return scores / 100
        if scores.ndim > 1:
            with np.errstate(over="ignore"):
                sums = np.exp(scores.astype(np.float64)).sum(axis=-1)
            off = np.abs(sums - 1) > LOG_TOLERANCE
            if off.any():
                row = int(np.nonzero(off)[0][0])
                raise PredictionsError(
                    f"{self.where}: the log-probabilities of row {row_number(row)} belong to "
                    f"probabilities that sum to {sums[off][0]:.6g}, "
                    "not 1; if these are logits, say --are logits (are=)"
                )
        return scores

    def _summing(self, scores: Any) -> Any:
        """Return probabilities of which rows that rounding made not sum to 1 are divided by it.

        A row that is off by more than rounding explains is left for the checks to name.
        """
        plain = self.map.form == "probs" and not self.map.grid
        if not plain or scores.ndim != 2 or scores.dtype.kind != "f" or scores.dtype.itemsize < 4:
            return scores
        off = np.abs(row_sums(scores) - 1)
        if not (off > ROW_SUM_TOLERANCE["float64"]).any():
            return scores
        if not self._rounded:
            self._rounded = True
            self.tolerance = allowed_by_rounding(self._undone(self._first()))
        return divided_by_sums(scores, self.tolerance, self.where)

    # --- labels

    def _labels(self, role: str, values: Any, names: tuple[str, ...] | None) -> Any:
        """Return labels of which all are names, or all numbers.

        Raises:
            PredictionsError: some are names and others numbers, or they are numbers although the
                columns are named after classes, whose numbers nobody said.
        """
        map = self.map
        if values is None or map.grid or values.ndim != 1 or not len(values):
            return values
        seen = self._seen.setdefault(role, {})
        if not are_words(values):
            told = self.options.classes
            if self._numbers_name(told) and values.dtype.kind in "iuf":
                places = {float(name): place for place, name in enumerate(told)}
                found, at = np.unique(values, return_inverse=True)
                odd = [value for value in found.tolist() if value not in places]
                if odd:
                    raise PredictionsError(
                        f"{self.where}: '{map.fields[role][0]}' holds {odd[0]}, which is none of "
                        f"the classes {first_few(told)} in --classes (classes=)"
                    )
                return np.array([places[value] for value in found.tolist()], dtype=np.int64)[at]
            if not map.numbered and not map.binary:
                raise PredictionsError(
                    f"{self.where}: the labels are numbers, but the columns of scores are "
                    "named after classes",
                    "give names as labels, or list the classes in the order of their numbers by "
                    "--classes CLASS_OF_0,CLASS_OF_1,... (classes=) in place of "
                    f"{', '.join(sorted(map.class_names or ()))}",
                )
            seen.setdefault("number", str(values[0]))
            self._check_one_kind(role)
            return self._from_zero(role, values)
        distinct, place = np.unique(values.astype(str), return_inverse=True)
        digits = np.array(
            [DIGITS.fullmatch(word) is not None and word not in (names or ()) for word in distinct]
        )[place]
        for kind, rows in (("number", digits), ("name", ~digits)):
            if rows.any():
                seen.setdefault(kind, str(values[rows.argmax()]))
        self._check_one_kind(role)
        # A table may hold its numbers as text.
        if "number" not in seen or map.binary:
            return values
        return self._from_zero(role, values.astype(np.int64))

    def _numbers_name(self, told: Sequence[str]) -> bool:
        """Return whether classes that were told bear numbers other than their places."""
        numbers = all(DIGITS.fullmatch(name) for name in told)
        return numbers and tuple(told) != tuple(map(str, range(len(told)))) and bool(told)

    def _check_exact(self, labels: Any, predicted: Any) -> None:
        """Raise `PredictionsError` for a row that is right only because floats round its labels."""
        if labels is None or predicted is None or predicted.dtype.kind != "f":
            return
        large = (labels == predicted) & (np.abs(predicted) >= 2 / np.finfo(predicted.dtype).eps)
        if large.any():
            row = int(large.argmax())
            raise PredictionsError(
                f"{self.where}: the true and the predicted class of row {row_number(row)} are "
                f"both {predicted[row]:.0f} as {predicted.dtype}, which can't distinguish "
                "numbers of that size; number the classes from 0, or write names that hold a "
                "letter"
            )

    def _from_zero(self, role: str, values: Any) -> Any:
        """Return true labels that count from 0."""
        first = self.options.labels_from
        if role != "labels" or not first or values.dtype.kind not in "iuf":
            return values
        return (values if values.dtype.kind == "f" else values.astype(np.int64)) - first

    def _check_signs(self, labels: Any) -> None:
        """Raise `PredictionsError` for labels -1 and 0 of two classes, also in different batches.

        By themselves, -1 and 1 are read as 0 and 1.
        """
        if labels is None or self.map.grid or labels.dtype.kind not in "if":
            return
        self._signs |= {sign for sign in (-1, 0) if (labels == sign).any()}
        if len(self._signs) == 2:
            raise PredictionsError(
                f"{self.where}: 'labels' must be 0 and 1, or -1 and 1, but there are -1 and 0"
            )

    def _correct(self, values: Any) -> Any:
        """Return whether each row is right, as 0 and 1, truth values or words for these."""
        if values is None or not are_words(values):
            return values
        words = np.char.lower(np.asarray(values).astype(str))
        right, wrong = np.isin(words, (*YES, "1")), np.isin(words, (*NO, "0"))
        if not (right | wrong).all():
            row = int((right | wrong).argmin())
            raise PredictionsError(
                f"{self.where}: '{self.map.fields['correct'][0]}' must be 0 or 1, true or false, "
                f"or yes or no, but row {row_number(row)} holds {str(values[row])!r}"
            )
        return right

    def _check_one_kind(self, role: str) -> None:
        seen = self._seen[role]
        if len(seen) > 1:
            raise PredictionsError(
                f"{self.where}: '{self.map.fields[role][0]}' holds names of classes such as "
                f"{seen['name']!r} and numbers such as {seen['number']!r}; if one of them stands "
                "for a missing value, leave out its row; if all are names, give them by --classes "
                "(classes=)"
            )


def rules_of(
    map: ColumnMap, words: Collection[str], tolerance: float, first_label: int = 0
) -> list[CellRule]:
    """Return what the cells of all columns that hold numbers must hold.

    Args:
        map: what is read.
        words: columns that may hold anything.
        tolerance: how far off 1 the sum of a row of probabilities may be.
        first_label: the label of class 0.
    """
    classes = len(map.fields["scores"])
    top: float = math.inf if map.form in TOP_ONLY else classes - 1
    scale = 100 if map.are == "percent" else 1
    shares = ("a number from 0 to 1" if scale == 1 else "a number from 0 to 100", 0, scale)
    found: list[CellRule] = []

    def add(role: str, expected: str, *rest: Any, **more: Any) -> None:
        for column in map.fields.get(role, ()):
            if column not in words:
                found.append(CellRule(column, expected, *rest, **more))

    if map.form in ("logits", "logit", "score"):
        add("scores", "a finite number")
    elif map.form in ("toplabel", "prob") or map.grid or scale > 1:
        add("scores", *shares)
    else:
        add("scores", "a finite number of at least 0", 0, tolerance=tolerance)
    if map.binary or map.grid:
        add("labels", "0 or 1 (or names, of which --positive NAME says one)", 0, 1, whole=True)
    else:
        for role, first in (("labels", first_label), ("predicted", 0)):
            upto = "" if top == math.inf else f" to {top + first}"
            add(role, f"a whole number from {first}{upto}", first, top + first, whole=True)
    add("correct", "0 or 1", 0, 1, whole=True)
    add("features", "a finite number")
    add("weight", "a finite number of at least 0", 0, MOST_WEIGHT)
    return found


def to_columns(predictions: Predictions, *, words: bool = True) -> Columns:
    """Return what a file of these predictions holds: the inverse of `Assembler.build`.

    With `words`, labels of binary predictions are the names of the classes, if they have any.

    Raises:
        PredictionsError: positions of tokens were left out, whose scores nobody has.
    """
    p = predictions
    arrays: dict[str, Array | None]
    if p.grid is not None:
        arrays = _of_grid(p)
    elif p.top_only:
        said, truth = p.predicted, p.known_labels
        if words and p.class_names is not None:
            names = np.array(p.class_names)
            said, truth = names[said], None if truth is None else names[truth]
        key = "confidence" if p.kind == "toplabel" else p.kind
        arrays = {"true_label": truth, "pred_label": said, key: p.scores}
    elif p.binary:
        labels = p.known_labels
        if words and p.class_names is not None and labels is not None:
            labels = np.array(p.class_names)[labels]
        arrays = {p.form: p.one_score, "labels": labels, "features": p.features}
    else:
        arrays = {p.kind: p.scores, "labels": p.known_labels, "features": p.features}
        arrays |= dict(zip(HEAD, p.head or (None, None), strict=True)) | {REFERENCE: p.reference}
        if p.class_names is not None:
            arrays[CLASS_NAMES] = np.array(p.class_names)
    if p.grid is None:
        arrays |= {WEIGHT: p.weights, CLUSTER: p.clusters}
    return {key: native(array) for key, array in arrays.items() if array is not None}


def _of_grid(p: Predictions) -> dict[str, Array | None]:
    """Return what a file of several predictions a row holds."""
    grid = p.grid
    assert grid is not None
    if grid.left_out:
        raise PredictionsError(
            f"{p.source}: {grid.left_out} positions were left out for their label and have no "
            "scores to write; read them without labels, or keep them (keep_all=True)"
        )
    if p.label_names is not None:
        key, scores = f"{p.form}s", p.one_score
        shape, names_key = grid.shape, LABEL_NAMES
        names = None if p.label_names == unnamed(shape[1]) else p.label_names
    else:
        key, scores, names, names_key = p.kind, p.scores, p.class_names, CLASS_NAMES
        shape = (*grid.shape, int(p.scores.shape[1]))
    weights = None if p.weights is None else p.weights.reshape(grid.shape)
    if weights is not None:
        # (N,) where all of a row have the same.
        rows = weights.reshape(grid.shape[0], -1)
        weights = rows[:, 0] if bool((rows == rows[:, :1]).all()) else weights
    labels = p.known_labels
    return {
        key: namespace(scores).reshape(scores, shape),
        "labels": grid.labels if labels is None else labels.reshape(grid.shape),
        WEIGHT: weights,
        names_key: None if names is None else np.array(names),
    }
