"""A look at predictions before they are measured: are they what they are taken for?

Each check asks whether rows are what no model makes and a misread file does: labels that are right
once 1 is subtracted, a column that is the largest of the others, rows that are there twice. What
chance or a bad model may explain is no finding: a model that says the same of all rows, or that is
wrong more often than it thinks, stays unaccused.

It sees `ROWS` rows, spread evenly over all, and of those that occur twice some that are chosen by
their own bits, so that copies are chosen together. Rows may come in parts; what is found doesn't
depend on how they are dealt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import FloatArray, IntArray, largest_entries, namespace, to_numpy
from calibrant.core.errors import MisreadWarning, warn_caller
from calibrant.predictions.constructors import RowTable
from calibrant.predictions.implausible import (
    FAR,
    FEW,
    FIRST,
    PROBABILITIES,
    SURE,
    SURE_ODDS,
    USUAL,
    Finding,
    above,
    better_by_chance,
    beyond_certainty,
    chance,
    crossed,
    derived_column,
    digests,
    fewer,
    matched,
    no_better_than_chance,
    padding,
    part_at_chance,
    softmax_twice,
    summary_row,
    units,
)
from calibrant.predictions.rounding import decimals_of
from calibrant.predictions.rows import softmax

Rows = TypeVar("Rows", bound=RowTable)

# Rows that are looked at, and numbers of them; rows of which copies are counted.
ROWS, NUMBERS, COPIES = 4096, 1 << 18, 1 << 13
# Of two classes that are about as likely, the likelier one is right in no larger share.
CLOSE = 0.62
# Logits within so little leave all classes about as likely, if they are right; networks' don't.
NARROW = 2.0
# No network's logits have to be multiplied by more.
MOST_OFF = 10.0
# A smaller share of copies changes nothing.
COPIED = 0.005


class Look:
    """A look at rows that come in parts, in their order.

    Args:
        n: how many there are in all.
    """

    def __init__(self, n: int) -> None:
        self.n, self.at = n, 0
        self._places: IntArray | None = None
        self._parts: list[RowTable] = []
        self._first: list[tuple[FloatArray, IntArray | None]] = []
        self._bits: list[NDArray[np.uint64]] = []
        self._sums = np.zeros(4)

    def add(self, rows: RowTable) -> None:
        """Take up some rows, those that follow the last ones."""
        if self._places is None:
            wide = 1 if rows.top_only else int(rows.scores.shape[1])
            seen = min(self.n, max(256, min(ROWS, NUMBERS // wide)))
            self._places = np.arange(seen) * self.n // seen
        low, high = np.searchsorted(self._places, [self.at, self.at + rows.n])
        if low < high:
            self._parts.append(_some(rows, self._places[low:high] - self.at))
        if rows.binary:
            chances = to_numpy(rows.scores[:, 1])
            self._sums += _sums_of_events(chances, rows.known_labels)
        if rows.binary or rows.kind == "toplabel":
            first = slice(max(ROWS - self.at, 0))
            chances = to_numpy(rows.scores if rows.top_only else rows.scores[:, 1])[first]
            truth = None if rows.known_labels is None else rows.known_labels[first]
            self._first.append((chances, truth))
        # Copies matter to intervals and splits, so rows without labels may be there twice.
        labelled = rows.known_labels is not None and rows.grid is None
        if labelled and not (rows.top_only or rows.binary):
            self._bits.append(digests(rows, 1 + self.n // COPIES))
        self.at += rows.n

    @np.errstate(over="ignore", invalid="ignore")  # scores may be as large as floats can be
    def findings(self) -> list[Finding]:
        """Return what was found; nothing of rows that nobody gave."""
        if not self._parts:
            return []
        seen = _Seen(self._parts)
        found = [*seen.of_scores()]
        if self._first:
            chances, labels = zip(*self._first, strict=True)
            known = [part for part in labels if part is not None]
            found += _long_table(np.concatenate(chances), seen)
            found += _long_labels(np.concatenate(known), seen) if known else []
            found += [] if found else _shuffled_long_table(self._sums, self.n, seen)
        if len(seen.scores) == self.n:
            found += summary_row(seen.scores)
        # What is no score says nothing about labels.
        if not any(finding.certain for finding in found):
            found += seen.of_labels()
            found += _copies(self._bits, seen)
        return found


def look(rows: RowTable) -> list[Finding]:
    """Return what is found of rows in memory."""
    whole = Look(rows.n)
    whole.add(rows)
    return whole.findings()


def looked_at(rows: Rows) -> Rows:
    """Return rows that were looked at, here or before; what is found is warned of.

    Silence it by ``warnings.simplefilter("ignore", cb.MisreadWarning)``.
    """
    if rows.looked_at:
        return rows
    for finding in look(rows):
        if finding.what != PROBABILITIES:
            warn_caller(MisreadWarning(f"{rows.source}: {finding.sentence}"))
    return replace(rows, looked_at=True)


def _some(rows: RowTable, index: IntArray) -> RowTable:
    """Return rows of an index with what is looked at of them, as NumPy's."""
    xp = namespace(rows.scores)
    whole = len(index) == rows.n
    scores = rows.scores if whole else xp.take(rows.scores, xp.asarray(index), axis=0)
    return replace(
        rows,
        scores=_floats(to_numpy(scores)),
        known_labels=None if rows.known_labels is None else rows.known_labels[index],
        predicted=None if rows.predicted is None else rows.predicted[index],
        label_index=None if rows.label_index is None else rows.label_index[index],
        features=None,
        head=None,
        reference=None,
        weights=None,
        clusters=None,
        grid=None,
    )


