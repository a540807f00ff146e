"""How the rows of a file are read: in Python, of many files and on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from calibrant.core.errors import InputError
from calibrant.core.outputs import StrPath
from calibrant.core.text import names_in
from calibrant.predictions.grids import IGNORE_INDEX

ScoresAre = Literal[
    "probs", "logits", "log-probs", "percent", "confidence", "prob", "logit", "score"
]
RowKind = Literal["binary", "many-labels", "tokens"]
Normalisation = Literal["none", "chars", "bytes", "tokens", "unconditional"]
FormatName = Literal[
    "npz", "npy", "safetensors", "pt", "csv", "tsv", "jsonl", "json", "parquet", "arrow", "hdf5"
]


class ReadFields(TypedDict, total=False):
    """The fields of `ReadOptions`, as arguments by name."""

    scores: str | Sequence[str] | None
    are: ScoresAre | None
    labels: StrPath | None
    labels_from: int | None
    predicted: str | None
    correct: str | None
    classes: str | Sequence[str]
    id: str | None
    cluster: str | None
    weight: str | None
    format: FormatName | None
    kind: RowKind | None
    positive: str | None
    ignore_index: int | None
    class_axis: int
    signal: str | None
    normalise: Normalisation | None
    verbalised: str | None
    outcomes: Sequence[StrPath]
    beside: Sequence[StrPath]
    labelled: bool


def _option(
    help: str,
    default: Any = None,
    *,
    metavar: str = "NAME",
    rare: bool = False,
    log: bool = False,
    formerly: Mapping[str, str] | None = None,
) -> Any:
    """Return a field that is an option of commands too.

    Args:
        help: what it is for.
        default: its value unless given.
        metavar: stands for its value in help texts.
        rare: whether only rows that aren't one class of several each need it.
        log: whether only logs of evaluations of language models need it.
        formerly: options that it replaces, each with what is typed now.
    """
    panel = "Kinds of predictions" if rare else "Reading the file"
    panel = "Language models" if log else panel
    about = {"help": help, "metavar": metavar, "panel": panel, "formerly": formerly or {}}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class ReadOptions:
    """How the rows of a file are read. By default columns with the usual names are read.

    A name is a key or a column of the file. Every field may be used for every kind of predictions.

    Attributes:
        scores: the key or column that holds the scores; a pattern such as ``"score_*"`` for one
            column a class; or the names of these columns, a sequence or separated by commas.
        are: what the scores are. ``"probs"`` or ``"logits"``, one a class, or ``"log-probs"``;
            ``"prob"`` or ``"logit"`` of the positive class; ``"confidence"`` in a predicted class;
            ``"percent"``, any of these probabilities times 100; ``"score"``, a real number that
            is higher where `correct` is likelier. None: as they are named.
        labels: true classes; beside ``.npy`` scores the file that holds them.
        labels_from: the label of class 0 if labels are numbers: 1 if they count from 1. None means
            0; a file for which 0 is hardly possible is refused.
        predicted: the predicted class of each confidence.
        correct: whether the prediction is right, 0 or 1, in place of labels.
        classes: names of the classes, in the order of their numbers; a sequence, or separated by
            commas. Columns of scores that are named after classes are put in this order.
        id: the id of each row.
        cluster: which cluster (a patient, a document) each row belongs to: whole numbers or text.
        weight: how much each row counts.
        format: the format of the file; None takes it from the extension.
        kind: ``"binary"`` for scores of one positive class, two columns of classes among them;
            ``"many-labels"`` for (N, L) scores and labels 0 and 1; ``"tokens"`` for (N, T, K)
            scores, or pixels, with (N, T) labels. None: a row a prediction.
        positive: label of the positive class, if labels aren't 0 and 1.
        ignore_index: for tokens, the label of positions to leave out; None for none.
        class_axis: for tokens and pixels, the axis of the classes: 1 for (N, K, H, W).
        signal: for a log, which of its numbers is the confidence.
        normalise: for a log with log-likelihoods of choices, how these are normalised.
        verbalised: for a log with texts, how the texts state their confidence.
        outcomes: for a log without labels, files with the labels by id.
        beside: further logs that belong to the same set of rows.
        labelled: whether rows without labels are refused. Applying a calibrator needs no labels.

    Raises:
        InputError: an unknown word for `are`, `format` or `kind`.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> from calibrant.files import ReadOptions
        >>> np.savez("out.npz", out=[[2.0, 0.0], [0.0, 1.0]], truth=[0, 1])
        >>> cb.read_predictions("out.npz", ReadOptions("out", "logits", labels="truth"))
        <Predictions 'out.npz': 2 rows x 2 classes, logits>
    """

    scores: str | Sequence[str] | None = _option(
        "Key or column of the scores, a pattern such as 'score_*', or columns separated by commas.",
        formerly={
            "--logits-key": "--scores NAME --are logits",
            "--probs-key": "--scores NAME --are probs",
        },
    )
    are: ScoresAre | None = _option(
        "What the scores are: probs, logits, log-probs, prob, logit, confidence, percent or score.",
        metavar="WORD",
    )
    labels: StrPath | None = _option(
        "Key or column of the labels; with .npy scores, the file of labels.",
        formerly={"--labels-key": "--labels", "--label-column": "--labels"},
    )
    labels_from: int | None = _option(
        "Label of the first class, if labels don't count from 0.", metavar="N"
    )
    predicted: str | None = _option("Key or column of the predicted class.")
    correct: str | None = _option("Key or column that says whether a row is right, 0 or 1.")
    classes: str | Sequence[str] = _option(
        "Names of the classes, in their order, separated by commas.",
        (),
        metavar="NAMES",
        formerly={"--class-columns": "--classes NAMES --are WORD"},
    )
    id: str | None = _option("Key or column of the id of each row.")
    cluster: str | None = _option(
        "Key or column of the cluster (a patient, a document) of each row. Rows of a cluster are "
        "resampled, split and held out together."
    )
    weight: str | None = _option("Key or column of the weight of each row, if not 'weight'.")
    format: FormatName | None = _option(
        "Format of the file, if not that of its extension.", metavar="WORD"
    )
    kind: RowKind | None = _option(
        "Kind of rows: binary, many-labels or tokens.", metavar="WORD", rare=True
    )
    positive: str | None = _option(
        "Label of the positive class, where labels aren't 0 and 1.", metavar="LABEL", rare=True
    )
    ignore_index: int | None = _option(
        "Label of tokens and pixels to leave out.", IGNORE_INDEX, metavar="N", rare=True
    )
    class_axis: int = _option(
        "Axis of the classes of tokens and pixels, 1 for (N, K, H, W).", -1, metavar="N", rare=True
    )
    signal: str | None = _option(
        "Which number of a log is the confidence. If a log has several, the output names them.",
        log=True,
    )
    normalise: Normalisation | None = _option(
        "How log-likelihoods of choices are normalised: none, chars, bytes, tokens, or "
        "unconditional (minus those without the question). Default: as the log's own accuracy is.",
        metavar="WORD",
        log=True,
    )
    verbalised: str | None = _option(
        "How answers state their confidence: {percent}, {fraction} or {tenths} stands for the "
        "number, as in 'Confidence: {percent}%', and {high=0.9|low=0.3} for words with what they "
        "mean. The last match counts.",
        metavar="PATTERN",
        log=True,
    )
    outcomes: Sequence[StrPath] = _option(
        "Outcomes by id: JSON lines or a table; may be repeated.", (), metavar="FILE", log=True
    )
    beside: Sequence[StrPath] = ()
    labelled: bool = True

    def __post_init__(self) -> None:
        for name, known in (
            ("are", ScoresAre),
            ("kind", RowKind),
            ("format", FormatName),
            ("normalise", Normalisation),
        ):
            value = getattr(self, name)
            if value is not None and value not in get_args(known):
                more = ""
                if name == "kind" and value in (*get_args(ScoresAre), "toplabel"):
                    are = "confidence" if value == "toplabel" else value
                    more = f"; say what the scores are with are='{are}' (--are {are})"
                raise InputError(
                    f"{name} must be one of {', '.join(get_args(known))}, not {value!r}{more}"
                )
        # Equal options compare equal, however they were written.
        classes = names_in(self.classes) if isinstance(self.classes, str) else self.classes
        object.__setattr__(self, "classes", tuple(str(name) for name in classes))
        if self.labels is not None:
            object.__setattr__(self, "labels", fspath(self.labels))
        for name in ("outcomes", "beside"):
            given = getattr(self, name)
            single = isinstance(given, str | PathLike)
            several = cast(Sequence[Any], [given] if single else given)
            object.__setattr__(self, name, tuple(str(path) for path in several))
        if self.scores is not None and not isinstance(self.scores, str):
            object.__setattr__(self, "scores", tuple(self.scores))

    def but(self, **fields: Unpack[ReadFields]) -> ReadOptions:
        """Return the same options with some fields changed.

        Raises:
            InputError: there is no such field.
        """
        unknown = [name for name in fields if name not in ReadFields.__annotations__]
        if unknown:
            known = ", ".join(ReadFields.__annotations__)
            raise InputError(f"there is no option {unknown[0]!r}; there are {known}")
        return replace(self, **fields)
