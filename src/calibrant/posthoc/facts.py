"""What a person should know of a method before choosing it, beside its docstring.

The formula is the docstring's first sentence, sources are its References.
N is the number of calibration rows, K of classes, D of features.
"""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """What a docstring doesn't say in one line.

    Attributes:
        title: what the method's name stands for.
        family: what is fitted.
        cost: of a fit.
        fails: when it does no good, or harm.
    """

    title: str
    family: str
    cost: str
    fails: str


# Families.
ONE = "one temperature"
ROW = "a temperature for each row"
LINEAR = "a linear map of the logits"
CONFIDENCE = "a map of the confidence"
TOP_REST = "the top class and the rest apart"
ODDS = "a map of log odds"
FEATURES = "with features"
NOISE = "noise on the logits"
AVERAGED = "averaged"
# Costs that several methods have.
PASSES = "a few passes over N x K numbers"
PASSES_OF_ONE = "a few passes over N numbers"
SORT = "a sort of N confidences"
