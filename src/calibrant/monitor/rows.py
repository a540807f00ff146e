"""Rows as JSON, one object a line, as a server writes them.

=============================================  =================================================
``"confidence"`` with ``"correct"``            probability of the predicted class, and whether right
``"confidence", "predicted", "label"``         the same with both classes
``"probs"`` or ``"logits"`` with ``"label"``   a number for each class, the true class
``"prob"`` or ``"logit"`` with ``"label"``     of class 1, the true class (0 or 1)
``"id"`` beside any of them                    the row counts once, however often it comes
``"id"`` with ``"label"`` or ``"correct"``     the outcome of a prediction that comes apart
=============================================  =================================================

Scores of classes are read by the rules of files: lists, objects by class name, ``prob_0`` and so on
(`calibrant.files.schema`). `predicted` and `pred_label` mean the same, and so do `label`, `labels`
and `true_label`; other keys are ignored. A prediction without its outcome counts as a row without
outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any, cast

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray, to_numpy
from calibrant.core.errors import InputError, PredictionsError, heard_warnings
from calibrant.files.assembly import Assembler, array_of
from calibrant.files.formats.json_lines import JsonLinesReader, flat_row
from calibrant.files.gate import readable
from calibrant.files.options import ReadOptions
from calibrant.files.schema import CORRECT, LABELS, PREDICTED, choose
from calibrant.monitor.delayed_labels import Outcome
from calibrant.monitor.first_rows import FirstRows
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.sequential_tests import Alarm
from calibrant.monitor.windows import hour_of
from calibrant.predictions.predictions import NO_PROBABILITY, Predictions
from calibrant.predictions.scoring import said_of_top

FORMS = ("confidence", "prob", "probs", "logits")
# How scores of classes are called, whole and column by column; lists where they are whole.
SCORES, STEMS = {"prob", "probs", "logit", "logits"}, {"prob", "logit"}
LISTS = ("probs", "logits")
# Numbers of classes that an array holds; far more than there are.
MOST_CLASSES = 2**31 - 1
# Scores that nobody says are calibrated would make a decision's promise look broken.
NOT_APPLIED = (
    "with --decision rows hold what the decision made of them, or a calibrated 'confidence'; write "
    "them with calibrant apply DECISION FILE --out OUT"
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """How rows are read.

    Attributes:
        by: the key whose value is a row's group, or ``"class"`` for the predicted class; or None.
        of: the class whose probability is watched; None for the predicted one.
        key: where a row's id stands.
        skip_broken: whether lines that hold no usable row are left out, and counted; see
            `Unreadable`.
        waits: whether half a line at the end of a file is left for the next run, since whoever
            writes it may be at work.
        time: the key of when a row was predicted, or None.
        acted: what `apply` writes of a decision, which rows with scores must hold, as the proof
            that these are calibrated; None without a decision.
        read: names of keys other than the usual ones, and what the scores are.
        outcomes_apart: whether outcomes come from files of their own.

    Raises:
        InputError: several predictions a row, which only files hold.
    """

    by: str | None = None
    of: int | None = None
    key: str = "id"
    skip_broken: bool = False
    waits: bool = False
    time: str | None = None
    acted: str | None = None
    read: ReadOptions = field(default_factory=ReadOptions)
    outcomes_apart: bool = False

    @property
    def cluster(self) -> str | None:
        """The key whose value is a row's cluster, or None."""
        return self.read.cluster


