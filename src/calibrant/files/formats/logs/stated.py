"""Confidences that answers state in their texts, by a pattern that the user declares.

What a number or a word means is never guessed: the pattern says it, ``{percent}``, ``{fraction}``
or ``{tenths}`` of a number and ``{high=0.9|low=0.3}`` of words. A text that states anything else
states nothing.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from calibrant.core.errors import InputError

UNITS = {"percent": 100.0, "tenths": 10.0, "fraction": 1.0}
NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
# What may not follow a number that ends a pattern, since it says another unit.
OTHER_UNIT = {
    "percent": r"(?!\s*/)",
    "tenths": r"(?!\s*(?:%|percent|/(?!\s*10(?![0-9.]))))",
    "fraction": r"(?!\s*(?:%|percent|/))",
}
# How texts commonly state a confidence, to propose a pattern by what stands there.
COMMON = re.compile(
    r"((?:confidence|certainty|probability|likelihood)(?: level| score)?[ \t*_\"']*(?::|=| is)"
    r"[ \t*_\"']*)(?:([0-9]*\.?[0-9]+)([ \t]*%|[ \t]*/[ \t]*10\b)?|([a-z]+(?: [a-z]+){0,2}))",
    re.IGNORECASE,
)
MOST_WORDS = 8


@lru_cache(maxsize=64)
def _declared(pattern: str) -> tuple[re.Pattern[str], float | Mapping[str, float]]:
    """Return what finds a statement, and the divisor of its number or the numbers of its words."""
    places = re.findall(r"\{([^{}]*)\}", pattern)
    if len(places) != 1 or (places[0] not in UNITS and "=" not in places[0]):
        raise InputError(
            f"--verbalised '{pattern}' must hold one of {{percent}}, {{fraction}} and {{tenths}} "
            "where the number stands, as in 'Confidence: {percent}%', or words with what they "
            "stand for, as in 'Confidence: {high=0.9|low=0.3}'"
        )
    before, _, after = pattern.partition(f"{{{places[0]}}}")
    if places[0] in UNITS:
        what, meaning = NUMBER, UNITS[places[0]]
        end = OTHER_UNIT[places[0]] if not after else ""
    else:
        meaning = _words(pattern, places[0])
        # The longest first: "very likely" is no "likely".
        longest = sorted(meaning, key=len, reverse=True)
        what, end = rf"(?<!\w)({'|'.join(_spaced(word) for word in longest)})(?!\w)", ""
    parts = f"{_spaced(before)}{what}{_spaced(after)}(?!\\.?[0-9]){end}"
    return re.compile(parts, re.IGNORECASE), meaning


def _spaced(text: str) -> str:
    return r"\s+".join(map(re.escape, text.split(" ")))


def _words(pattern: str, table: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in table.split("|"):
        word, _, number = entry.rpartition("=")
        word = " ".join(word.casefold().split())
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not word or word in found or not 0 <= value <= 1:
            raise InputError(
                f"--verbalised '{pattern}': expected each word once with a number from 0 to 1, as "
                f"in {{high=0.9|low=0.3}}, found '{entry}'"
            )
        found[word] = value
    return found


def stated(text: str, pattern: str, *, whole: bool = False) -> float | None:
    """Return the confidence in [0, 1] that the last match of a pattern states, or None.

    Args:
        text: an answer.
        pattern: holds ``{percent}``, ``{fraction}`` or ``{tenths}`` where a number stands, or
            ``{high=0.9|low=0.3}`` where words do.
        whole: whether the text is nothing but the statement, as the cell of a table is.

    Raises:
        InputError: the pattern doesn't say where the statement stands, and what it means.
    """
    finder, meaning = _declared(pattern)
    if whole:
        match = finder.fullmatch(text.strip())
        found = [match[1]] if match else []
    else:
        found = finder.findall(text)
    if not found:
        return None
    if isinstance(meaning, Mapping):
        return meaning[" ".join(found[-1].casefold().split())]
    value = float(found[-1]) / meaning
    return value if 0 <= value <= 1 else None


def how_stated(texts: Iterable[str]) -> list[str]:
    """Return what to declare for answers of which some state a confidence: a note, or none."""
    texts = list(texts)
    ways: Counter[tuple[str, str]] = Counter()
    words: Counter[str] = Counter()
    for text in texts:
        said = COMMON.findall(text)
        if said:
            before, number, unit, word = said[-1]
            if not number:
                words[" ".join(word.casefold().split())] += 1
            ways[before, unit.strip()[:1] if number else "words"] += 1
    if not ways:
        return []
    (before, unit), count = ways.most_common(1)[0]
    if unit == "words":
        table = "|".join(f"{word}=NUMBER" for word, _ in words.most_common(MOST_WORDS))
        tables, then = [f"{{{table}}}"], " with your NUMBER from 0 to 1 for each"
    else:
        tables, then = (
            {"%": ["{percent}%"], "/": ["{tenths}/10"]}.get(unit, ["{fraction}", "{percent}"]),
            "",
        )
    options = " or ".join(f"--verbalised {shlex.quote(before + one)}" for one in tables)
    return [
        f"{count} of {len(texts)} texts seem to state a confidence: declare it by {options}{then}."
    ]