def _floats(scores: NDArray[Any]) -> NDArray[Any]:
    """Return scores as single or double precision, those that are one of these as they are."""
    return scores if scores.dtype.char in "fd" else scores.astype(np.float64)


class _Seen:
    """The rows that were chosen: scores, labels, and what follows from them."""

    def __init__(self, parts: list[RowTable]) -> None:
        first = parts[0]
        self.kind, self.binary, self.many = first.kind, first.binary, first.label_index is not None
        scores = [part.scores for part in parts]
        self.scores: NDArray[Any] = scores[0] if len(scores) == 1 else np.concatenate(scores)
        labels = [part.known_labels for part in parts if part.known_labels is not None]
        self.labels = np.concatenate(labels) if labels else None
        self.n, self.top_only = len(self.scores), first.top_only
        if self.top_only:
            self.said: IntArray = np.concatenate([to_numpy(part.predicted) for part in parts])
        else:
            self.said, self.most = largest_entries(self.scores)

    @cached_property
    def probs(self) -> FloatArray:
        """(n, K) probabilities; most rows arouse no suspicion that asks for them."""
        scores = self.scores.astype(np.float64, copy=False)
        return softmax(scores) if self.kind == "logits" else scores

    @cached_property
    def confidence(self) -> FloatArray:
        """(n,) largest probabilities."""
        if self.top_only or self.kind != "logits":
            best = self.scores if self.top_only else self.most
            return best.astype(np.float64, copy=False)
        # No finding hangs on the seventh digit, and single precision takes a quarter of the time.
        with np.errstate(over="ignore"):  # far below the largest a logit counts for nothing
            below = (self.scores - self.most[:, None]).astype(np.float32, copy=False)
        return 1 / np.exp(below, out=below).sum(axis=1).astype(np.float64)

    def of_scores(self) -> Iterator[Finding]:
        """Yield what scores say by themselves."""
        if self.top_only:
            return
        if self.binary:
            odds = self.scores[:, 1]
            inside = self.kind == "logits" and 0 <= odds.min() < odds.max() <= 1
            if inside and self.n >= FEW and not np.isin(odds, (0, 1)).all():
                yield Finding(
                    PROBABILITIES,
                    "every 'logit' lies in [0, 1], as probabilities do",
                    {"are": "prob"},
                    {"are": "logit"},
                    certain=True,
                )
            return
        if self.n < FEW:
            return
        if self.kind == "logits":
            yield from units(self.scores)
            yield from derived_column(self.scores)
        elif self.kind == "probs":
            yield from softmax_twice(self.scores)
        yield from padding(self.scores)

    def of_labels(self) -> Iterator[Finding]:
        """Yield what scores and labels say together."""
        if self.labels is None or self.many or self.n < FEW:
            return
        if self.kind == "logits":
            yield from _without_scale(self)
            yield from beyond_certainty(self.scores, self.said, self.labels)
        if self.binary:
            yield from _of_event(self.probs[:, 1], self.labels)
        elif self.kind == "score" or (self.top_only and np.ptp(self.said) == 0):
            yield from _turned_round(self.confidence, self.said == self.labels)
        elif not self.top_only and _descends(self.scores[:FIRST]) and _descends(self.scores):
            # Two classes descend in every row where one is always said.
            right = self.said == self.labels
            yield from (
                _sorted(self.confidence, right, self.kind) if self.scores.shape[1] > 2 else ()
            )
        else:
            yield from _agreement(self.said, self.labels, self)


