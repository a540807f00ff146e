"""Check the built distributions of both packages, and try their wheels without the checkout.

    python -m scripts.release.check dist

Run in an environment that has twine. The wheels go into a fresh environment, in which nothing of
this checkout can be found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

from scripts.release.prepare import ROOT, STUDIES, VERSIONS, repository

# Names of the distributions, as files have them, and folders of what they install.
PACKAGES = {"calibrant": "calibrant", "calibrant_studies": "calibrant_studies"}
RELATIVE = re.compile(r"\]\((?!https?:|#|mailto:)[^)]+\)")
# What each command does is tested elsewhere; here it must only be there, whole and on its own.
TRIAL = """
import importlib.metadata as m
from pathlib import Path
import numpy as np
import calibrant as cb
import calibrant_studies

for package in (cb, calibrant_studies):
    assert "site-packages" in package.__file__, package.__file__
    assert (Path(package.__file__).parent / "py.typed").is_file()
assert cb.__version__ == m.version("calibrant") == m.version("calibrant-studies")
val, test = cb.load_sample("validation"), cb.load_sample("test")
before = cb.evaluate(test, metrics=["ece"], resamples=50)["ece"].value
fitted = cb.SMART().fit(val.logits, val.labels)
fitted.save("smart.safetensors")
probs = cb.load("smart.safetensors").predict_proba(test.logits)
after = cb.evaluate(probs, test.labels, metrics=["ece"], resamples=50)["ece"].value
assert after < before / 2, (before, after)
np.savez("val.npz", logits=val.logits, labels=val.labels)
print(f"ECE {before:.4f} -> {after:.4f}")
"""
COMMANDS = (
    "measure val.npz --metrics ece --json measured.json",
    "fit val.npz --method temperature --no-worth --out temperature.safetensors",
    "apply temperature.safetensors val.npz --out calibrated.npz",
    "demo --out demo-report",
    "study list",
)


@dataclass
class Built:
    """A distribution: its file, its metadata, and the names of what is in it."""

    file: Path
    metadata: Message
    names: list[str]


def read(file: Path) -> Built:
    """Return what is in a wheel or an sdist."""
    if file.suffix == ".whl":
        with ZipFile(file) as archive:
            names = archive.namelist()
            of = next(name for name in names if name.endswith(".dist-info/METADATA"))
            return Built(file, message_from_bytes(archive.read(of)), names)
    with tarfile.open(file) as archive:
        names = archive.getnames()
        top = min(name for name in names if name.endswith("/PKG-INFO") and name.count("/") == 1)
        content = archive.extractfile(top)
        assert content is not None
        return Built(file, message_from_bytes(content.read()), names)


def faults(built: Built, version: str) -> list[str]:
    """Return what is wrong with a distribution, in sentences."""
    found, metadata = list[str](), built.metadata
    if metadata["Version"] != version:
        found.append(f"is of version {metadata['Version']}, and the checkout of {version}")
    if metadata["License-Expression"] != "Apache-2.0" or "LICENSE" not in (
        metadata.get_all("License-File") or []
    ):
        found.append("says no licence, or has no file of it")
    for wanted in ("LICENSE", "py.typed"):
        if not any(name.endswith(f"/{wanted}") for name in built.names):
            found.append(f"has no {wanted}")
    text = str(metadata.get_payload())
    if metadata["Description-Content-Type"] != "text/markdown" or len(text) < 200:
        found.append("has no long description in Markdown")
    found += [f"has a relative link, {link}" for link in RELATIVE.findall(text)]
    versions = [c for c in metadata.get_all("Classifier") or [] if re.search(r":: 3\.\d+$", c)]
    if not versions or not metadata["Requires-Python"]:
        found.append("doesn't say for which versions of Python it is")
    if built.file.suffix == ".whl":
        tops = {name.split("/")[0] for name in built.names if ".dist-info/" not in name}
        if tops - {*PACKAGES}:
            found.append(f"installs {', '.join(sorted(tops - {*PACKAGES}))}")
    return found


def try_wheels(wheels: list[Path]) -> None:
    """Install wheels into a fresh environment, and do the main jobs there.

    Raises:
        subprocess.CalledProcessError: one of them failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        venv.create(where / "env", with_pip=True)
        programs = where / "env" / ("Scripts" if os.name == "nt" else "bin")
        python = str(programs / "python")
        # A path of the caller's would bring the checkout in.
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(*words: str) -> None:
            print("$", *(word if "\n" not in word else "..." for word in words), flush=True)
            subprocess.run(words, cwd=where, env=clean, check=True)

        run(python, "-m", "pip", "install", "--quiet", *map(str, wheels))
        run(python, "-m", "pip", "check")
        run(python, "-W", "error", "-c", TRIAL)
        for command in COMMANDS:
            run(str(programs / "calibrant"), *command.split())
        for written in ("measured.json", "calibrated.npz", "demo-report/report.html"):
            assert (where / written).stat().st_size > 0, written


def version_of(root: Path) -> str:
    """Return the version of the checkout; `ValueError` if its packages differ."""
    found = {re.findall(r'"(\d.*)"', (root / file).read_text())[0] for file in VERSIONS}
    if len(found) != 1:
        raise ValueError(f"the packages are of different versions: {', '.join(sorted(found))}")
    return found.pop()


def main(arguments: list[str] | None = None) -> int:
    """Check a folder of distributions; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    version = version_of(ROOT)
    wheels = [folder.resolve() / f"{name}-{version}-py3-none-any.whl" for name in PACKAGES]
    files = [*wheels, *(folder.resolve() / f"{name}-{version}.tar.gz" for name in PACKAGES)]
    wrong = [f"{file.name}: isn't there" for file in files if not file.is_file()]
    if not wrong:
        wrong = [f"{file.name}: {each}" for file in files for each in faults(read(file), version)]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if repository(ROOT) is None:
        print(
            "note: pyproject.toml gives no address of the repository, so the long description has "
            f"no links to its pages; it goes there and into {STUDIES / 'pyproject.toml'}"
        )
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    try_wheels(wheels)
    print(f"{len(files)} distributions of {version} are good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
