"""What a method's name stands for, in words. Everywhere else a method goes by its name."""

from __future__ import annotations

import re

from calibrant.posthoc.base import Calibrator

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
    """Return the class name as words: ``TemperatureScaling`` becomes "temperature scaling"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", type(calibrator).__name__)
    title = " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)
    for plain, written in NAMES.items():
        title = title.replace(plain, written)
    return title
