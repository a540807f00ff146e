"""What a method's name stands for, in words. Everywhere else a method goes by its name."""

from __future__ import annotations

import re

from calibrant.core.docstrings import Docstring
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import Chain

# Names of people, and words that belong together.
NAMES = {
    "bayesian": "Bayesian",
    "laplace": "Laplace",
    "venn abers": "Venn-Abers",
    "top rest": "top-rest",
    "scaling binning": "scaling-binning",
    "predicted class": "predicted-class",
}


def method_title(calibrator: Calibrator) -> str:
    """Return the class name as words: ``TemperatureScaling`` becomes "temperature scaling".

    Of a chain it is the names of its steps.
    """
    if isinstance(calibrator, Chain) and calibrator.kinds:
        return ", then ".join(_in_words(kind) for kind in calibrator.kinds)
    return _in_words(type(calibrator))


def method_formula(calibrator: Calibrator) -> str:
    """Return what a method computes, in one line; of a chain what each step does."""
    if isinstance(calibrator, Chain) and calibrator.kinds:
        return " Then: ".join(Docstring.of(kind).summary for kind in calibrator.kinds)
    return Docstring.of(type(calibrator)).summary


def _in_words(kind: type[Calibrator]) -> str:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", kind.__name__)
    title = " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)
    for plain, written in NAMES.items():
        title = title.replace(plain, written)
    return title