def _without_scale(seen: _Seen) -> Iterator[Finding]:
    """Yield logits by which hardly any class is likelier than another, though the largest is right.

    Networks that were trained to say less are off by a factor of three or so, not of a hundred.
    """
    scores, labels = seen.scores, seen.labels
    first = np.ptp(scores[:FIRST].astype(np.float64), axis=1)
    if labels is None or np.median(first) > NARROW or not np.isfinite(scores.min()):
        return
    if 0 <= scores.min() <= scores.max() <= 1:
        return  # which is said of them as it is
    even, right = 1 / scores.shape[1], float((seen.said == labels).mean())
    sure = float(seen.confidence.mean())
    apart = right - sure
    if apart < FAR or math.exp(-2 * seen.n * apart**2) > SURE_ODDS:
        return
    # How their likelihood changes where they are multiplied by more than 10.
    likelier = softmax(MOST_OFF * scores.astype(np.float64))
    gained = scores[np.arange(seen.n), labels] - (likelier * scores).sum(axis=1)
    if gained.mean() > 0 and above(seen.said, labels) > SURE:
        yield Finding(
            "scale",
            f"accuracy is {right:.1%}, but the mean confidence is {sure:.1%}, where a guess has "
            f"{even:.1%}: the logits may lack their scale, as similarities do, or were divided by "
            "a number",
        )


def _descends(scores: NDArray[Any]) -> bool:
    """Return whether no score of any row is above the one before it."""
    return bool((scores[:, 1:] <= scores[:, :-1]).all())


