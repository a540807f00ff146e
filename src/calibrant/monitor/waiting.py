"""Outcomes that come late: joined with their predictions by id, in any order, counted once."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError


class Said(NamedTuple):
    """A prediction that waits: its confidence, its class if the outcome will be a label, group."""

    confidence: float
    predicted: int | None
    group: str | None


class Outcome(NamedTuple):
    """What came true: the true label, or whether the prediction was right (1) or wrong (0)."""

    value: int
    is_label: bool

    def right(self, predicted: int | None) -> bool:
        """Return whether the prediction was right; a label needs to know of which class it was."""
        return predicted == self.value if self.is_label else bool(self.value)


class Joined(NamedTuple):
    """A prediction whose outcome is known."""

    confidence: float
    correct: bool
    group: str | None


@dataclass
class Waiting:
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

    def check(self, key: Hashable, predicted: int | None, outcome: Outcome | None = None) -> None:
        """Raise `PredictionsError` for a label that would meet a prediction without its class.

        Args:
            key: the id.
            predicted: the class of a prediction that comes, or None.
            outcome: what came true, if that is what comes.
        """
        name = str(key)
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
        name = str(key)
        if name in self.predictions or _hash(name) in self.done:
            self.repeated += 1
            return False, None
        if name in self.outcomes:
            return True, self._join(name, said, self.outcomes.pop(name))
        self.predictions[name] = said
        self._bound(self.predictions)
        return True, None

    def learn(self, key: Hashable, outcome: Outcome) -> Joined | None:
        """Take an outcome; return the row if its prediction was there."""
        name = str(key)
        if name in self.outcomes or _hash(name) in self.done:
            self.repeated += 1
            return None
        if name in self.predictions:
            return self._join(name, self.predictions.pop(name), outcome)
        self.outcomes[name] = outcome
        self._bound(self.outcomes)
        return None

    def _join(self, name: str, said: Said, outcome: Outcome) -> Joined:
        self.done[_hash(name)] = None
        while len(self.done) > self.most:
            del self.done[next(iter(self.done))]
        return Joined(said.confidence, outcome.right(said.predicted), said.group)

    def _bound(self, waiting: dict[str, Any]) -> None:
        while len(waiting) > self.most:
            del waiting[next(iter(waiting))]
            self.given_up += 1

    def pack(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        text = json.dumps([self.predictions, self.outcomes, self.repeated, self.given_up])
        return {
            "waiting": np.frombuffer(zlib.compress(text.encode()), dtype=np.uint8),
            "done": np.fromiter(self.done, dtype=np.int64, count=len(self.done)),
        }

    @classmethod
    def unpack(cls, most: int, arrays: dict[str, NDArray[Any]]) -> Waiting:
        """Return what `pack` made arrays of."""
        predictions, outcomes, repeated, given_up = json.loads(
            zlib.decompress(arrays["waiting"].tobytes())
        )
        said = {name: Said(*fields) for name, fields in predictions.items()}
        known = {name: Outcome(*fields) for name, fields in outcomes.items()}
        done = dict.fromkeys(arrays["done"].tolist())
        return cls(most, said, known, done, repeated, given_up)

    def merge(self, others: Iterable[Waiting]) -> Waiting:
        """Return what waits here and in others; replicas share no id."""
        merged = Waiting(self.most)
        for one in (self, *others):
            merged.predictions |= one.predictions
            merged.outcomes |= one.outcomes
            merged.done |= one.done
            merged.repeated += one.repeated
            merged.given_up += one.given_up
        return merged


def _hash(name: str) -> int:
    """Return 64 bits of an id, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
