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


class Said(NamedTuple):
    """A prediction that waits: its confidence, its class if the outcome will be a label, group."""

    confidence: float
    predicted: int | None
    group: str | None


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
        predictions: by id; outcomes: by id, whether right or the true label.
        done: hashes of the ids that were counted, the oldest first.
        repeated: rows left out because their id was there before.
        given_up: predictions and outcomes that waited too long.
    """

    most: int
    predictions: dict[str, Said] = field(default_factory=dict[str, Said])
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    done: dict[int, None] = field(default_factory=dict[int, None])
    repeated: int = 0
    given_up: int = 0

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

    def learn(self, key: Hashable, outcome: int) -> Joined | None:
        """Take an outcome; return the row if its prediction was there.

        Args:
            key: the id.
            outcome: the true label if the prediction has a class, else 1 if it was right and 0 if
                it was wrong.
        """
        name = str(key)
        if name in self.outcomes or _hash(name) in self.done:
            self.repeated += 1
            return None
        if name in self.predictions:
            return self._join(name, self.predictions.pop(name), outcome)
        self.outcomes[name] = outcome
        self._bound(self.outcomes)
        return None

    def _join(self, name: str, said: Said, outcome: int) -> Joined:
        self.done[_hash(name)] = None
        while len(self.done) > self.most:
            del self.done[next(iter(self.done))]
        right = bool(outcome) if said.predicted is None else said.predicted == outcome
        return Joined(said.confidence, right, said.group)

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
        done = dict.fromkeys(arrays["done"].tolist())
        return cls(most, said, outcomes, done, repeated, given_up)

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
