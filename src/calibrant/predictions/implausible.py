"""What rows look like that are no rows of a test, each sign by itself: a part of the look at rows.

Scores of classes that are none; rows that occur more than once, of which 64 bits each are kept, or
are shared by two sets; and labels that belong to other rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray, namespace, to_numpy
from calibrant.core.weights import mixed
from calibrant.predictions.constructors import RowTable
from calibrant.predictions.rounding import lost_in_sums
from calibrant.predictions.rows import softmax

# Rows that are looked at first, where what holds for all has to hold for some.
FIRST = 64
# Fewer rows say nothing about all of them.
FEW = 20
# By such parts of its spread a mean may be off, as written or by its rounding.
PARTS = (1e-9, 1e-6, 5e-4)
# What the constructors warn of themselves.
PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class Finding:
    """What rows look like that they aren't taken for.

    Attributes:
        what: a word for it.
        sentence: what was seen, and what it may mean.
        fix: options, as `ReadOptions` names them, that read the rows otherwise.
        keep: options that say that they are what they are taken for.
        certain: whether they can hardly be what they are taken for.
    """

    what: str
    sentence: str
    fix: Mapping[str, Any] = field(default_factory=dict[str, Any])
    keep: Mapping[str, Any] = field(default_factory=dict[str, Any])
    certain: bool = False

    def said_by(self, options: Any) -> bool:
        """Return whether options say that the rows are what they are taken for."""
        kept = self.keep.items()
        return bool(kept) and all(getattr(options, name) == value for name, value in kept)


def units(logits: NDArray[Any]) -> Iterator[Finding]:
    """Yield what rows are in truth that sum to 1, or to 100, or whose exponentials do."""
    keep = {"are": "logits"}
    low, high = logits.min(), logits.max()
    if not np.isfinite([low, high]).all() or low < 0 < high:
        return
    logits = logits.astype(np.float64, copy=False)
    if low >= 0 and low < high and high <= 100:
        for total, are, word in ((1, "probs", "probabilities"), (100, "percent", "percent")):
            # Rows of a single 1 may be logits of a rule; no row of rounded numbers is as such.
            whole = total == 1 and bool(np.isin(logits, (0, 1)).all())
            lost = 1.0002 * (lost_in_sums(logits, total) or 0.0)
            slack = min(max(lost, 1e-4 * total), 0.1 * total)
            off = np.abs(logits.sum(axis=1) - total)
            if high <= total and not whole and (off <= slack).all():
                yield Finding(
                    PROBABILITIES if total == 1 and off.max() <= 1e-4 else "units",
                    f"every row of 'logits' lies in [0, {total}] and sums to {total}, as {word} do",
                    {"are": are},
                    keep,
                    certain=True,
                )
                return
    if low >= 0 and low < high <= 1 and not np.isin(logits, (0, 1)).all():
        sure = softmax(logits).max()
        yield Finding(
            "units",
            f"every number of 'logits' lies in [0, 1], so no confidence exceeds {sure:.1%}, "
            "and rows don't sum to 1: they may be sigmoids, similarities without their scale, "
            "or shares that lack a class",
            {},
            keep,
        )
    elif low >= 0:
        totals = np.exp(-logits).sum(axis=1)
        if (np.abs(totals - 1) <= 1e-3).all():
            yield Finding(
                "units",
                "the exponentials of every row of 'logits' sum to 1 once their signs are changed, "
                "so that they are negative log-probabilities; write them with the other sign",
                {},
                keep,
                certain=True,
            )
    elif high <= 0:
        for base in (2, 10):
            if abs(float(base) ** logits[0] @ np.ones(logits.shape[1]) - 1) > 1e-3:
                continue
            if (np.abs((float(base) ** logits).sum(axis=1) - 1) <= 1e-3).all():
                yield Finding(
                    "units",
                    f"{base} to the power of every row of 'logits' sums to 1, so that they are "
                    f"logarithms to the base {base}; multiply them by {np.log(base):.12g}",
                    {},
                    keep,
                    certain=True,
                )


def softmax_twice(probs: NDArray[Any]) -> Iterator[Finding]:
    """Yield probabilities whose logarithms, but for a constant a row, are probabilities too.

    Of softmax(p) log q_k = p_k - c, where c follows from the sum of p. Of other rows that are as
    near to even some p_k are negative, or most are far above 0, where a sure network's lie.
    """
    width, first = probs.shape[1], probs[:FIRST]
    if width < 3 or (first.max(axis=1) > 2.72 * first.min(axis=1)).any() or not probs.all():
        return
    logs = np.log(probs.astype(np.float64, copy=False))
    inner = logs + (1 - logs.sum(axis=1, keepdims=True)) / width
    least = inner.min(axis=1)
    if least.min() > -1e-3 and np.median(least) < 0.2 / width and inner.max() > 0.9:
        yield Finding(
            "softmax twice",
            "every row is the softmax of probabilities, so softmax was applied twice; write "
            f"the input of the second softmax, whose row 0 has {inner[0].max():.3g} instead of "
            f"{probs[0].max():.3g}",
            {},
            {"are": "probs"},
            certain=True,
        )


def derived_column(logits: NDArray[Any]) -> Iterator[Finding]:
    """Yield a column that is no class: the largest, the sum or the place of the others, a count."""
    n, width = logits.shape
    if width < 3 or not _maybe_derived(logits[:FIRST].astype(np.float64)):
        return
    logits = logits.astype(np.float64, copy=False)
    if not np.isfinite(logits).all():
        return
    if np.unique(logits.max(axis=1)).size < FEW:
        return
    ranked = np.partition(logits, width - 2, axis=1)
    best = ranked[:, -1:]
    is_best = (logits == best).all(axis=0) & (ranked[:, -2:-1] == best).all()
    is_sum = _sums_of_others(logits) & (np.ptp(logits, axis=0) > 0)
    named = [(is_best, "the largest of the others"), (is_sum, "the sum of the others")]
    whole = np.flatnonzero((logits == np.rint(logits)).all(axis=0) & (np.ptp(logits, axis=0) > 0))
    places, counts = np.zeros(width, dtype=bool), np.zeros(width, dtype=bool)
    if len(whole) < width:
        for column in whole:
            values = logits[:, column]
            rest = np.delete(logits, column, axis=1).argmax(axis=1)
            off = values - rest
            places[column] = off[0] in (0, 1) and bool((off == off[0]).all())
            counts[column] = bool((np.diff(values) > 0).all())
    named += [(places, "the number of the largest of the others"), (counts, "a number of rows")]
    for found, what in named:
        if found.any() and not found.all():
            column = int(found.argmax())
            yield Finding(
                "derived column",
                f"column {column} of the {width} of 'logits' is {what} in each of {n} rows, so that"
                " it is no class; leave it out",
                {},
                {"are": "logits"},
                certain=True,
            )
            return


def _maybe_derived(first: FloatArray) -> bool:
    """Return whether a column of the first rows may be one; of most rows these say that none is."""
    if not np.isfinite(first).all():
        return False
    largest = (first == first.max(axis=1, keepdims=True)).all(axis=0).any()
    whole = (first == np.rint(first)).all(axis=0).any()
    return bool(largest or whole or _sums_of_others(first).any())


def _sums_of_others(logits: FloatArray) -> NDArray[np.bool_]:
    """Return which columns are the sums of all others in every row."""
    total = logits.sum(axis=1, keepdims=True)
    size = np.abs(logits).sum(axis=1)[:, None]
    return (np.abs(2 * logits - total) <= 1e-5 * size).all(axis=0)


def summary_row(scores: NDArray[Any]) -> Iterator[Finding]:
    """Yield a first or last row that is the mean of all others, of (n, K) or (n,) scores."""
    columns = scores.reshape(len(scores), -1)
    n, first = len(columns), columns[:FIRST].astype(np.float64)
    if n < FEW or not np.isfinite(first).all():
        return
    usual, spread = first.mean(axis=0), first.std(axis=0)
    spread[spread <= 1e-12 * np.abs(usual)] = 0  # the rounding of a column of equal scores
    for place, word in ((-1, "last"), (0, "first")):
        row = columns[place].astype(np.float64)
        # Of most rows a few others say that they are none.
        if not (np.abs(row - usual) <= 1.5 * spread + 1e-12).all() or not spread.any():
            continue
        others = (columns.sum(axis=0, dtype=np.float64) - row) / (n - 1)
        # Rounding moves a mean; chance does as much less than once in a million files.
        varied = max(int((spread > 0).sum()) - 1, 1)
        off = np.abs(row - others)
        if any((2 * u) ** varied < 1.01e-6 and (off <= u * spread).all() for u in PARTS):
            yield Finding(
                "summary row",
                f"the {word} row holds the mean of all others, so that it is no prediction; leave "
                "it out",
            )
            return


def padding(scores: NDArray[Any]) -> Iterator[Finding]:
    """Yield rows at the end whose scores are all equal, as rows are that fill up a batch."""
    if scores.shape[1] < 3 or (scores[-3:] != scores[-3:, :1]).any():
        return
    equal = scores.max(axis=1) == scores.min(axis=1)
    length = int((~equal[::-1]).argmax()) if not equal.all() else 0
    if length >= 3 and length * 2 < len(scores):
        yield Finding(
            "padding",
            "the last rows have the same score for every class, as rows that only pad a batch; "
            "leave them out",
        )


# Rows that are gone through at once.
AT_ONCE = 1 << 18


def digests(rows: RowTable, one_in: int) -> NDArray[np.uint64]:
    """Return 64 bits of each of about one in so many rows with its label, the same for copies."""
    labels = np.zeros(rows.n, np.int64) if rows.known_labels is None else rows.known_labels
    parts = (slice(first, first + AT_ONCE) for first in range(0, rows.n, AT_ONCE))
    return np.concatenate([_digests(rows.scores[p], labels[p], one_in) for p in parts])


def _digests(scores: Any, labels: IntArray, one_in: int) -> NDArray[np.uint64]:
    xp = namespace(scores)

    def bits(values: Any) -> NDArray[np.uint64]:
        return to_numpy(values).astype(np.float64).view(np.uint64)

    # Rows that agree in as many numbers agree in all.
    scores = scores[:, :: -(-int(scores.shape[1]) // 17)]
    if one_in > 1:
        chosen = np.flatnonzero(mixed(bits(scores[:, 0]), 0) % np.uint64(one_in) == 0)
        scores, labels = scores[xp.asarray(chosen)], labels[chosen]
    found = bits(scores)
    # Numbers that were of single precision end in zeros, which a product would keep.
    found ^= found >> np.uint64(32)
    factors = mixed(np.arange(found.shape[1], dtype=np.uint64), 2) | np.uint64(1)
    return mixed((found @ factors) ^ mixed(labels.astype(np.uint64), 1), 3)


def shared_rows(one: RowTable, other: RowTable) -> tuple[int, int]:
    """Return how many rows of `other` are rows of `one` too, and how many can be compared.

    Rows are compared by their probabilities, so that neither a constant added to logits nor the
    form matters, in three steps of accuracy; what chance explains counts as none. Sure rows, which
    are all alike, aren't compared.
    """
    if one.scores.shape[1:] != other.scores.shape[1:]:
        return 0, other.n
    both = [_comparable(rows) for rows in (one, other)]
    shared = np.zeros(len(both[1]), dtype=bool)
    if not all(map(len, both)):
        return 0, len(shared)
    for unit in (1e-9, 1e-5, 1e-3):
        ours, theirs = (_keys(rows, unit) for rows in both)
        same = np.isin(theirs, ours)
        found = int(same.sum())
        # Pairs alike within the sets say how often chance makes two of them so.
        alike = sum(len(keys) - len(np.unique(keys)) for keys in (ours, theirs))
        pairs = sum(len(keys) * (len(keys) - 1) / 2 for keys in (ours, theirs))
        by_chance = alike / max(pairs, 1) * len(ours) * len(theirs)
        if found <= 3 + 3 * by_chance:
            continue
        shared |= same
        # A number near the middle of two is rounded either way: other middles part other numbers.
        for move in (np.arange(1, 8) / 8).tolist():
            if shared.all():
                break
            ours, theirs = (_keys(rows, unit, move) for rows in (both[0], both[1][~shared]))
            shared[~shared] = np.isin(theirs, ours)
    return int(shared.sum()), len(shared)


def _comparable(rows: RowTable) -> FloatArray:
    """Return the probabilities of some classes, and the largest, of rows that aren't sure."""
    scores = to_numpy(rows.scores).astype(np.float64, copy=False)
    if rows.top_only:
        sure = scores >= 0.99 if rows.kind == "toplabel" else np.zeros(rows.n, dtype=bool)
        return np.stack([scores, to_numpy(rows.predicted)], axis=1)[~sure]
    probs = softmax(scores) if rows.kind == "logits" else scores
    width = int(probs.shape[1])
    some = np.unique(np.linspace(0, width - 1, min(width, 16)).astype(int)).tolist()
    unsure = (best := probs.max(axis=1)) < 0.99
    return np.concatenate([probs[unsure][:, some], best[unsure, None]], axis=1)


