"""Print the oldest versions that pyproject.toml allows, as requirements for pip.

    python -m scripts.release.oldest [EXTRA ...] > oldest.txt

A lower bound that nobody tries is a guess.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[0-9.]+)")


def oldest(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Return a pin for each dependency, and for each of the extras that are named.

    Raises:
        ValueError: a dependency without a lower bound; `KeyError` for an unknown extra.
    """
    wanted: list[str] = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    pins: dict[str, str] = {}
    for requirement in wanted:
        bound = BOUND.fullmatch(requirement)
        if bound is None:
            raise ValueError(f"'{requirement}' has no lower bound")
        pins[bound["name"]] = f"{bound['name']}=={bound['version']}"
    return list(pins.values())


if __name__ == "__main__":
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print(*oldest(declared, sys.argv[1:]), sep="\n")
