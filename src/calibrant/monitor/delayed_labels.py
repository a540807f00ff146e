"""Outcomes that come late, joined with their predictions by id; and rows without any outcome."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray
from calibrant.core.errors import PredictionsError
from calibrant.core.text import counted
from calibrant.evaluation.formatting import percent
from calibrant.monitor.latest import beginning, forget
from calibrant.monitor.windows import named

# Hours and groups by which those that wait are counted, at most.
MOST_SHOWN = 48
# Ids and names are kept by the hundred thousand.
MOST_CHARACTERS = 256


class Said(NamedTuple):
    """A prediction that waits: confidence, class if the outcome will be a label, and whereof.

    That is its group, its cluster, and the hour in which it was made.
    """

    confidence: float
    predicted: int | None
    group: str | None = None
    cluster: str | None = None
    hour: int | None = None


class Outcome(NamedTuple):
    """What came true: the true label, or whether the prediction was right (1) or wrong (0)."""

    value: int
    is_label: bool

    def right(self, predicted: int | None) -> bool:
        """Return whether the prediction was right; a label needs to know of which class it was."""
        return predicted == self.value if self.is_label else bool(self.value)


class Joined(NamedTuple):
    """A prediction whose outcome is known: its true label, -1 where only that it was right is.

    `origin` is a hash of what its id begins with.
    """

    confidence: float
    correct: bool
    group: str | None
    cluster: str | None
    hour: int | None
    origin: int
    key: str
    label: int


class Waiting(NamedTuple):
    """How many predictions wait for their outcome, and what became of others.

    Attributes:
        predictions: that wait; outcomes: that wait for their prediction.
        repeated: left out because their id was there before; given_up: waited too long.
    """

    predictions: int
    outcomes: int
    repeated: int
    given_up: int

    def __str__(self) -> str:
        parts = [
            f"{counted(self.predictions, 'prediction')} without outcome yet",
            f"{counted(self.outcomes, 'outcome')} without prediction yet",
            f"{self.repeated} left out because their id had come before",
            f"{self.given_up} given up after waiting too long",
        ]
        return f"{'; '.join(parts)}."


class Pending(NamedTuple):
    """How many predictions wait for their outcome, by hour in which they were made and by group."""

    hours: dict[str, int]
    groups: dict[str, int]


@dataclass
class DelayedLabels:
    """Predictions without an outcome yet, outcomes without a prediction, and ids that are done.

    Each kind is bounded: beyond `most`, the oldest is given up (of predictions and outcomes), or
    forgotten (of ids that are done, so that one that comes again counts anew).

    Attributes:
        most: of each kind.
        predictions: by id; outcomes: by id.
        done: hashes of the ids that were counted, the oldest first.
        repeated: rows left out because their id was there before.
        given_up: predictions and outcomes that waited too long.
    """

    most: int
    predictions: dict[str, Said] = field(default_factory=dict[str, Said])
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    done: dict[int, None] = field(default_factory=dict[int, None])
    repeated: int = 0
    given_up: int = 0

    def counts(self) -> Waiting:
        """Return how many wait, came again and were given up."""
        return Waiting(len(self.predictions), len(self.outcomes), self.repeated, self.given_up)

    def check(self, key: Hashable, predicted: int | None, outcome: Outcome | None = None) -> None:
        """Raise `PredictionsError` for a label that would meet a prediction without its class.

        Args:
            key: the id.
            predicted: the class of a prediction that comes, or None.
            outcome: what came true, if that is what comes.
        """
        name = name_of(key)
        said = self.predictions.get(name)
        known = outcome or self.outcomes.get(name)
        if outcome is not None:
            if said is None:
                return
            predicted = said.predicted
        if known is not None and known.is_label and predicted is None:
            raise PredictionsError(
                f"id '{name}': a label needs the predicted class beside the confidence; otherwise "
                "say whether the prediction was correct"
            )

    def predict(self, key: Hashable, said: Said) -> tuple[bool, Joined | None]:
        """Take a prediction; return whether it is new, and the row if its outcome was there."""
        name = name_of(key)
        if name in self.predictions or hash_of_name(name) in self.done:
            self.repeated += 1
            return False, None
        if name in self.outcomes:
            return True, self._join(name, said, self.outcomes.pop(name))
        self.predictions[name] = said
        self._bound(self.predictions)
        return True, None

    def learn(self, key: Hashable, outcome: Outcome) -> Joined | None:
        """Take an outcome; return the row if its prediction was there."""
        name = name_of(key)
        if name in self.outcomes or hash_of_name(name) in self.done:
            self.repeated += 1
            return None
        if name in self.predictions:
            return self._join(name, self.predictions.pop(name), outcome)
        self.outcomes[name] = outcome
        self._bound(self.outcomes)
        return None

    def _join(self, name: str, said: Said, outcome: Outcome) -> Joined:
        self.done[hash_of_name(name)] = None
        forget(self.done, self.most)
        start = beginning(name)
        origin = 0 if start is None else hash_of_name(start)
        right = outcome.right(said.predicted)
        label = outcome.value if outcome.is_label else -1
        return Joined(said.confidence, right, *said[2:], origin, name, label)

    def _bound(self, waiting: dict[str, Any]) -> None:
        self.given_up += forget(waiting, self.most)

    def pending(self) -> Pending:
        """Return how many predictions wait by hour and by group, as far as these are known."""
        said = self.predictions.values()
        hours = Counter(one.hour for one in said if one.hour is not None)
        groups = Counter(one.group for one in said if one.group is not None)
        latest = sorted(hours.items())[-MOST_SHOWN:]
        return Pending({named(hour): n for hour, n in latest}, dict(groups.most_common(MOST_SHOWN)))

    def pack(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays: JSON as it is, which no reader can unpack to gigabytes."""
        text = json.dumps([self.predictions, self.outcomes, self.repeated, self.given_up])
        return {
            "waiting": np.frombuffer(text.encode(), dtype=np.uint8),
            "done": np.fromiter(self.done, dtype=np.int64, count=len(self.done)),
        }

    def merge(self, others: Iterable[DelayedLabels]) -> DelayedLabels:
        """Return what waits here and in others; replicas share no id."""
        merged = DelayedLabels(self.most)
        for one in (self, *others):
            merged.predictions |= one.predictions
            merged.outcomes |= one.outcomes
            merged.done |= one.done
            merged.repeated += one.repeated
            merged.given_up += one.given_up
        merged._bound(merged.predictions)
        merged._bound(merged.outcomes)
        forget(merged.done, merged.most)
        return merged