def _keys(values: FloatArray, unit: float, move: float = 0.0) -> NDArray[np.uint64]:
    """Return 64 bits of each row of numbers rounded to a unit, moved by a part of it before."""
    found = np.zeros(len(values), dtype=np.uint64)
    for column, numbers in enumerate(values.T):
        found = mixed(
            found ^ np.rint(numbers / unit + move).astype(np.int64).view(np.uint64), column
        )
    return found


# --- labels that belong to other rows or columns

# No more pairs of classes are counted.
PAIRS = 1 << 20
# Chance does as much less than once in a million files; in standard deviations, and as odds.
SURE, SURE_ODDS = 5.0, 1e-6
# Chance alone is within so many standard deviations of its mean.
USUAL = 3.0
# A confidence so much above chance is far above it.
FAR = 0.2
# A share of rows of which the same is said.
MOST_ALIKE = 0.9
# Rows of two classes that are called each other's name.
CROSSED = 5
# Logits of networks lie less than `SURER` apart, in half of the rows, or by `WRONG_BY` are right.
SURER, WRONG_BY = 100.0, 30.0


def chance(said: IntArray, labels: IntArray) -> tuple[float, float]:
    """Return how many of (n,) labels agree with what was said of other rows: mean and deviation.

    That of a random permutation of the labels (Hoeffding, 1951), so that a model which says the
    same of all rows, or prefers a class, has just as many. Only labels that occur take room.
    """
    n = len(said)
    both_sets = np.concatenate([said, labels])
    if both_sets.min() < 0 or both_sets.max() > PAIRS:
        both_sets = np.unique(both_sets, return_inverse=True)[1]
    classes = int(both_sets.max()) + 1
    v, u = (np.bincount(one, minlength=classes) / n for one in (both_sets[:n], both_sets[n:]))
    both = float((u * v).sum())
    spread = both - float((v * u * u).sum()) - float((u * v * v).sum()) + both * both
    return n * both, n * math.sqrt(max(spread, 0.0) / max(n - 1, 1))


