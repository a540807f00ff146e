"""What all tests share: settings of hypothesis, synthetic logits, and the larger real data."""

from __future__ import annotations

import gc
import os
import shutil
import sys

# Workers share the cores: with threads of its own in each, they would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from calibrant.core.plug_ins import forget_plug_ins
from calibrant.files import read_predictions
from calibrant.predictions.predictions import Predictions

SHARED_DATA = Path(__file__).parents[1] / "shared/data/predictions"

# Timing lives elsewhere: a busy machine must not make a law fail.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

Labelled = tuple[NDArray[np.float64], NDArray[np.int64]]


def draw_labelled_logits(
    rows: int = 2000, classes: int = 5, temperature: float = 2.0, seed: int = 0, spread: float = 2.0
) -> Labelled:
    """Return overconfident logits whose right temperature is known.

    Labels are drawn from softmax(z) by the Gumbel maximum; the logits returned are temperature * z.
    """
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=spread, size=(rows, classes))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    return temperature * honest, labels


def pytest_collection() -> None:
    """Don't go through what is imported again and again: next to nothing of it is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the tests and what they imported out of what the garbage collector goes through."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """Close what a test drew; pyplot keeps every figure, and warns of many."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def labelled_logits() -> Callable[..., Labelled]:
    """The function that draws logits; their right temperature is 2 unless asked otherwise."""
    return draw_labelled_logits


@pytest.fixture(scope="session")
def overconfident() -> Labelled:
    """2 000 rows of 5 classes whose right temperature is 2. Not to be written to."""
    logits, labels = draw_labelled_logits()
    logits.flags.writeable = labels.flags.writeable = False
    return logits, labels


@pytest.fixture(scope="session")
def real_predictions() -> Callable[[str], Predictions]:
    """A function that reads a file of the larger real data by name, or skips the test."""

    def read(name: str) -> Predictions:
        path = SHARED_DATA / name
        if not path.is_file():
            pytest.skip(f"the larger real data are not on this machine: no {name}")
        return read_predictions(path, name=name)

    return read


@pytest.fixture
def install_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """A function that installs the modules of a folder under entry points of one's choice."""
    site = tmp_path / "site"

    def install(folder: Path, group: str, **points: str) -> None:
        shutil.copytree(folder, site, dirs_exist_ok=True)
        info = site / f"{folder.name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n"
        )
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
        with (info / "entry_points.txt").open("a") as stream:
            stream.write("\n".join([f"[{group}]", *lines, ""]))
        monkeypatch.syspath_prepend(site)
        forget_plug_ins()

    before = set(sys.modules)
    yield install
    forget_plug_ins()
    for name in set(sys.modules) - before:
        if str(site) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
