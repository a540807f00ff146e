"""A fit of the same rows and settings writes the same bytes, whatever process it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# One of each way to fit: minimising, cross-validation, sorting, features, a network, a choice.
METHODS = ("temperature", "svs", "dirichlet", "isotonic", "bbq", "group", "pts", "probit-top-rest")
SCRIPT = """
import sys, warnings
from pathlib import Path
import calibrant as cb
from calibrant.posthoc import make_calibrator
warnings.simplefilter("ignore")
folder, *methods = sys.argv[1:]
rows = cb.load_sample("validation").take(slice(300))
for method in methods:
    make_calibrator(method).fit_predictions(rows).save(Path(folder) / f"{method}.safetensors")
"""


def fitted(folder: Path, seed_of_hashes: int, threads: int) -> dict[str, bytes]:
    """Return the files of all methods, fitted in a process of its own."""
    folder.mkdir()
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    own = dict.fromkeys(names, str(threads)) | {"PYTHONHASHSEED": str(seed_of_hashes)}
    words = [sys.executable, "-c", SCRIPT, str(folder), *METHODS]
    subprocess.run(words, env=os.environ | own, check=True)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_fit_is_the_same_to_the_byte_whatever_the_hashes_and_threads(tmp_path: Path):
    first = fitted(tmp_path / "first", seed_of_hashes=1, threads=1)
    second = fitted(tmp_path / "second", seed_of_hashes=2, threads=2)
    assert len(first) == len(METHODS)
    assert [name for name in first if first[name] != second.get(name)] == []