def better_by_chance(gained: int, lost: int) -> float:
    """Return a bound of how probable it is that a fair coin falls as one-sidedly (Hoeffding)."""
    both = gained + lost
    return 1.0 if gained <= lost else math.exp(-((gained - lost) ** 2) / (2 * both))


def above(said: IntArray, labels: IntArray) -> float:
    """Return by how many standard deviations more agree than by chance."""
    mean, deviation = chance(said, labels)
    agree = int((said == labels).sum())
    return (agree - mean) / deviation if deviation > 0 else 0.0


def fewer(seen: int, expected: float, n: int) -> float:
    """Return a bound of how probable it is that of n so few happen (Chernoff)."""
    p, q = expected / n, seen / n
    if q >= p:
        return 1.0
    apart = (q * math.log(q / p) if q > 0 else 0.0) + (1 - q) * math.log((1 - q) / (1 - p))
    return math.exp(-n * apart) if p < 1 else 0.0


def matched(said: IntArray, labels: IntArray) -> float | None:
    """Return the accuracy if each column were of the class that it mostly predicts; None if none.

    The order is found from every other row and judged by those between.
    """
    classes = int(max(said.max(), labels.max())) + 1
    if classes * classes > PAIRS:
        return None
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (said[::2], labels[::2]), 1)
    of = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
    used = of[of >= 0]
    if len(set(used.tolist())) < len(used):
        return None
    hit, right = of[said[1::2]] == labels[1::2], said[1::2] == labels[1::2]
    sure = better_by_chance(int((hit & ~right).sum()), int((right & ~hit).sum()))
    return float(hit.mean()) if sure < SURE_ODDS else None


