"""What a person should know of a method before choosing it, as each class says it of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from calibrant.core.docstrings import Argument, Docstring, as_json
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.facts import Facts
from calibrant.posthoc.registry import METHODS


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
        facts: title, cost and failures; None for a class that doesn't say.
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
        formula_of(kind),
        text.paragraphs,
        {name: Argument(default, meanings[name]) for name, default in defaults.items()},
        kind.keeps_prediction,
        tuple(kind.needs),
        kind.facts,
        _sources(kind),
    )


def formula_of(kind: type[Calibrator]) -> str:
    """Return the first sentence; of a chain without a docstring of its own, those of its steps."""
    if not issubclass(kind, Chain) or kind.__doc__ != Chain.__doc__:
        return Docstring.of(kind).summary
    steps = ", then ".join(step.method for step in kind.kinds)
    return f"{steps}: {' Then: '.join(formula_of(step) for step in kind.kinds)}"


def title_of(kind: type[Calibrator]) -> str:
    """Return what the name of a method stands for; of a class that doesn't say, its own name."""
    if kind.facts is not None:
        return kind.facts.title
    if issubclass(kind, Chain) and kind.kinds:
        return ", then ".join(map(title_of, kind.kinds))
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", kind.__name__)
    return " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words)


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
