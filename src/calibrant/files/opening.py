"""Files by path or by URL: one way to open, list, look for and put them in place.

A path of this machine is read as it is. Anything of the form ``scheme://...`` goes through fsspec,
which knows ``s3://``, ``gs://``, ``memory://`` and many more, each by a package of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from calibrant.core.errors import CalibrantError, InputError, PredictionsError
from calibrant.core.outputs import replacing
from calibrant.core.text import reason_of
from calibrant.files.gate import check_regular, load_json, optional

# What file systems behind fsspec call the version of a file, or when it was last changed.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "last_modified",
    "LastModified",
    "updated",
    "created",
)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(where: str) -> bool:
    """Return whether `where` is a URL rather than a path of this machine."""
    return _URL.match(where) is not None


def extension_of(where: str) -> str:
    """Return the extension of a path or URL in lower case, with its dot."""
    return PurePosixPath(where).suffix.lower() if is_url(where) else Path(where).suffix.lower()


def beside(where: str, name: str) -> str:
    """Return the place of another file in the same folder."""
    if is_url(where):
        return f"{where.rpartition('/')[0]}/{name}"
    return str(Path(where).with_name(name))


def within(folder: str, name: str) -> str:
    """Return the place of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder) / name)


def name_of(where: str) -> str:
    """Return the last part of a path or URL."""
    return where.rstrip("/").rpartition("/")[2] if is_url(where) else Path(where).name


def stem_of(where: str) -> str:
    """Return the name of a file without its folder and extension."""
    return Path(name_of(where)).stem


@contextmanager
def asked(where: str) -> Generator[None]:
    """Turn what a file system raises in the body into one sentence."""
    try:
        yield
    except CalibrantError:
        raise
    except FileNotFoundError:
        raise PredictionsError(f"{where}: there is no such file") from None
    # Each of the many systems fails in its own way.
    except Exception as error:
        fault = f"{where}: can't be reached: {reason_of(error, 300)}"
        raise PredictionsError(fault) from error


@contextmanager
def _system(where: str) -> Generator[tuple[Any, str]]:
    """Yield the file system of a URL, and what the URL is called there; see `asked`."""
    core = optional("fsspec.core", "fsspec", "remote")
    with asked(where):
        yield core.url_to_fs(where)


def open_binary(where: str) -> BinaryIO:
    """Open a regular file, or a URL, to be read from any place.

    Raises:
        PredictionsError: there is no such file, or it is none.
        MissingDependencyError: a URL, without fsspec.
    """
    if not is_url(where):
        check_regular(Path(where), where)
        with asked(where):
            return Path(where).open("rb")
    with _system(where) as (system, path):
        return cast(BinaryIO, system.open(path, "rb"))


def is_file(where: str) -> bool:
    """Return whether a file is there."""
    if not is_url(where):
        return os.path.isfile(where)
    with _system(where) as (system, path):
        return bool(system.isfile(path))


def is_folder(where: str) -> bool:
    """Return whether a folder is there."""
    if not is_url(where):
        return os.path.isdir(where)
    with _system(where) as (system, path):
        return bool(system.isdir(path))


def size_of(where: str) -> float:
    """Return how many bytes a file has, or the files of a folder; of a URL infinity, if unknown."""
    if not is_url(where):
        with asked(where):
            if os.path.isdir(where):
                with os.scandir(where) as entries:
                    return sum(entry.stat().st_size for entry in entries if entry.is_file())
            return os.stat(where).st_size
    with _system(where) as (system, path):
        known = cast(dict[str, Any], system.info(path)).get("size")
    return float("inf") if known is None else float(known)


def changed_at(where: str) -> str:
    """Return when a file was last changed, or its version, as its file system tells it."""
    if not is_url(where):
        with asked(where):
            return str(os.stat(where).st_mtime_ns)
    with _system(where) as (system, path):
        known = cast(dict[str, Any], system.info(path))
    return str(next((known[key] for key in _VERSIONS if known.get(key) is not None), ""))


def remove(where: str) -> None:
    """Remove a file, if it is there."""
    if not is_file(where):
        return
    if is_url(where):
        with _system(where) as (system, path):
            system.rm(path)
    else:
        os.remove(where)


def entries(folder: str) -> list[str]:
    """Return the places of what lies in a folder, files and folders alike, in no special order."""
    if not is_url(folder):
        with asked(folder):
            return [str(Path(folder) / name) for name in os.listdir(folder)]
    with _system(folder) as (system, path):
        found = cast(list[str], system.ls(path, detail=False))
        names = [one.rstrip("/").rpartition("/")[2] for one in found]
        own = path.rstrip("/").rpartition("/")[2]
        return [within(folder, name) for name in names if name != own or len(names) > 1]


def matching(pattern: str) -> list[str]:
    """Return the places that a glob pattern finds."""
    if not is_url(pattern):
        from glob import glob

        return glob(pattern, recursive=True)
    with _system(pattern) as (system, path):
        found = cast(list[str], system.glob(path))
        return [cast(str, system.unstrip_protocol(one)) for one in found]


@contextmanager
def replacing_anywhere(where: str) -> Generator[BinaryIO]:
    """Yield a file to write to that becomes `where`, a path or URL, whole or not at all.

    Of a URL the file is written under a name of its own and moved.

    Raises:
        InputError: it can't be written.
    """
    if not is_url(where):
        with replacing(where) as temporary, temporary.open("w+b") as file:
            yield file
        return
    with _system(where) as (system, path):
        head, _, tail = path.rpartition("/")
    temporary_path = f"{head}/.calibrant-{os.urandom(8).hex()}-{tail}"
    try:
        with asked(where):
            system.makedirs(head, exist_ok=True)
            file = cast(BinaryIO, system.open(temporary_path, "wb"))
        with file:
            yield file
        with asked(where):
            system.mv(temporary_path, path)
    except BaseException as error:
        if system.exists(temporary_path):
            system.rm(temporary_path)
        if isinstance(error, PredictionsError):
            raise InputError(str(error)) from error
        raise


def make_folder(where: str) -> None:
    """Make a folder, and those above it, if it isn't there.

    Raises:
        InputError: it can't be made.
    """
    if not is_url(where):
        try:
            os.makedirs(where, exist_ok=True)
        except OSError as error:
            raise InputError(f"{where}: can't make this folder ({error.strerror})") from error
        return
    with _system(where) as (system, path):
        system.makedirs(path, exist_ok=True)


# What a run of `calibrant train` leaves, and what is read of it.
RUN_FILES = ("val.npz", "test.npz")
# Files of predictions in a folder; .npy scores come with labels of their own, and are named alone.
SUFFIXES = {".npz", ".csv", ".parquet", ".safetensors", ".pt", ".h5", ".hdf5"}


def is_run(folder: Path) -> bool:
    """Return whether a folder holds the predictions of a run."""
    return all((folder / name).is_file() for name in RUN_FILES)


def read_configuration(file: Path) -> dict[str, Any]:
    """Return what ``config.json`` of a run says.

    Raises:
        OSError: it can't be read.
        ValueError: it is no JSON object.
    """
    document = load_json(file.read_bytes(), str(file))
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    return cast(dict[str, Any], document)
