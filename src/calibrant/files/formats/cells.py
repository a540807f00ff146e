"""What cells and objects of rows hold: lists, scores by class, and numbers in any wrapping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

# As much of an offending cell as a message shows.
SHOWN_CHARACTERS = 40
NUMBER = re.compile(r"[\s\"]*-?[0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?[\s\"]*")
# A cell that holds a list, as pandas writes those of Python, NumPy and torch.
LIST = re.compile(
    r"\s*(?:(?:tensor|array|np\.array|DenseVector)\()?\[+([^\[\]]*)\]+[^\[\]]*", flags=re.S
)
# One without brackets, of numbers with decimals; others may be a date or a place.
BARE_LIST = re.compile(r"\s*-?[0-9]*\.[0-9][-+.0-9eE]*(?:[ ;|]+-?[0-9][-+.0-9eE]*)+\s*")
# A number as NumPy 2 and torch print it.
WRAPPED = re.compile(r"(?:np\.[a-z]+[0-9]*|tensor)\(\s*([-+.0-9eE]+)\s*(?:, [^()\[\]]*)?\)")
# Keys of lists that name classes, and of those that hold their scores, as pipelines write them.
OF_NAMES, OF_SCORES = ("labels", "classes", "displayNames"), ("scores", "confidences")


def parsed(cell: Any) -> Any:
    """Return the list of numbers, the numbers by name or the number that text stands for.

    Whatever else it says comes back as it is.
    """
    if not isinstance(cell, str) or not (cell[-1:] in "])}" or BARE_LIST.fullmatch(cell)):
        return cell
    text = WRAPPED.sub(r"\1", cell)
    match = LIST.fullmatch(text)
    inner = match[1] if match else text if BARE_LIST.fullmatch(text) else ""
    words = re.sub("[,;|]", " ", inner).split()
    with suppress(ValueError):
        if words and "_" not in inner:
            return [float(word) for word in words]
        if text != cell:
            return float(text)
    for way in (text, text.replace("'", '"')) if text.lstrip()[:1] in ("{", "[") else ():
        with suppress(ValueError, RecursionError):
            found = by_class(json.loads(way))
            if isinstance(found, dict) and all(map(_is_number, cast(Any, found).values())):
                return cast(Any, found) or cell
    return cell


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the keys of objects within it behind their own: ``prob_cat``.

    A list of classes with their scores is such an object, in whatever order they stand.
    """
    flat: dict[str, Any] = {}
    paired = row if row.keys().isdisjoint(OF_SCORES) else _paired(row)
    for key, value in paired.items():
        held = by_class(parsed(value))
        if isinstance(held, dict):
            stem = {"logits": "logit", "probs": "prob", "labels": "label"}.get(key, key)
            inner = flat_row(cast(dict[str, Any], held))
            flat |= {f"{stem}_{name}": one for name, one in inner.items()}
        else:
            flat[key] = held
    return flat


def by_class(held: Any) -> Any:
    """Return a list of classes, each with its score, as an object, and others as they are.

    Such as ``{"label": "cat", "score": 0.8}`` and ``["cat", 0.8]``.
    """
    entries = cast(list[Any], held) if isinstance(held, list) else []
    found: dict[str, Any] = {}
    for entry in entries if len(entries) > 1 else ():
        pair = [*cast(dict[str, Any], entry).values()] if isinstance(entry, dict) else entry
        values = cast(Sequence[Any], pair) if isinstance(pair, list | tuple) else ()
        text = [one for one in values if isinstance(one, str)]
        numbers = [one for one in values if _is_number(one)]
        if [len(values), len(text), len(numbers)] != [2, 1, 1] or text[0] in found:
            return cast(Any, held)
        found[text[0]] = numbers[0]
    return found or cast(Any, held)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _paired(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object that lists classes, and their scores apart, with the scores by class."""
    names = [key for key in OF_NAMES if isinstance(row.get(key), list)]
    scores = [key for key in OF_SCORES if isinstance(row.get(key), list)]
    if len(names) != 1 or len(scores) != 1:
        return row
    called, numbers = cast(list[Any], row[names[0]]), cast(list[Any], row[scores[0]])
    if len(called) != len(numbers) or not all(isinstance(name, str) for name in called):
        return row
    found = dict(zip(called, numbers, strict=True))
    if len(found) < max(len(called), 2):
        return row
    return {key: value for key, value in row.items() if key != names[0]} | {scores[0]: found}