def no_better_than_chance(said: IntArray, labels: IntArray, confidence: FloatArray) -> bool:
    """Return whether labels agree as seldom as if confidence were worth less than half of it.

    A model that says the same of nearly all rows has learnt nothing, whatever its confidence.
    """
    n = len(said)
    mean, deviation = chance(said, labels)
    agree, expected = int((said == labels).sum()), float(confidence.sum())
    if deviation == 0 or (agree - mean) / deviation >= USUAL or expected - mean <= FAR * n:
        return False
    varied = np.unique(said, return_counts=True)[1].max() < MOST_ALIKE * n
    return bool(varied and fewer(agree, mean + (expected - mean) / 2, n) < SURE_ODDS)


def part_at_chance(said: IntArray, labels: IntArray, confidence: FloatArray) -> Iterator[Finding]:
    """Yield a part at either end where no more labels agree than by chance, though others do."""
    right, n = said == labels, len(said)
    for part, word in (
        (slice(n // 2, n), "second half"),
        (slice(n * 3 // 4, n), "last quarter"),
        (slice(n // 2), "first half"),
        (slice(n // 4), "first quarter"),
    ):
        here, held = float(right[part].mean()), confidence[part]
        there = float((right.sum() - right[part].sum()) / (n - len(held)))
        if there - here > FAR and no_better_than_chance(said[part], labels[part], held):
            yield Finding(
                "chance",
                f"accuracy is {there:.1%}, but in the {word} of the rows {here:.1%}, no better "
                f"than chance, with a mean confidence of {held.mean():.1%}: a row may be missing "
                "or there twice, so that labels belong to other rows from there on",
            )
            return


def crossed(said: IntArray, labels: IntArray) -> Iterator[Finding]:
    """Yield two classes of which each mostly gets the other's name.

    Of the rows of two classes that get one of their two names, Fisher's exact test asks how
    probable so few right ones are if neither name says anything; times the number of pairs.
    """
    wrong = np.flatnonzero(said != labels)
    if len(wrong) < 2 * CROSSED or min(said.min(), labels.min()) < 0:
        return
    classes = int(max(said.max(), labels.max())) + 1
    if classes > PAIRS:
        return
    found, counts = np.unique(labels[wrong] * classes + said[wrong], return_counts=True)
    of = dict(zip(*(each[counts >= CROSSED].tolist() for each in (found, counts)), strict=True))
    right: IntArray = np.bincount(labels[said == labels], minlength=classes)
    for pair, there in of.items():
        one, other = divmod(pair, classes)
        back = of.get(other * classes + one, 0)
        hits = (int(right[one]), int(right[other]))
        if one > other or there <= 2 * hits[0] or back <= 2 * hits[1]:
            continue
        rows, called = hits[0] + there, hits[0] + back
        everyone = rows + hits[1] + back
        ways = sum(
            math.comb(rows, k) * math.comb(everyone - rows, called - k) for k in range(hits[0] + 1)
        )
        if ways * classes * classes / 2 < SURE_ODDS * math.comb(everyone, called):
            yield Finding(
                "chance",
                f"class {one} is called {other} in {there} rows and by its own number in "
                f"{hits[0]}, and class {other} is called {one} in {back} and by its own in "
                f"{hits[1]}: the columns or the labels of these two classes may be swapped",
            )


def beyond_certainty(scores: FloatArray, said: IntArray, labels: IntArray) -> Iterator[Finding]:
    """Yield logits that are surer of what is wrong than any network.

    Args:
        scores: (n, K) logits.
        said: (n,) place of the largest; labels: (n,) true classes.
    """
    wrong = np.flatnonzero(said != labels)
    apart = scores[wrong, said[wrong]] - scores[wrong, labels[wrong]]
    if (apart > WRONG_BY).sum() < 3:
        return
    two = np.partition(scores, scores.shape[1] - 2, axis=1)[:, -2:]
    gap = float(np.median(two[:, 1] - two[:, 0]))
    if np.isfinite(gap) and gap > SURER:
        yield Finding(
            "scale",
            f"in half of the rows the largest logit is {gap:.0f} or more above the next, which no "
            f"network is so sure of, and {len(wrong)} rows are wrong: the logits may have been "
            "multiplied by a number, or be sums over many features, as those of naive Bayes",
        )
