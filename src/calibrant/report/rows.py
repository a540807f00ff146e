"""Rows behind the pictures: a bounded sample of them, so that one can look at what is in a bin.

A page holds so many rows that every bin, class and group has some, drawn at random, and besides
them the wrong ones of highest confidence. All methods of a page are shown on the same rows.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import IntArray, as_array, to_numpy
from calibrant.core.errors import InputError
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.sample import RowSample
from calibrant.metrics.binned import DEFAULT_BINS, bin_edges, bin_index

# A page of one set of confidences holds this many rows at most; of many methods fewer, since each
# has a confidence for every row.
MOST_ROWS, FEWEST_ROWS, MOST_NUMBERS = 1_500, 200, 8_000
# Pictures take far more room than numbers.
MOST_PICTURED, PICTURE_SIDE = 150, 32
MISTAKES = 30
# Confidences are whole numbers of this share.
DIGITS = 100_000


@dataclass(frozen=True, eq=False)
class RowNames:
    """What rows are called and look like, by where they stood in the set that was read.

    Attributes:
        ids: (N,) names; None for numbers.
        images: (N, H, W) or (N, H, W, 3) uint8 pictures, or None.
    """

    ids: Any = None
    images: Any = None


def rows_document(
    shown: Sequence[tuple[str, Evaluation]],
    first: Sequence[str],
    labels: IntArray,
    groups: dict[str, IntArray],
    names: RowNames,
) -> dict[str, Any] | None:
    """Return the rows that a page holds, or None where it can't show any.

    Args:
        shown: the name of each method and what was measured of it, all on the same rows.
        first: the methods that the page opens with; each has its most confident mistakes.
        labels: (C,) classes that the page lists; each has some rows that were predicted to be it.
        groups: the numbers of the rows of each group.
        names: what rows are called and look like.

    Raises:
        InputError: ids or images of another number of rows, or images that are none.
    """
    ids, images = names.ids, names.images
    samples = {name: evaluation.sample for name, evaluation in shown}
    rows = next((s for s in samples.values() if isinstance(s, RowSample)), None)
    if rows is None or rows.labels is None:
        if ids is not None or images is not None:
            raise InputError("this page lists no rows, so it takes neither ids nor images")
        return None
    of = {name: s for name, s in samples.items() if isinstance(s, RowSample)}
    numbers = next((s.row_numbers for s in of.values() if s.row_numbers is not None), None)
    numbers = np.arange(rows.n) if numbers is None else numbers
    pictures = None if images is None else _checked_images(images, numbers)
    if sum(map(len, groups.values())) != rows.n:
        groups = {}
    chosen = _chosen(of, first, labels, groups, pictured=pictures is not None)
    named = None if ids is None else _checked_ids(ids, numbers)[numbers[chosen]]
    member = np.full(rows.n, -1)
    for number, own in enumerate(groups.values()):
        member[own] = number
    top_alone = rows.n_classes is None and rows.class_names is None
    predicted = {name: s.scores.predicted[chosen] for name, s in of.items()}
    usual = next(iter(predicted.values()))
    found = np.unique(np.concatenate([rows.labels[chosen], *predicted.values()]))
    return {
        "rows": len(chosen),
        "id": [str(name) for name in named.tolist()] if named is not None else None,
        "number": numbers[chosen].tolist(),
        # Rows that came with nothing but whether they are right have no classes to show.
        "true": None if top_alone and len(np.unique(usual)) < 2 else rows.labels[chosen].tolist(),
        "called": None
        if rows.class_names is None
        else {number: rows.class_names[number] for number in found.tolist()},
        "groups": list(groups),
        "group": member[chosen].tolist() if groups else None,
        "predicted": usual.tolist(),
        "methods": {
            name: {
                "confidence": np.rint(s.scores.confidence[chosen] * DIGITS).astype(int).tolist(),
                # Most methods leave the predicted class as it is.
                "predicted": None
                if np.array_equal(predicted[name], usual)
                else predicted[name].tolist(),
                "correct": None
                if np.array_equal(predicted[name], usual)
                else s.scores.correct[chosen].astype(int).tolist(),
            }
            for name, s in of.items()
        },
        "correct": rows.scores.correct[chosen].astype(int).tolist(),
        "digits": DIGITS,
        "image": None if pictures is None else [_picture(pictures[i]) for i in numbers[chosen]],
    }


def _chosen(
    of: dict[str, RowSample],
    first: Sequence[str],
    labels: IntArray,
    groups: dict[str, IntArray],
    *,
    pictured: bool,
) -> IntArray:
    """Return which rows the page holds, ascending: some of each part, and the worst mistakes."""
    n = next(iter(of.values())).n
    most = max(FEWEST_ROWS, min(MOST_ROWS, MOST_NUMBERS // len(of)))
    most = min(most, MOST_PICTURED) if pictured else most
    if n <= most:
        return np.arange(n)
    kept: set[int] = set()
    for name in dict.fromkeys(first):
        scores = of[name].scores
        wrong = np.flatnonzero(~scores.correct.astype(bool))
        sure = np.argsort(-scores.confidence[wrong], kind="stable")
        kept |= set(wrong[sure[:MISTAKES]].tolist())
    # One random order for all parts: they share rows, so that more of each fit in.
    order = np.random.default_rng(0).permutation(n)
    waiting = [part for part in _parts(of, first, labels, groups, order) if len(part)]
    for place in range(max(map(len, waiting))):
        for part in waiting:
            if place < len(part):
                kept.add(int(part[place]))
                if len(kept) >= most:
                    return np.array(sorted(kept))
    return np.array(sorted(kept))


def _parts(
    of: dict[str, RowSample],
    first: Sequence[str],
    labels: IntArray,
    groups: dict[str, IntArray],
    order: IntArray,
) -> Iterator[IntArray]:
    """Yield the rows of every bin of every method, class and group, in one random order."""
    edges = bin_edges(DEFAULT_BINS)
    for sample in of.values():
        scores = sample.of_positive().scores if sample.binary else sample.scores
        bins = bin_index(scores.confidence, edges)[order]
        yield from (order[bins == number] for number in range(DEFAULT_BINS))
    predicted = of[first[0]].scores.predicted[order]
    yield from (order[predicted == label] for label in labels.tolist())
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    for own in groups.values():
        yield own[np.argsort(rank[own])]


def _checked_ids(ids: Any, numbers: NDArray[Any]) -> NDArray[Any]:
    found = to_numpy(as_array(ids))
    if found.ndim != 1 or len(found) <= int(numbers.max()):
        raise InputError(
            f"ids must name every row that was read: there is a row {int(numbers.max())}, and ids "
            f"have shape {found.shape}"
        )
    return found


def _checked_images(images: Any, numbers: NDArray[Any]) -> Any:
    """Return pictures of the rows that were read."""
    shape, kind = tuple(images.shape), str(images.dtype).rpartition(".")[2]
    if kind != "uint8" or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
        raise InputError(
            f"images must be (N, H, W) or (N, H, W, 3) uint8, not {shape} {kind}; colours come last"
        )
    if shape[0] <= int(numbers.max()):
        raise InputError(
            f"images must show every row that was read: there is a row {int(numbers.max())}, and "
            f"there are {shape[0]} images"
        )
    return images


def _picture(image: Any) -> str:
    """Return a small PNG of an image as base64, every so many of its pixels."""
    pixels = to_numpy(image)
    step = max(1, -(-max(pixels.shape[:2]) // PICTURE_SIDE))
    pixels = np.ascontiguousarray(pixels[::step, ::step])
    height, width = pixels.shape[:2]
    # A filter byte of 0 before each line: no filter.
    lines = np.zeros((height, 1 + pixels[0].size), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(lines.tobytes(), 9), b"IEND": b""}
    out = b"\x89PNG\r\n\x1a\n"
    for name, body in parts.items():
        out += struct.pack(">I", len(body)) + name + body
        out += struct.pack(">I", zlib.crc32(name + body))
    return b64encode(out).decode()
