"""The ECE of rows of which one column is being changed, at a cost of N a candidate and not N K.

Scaling class k leaves the other classes of a row as they are. Of those, the confidence needs only
the largest score, where it stands, and the sum of their exponentials relative to it.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray, row_chunks
from calibrant.posthoc.fitting.binned_gap import binned_gaps


class ColumnSearch:
    """Scores beta_k z_k of (N, K) rows whose beta_k are changed one class at a time.

    Attributes:
        betas: (K,) as they are now.
    """

    def __init__(self, logits: FloatArray, labels: IntArray, beta: FloatArray, n_bins: int) -> None:
        """Take over finite float64 rows, which are scanned by column from now on."""
        self._columns = np.asfortranarray(logits)
        self._labels = labels
        self.betas = np.array(beta, dtype=np.float64)
        self._bins = n_bins
        rows = len(labels)
        self._first, self._second = np.empty(rows), np.empty(rows)
        self._first_at, self._second_at = (np.empty(rows, dtype=np.int64) for _ in range(2))
        self._total = np.empty(rows)
        every: IntArray = np.arange(rows)
        for part in row_chunks(logits):
            self._scan(every[part])

    def _scan(self, rows: IntArray) -> None:
        """Find the two largest scores of some rows, and the sum of exponentials below the first."""
        scores = self._columns[rows] * self.betas
        index = np.arange(len(rows))
        first = scores.argmax(axis=1)
        top = scores[index, first]
        self._first[rows], self._first_at[rows] = top, first
        self._total[rows] = np.exp(scores - top[:, None]).sum(axis=1)
        scores[index, first] = -np.inf
        second = scores.argmax(axis=1)
        self._second[rows], self._second_at[rows] = scores[index, second], second

    def shares(self) -> FloatArray:
        """Return the (K,) mean probabilities of the classes."""
        shares = np.empty(len(self.betas))
        for k, beta in enumerate(self.betas):
            column = self._columns[:, k] * beta
            shares[k] = np.mean(np.exp(column - self._first) / self._total)
        return shares

    def error(self) -> tuple[float, float]:
        """Return ECE and accuracy as things are now."""
        correct = np.asarray(self._first_at == self._labels, dtype=np.bool_).reshape(1, -1)
        errors, accuracies = self._measure(1 / self._total.reshape(1, -1), correct)
        return float(errors[0]), float(accuracies[0])

    def try_class(self, k: int, betas: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the ECE and the accuracy with each of `betas` for class `k`."""
        column = self._columns[:, k]
        largest, at, rest = self._others(k, column)
        # As argmax has it, the first of tied classes is the predicted one.
        before = k < at
        right_if_k: BoolArray = np.asarray(self._labels == k, dtype=np.bool_)
        right_if_other: BoolArray = np.asarray(at == self._labels, dtype=np.bool_)
        lead = betas[:, None] * column - largest
        wins = (lead > 0) | ((lead == 0) & before)
        small = np.exp(-np.abs(lead))
        correct = (wins & right_if_k) | (~wins & right_if_other)
        confidence = 1 / np.where(lead > 0, 1 + rest * small, rest + small)
        return self._measure(confidence, np.asarray(correct, dtype=np.bool_))

    def take(self, k: int, beta: float) -> None:
        """Set class `k`'s beta for good."""
        column = self._columns[:, k]
        old = column * self.betas[k]
        new = column * beta
        self.betas[k] = beta
        # Where class k is or comes among the two largest, everything is found afresh.
        rescan = (self._first_at == k) | (self._second_at == k) | (new >= self._second)
        kept = ~rescan
        first = self._first[kept]
        self._total[kept] += np.exp(new[kept] - first) - np.exp(old[kept] - first)
        rows = np.flatnonzero(rescan)
        for part in row_chunks(self._columns):
            if len(rows[part]):
                self._scan(rows[part])

    def _others(self, k: int, column: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return the largest score but class k's, its class, and the sum of exponentials to it."""
        leads = self._first_at == k
        largest = np.where(leads, self._second, self._first)
        at = np.where(leads, self._second_at, self._first_at)
        below = column * self.betas[k] - self._first
        rest = self._total - np.exp(below)
        # What a leading class leaves of the sum may be lost to rounding.
        rows = np.flatnonzero(leads)
        for part in row_chunks(self._columns):
            some = rows[part]
            if len(some):
                scores = self._columns[some] * self.betas
                scores[:, k] = -np.inf
                rest[some] = np.exp(scores - largest[some, None]).sum(axis=1)
        return largest, at, rest

    def _measure(self, confidence: FloatArray, correct: BoolArray) -> tuple[FloatArray, FloatArray]:
        errors = binned_gaps(confidence, correct.astype(np.float64), self._bins)
        return errors, correct.mean(axis=1)
