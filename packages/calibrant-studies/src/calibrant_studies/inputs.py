"""Rows to fit on and rows to measure on, for studies, drawn so that the truth is known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.files import read_predictions
from calibrant.files.opening import RUN_FILES, SUFFIXES, is_run, read_configuration
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.synthetic import margin_tempered, tempered
from calibrant_studies.declaration import SAMPLE

MOST_TEST_ROWS = 10_000


@dataclass(frozen=True)
class Draw:
    """One draw: `fit` and `test` share no row; `truth` is (N, K) true probabilities, if known."""

    fit: Predictions
    test: Predictions
    truth: NDArray[np.float64] | None = None


def known_truth(name: str, rows: int, seed: int) -> Draw:
    """Return synthetic rows by the name of their kind: ``synthetic``, ``tempered-K``, ``margin-K``.

    K is a number of classes; see `calibrant.synthetic` for the last two.
    """
    kind, _, classes = name.partition("-")
    if kind == "synthetic":
        return synthetic(rows, seed)
    make = {"tempered": tempered, "margin": margin_tempered}[kind]
    truth = make(rows + MOST_TEST_ROWS, int(classes), seed=seed)
    fit, test = np.arange(rows), np.arange(rows, rows + MOST_TEST_ROWS)
    return Draw(truth.predictions.take(fit), truth.predictions.take(test), truth.honest[test])


def synthetic(rows: int, seed: int, classes: int = 20, bias: float = 0.6) -> Draw:
    """Return rows of a network that is too sure at middling margins and favours some classes.

    The true probabilities are softmax(z) with the top class's log odds multiplied by 0.8 and
    lowered by a bump at margins near 1.3. The network says 1.5 (z + b), with a normal b of
    deviation `bias` that is fixed by class.
    """
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=2.5, size=(rows + MOST_TEST_ROWS, classes))
    truth = softmax(honest)
    index, top = np.arange(len(truth)), honest.argmax(axis=1)
    second, first = np.sort(honest, axis=1)[:, -2:].T
    bump = np.exp(-(((np.log(first - second + 1e-3) - 0.3) / 0.6) ** 2))
    confidence = truth[index, top]
    log_odds = 0.8 * np.log(confidence / (1 - confidence)) - 1.2 * bump
    new = 1 / (1 + np.exp(-log_odds))
    truth[index, top] = 0
    truth *= ((1 - new) / truth.sum(axis=1))[:, None]
    truth[index, top] = new
    labels = (truth.cumsum(axis=1) > rng.random((len(truth), 1))).argmax(axis=1)
    favour = bias * np.random.default_rng(12345).normal(size=classes)
    whole = Predictions.from_logits(1.5 * (honest + favour), labels, source="synthetic")
    fit, test = np.arange(rows), np.arange(rows, len(truth))
    return Draw(whole.take(fit), whole.take(test), truth[test])


# What a study is given, by name: files of predictions, runs, data sets on disk, sample data.

VALIDATION, TEST = "-val", "-test"
CONFIGURATION = "config.json"
# Bigger trees of files than this go by names and sizes; to read them would take longer than a run.
MOST_BYTES = 1 << 30
# Names of rows that are drawn, and how many to fit on where nobody says.
KNOWN_TRUTH = re.compile(r"synthetic|(tempered|margin)-\d+")
DRAWN_ROWS = 5000


@dataclass(frozen=True)
class StudyInput:
    """One input.

    Attributes:
        name: which the study calls it by.
        paths: a pair of files to fit and to measure on, or one file or folder.
    """

    name: str
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The only file or folder."""
        return self.paths[0]

    @property
    def is_run(self) -> bool:
        """Whether it is a run of `calibrant train`."""
        return len(self.paths) == 1 and is_run(self.path)

    @property
    def is_split(self) -> bool:
        """Whether there is one file, whose rows are split anew for every seed."""
        return len(self.paths) == 1 and self.path.is_file()

    @property
    def configuration(self) -> dict[str, Any]:
        """What `config.json` of a run says.

        Raises:
            InputError: there is none, or it is no JSON.
        """
        path = self.path / CONFIGURATION
        try:
            return read_configuration(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: can't be read as the configuration of a run") from error

    @property
    def digest(self) -> str:
        """The digest of what it holds, whatever it is called and wherever it lies."""
        return _digest(self.paths, tuple(_state(path) for path in self.paths))

    @property
    def varies(self) -> bool:
        """Whether the rows to measure on are others for every seed."""
        return self.is_split

    def predictions(self) -> tuple[Predictions, Predictions | None]:
        """Return the rows to fit on and those to measure on, None for one file that is split.

        Raises:
            PredictionsError: a file holds no usable predictions.
        """
        places = [self.path / name for name in RUN_FILES] if self.is_run else self.paths
        read = [_read(path, _state(path)) for path in places]
        return read[0], read[1] if len(read) > 1 else None

    def rows(
        self, seed: int, *, size: int | None = None, fit_size: float = 0.5, rest: bool = False
    ) -> tuple[Predictions, Predictions]:
        """Return the rows to fit on and those to measure on.

        Args:
            seed: of the split of one file, and of the draw of `size` rows.
            size: how many rows to fit on; None for all, or those of the split.
            fit_size: of one file: rows to fit on, or a fraction below 1.
            rest: of one file, with `size`: measure on all rows that aren't fitted on.

        Raises:
            InputError: there are fewer rows.
        """
        pool, test = self.predictions()
        if test is None:
            if rest and size is not None and size < pool.n:
                return pool.split(size, seed)
            pool, test = pool.split(fit_size, seed)
        if size is None or size == pool.n:
            return pool, test
        if size > pool.n:
            raise InputError(f"{self.name}: has {pool.n} rows to fit on, not {size}")
        return pool.split(size, seed)[0], test


@dataclass(frozen=True)
class Drawn(StudyInput):
    """Rows that are drawn anew for every seed, and whose truth is known; see `known_truth`."""

    @property
    def varies(self) -> bool:
        """They do."""
        return True

    @property
    def digest(self) -> str:
        """The name, which says how they are drawn."""
        return f"drawn {self.name}"

    def draw(self, seed: int, size: int | None) -> Draw:
        """Return rows with their true probabilities."""
        return known_truth(self.name, size or DRAWN_ROWS, seed)

    def predictions(self) -> tuple[Predictions, Predictions | None]:
        """Return those of the first seed."""
        return self.rows(0)

    def rows(
        self, seed: int, *, size: int | None = None, fit_size: float = 0.5, rest: bool = False
    ) -> tuple[Predictions, Predictions]:
        """Return the rows of a seed; `size` of them to fit on."""
        draw = self.draw(seed, size)
        return draw.fit, draw.test


class Inputs(Mapping[str, StudyInput]):
    """Inputs by name; sample data that ship with the package, and drawn rows, are always there."""

    def __init__(self, given: Mapping[str, StudyInput]) -> None:
        self._given = {SAMPLE: sample(), **given}

    def __getitem__(self, name: str) -> StudyInput:
        if name not in self._given and KNOWN_TRUTH.fullmatch(name):
            return Drawn(name, ())
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def sample() -> StudyInput:
    """Return the predictions that ship with the package."""
    folder = files("calibrant").joinpath("sample_data")
    with as_file(folder) as place:
        return StudyInput(SAMPLE, (place / "validation.npz", place / "test.npz"))


def inputs_of(texts: Iterable[str]) -> tuple[Inputs, list[str]]:
    """Return the inputs that words of the command line name, and the names given explicitly.

    Args:
        texts: ``NAME=PATH``, ``NAME=FIT_PATH,TEST_PATH``, or paths whose files and folders go by
            the names that they have: ``NAME-val.npz`` beside ``NAME-test.npz``, ``NAME.npz``, a
            run or a data set in a folder ``NAME``.

    Raises:
        InputError: a path isn't there, or two inputs have one name.
    """
    found: dict[str, StudyInput] = {}
    named: list[str] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        if equals and not Path(text).exists():
            paths = tuple(Path(part) for part in rest.split(","))
            if not name or len(paths) > 2:
                raise InputError(f"--data '{text}' is not of the form NAME=PATH or NAME=FIT,TEST")
            new = [StudyInput(name, paths)]
            named.append(name)
        else:
            paths = (Path(text),)
            new = list(_discovered(paths[0]))
        missing = next((path for path in paths if not path.exists()), None)
        if missing is not None:
            raise InputError(f"--data {text}: there is no {missing}")
        for each in new:
            if each.name in found and found[each.name] != each:
                raise InputError(
                    f"--data {text}: two inputs are called {each.name}; give NAME=PATH for one"
                )
            found[each.name] = each
    return Inputs(found), named


def _discovered(path: Path) -> Iterator[StudyInput]:
    """Yield the inputs that a path stands for."""
    if not path.is_dir():
        yield from _of_files([path, *path.parent.glob(f"*{path.suffix}")], only=path)
    elif is_run(path):
        yield StudyInput(path.name, (path,))
    else:
        inside = sorted(path.iterdir())
        yield from _of_files([file for file in inside if file.suffix.lower() in SUFFIXES])
        yield from (StudyInput(folder.name, (folder,)) for folder in inside if folder.is_dir())
        # What holds neither may be a data set itself.
        yield StudyInput(path.name, (path,))


def _of_files(paths: Iterable[Path], only: Path | None = None) -> Iterator[StudyInput]:
    """Yield pairs of files, and single ones."""
    known = {path.name: path for path in paths if path.is_file()}
    for path in list(known.values()) if only is None else [only]:
        stem, suffix = path.stem, path.suffix
        if stem.endswith(TEST) and f"{stem.removesuffix(TEST)}{VALIDATION}{suffix}" in known:
            if only is None:
                continue
            stem = stem.removesuffix(TEST) + VALIDATION
        name = stem.removesuffix(VALIDATION)
        test = known.get(f"{name}{TEST}{suffix}")
        if name != stem and test is not None:
            yield StudyInput(name, (known[f"{stem}{suffix}"], test))
        else:
            yield StudyInput(stem, (path,))


def _state(path: Path) -> tuple[int, int]:
    """Return what tells whether a path has changed since it was read."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error
    return state.st_size, state.st_mtime_ns


@lru_cache(maxsize=4)
def _read(path: Path, state: tuple[int, int]) -> Predictions:
    return read_predictions(path)


@lru_cache
def _digest(paths: tuple[Path, ...], states: tuple[tuple[int, int], ...]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
            continue
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        small = sum(file.stat().st_size for file in inside) <= MOST_BYTES
        for file in inside:
            whole.update(f"{file.relative_to(path).as_posix()} {file.stat().st_size}\n".encode())
            if small:
                with file.open("rb") as opened:
                    whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()
