"""Which key holds what: the vocabulary that all formats share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, namespace, to_numpy
from calibrant.core.errors import CalibrantError, MissingDependencyError, PredictionsError
from calibrant.files.grid_keys import grid_keys, of_grid
from calibrant.predictions.binary import labels_of_columns
from calibrant.predictions.grids import IGNORE_INDEX
from calibrant.predictions.names import without_digits
from calibrant.predictions.predictions import Predictions

Arrays = dict[str, NDArray[Any]]

FileKind = Literal[
    "logits", "probs", "toplabel", "prob", "logit", "binary", "many-labels", "tokens"
]
SCORES: dict[FileKind, str] = {
    "logits": "logits",
    "probs": "probs",
    "toplabel": "confidence",
    "prob": "prob",
    "logit": "logit",
}
ONE_SCORE = ("prob", "logit")
# Several predictions a row.
GRIDS = ("many-labels", "tokens")
LABELS = ("labels", "label", "true_label")
PREDICTED = ("pred_label", "predicted")
HEAD = ("head_weight", "head_bias")
REFERENCE = "reference_features"
WEIGHT, CLUSTER = "weight", "cluster"
CLASS_NAMES, LABEL_NAMES = "class_names", "label_names"
NAMES = (CLASS_NAMES, LABEL_NAMES)
# What is known of the network rather than of a row; tables, which hold rows, don't hold it.
OF_THE_NETWORK = (*HEAD, REFERENCE, *NAMES)
_IMPORTING = RLock()
# A message should stay readable whatever a decoder says.
SHOWN_CHARACTERS = 300


class Wanted(NamedTuple):
    """What a caller wants of a file.

    Attributes:
        kind: of the scores; None for the first that is there.
        labelled: whether to refuse a file without labels.
        positive: which label is the positive class of binary predictions; None where labels are 0
            and 1.
        scores_key: the key, or the columns, that hold the scores, if they go by another name than
            their kind.
        labels_key: the one that holds the labels.
        class_columns: columns of a table that are named after the classes, in their order.
        ignore_index: label of tokens that don't count.
        weight_key: the key or column of the weights, if it isn't `weight`.
        class_axis: axis of the classes of tokens and pixels.
    """

    kind: FileKind | None = None
    labelled: bool = True
    positive: str | None = None
    scores_key: str | None = None
    labels_key: str | None = None
    class_columns: tuple[str, ...] = ()
    ignore_index: int | None = IGNORE_INDEX
    weight_key: str | None = None
    class_axis: int = -1


@dataclass(frozen=True)
class Keys:
    """The keys of one file that will be read.

    Attributes:
        kind: what the scores are, a key of `SCORES`.
        positive: see `Wanted`; labels may then be text.
        binary: whether they are about one event.
        class_names: that columns are named after; labels may then be text.
        names: the key that holds names of the classes.
        grid: of several predictions a row, what was asked for.
    """

    kind: FileKind
    scores: str
    labels: str | None
    predicted: str | None = None
    features: str | None = None
    head: tuple[str, ...] = ()
    reference: str | None = None
    weight: str | None = None
    binary: bool = False
    positive: str | None = None
    class_names: tuple[str, ...] | None = None
    names: str | None = None
    grid: Wanted | None = None

    @property
    def worded(self) -> bool:
        """Whether labels may be names of classes."""
        if self.grid is not None:
            return False
        return self.binary or self.class_names is not None or self.kind == "toplabel"

    @property
    def used(self) -> tuple[str, ...]:
        """Every key that is set."""
        rows = (self.scores, self.labels, self.predicted, self.features, self.weight)
        every = (*rows, *self.head, self.reference, self.names)
        return tuple(key for key in every if key is not None)


def assemble(keys: Keys, get: Callable[[str], Array], source: str) -> Predictions:
    """Build predictions from the arrays that `get` returns for each of the keys."""

    def load(key: str | None) -> Array | None:
        if key is None:
            return None
        with readable(f"'{key}'", source):
            return get(key)

    scores, labels = load(keys.scores), load(keys.labels)
    weight = load(keys.weight)
    if keys.predicted is not None:
        predicted = load(keys.predicted)
        return Predictions.from_confidence(scores, predicted, labels, source, sample_weight=weight)
    names: Any = keys.class_names
    if keys.names is not None:
        names = [str(name) for name in native(load(keys.names)).ravel().tolist()]
    if keys.grid is not None:
        log = keys.kind == "logits"
        return of_grid(scores, labels, weight, names, source, keys.grid, log=log)
    features = load(keys.features)
    if keys.kind in ONE_SCORE:
        return Predictions.from_binary(
            scores,
            labels,
            kind="prob" if keys.kind == "prob" else "logit",
            positive=keys.positive,
            features=features,
            source=source,
            sample_weight=weight,
        )
    if keys.binary and labels is not None:
        labels, names = labels_of_columns(labels, source, keys.positive)
    elif names is not None and labels is not None:
        labels = without_digits(labels, names)
    build = Predictions.from_logits if keys.kind == "logits" else Predictions.from_probs
    rows = build(
        scores,
        labels,
        features,
        source,
        head=(load(HEAD[0]), load(HEAD[1])) if keys.head else None,
        reference=load(keys.reference),
        sample_weight=weight,
        class_names=None if keys.binary else names,
    )
    return replace(rows.as_binary(), class_names=names) if keys.binary else rows


def to_keys(predictions: Predictions, *, words: bool = True) -> Arrays:
    """Return what a file of these predictions holds: the inverse of `assemble`.

    With `words`, labels of binary predictions are the names of the classes, if they have any.
    """
    p = predictions
    if p.grid is not None:
        found = grid_keys(p, LABEL_NAMES, CLASS_NAMES)
        return {key: native(array) for key, array in found.items() if array is not None}
    if p.kind == "toplabel":
        said, truth = p.predicted, p.known_labels
        if words and p.class_names is not None:
            names = np.array(p.class_names)
            said, truth = names[said], None if truth is None else names[truth]
        arrays = {"true_label": truth, "pred_label": said, "confidence": p.scores}
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
    arrays |= {WEIGHT: p.weights, CLUSTER: p.clusters}
    return {key: native(array) for key, array in arrays.items() if array is not None}


def native(array: Array) -> NDArray[Any]:
    """Return a contiguous NumPy array in native byte order; bfloat16 becomes float32."""
    if str(array.dtype).endswith("bfloat16"):
        xp = namespace(array)
        array = xp.astype(array, xp.float32)
    values = to_numpy(array)
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


@contextmanager
def readable(what: str, source: str) -> Generator[None]:
    """Turn any exception of a decoder in the body into a `PredictionsError` of one line."""
    try:
        yield
    except CalibrantError:
        raise
    # A damaged file makes the decoder that meets it raise almost anything.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:SHOWN_CHARACTERS] or type(error).__name__
        raise PredictionsError(f"{source}: can't read {what}: {reason}") from error


def optional(module: str, package: str, extra: str) -> Any:
    """Import a module of an optional package, or raise `MissingDependencyError`.

    One thread at a time: where two begin with modules of a package that import one another, Python
    gives one of them a module that isn't whole yet.
    """
    try:
        with _IMPORTING:
            return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this format needs {package}: pip install 'calibrant[{extra}]'"
        ) from error