def _long_table(chances: FloatArray, seen: _Seen) -> Iterator[Finding]:
    """Yield rows that are the classes of one prediction, one below the other."""
    if seen.kind == "logits" or seen.many or len(chances) < FEW:
        return
    running = np.cumsum(chances)
    after = np.flatnonzero(np.abs(running[: len(chances) // 10] - 1) <= 1e-3)
    if not len(after) or (width := int(after[0]) + 1) < 2:
        return
    whole = len(chances) // width * width
    blocks = chances[:whole].reshape(-1, width)
    if np.ptp(chances) > 1e-3 and (np.abs(blocks.sum(axis=1) - 1) <= 1e-3).all():
        yield Finding(
            "long table",
            f"the probabilities of every {width} consecutive rows sum to 1, so they seem to be "
            f"the {width} classes of one prediction; write one row for each prediction, with a "
            "column for each class",
            {},
            {"are": "confidence" if seen.top_only else "prob"},
            certain=True,
        )


def _long_labels(labels: IntArray, seen: _Seen) -> Iterator[Finding]:
    """Yield log odds of which one in every block of rows is that of the event, as of a class."""
    ones = np.flatnonzero(labels)[:2].tolist()
    if seen.kind != "logits" or seen.many or len(ones) < 2:
        return
    # The first stands in the first block, the second in the second.
    widest = min(ones[1], len(labels) // FEW)
    for width in range(max(3, ones[0] + 1, ones[1] // 2 + 1), widest + 1):
        blocks = labels[: len(labels) // width * width].reshape(-1, width)
        if (blocks.sum(axis=1) == 1).all():
            yield Finding(
                "long table",
                f"one of every {width} consecutive rows has the label 1, so they may be the "
                f"{width} classes of one prediction; if so, write one row for each prediction, "
                "with a column for each class",
                {},
                {"are": "logit"},
            )
            return


def _sums_of_events(chances: FloatArray, labels: IntArray | None) -> FloatArray:
    """Return sums over rows that tell, whatever their order, whether these are classes one by one.

    Those of probabilities and of labels; and of two that are 0 where each row has one of the
    opposite probability and label.
    """
    off = np.clip(chances.astype(np.float64), 0, 1) - 0.5  # log odds may be anything
    truth = np.full(len(off), np.nan) if labels is None else labels - 0.5
    return np.array([off.sum(), truth.sum(), off @ (off * off), (off * off) @ truth])


def _shuffled_long_table(sums: FloatArray, n: int, seen: _Seen) -> Iterator[Finding]:
    """Yield rows whose probabilities and labels both sum to a whole number of predictions.

    A model that was fitted to just these rows has the share of their labels too, but only where
    it is a fraction such as a third does it look so.
    """
    mean, share = sums[:2] / n + 0.5
    if seen.kind != "probs" or seen.many or n < FEW or not 0 < mean <= 0.5 + 1e-6:
        return
    width = round(1 / mean)
    both = max(abs(mean * width - 1), abs(share * width - 1))
    if n % width or not both <= 2e-6 or np.ptp(seen.scores[:, 1]) < 1e-3:
        return
    if width > 2 or np.abs(sums[2:]).max() <= 2e-6 * n * float(np.var(seen.scores[:, 1])) ** 1.5:
        yield Finding(
            "long table",
            f"as many labels are 1, and the probabilities sum to as much, as if each {width} rows "
            f"were the {width} classes of one prediction; if they are, in any order, write a row "
            "for each prediction, with a column for each class",
            {},
            {"are": "prob"},
            certain=width == 2,
        )


# --- what scores and labels say together


def _agreement(said: IntArray, labels: IntArray, seen: _Seen) -> Iterator[Finding]:
    """Yield labels from 1, of other rows or of other columns."""
    n = len(said)
    mean, deviation = chance(said, labels)
    right = said == labels
    agree = int(right.sum())
    if agree == n:
        yield from _of_predictions(seen.confidence if seen.top_only else _of_two(seen.probs))
    if deviation == 0 or (agree - mean) / deviation >= USUAL:
        # Confidences are at most 1: where so few rows are wrong, nobody need compute them.
        far = n - agree > FAR * n and float(seen.confidence.sum()) - agree > FAR * n
        turned = matched(said, labels) if far else None
        if turned is not None and turned - agree / n > FAR:
            yield Finding(
                "chance",
                f"accuracy is {agree / n:.1%}, and with some columns in another order it would be "
                f"{turned:.1%}: they may belong to other classes",
            )
            return
        halves = right[: n // 2].mean() - right[n // 2 :].mean()
        yield from part_at_chance(said, labels, seen.confidence) if abs(halves) > FAR else ()
        yield from crossed(said, labels)
        return
    shown = f"accuracy is {agree / n:.1%}, where chance gives {mean / n:.1%}"
    tried: list[str] = []
    for shift, word in ((1, "minus"), (-1, "plus")):
        other = labels - shift
        if other.min() < 0 or other.max() > max(said.max(), labels.max()):
            continue
        hit = said == other
        tried.append(f"labels {word} 1 would give {hit.mean():.1%}")
        sure = better_by_chance(int((hit & ~right).sum()), int((right & ~hit).sum()))
        if sure < SURE_ODDS and above(said, other) > SURE:
            first = "they count from 1" if shift == 1 else "class 0 of the scores has no label"
            yield Finding(
                "labels from",
                f"{shown}, and {tried[-1]}: {first} (--labels-from {shift}, or 0 where they don't)",
                {"labels_from": shift},
                {"labels_from": 0},
                certain=True,
            )
            return
    confidence = seen.confidence
    below = (agree - mean) / deviation < -SURE
    if not below and not no_better_than_chance(said, labels, confidence):
        return
    turned = matched(said, labels)
    if turned is not None:
        tried.append(f"with the columns in another order it would be {turned:.1%}")
    where = "below chance" if below else "no better than chance"
    yield Finding(
        "chance",
        f"{shown}, and the mean confidence is {confidence.mean():.1%}: {where}. Labels may belong "
        "to other rows, or columns to other classes" + "".join(f"; {one}" for one in tried),
    )


def _of_predictions(shares: FloatArray) -> Iterator[Finding]:
    """Yield labels that are never wrong, not even where two classes are about as likely.

    Args:
        shares: (n,) that the largest probability has of the two largest ones.
    """
    close = shares[shares < CLOSE]
    if 2 * len(close) < len(shares) and close.prod() < SURE_ODDS:
        yield Finding(
            "predictions",
            f"the largest score is right in all {len(shares)} rows, even in the {len(close)} "
            "where another score is hardly lower: the labels may be predictions, or the rows "
            "training rows",
        )


def _of_two(probs: FloatArray) -> FloatArray:
    """Return which share the largest probability has of the two largest ones, (n,)."""
    two = np.partition(probs, probs.shape[1] - 2, axis=1)[:, -2:]
    return two[:, 1] / two.sum(axis=1)


def _of_event(chances: FloatArray, labels: IntArray) -> Iterator[Finding]:
    """Yield probabilities of the other class, and labels of other rows."""
    n, share = len(labels), float(labels.mean())
    off = chances - chances.mean()
    squares = float((off * off).sum())
    if not 0 < share < 1 or squares == 0:
        return
    if ((chances >= 0.5) == labels).all():
        yield from _of_predictions(np.maximum(chances, 1 - chances))
    above = float(chances.mean()) - share
    if chances.min() >= 0.5 and above > FAR and math.exp(-2 * n * above**2) < SURE_ODDS:
        yield Finding(
            "confidence",
            f"no probability is below 0.5 and their mean is {chances.mean():.1%}, but label 1 is "
            f"true of {share:.1%}: they may be confidences in the predicted class (--are "
            "confidence, with --predicted)",
            {"are": "confidence"},
            {"are": "prob"},
            certain=True,
        )
        return
    seen = float((off * (labels - share)).sum())
    deviation = math.sqrt(squares * share * (1 - share))
    if seen < -SURE * deviation:
        # As the other class's they say more than the share of the labels does.
        log = np.log(np.clip(np.where(labels == 1, 1 - chances, chances), 1e-12, None)).mean()
        base = share * math.log(share) + (1 - share) * math.log(1 - share)
        yield Finding(
            "other class",
            f"the higher the probability, the rarer the label 1 (correlation "
            f"{seen / deviation / math.sqrt(n):.2f}): the scores may be of the other class",
            {"positive": "0"},
            {"positive": "1"},
            certain=bool(log > base),
        )
    elif (
        abs(seen) < USUAL * deviation
        and min(share, 1 - share) * n >= FEW  # of a few events nothing can be said
        and squares > n * (FAR * FAR / 2)
        and squares / 2 - seen > SURE * deviation
    ):
        yield Finding(
            "chance",
            "labels don't depend on the probabilities, which spread by "
            f"{math.sqrt(squares / n):.2f}: they may belong to other rows",
        )


def _sorted(confidence: FloatArray, right: NDArray[np.bool_], kind: str) -> Iterator[Finding]:
    """Yield scores that descend in every row, though the first class is mostly wrong."""
    n, agree = len(right), int(right.sum())
    if confidence.mean() - agree / n > FAR and fewer(agree, confidence.sum(), n) < SURE_ODDS:
        yield Finding(
            "sorted",
            f"the scores of every row descend, but the first class is true of {agree / n:.1%}: "
            "they are sorted, so columns are no classes; write them in the order of the classes",
            {},
            {"are": kind},
            certain=True,
        )


def _turned_round(confidence: FloatArray, right: NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield outcomes that are rarer the surer a model was."""
    off, share = confidence - confidence.mean(), float(right.mean())
    deviation = math.sqrt(float((off * off).sum()) * share * (1 - share))
    if deviation > 0 and float((off * (right - share)).sum()) < -SURE * deviation:
        yield Finding(
            "turned round",
            "the more confident the model, the more often it is wrong: 0 may mean right in this "
            "file",
        )


# --- rows that occur more than once


def _copies(bits: list[NDArray[np.uint64]], seen: _Seen) -> Iterator[Finding]:
    """Yield rows that occur more than once, where numbers are too long for chance."""
    if not bits or seen.scores.shape[1] < 3 or seen.n < FEW:
        return
    every = np.concatenate(bits)
    every.sort()  # sooner than NumPy's `unique`, which hashes
    copies = int((every[1:] == every[:-1]).sum())
    if copies < max(3, COPIED * len(every)):
        return
    # Rounded numbers, votes of a forest and sure rows repeat by nature.
    if decimals_of(seen.scores[:256].astype(np.float64)) is not None or not _are_floats(seen):
        return
    yield Finding(
        "copies",
        f"{copies / len(every):.1%} of the rows have the scores and the label of another row. If "
        "they are copies, intervals are too narrow, and a split puts copies on both sides: leave "
        "them out, or put the copies of a row into one cluster (--cluster). A model with few "
        "distinct outputs, such as a small forest, gives such rows by itself",
    )


def _are_floats(seen: _Seen) -> bool:
    """Return whether scores are numbers that hardly repeat within a column, as networks' are.

    Trees and neighbours have few of them, each many times; copies have all as often.
    """
    unsure = seen.confidence < 0.99
    if unsure.sum() < FEW:
        return False
    rows = seen.scores[unsure]
    distinct = len(np.unique(rows, axis=0))
    column = min(len(np.unique(rows[:, k])) for k in range(min(3, rows.shape[1])))
    # A row that isn't a copy shares no number with another one.
    return column >= 0.9 * distinct and distinct >= FEW