def parse(lines: Sequence[bytes], numbers: Sequence[int], source: str) -> list[Row]:
    """Return the objects of some lines, each of which has a number in its file.

    Raises:
        PredictionsError: a line is no JSON object.
    """
    with suppress(ValueError, RecursionError):  # all at once is quicker, and names no line
        together: Any = json.loads(b"[" + b",".join(lines) + b"]")
        if len(together) == len(lines) and all(type(row) is dict for row in together):
            return together
    rows: list[Row] = []
    for number, line in zip(numbers, lines, strict=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            shown = line[:100].decode("utf-8", "replace")
            raise PredictionsError(
                f"{source}: line {number}: expected a JSON object, found {shown!r:.60}"
            )
        rows.append(cast(Row, row))
    return rows


def is_half(line: bytes) -> bool:
    """Return whether a line that nothing ends isn't a whole object yet."""
    try:
        return not isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return True


def plain(rows: Sequence[Row], reading: Reading) -> tuple[FloatArray, BoolArray] | None:
    """Return confidences and outcomes of rows that hold just these, and well; or else None."""
    told = (reading.by, reading.of, reading.time) != (None, None, None)
    told = told or reading.read != ReadOptions()
    if told or any(reading.key in row for row in rows):
        return None
    try:
        said = [row["confidence"] for row in rows]
        right = [row["correct"] for row in rows]
    except KeyError:
        return None
    if {type(p) for p in said} != {float} or {type(y) for y in right} != {bool}:
        return None
    confidence = np.array(said, dtype=np.float64)
    usable = bool(((confidence >= 0) & (confidence <= 1)).all())
    return (confidence, np.array(right, dtype=np.bool_)) if usable else None


def scored(
    rows: Sequence[Row],
    reading: Reading,
    numbers: Sequence[int],
    source: str,
    first: FirstRows | None = None,
) -> Scored:
    """Return what rows say, and what came true.

    Args:
        rows: n objects.
        reading: how to read them.
        numbers: of their lines.
        source: begins the error messages.
        first: takes them up, if they are among the first ones of a stream.

    Raises:
        PredictionsError: a row isn't usable.
    """
    rows, n = [_renamed(row, reading.read) for row in rows], len(rows)
    if reading.read.kind in ("many-labels", "tokens"):
        raise InputError(
            f"{source}: lines hold one prediction each; {reading.read.kind} are read from files "
            "such as npz"
        )
    confidence, predicted = np.full(n, np.nan), np.full(n, -1, dtype=np.int64)
    # Of rows that hold scores of classes: the classes by name, or how many there are.
    classes: list[Sequence[str] | int | None] = [None] * n
    forms = [_form(row, reading.read) for row in rows]
    places = [f"{source}: line {number}" for number in numbers]
    labels_from = reading.read.labels_from or 0
    for i, form in enumerate(forms):
        if form == "confidence":
            _outcome(rows[i], None, places[i], labels_from)
            confidence[i], predicted[i] = _confidence(rows[i], reading, places[i])
        elif form == "scores" and reading.acted is not None and reading.acted not in rows[i]:
            raise PredictionsError(f"{places[i]}: {NOT_APPLIED}")
    looked: list[tuple[list[int], Predictions, tuple[str, ...]]] = []
    for at in _alike(rows, forms):
        where = places[at[0]]
        if len(at) > 1:
            where = f"{source}: lines {numbers[at[0]]} to {numbers[at[-1]]}"
        held = _HeldRows([rows[i] for i in at], [numbers[i] for i in at], source, reading.read)
        with heard_warnings() as heard:
            some, names = held.predictions(where)
        if first is not None:
            first.hear(heard)
        looked.append((at, some, names))
        of = 1 if reading.of is None and some.binary else reading.of
        confidence[at], predicted[at] = score(some, of)
        for i in at:
            classes[i] = some.class_names or some.n_classes
    outcomes = [_outcome(row, classes[i], places[i], labels_from) for i, row in enumerate(rows)]
    for i, (row, form, outcome) in enumerate(zip(rows, forms, outcomes, strict=True)):
        where = places[i]
        if form is None and (outcome is None or reading.key not in row):
            raise PredictionsError(
                f"{where}: expected {', '.join(FORMS)}, or '{reading.key}' with 'label' or "
                f"'correct'; found {', '.join(map(repr, row)) or 'nothing':.200}"
            )
        if form == "confidence" and outcome and outcome.is_label and predicted[i] < 0:
            raise PredictionsError(
                f"{where}: a 'label' needs the 'predicted' class beside the 'confidence'"
            )
    groups = clusters = times = None
    if reading.by is not None:
        said = predicted.tolist()
        groups = [_group(row, k, reading.by) for row, k in zip(rows, said, strict=True)]
        _beside(groups, forms, places, f"there is no '{reading.by}' to group by")
    if reading.cluster is not None:
        clusters = [None if (name := row.get(reading.cluster)) == "" else name for row in rows]
        _beside(clusters, forms, places, f"there is no '{reading.cluster}', the row's cluster")
    if reading.time is not None:
        times = [row.get(reading.time) for row in rows]
        for time, form, where in zip(times, forms, places, strict=True):
            if form is not None:
                hour_of(time, f"{where}: '{reading.time}'")
    found = Scored(
        confidence,
        predicted,
        outcomes,
        [row.get(reading.key) for row in rows],
        None if groups is None else [str(name) for name in groups],
        None if clusters is None else [str(name) for name in clusters],
        times,
        [(at, some) for at, some, _ in looked],
    )
    if first is not None and not first.enough:
        for at, some, names in looked:
            first.scores(some, [outcomes[i] for i in at], names)
        alone = [i for i, form in enumerate(forms) if form == "confidence"]
        first.top(confidence[alone], predicted[alone], [outcomes[i] for i in alone])
    return found


def _renamed(row: Row, read: ReadOptions) -> Row:
    """Return a row whose keys that were told by name have their usual names."""
    told = {read.labels: "label", read.predicted: "predicted", read.correct: CORRECT}
    if read.are == "confidence" and isinstance(read.scores, str):
        told[read.scores] = "confidence"
    return {told.get(key, key): value for key, value in row.items()}


def _form(row: Row, read: ReadOptions) -> str | None:
    """Return whether a row holds a confidence, or scores of classes under any of their names."""
    if read.scores is not None and read.are != "confidence":
        flat, told = flat_row(row), read.scores
        patterns = [told] if isinstance(told, str) else told
        found = all(any(fnmatch(key, one) for key in flat) for one in patterns)
        return "scores" if found or told in row else None
    if "confidence" in row:
        return "confidence"
    names = {key for key, value in row.items() if not isinstance(value, str)}
    stems = {name.partition("_")[0] for name in names if "_" in name}
    return "scores" if names & SCORES or stems & STEMS else None


def _alike(rows: Sequence[Row], forms: Sequence[str | None]) -> list[list[int]]:
    """Return the places of rows with scores of classes, those of the same keys together."""
    found: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        if forms[i] == "scores":
            sizes = [
                (key, len(cast(Any, value)) if isinstance(value, (list, dict)) else -1)
                for key, value in row.items()
            ]
            keys = [tuple(cast(Any, value)) for value in row.values() if isinstance(value, dict)]
            found.setdefault((*sorted(sizes), *keys), []).append(i)
    return list(found.values())


class _HeldRows(JsonLinesReader):
    """Rows that were parsed already, behind the door through which files are read."""

    def __init__(
        self, rows: Sequence[Row], numbers: Sequence[int], source: str, read: ReadOptions
    ) -> None:
        beside = {*LABELS, *PREDICTED, CORRECT}
        scores = [{key: value for key, value in row.items() if key not in beside} for row in rows]
        self._held = list(zip(numbers, scores, strict=True))
        for key in LISTS:
            for number, row in self._held:
                if key in row and not (isinstance(row[key], (list, dict)) and row[key]):
                    raise PredictionsError(
                        f"{source}: line {number}: '{key}' must be a list of numbers"
                    )
        # Labels may come later, and are matched row by row.
        told = read.but(labelled=False, labels=None, predicted=None, correct=None)
        super().__init__(source, told.but(id=None, cluster=None, weight=None))

    def lines(self) -> Iterator[Any]:
        """Yield the rows, numbered."""
        return iter(self._held)

    def flat(self, line: int, content: Any) -> Row:
        """Return a row with the keys of objects within it behind their own."""
        return flat_row(content)

    def predictions(self, where: str) -> tuple[Predictions, tuple[str, ...]]:
        """Return the scores of all rows, and the names of their fields; errors name `where`."""
        with readable(self.noun, where):
            chosen = choose(self, self.options)
            columns = self.everything(list(dict.fromkeys(chosen.named(("scores",)))))
            first = array_of(chosen, "scores", columns)
            built = Assembler(chosen, self.options, where, lambda: first).build(columns)
            return built, tuple(chosen.fields["scores"])


def _confidence(row: Row, reading: Reading, where: str) -> tuple[float, int]:
    """Return the confidence of a row, and the class that it is of, -1 where that isn't known."""
    value: Any = row["confidence"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise PredictionsError(
            f"{where}: 'confidence' must be a number from 0 to 1, not {value!r:.60}"
        )
    if reading.of is not None:
        raise PredictionsError(
            f"{where}: holds the confidence of the predicted class only, not that of class "
            f"{reading.of}; give 'probs' or 'logits', or leave out --of"
        )
    key = next((key for key in PREDICTED if key in row), None)
    return float(value), -1 if key is None else _whole(row[key], key, where)


def _outcome(
    row: Row, classes: Sequence[str] | int | None, where: str, labels_from: int
) -> Outcome | None:
    """Return whether a row says it is right, or else its true label, counted from 0."""
    if CORRECT in row:
        value = row[CORRECT]
        if value not in (0, 1):  # True and False are among them
            raise PredictionsError(f"{where}: 'correct' must be true or false, not {value!r:.60}")
        return Outcome(int(value), is_label=False)
    key = next((key for key in LABELS if key in row), None)
    if key is None or row[key] is None:
        return None
    value: Any = row[key]
    if isinstance(classes, Sequence):
        if value not in classes:
            raise PredictionsError(
                f"{where}: '{key}' must be one of the classes that the scores name, not "
                f"{value!r:.60}"
            )
        return Outcome(classes.index(value), is_label=True)
    label = _whole(value, key, where) - labels_from
    if label < 0 or (classes is not None and label >= classes):
        whole = f" among {classes}" if classes is not None else ""
        hint = "; if labels count from 1, say --labels-from 1" if label == classes else ""
        raise PredictionsError(f"{where}: there is no class {label}{whole}{hint}")
    return Outcome(label, is_label=True)


def _whole(value: Any, key: str, where: str) -> int:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not whole or value % 1 or not 0 <= value <= MOST_CLASSES:
        raise PredictionsError(
            f"{where}: '{key}' must be a whole number from 0, not {value!r:.60}; give the class by "
            "its place among the classes, or 'correct' as true or false"
        )
    return int(value)


def _group(row: Row, predicted: int, by: str) -> Any:
    """Return a row's group by a key, or by its predicted class; None where it has none."""
    if by != "class":
        return row.get(by)
    key = next((key for key in PREDICTED if key in row), None)
    return row[key] if key else None if predicted < 0 else predicted


def _beside(
    found: Sequence[Any], forms: Sequence[str | None], places: Sequence[str], what: str
) -> None:
    """Raise `PredictionsError` for a prediction without a value beside it; outcomes need none."""
    for value, form, where in zip(found, forms, places, strict=True):
        if form is not None and value is None:
            raise PredictionsError(f"{where}: {what}")


@dataclass(frozen=True)
class Scored:
    """n rows.

    Attributes:
        confidence: (n,) what was said; NaN for outcomes that come alone.
        predicted: (n,) the class that it is the probability of; -1 where that isn't known.
        outcomes: (n,) what came true; None where it isn't known.
        ids: (n,) or None each.
        groups: (n,) names, or None; clusters: (n,) names, or None.
        times: (n,) when rows were predicted, or None.
        scores: rows with scores of classes: their places, and the scores.
    """

    confidence: FloatArray
    predicted: IntArray
    outcomes: Sequence[Outcome | None]
    ids: Sequence[object]
    groups: list[str] | None
    clusters: list[str] | None = None
    times: list[Any] | None = None
    scores: Sequence[tuple[Sequence[int], Predictions]] = ()

    def feed(
        self, monitor: Monitor, unreadable: Callable[[PredictionsError], None] | None = None
    ) -> list[Alarm]:
        """Let a monitor count the rows in their order, and return the alarms that rose.

        Args:
            monitor: counts.
            unreadable: takes rows that don't go with what came before by their id; None refuses
                them.
        """
        alarms, start, n = list[Alarm](), 0, len(self.confidence)
        for at, rows in self.scores:
            named = [k for k, i in enumerate(at) if self.ids[i] is not None]
            if named:
                ids = [str(self.ids[at[k]]) for k in named]
                monitor.remember(ids, rows.take(np.array(named)))
        while start < n:
            kind, stop = self._kind(start), start + 1
            while stop < n and self._kind(stop) == kind:
                stop += 1
            if self.ids[start] is None:
                alarms += self._update(monitor, slice(start, stop))
            else:
                steps = [self._predict] if kind[0] != "outcome" else []
                steps += [self._learn] if kind[0] != "prediction" else []
                for step in steps:
                    alarms += _taken(step, monitor, range(start, stop), unreadable)
            start = stop
        return alarms

    def late(self, monitor: Monitor) -> tuple[list[float], list[Outcome | None], list[int]]:
        """Return what was said of the rows whose outcome comes alone, and came before or here."""
        own = {
            str(key): (float(said), int(predicted))
            for key, said, predicted in zip(self.ids, self.confidence, self.predicted, strict=True)
            if key is not None and not np.isnan(said)
        }
        alone = [i for i in range(len(self.ids)) if self._kind(i)[0] == "outcome"]
        known = [(i, monitor.said_of(self.ids[i]) or own.get(str(self.ids[i]))) for i in alone]
        found = [(said, self.outcomes[i]) for i, said in known if said is not None]
        return [s[0] for s, _ in found], [y for _, y in found], [s[1] for s, _ in found]

    def _kind(self, i: int) -> tuple[str, bool, bool]:
        """Return what a row is, whether its outcome is a label, and whether its class is known."""
        outcome, known = self.outcomes[i], self.outcomes[i] is not None
        also = outcome is not None and outcome.is_label, bool(self.predicted[i] >= 0)
        if self.ids[i] is None:
            return ("row" if known else "unlabelled"), False, False
        if np.isnan(self.confidence[i]):
            return "outcome", *also
        return ("both" if known else "prediction"), *also

    def _update(self, monitor: Monitor, part: slice) -> Sequence[Alarm]:
        said, groups = self.confidence[part], None if self.groups is None else self.groups[part]
        if self.outcomes[part.start] is None:
            return monitor.update(said)
        right = [
            outcome is not None and outcome.right(None if predicted < 0 else predicted)
            for outcome, predicted in zip(
                self.outcomes[part], self.predicted[part].tolist(), strict=True
            )
        ]
        clusters = None if self.clusters is None else self.clusters[part]
        times = None if self.times is None else self.times[part]
        hits, scores = np.array(right, dtype=np.bool_), self._scores(part)
        return monitor.update(said, hits, groups, clusters, times, scores)

    def _scores(self, part: slice) -> Predictions | None:
        """Return the scores of some rows with their labels, if all have both."""
        outcomes = [outcome for outcome in self.outcomes[part] if outcome is not None]
        alike = len(self.scores) == 1 and len(self.scores[0][0]) == len(self.outcomes)
        if not alike or not all(outcome.is_label for outcome in outcomes):
            return None
        labels = np.array([outcome.value for outcome in outcomes], dtype=np.int64)
        rows = self.scores[0][1].take(np.arange(len(self.outcomes))[part])
        return replace(rows, known_labels=labels)

    def _predict(self, monitor: Monitor, part: slice) -> Sequence[Alarm]:
        known = bool(self.predicted[part.start] >= 0)
        groups, clusters, times = (
            None if column is None else column[part]
            for column in (self.groups, self.clusters, self.times)
        )
        predicted = self.predicted[part] if known else None
        keys = [str(key) for key in self.ids[part]]
        return monitor.predict(keys, self.confidence[part], predicted, groups, clusters, times)

    def _learn(self, monitor: Monitor, part: slice) -> Sequence[Alarm]:
        outcomes = [outcome for outcome in self.outcomes[part] if outcome is not None]
        values = np.array([outcome.value for outcome in outcomes], dtype=np.int64)
        keys = [str(key) for key in self.ids[part]]
        if outcomes[0].is_label:
            return monitor.learn(keys, values)
        return monitor.learn(keys, correct=values)


def _taken(
    step: Callable[[Monitor, slice], Sequence[Alarm]],
    monitor: Monitor,
    rows: range,
    unreadable: Callable[[PredictionsError], None] | None,
) -> list[Alarm]:
    """Let a monitor take rows, all at once or, where one can't be, all others."""
    try:
        return list(step(monitor, slice(rows.start, rows.stop)))
    except PredictionsError as error:
        if unreadable is None:
            raise
        if len(rows) == 1:
            unreadable(error)
            return []
    return [a for i in rows for a in _taken(step, monitor, range(i, i + 1), unreadable)]


def score(predictions: Predictions, of: int | None) -> tuple[FloatArray, IntArray]:
    """Return (n,) confidences and the (n,) classes that they are of.

    Args:
        predictions: of any kind, with or without labels.
        of: the class whose probability counts; None for each row's predicted one.

    Raises:
        InputError: there is no such class.
    """
    if predictions.kind == "score":
        raise PredictionsError(f"{predictions.source}: a monitor {NO_PROBABILITY}")
    if of is None:
        return said_of_top(predictions)
    if predictions.kind == "toplabel":
        raise InputError(
            f"{predictions.source}: holds the confidence of the predicted class only, not that of "
            f"class {of}"
        )
    rows = to_numpy(predictions.probs)
    if not 0 <= of < rows.shape[1]:
        raise InputError(f"{predictions.source}: there is no class {of} among {rows.shape[1]}")
    return rows[:, of].astype(np.float64), np.full(len(rows), of, dtype=np.int64)
