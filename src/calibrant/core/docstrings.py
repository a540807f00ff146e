"""Docstrings as data: what a command line or a page repeats of them, said once in the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|References|Examples|Yields):$")
_ITEM = re.compile(r"^    (\*{0,2}\w+(?:, \w+)*): (.*)$")


class Argument(NamedTuple):
    """An argument's default and what its docstring says it is."""

    default: Any
    meaning: str


def as_json(arguments: Mapping[str, Argument]) -> dict[str, dict[str, Any]]:
    """Return arguments by name as JSON takes them."""
    return {name: each._asdict() for name, each in arguments.items()}


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts.

    Attributes:
        summary: its first paragraph, in one line.
        paragraphs: what follows up to the first section; tables and lists keep their lines.
        sections: title to its lines, as they stand.
    """

    summary: str
    paragraphs: tuple[str, ...]
    sections: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, thing: object) -> Docstring:
        """Return the docstring of a class or function, without the indentation of the code."""
        head: list[str] = []
        sections: dict[str, list[str]] = {}
        into = head
        for line in (inspect.getdoc(thing) or "").replace("``", "").splitlines():
            section = _SECTION.match(line)
            if section:
                into = sections.setdefault(section[1], [])
            else:
                into.append(line)
        paragraphs = "\n".join(head).strip().split("\n\n")
        summary, *rest = [_flowed(paragraph) for paragraph in paragraphs]
        found = {title: tuple(lines) for title, lines in sections.items()}
        return cls(summary, tuple(rest), found)

    def items(self, section: str) -> dict[str, str]:
        """Return the entries ``name: meaning`` of a section; names that share one have it each."""
        found: dict[str, str] = {}
        names: list[str] = []
        for line in self.sections.get(section, ()):
            item = _ITEM.match(line)
            if item:
                names = item[1].replace("*", "").split(", ")
                found |= dict.fromkeys(names, item[2])
            else:
                for name in names:
                    found[name] = f"{found[name]} {line.strip()}".strip()
        return found

    def sentences(self, section: str) -> list[str]:
        """Return a section's lines as one text, a list of one; empty without the section."""
        text = " ".join(line.strip() for line in self.sections.get(section, ())).strip()
        return [text] if text else []


def _flowed(paragraph: str) -> str:
    """Return a paragraph in one line; what is indented is a table, and stays as it is."""
    lines = paragraph.splitlines()
    if any(line.startswith(("  ", "=")) for line in lines):
        return paragraph
    return " ".join(line.strip() for line in lines)
