"""What labels look like that belong to other rows or columns: a part of the look at rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from calibrant.core.arrays import FloatArray, IntArray
from calibrant.predictions.implausible_rows import Finding

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
