"""What an index shows of this package: README.md with links that lead there from anywhere.

`[project.urls]` in pyproject.toml is the one place that says where the repository is. Links of
README.md are made absolute with it, at the tag of this version; without it they are left out, and
so are pictures, since a link that leads nowhere is worse than none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")


def for_an_index(readme: str, repository: str | None, version: str) -> str:
    """Return the text of a README whose relative links are absolute, or left out."""

    def replaced(link: re.Match[str]) -> str:
        if repository is None:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        where = f"{repository.rstrip('/')}/{kind}/v{version}/{link['target']}"
        return f"{link['picture']}[{link['text']}]({where})"

    # A picture that is gone leaves no more than one empty line.
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(replaced, readme))


class LongDescription(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description."""
        version = re.search(r'"(.+)"', Path(self.root, "src/calibrant/_version.py").read_text())
        assert version is not None
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_an_index(text, repository, version[1]),
        }