def name_of(key: object) -> str:
    """Return an id, or the name of a group or cluster, as text; a long one ends in its hash."""
    name = str(key)
    return name if len(name) <= MOST_CHARACTERS else f"{name[:64]}... {_digest(name, 16).hex()}"


def hash_of_name(name: str) -> int:
    """Return 64 bits of a name, the same in every process."""
    return int.from_bytes(_digest(name, 8), "little", signed=True)


def _digest(name: str, size: int) -> bytes:
    """Return a hash of a name, which may hold half a surrogate pair."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).digest()


BLIND = (
    "This holds only while the confidences are calibrated; only outcomes show a change of what the "
    "inputs mean."
)
NORMAL_95 = 1.959963984540054


@dataclass
class Unlabelled:
    """Sums over rows without an outcome.

    With p the confidences, the expected accuracy is their mean, and the accuracy itself lies about
    it with deviation sqrt(sum p (1 - p)) / n (the confidence-based estimate that NannyML calls
    CBPE).

    Attributes:
        rows: how many there are.
        total: sum of p; variance: sum of p (1 - p).
    """

    rows: int = 0
    total: float = 0.0
    variance: float = 0.0

    def add(self, confidence: FloatArray, sign: int = 1) -> None:
        """Add (n,) rows, or with `sign` -1 take them out, their outcomes being known now."""
        self.rows += sign * len(confidence)
        self.total += sign * float(confidence.sum())
        self.variance += sign * float((confidence * (1 - confidence)).sum())

    def __add__(self, other: Unlabelled) -> Unlabelled:
        """Return the sums of both sets of rows."""
        return Unlabelled(
            self.rows + other.rows, self.total + other.total, self.variance + other.variance
        )

    @property
    def expected_accuracy(self) -> tuple[float, float, float] | None:
        """The expected accuracy, and the ends that hold the accuracy in 95 % of cases."""
        if self.rows == 0:
            return None
        mean = float(np.clip(self.total / self.rows, 0.0, 1.0))
        half = NORMAL_95 * max(self.variance, 0.0) ** 0.5 / self.rows
        return mean, max(mean - half, 0.0), min(mean + half, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return what is known as JSON takes it."""
        value, low, high = self.expected_accuracy or (None, None, None)
        return {
            "rows": self.rows,
            "expected_accuracy": value,
            "low": low,
            "high": high,
            "blind_to": BLIND,
        }

    def __str__(self) -> str:
        found = self.expected_accuracy
        if found is None:
            return "Every row has its outcome."
        value, low, high = (percent(number) for number in found)
        return (
            f"{counted(self.rows, 'row')} without outcome: expected accuracy {value} % "
            f"({low} to {high}). {BLIND}"
        )
