"""Give this checkout a version, everywhere where one stands.

    python -m scripts.release.prepare 0.2.0 [--date 2026-01-31]

It writes both ``_version.py``, what the studies ask for, CITATION.cff and CHANGELOG.md, whose
unreleased part becomes that of the version, copies the repository's address from pyproject.toml to
where it belongs, and makes ``tests/formats/VERSION/``. Look at the difference, then commit it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUDIES = Path("packages/calibrant-studies")
VERSIONS = (Path("src/calibrant/_version.py"), STUDIES / "src/calibrant_studies/_version.py")
CHANGELOG, CITATION = Path("CHANGELOG.md"), Path("CITATION.cff")
UNRELEASED = "## Unreleased"


def repository(root: Path) -> str | None:
    """Return the address that pyproject.toml gives the repository, or None."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def prepare(root: Path, version: str, date: str) -> None:
    """Write the version into the files of a checkout.

    Raises:
        ValueError: no version, one that CHANGELOG.md has already, or a file in which the place for
            it is missing.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"'{version}' is no version such as 0.2.0")
    changes = (root / CHANGELOG).read_text(encoding="utf-8")
    if f"\n## {version} " in changes:
        raise ValueError(f"{CHANGELOG}: has a part of {version} already")
    if not re.search(rf"^{UNRELEASED}\n+(?!## )\S", changes, re.MULTILINE):
        raise ValueError(f"{CHANGELOG}: has nothing under '{UNRELEASED}'")
    for file in VERSIONS:
        _put(root / file, r'(?<=__version__ = ")[^"]+', version)
    minor = version.rpartition(".")[0]
    _put(root / STUDIES / "pyproject.toml", r'(?<="calibrant>=)[^"]+', minor)
    of_citation = f"version: {version}\ndate-released: {date}"
    _put(root / CITATION, r"^version: .+(\ndate-released: .+)?$", of_citation)
    _put(root / CHANGELOG, rf"^{UNRELEASED}$", f"{UNRELEASED}\n\n## {version} - {date}")
    address = repository(root)
    if address is not None:
        _put_address(root, address)


def _put(file: Path, pattern: str, text: str) -> None:
    found = file.read_text(encoding="utf-8")
    changed, count = re.subn(pattern, lambda _: text, found, count=1, flags=re.MULTILINE)
    if count == 0:
        raise ValueError(f"{file}: has no place for {text}")
    file.write_text(changed, encoding="utf-8")


def _put_address(root: Path, address: str) -> None:
    studies = root / STUDIES / "pyproject.toml"
    if "[project.urls]" not in studies.read_text(encoding="utf-8"):
        urls = f'[project.urls]\nRepository = "{address}"\n\n[tool.hatch.version]'
        _put(studies, r"^\[tool\.hatch\.version\]", urls)
    if "repository-code:" not in (root / CITATION).read_text(encoding="utf-8"):
        _put(
            root / CITATION, r"^license: .+$", f'license: Apache-2.0\nrepository-code: "{address}"'
        )


def main(arguments: list[str] | None = None) -> int:
    """Prepare this checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    options = parser.parse_args(arguments)
    # Another process makes the files: it imports the package by its new version.
    fixtures = [sys.executable, "-m", "scripts.release.fixtures", options.version]
    try:
        prepare(ROOT, options.version, options.date)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return subprocess.run([*fixtures, "--just-prepared"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
