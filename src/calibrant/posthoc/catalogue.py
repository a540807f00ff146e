"""What a person should know of a method before choosing it: what it costs and when it fails.

Formula, arguments and source stand in each class's docstring; `described` puts both together.
N is the number of calibration rows, K of classes, D of features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrant.core.docstrings import Argument, Docstring, as_json
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.registry import METHODS


class Facts(NamedTuple):
    """What a docstring doesn't say in one line.

    Attributes:
        family: what is fitted.
        cost: of a fit.
        fails: when it does no good, or harm.
    """

    family: str
    cost: str
    fails: str


ONE = "one temperature"
ROW = "a temperature for each row"
LINEAR = "a linear map of the logits"
CONFIDENCE = "a map of the confidence"
TOP_REST = "the top class and the rest apart"
ODDS = "a map of log odds"
FEATURES = "with features"
NOISE = "votes under noise"
AVERAGED = "averaged"
PASSES = "a few passes over N x K numbers"
PASSES_OF_ONE = "a few passes over N numbers"
SORT = "a sort of N confidences"

FACTS: dict[str, Facts] = {
    "none": Facts("the control", "nothing is fitted", "wherever the network is off"),
    "temperature": Facts(
        ONE,
        PASSES,
        "confidences too high here and too low there: one number moves all of them the same way",
    ),
    "temperature-laplace": Facts(
        ONE, PASSES, "as temperature; the part of the uniform distribution vanishes with many rows"
    ),
    "predicted-class": Facts(
        ROW, PASSES, "classes with few rows: they are drawn to the one temperature, and gain little"
    ),
    "cts": Facts(
        LINEAR,
        "a few hundred passes over N x K",
        "few rows; the published search for a low ECE (criterion=ece) overfits and moves classes",
    ),
    "cts-gradient": Facts(
        LINEAR, "tens of passes over N x K", "many classes with few rows each; it moves classes"
    ),
    "ets": Facts(
        ONE,
        PASSES,
        "as temperature; published with squared errors (loss=mse), its likelihood is worse",
    ),
    "vector": Facts(
        LINEAR, "tens of passes over N x K", "fewer rows than about ten a class; it moves classes"
    ),
    "svs": Facts(
        LINEAR, "tens of passes over N x K", "where classes are alike it is temperature scaling"
    ),
    "sms": Facts(
        LINEAR,
        "N x K x K numbers a step",
        "more than a few hundred classes, which it refuses; it moves classes",
    ),
    "matrix": Facts(
        LINEAR,
        "N x K x K numbers a step, several fits to choose the ridge",
        "few rows for K^2 numbers: it overfits; refuses very many classes",
    ),
    "dirichlet": Facts(
        LINEAR,
        "N x K x K numbers a step, several fits to choose the ridge",
        "few rows for K^2 numbers: it overfits; refuses very many classes",
    ),
    "isotonic": Facts(
        CONFIDENCE,
        SORT,
        "few rows: its steps follow noise; it makes ties, and says nothing of the other classes",
    ),
    "histogram": Facts(
        CONFIDENCE,
        SORT,
        "ranking: all rows of a bin get one confidence, which costs likelihood and AURC",
    ),
    "bbq": Facts(CONFIDENCE, SORT, "as histogram, more smoothly; few rows leave few bins"),
    "scaling-binning": Facts(
        CONFIDENCE, SORT, "where Platt's curve doesn't fit: its error isn't repaired by the bins"
    ),
    "spline": Facts(
        CONFIDENCE, SORT, "sharp bends, and few rows: its slope is wiggly near both ends"
    ),
    "venn-abers": Facts(
        CONFIDENCE,
        "two sorts of N confidences",
        "few rows: the interval of each row is wide, and its middle near isotonic regression",
    ),
    "platt": Facts(ODDS, PASSES_OF_ONE, "confidences off in the middle and right at both ends"),
    "affine": Facts(
        ODDS, PASSES_OF_ONE, "as platt, whose smoothed targets do better with few rows"
    ),
    "quadratic": Facts(
        ODDS, PASSES_OF_ONE, "rows far outside those it was fitted to: it turns around there"
    ),
    "beta": Facts(ODDS, PASSES_OF_ONE, "errors that come and go along the scale: three numbers"),
    "irm": Facts(
        "one map for all classes",
        "a sort of N x K probabilities",
        "classes that are off in different ways: they share one curve",
    ),
    "smart": Facts(
        ROW,
        "about twenty passes over N x K",
        "errors that the margin doesn't show; its aim is ECE, so likelihood may be a little worse",
    ),
    "pts": Facts(
        ROW,
        "hundreds of passes over N x 10",
        "few rows: its network follows noise",
    ),
    "logit-clipping": Facts(
        "a clip of the logits",
        "tens of passes over N x K",
        "rows whose logits stay within bounds: it is temperature scaling there",
    ),
    "consistency": Facts(
        NOISE,
        "minutes at 1 000 classes: an integral for each row and each noise tried",
        "noise in the ECE that it minimises; probit fits the same map by likelihood, and quickly",
    ),
    "probit": Facts(
        NOISE,
        "tens of passes over N x K, each an integral",
        "networks whose softmax tails are right: temperature fits them better",
    ),
    "top-rest": Facts(
        TOP_REST,
        "temperature scaling and a smooth regression on N margins",
        "very few rows, where it stays near temperature scaling",
    ),
    "group": Facts(
        FEATURES,
        "tens of regressions on N x D",
        "features that say nothing of correctness",
    ),
    "procal-dr": Facts(
        FEATURES,
        "the nearest neighbours of N rows, N^2 x D",
        "few wrong rows: the densities of right and wrong rows can't be told apart",
    ),
    "procal-bms": Facts(
        FEATURES,
        "the nearest neighbours of N rows, N^2 x D",
        "cells with few rows, whose shifts are noise",
    ),
    "feature-clipping": Facts(
        FEATURES,
        "tens of passes over N x D x K",
        "networks that aren't overconfident by large features; it moves classes",
    ),
    "dac": Facts(
        FEATURES,
        "the nearest neighbours of N rows among the reference, N x M x D",
        "rows like the calibration rows: its gain is under shift",
    ),
    "probit-top-rest": Facts(
        TOP_REST, "two to three fits of top-rest, and one of probit", "as top-rest"
    ),
    "svs-top-rest": Facts(
        TOP_REST, "svs once for each fold, then top-rest", "very few rows; it may move classes"
    ),
    "auto": Facts(
        AVERAGED,
        "about ten fits of SMART",
        "fewer rows than about 200, where it is temperature scaling; it may move classes",
    ),
}


@dataclass(frozen=True)
class Described:
    """What there is to know of one method.

    Attributes:
        method: its name.
        formula: what it computes, in one line.
        text: the rest of its description, paragraphs.
        arguments: name to default and meaning.
        keeps: whether it keeps every predicted class with its default arguments.
        needs: what it needs besides logits.
        facts: cost and failures; None for methods that the package doesn't know.
        sources: papers, a line each.
    """

    method: str
    formula: str
    text: tuple[str, ...]
    arguments: dict[str, Argument]
    keeps: bool
    needs: tuple[str, ...]
    facts: Facts | None
    sources: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        facts = self.facts._asdict() if self.facts else dict.fromkeys(Facts._fields)
        return {
            "name": self.method,
            "formula": self.formula,
            **facts,
            "keeps_prediction": self.keeps,
            "needs": list(self.needs),
            "arguments": as_json(self.arguments),
            "sources": list(self.sources),
        }


def described(method: str) -> Described:
    """Return what there is to know of a method, by name; chains and plug-ins too.

    Raises:
        UnknownMethodError: no such method.

    Examples:
        >>> from calibrant.posthoc.catalogue import described
        >>> described("temperature").formula
        'One temperature for all rows: softmax(z / T), T by maximum likelihood.'
        >>> described("histogram").arguments["n_bins"][0]
        15
    """
    kind: type[Calibrator] = METHODS.named(method)
    text = Docstring.of(kind)
    defaults = kind().get_params()
    meanings = {key: _meaning(key, text) for key in defaults}
    return Described(
        method,
        _formula(kind, text),
        text.paragraphs,
        {name: Argument(default, meanings[name]) for name, default in defaults.items()},
        kind.keeps_prediction,
        tuple(kind.needs),
        FACTS.get(method),
        _sources(kind),
    )


def _formula(kind: type[Calibrator], text: Docstring) -> str:
    """Return a class's first sentence; of a chain without a docstring of its own its steps."""
    if not issubclass(kind, Chain) or kind.__doc__ != Chain.__doc__:
        return text.summary
    steps = ", then ".join(step.method for step in kind.kinds)
    return f"{steps}: {text.summary[0].lower()}{text.summary[1:]}"


def _sources(kind: type[Calibrator]) -> tuple[str, ...]:
    """Return the sources of a class; of a chain without its own those of its steps."""
    own = Docstring.of(kind).sentences("References")
    if not own and issubclass(kind, Chain):
        own = [source for step in kind.kinds for source in _sources(step)]
    return tuple(dict.fromkeys(own))


def _meaning(argument: str, text: Docstring) -> str:
    """Return what an argument is; one of a chain's step stands in that step's docstring."""
    step, separator, own = argument.partition("__")
    if separator:
        kind = step.rstrip("0123456789").replace("_", "-")
        text, argument = Docstring.of(METHODS.named(kind)), own
    return text.items("Args").get(argument, "")


def all_described() -> list[Described]:
    """Return what there is to know of every method that has a name of its own."""
    return [described(name) for name in METHODS]
