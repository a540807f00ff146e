"""`compare` over several data sets and seeds: what the words name, and where the tables go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.cli.options import read
from calibrant.cli.output import emit, progress, write_text
from calibrant.core.errors import InputError
from calibrant.files.folders import RUN_FILES, SUFFIXES, is_run
from calibrant.predictions.predictions import Predictions


def seeds_in(text: str) -> list[int]:
    """Return the seeds of ``0-4`` or ``0,1,2``.

    Raises:
        InputError: another form, or no seed.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--seeds takes numbers and ranges, as 0-4 or 0,1,2, not '{text}'")
        found += range(int(first), int(last or first) + 1)
    if not found or len(set(found)) < len(found):
        raise InputError(f"--seeds '{text}' names no seed, or one more than once")
    return found


def several(paths: Sequence[Path], seeds: str | None) -> bool:
    """Return whether these are data sets to compare over, rather than one file to split."""
    return len(paths) > 1 or seeds is not None or any(path.is_dir() for path in paths)


def read_datasets(
    paths: Sequence[Path], **options: Any
) -> dict[str, Predictions | tuple[Predictions, Predictions]]:
    """Return data sets by name: files that are split, runs with their two files.

    A folder is a run, or holds runs, or files of predictions.

    Args:
        paths: files and folders.
        options: as `calibrant.cli.options.read` takes them.

    Raises:
        InputError: a folder with neither, or two data sets of one name.
    """
    found: dict[str, Any] = {}
    for path in [place for given in paths for place in _places(given)]:
        name = path.absolute().name if path.is_dir() else path.stem  # "." has no name of its own
        if name in found:
            raise InputError(f"{path}: two data sets are called {name}; rename one of them")
        if path.is_dir():
            fit, test = (read(path / file, **options) for file in RUN_FILES)
            found[name] = (fit, test)
        else:
            found[name] = read(path, **options)
    return found


def _places(path: Path) -> list[Path]:
    """Return the runs and files that a path stands for."""
    if not path.is_dir() or is_run(path):
        return [path]
    inside = sorted(path.iterdir())
    runs = [place for place in inside if place.is_dir() and is_run(place)]
    files = [place for place in inside if place.is_file() and place.suffix.lower() in SUFFIXES]
    if not runs and not files:
        raise InputError(
            f"{path}: holds neither runs (folders with {' and '.join(RUN_FILES)}) nor files of "
            "predictions"
        )
    return runs or files


def compare_datasets(
    datasets: Mapping[str, Predictions | tuple[Predictions, Predictions]],
    methods: Sequence[Any],
    *,
    seeds: Sequence[int],
    tables: Sequence[Path],
    json: str | None,
    **options: Any,
) -> None:
    """Compare methods over data sets, print what was found and write its tables."""
    from calibrant.comparison.multi_dataset import compare_over

    splits = [len(seeds) if isinstance(rows, Predictions) else 1 for rows in datasets.values()]
    with progress(sum(splits) * len(methods), "comparing", remaining=True) as step:
        found = compare_over(datasets, methods, seeds=seeds, progress=step, **options)
    for path in tables:
        write_text(path, found.table(found.rank_by).written_for(path))
    written = "".join(f"\n\nwrote {path}" for path in tables)
    emit(f"{found}{written}", found.as_dict(), json)
