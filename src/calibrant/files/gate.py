"""The gate that all bytes from outside pass: only `CalibrantError` comes out of it.

Files are regular ones, promise no more than they can hold or a machine can take, and whatever a
decoder makes of them is one sentence.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import shlex
import stat
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePath
from threading import RLock
from typing import Any, BinaryIO

from calibrant.core.errors import (
    CalibrantError,
    InputError,
    MissingDependencyError,
    PredictionsError,
)
from calibrant.core.text import reason_of

# The best that deflate can do: 258 bytes for two bits, or a little less.
HIGHEST_COMPRESSION = 1032
# Numbers may take so many times the bytes of their file, and so many more: what is computed of them
# takes about twice as much again, so that reading takes ten times the file and 500 MB at most.
MOST_UNPACKED, MOST_MORE = 4, 128 << 20
# Of text, which is held beside them and has more rows to a byte, that many times less.
TEXT_SHARE = 2
# What a file that isn't of numbers may unpack to: settings, notes, states.
MOST_DOCUMENT_BYTES = 256 << 20
# A message should stay readable whatever a decoder says.
SHOWN_CHARACTERS = 300
# Of each extension of packed text: how such files begin, what unpacks them, what is typed for it.
PACKED: dict[str, tuple[bytes, Callable[[BinaryIO], Any], str]] = {
    ".gz": (b"\x1f\x8b", gzip.open, "gunzip -k"),
    ".bz2": (b"BZh", bz2.BZ2File, "bunzip2 -k"),
    ".xz": (b"\xfd7zXZ", lzma.LZMAFile, "unxz -k"),
}
_IMPORTING = RLock()


def check_regular(
    path: Path,
    source: str,
    error: type[InputError] = PredictionsError,
    *,
    folders: bool = False,
) -> None:
    """Raise an error of the given class unless `path` is a regular file.

    A pipe or a device would wait for ever, or never end.

    Args:
        path: the file.
        source: what the message calls it.
        error: what to raise.
        folders: whether a folder will do as well.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{source}: there is no such file") from None
    except (OSError, ValueError) as refusal:  # a name may be too long, or hold a zero
        reason = getattr(refusal, "strerror", None) or refusal
        raise error(f"{source}: can't be read: {reason}") from refusal
    if stat.S_ISDIR(mode) and not folders:
        raise error(f"{source}: there is no such file, but a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise error(f"{source}: is a pipe, a device or the like; only regular files are read")


def check_name(where: str) -> None:
    """Raise `PredictionsError` for a name that no system can have, of a file or in a manifest."""
    try:
        held = os.fsencode(where)
    except UnicodeEncodeError:
        held = b"\0"
    if b"\0" in held:
        raise PredictionsError(f"{where!r}: no file can have this name")


# What to do about a file that can't be read whole.
PARTLY = "; read it part by part, by --workers 1, or in Python by cb.Shards"


class UnpackedError(PredictionsError):
    """The numbers of a file take too much memory, above all far more than the file."""


class NotUtf8Error(PredictionsError):
    """A file of text isn't in UTF-8."""


def check_bounded(
    size: int, packed: float, what: str, source: str, way: str = "", *, share: int = 1
) -> None:
    """Raise `UnpackedError` if an array takes more memory than a file should, or than there is.

    Args:
        size: of the array, in bytes.
        packed: of the file.
        what: the array is called.
        source: begins the message.
        way: what to do about it, which ends the message.
        share: by which `MOST_MORE` is divided.
    """
    memory = math.inf
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UnpackedError(
            f"{source}: {what} takes {size / 2**30:.0f} GiB, more than this machine's memory{way}"
        )
    most = MOST_UNPACKED * packed + MOST_MORE // share
    if size > most:
        raise UnpackedError(
            f"{source}: {what} takes {size / 1e6:,.0f} MB of memory, far more than the "
            f"{packed / 1e6:,.3g} MB of the file; at most {most / 1e6:,.3g} MB are read{way}"
        )


def check_unpacked(size: int, packed: int, what: str, source: str) -> None:
    """Raise `PredictionsError` if so many bytes can't be packed into `packed`."""
    if size > HIGHEST_COMPRESSION * (packed + 1):
        raise PredictionsError(f"{source}: {what} can't be {size} bytes, packed into {packed}")


def unpacked(file: BinaryIO, source: str) -> BinaryIO:
    """Return what a file holds that gzip, bzip2 or xz has packed, in memory; others as they are.

    Raises:
        UnpackedError: it is far more than the file.
    """
    first = file.read(6)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    for mark, opened, typed in PACKED.values():
        if first.startswith(mark):
            most = MOST_UNPACKED * size + MOST_MORE // TEXT_SHARE
            with file, readable("the packed file", source), opened(file) as packed:
                held = packed.read(most + 1)
            if len(held) > most:
                raise UnpackedError(
                    f"{source}: holds more than {most / (1 << 20):.3g} MiB, far more than the "
                    f"file; unpack it first: {typed} {shlex.quote(source)}"
                )
            return io.BytesIO(held)
    return file


def check_members(archive: zipfile.ZipFile, source: str) -> None:
    """Raise `PredictionsError` where two members of a zip archive go by one name."""
    names = archive.namelist()
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise PredictionsError(f"{source}: '{twice}' occurs twice; leave one of them out")


@contextmanager
def readable(what: str, source: str) -> Generator[None]:
    """Turn any exception of a decoder in the body into one `PredictionsError`, in one line.

    Args:
        what: what is read, as the message names it.
        source: begins the message.
    """
    try:
        yield
    # A warning, where a caller makes errors of them, is none of the decoder's.
    except (CalibrantError, Warning):
        raise
    except UnicodeDecodeError as failure:
        ending = PurePath(source).suffix
        if b"\0" in failure.object:
            raise NotUtf8Error(
                f"{source}: can't read {what}: it is no text, but binary"
            ) from failure
        command = f"iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(source)} > utf8{ending}"
        raise NotUtf8Error(
            f"{source}: can't read {what}: it is no UTF-8 text ({failure.reason}); save it as UTF-8"
            + f", of an older Windows by {command}" * bool(ending)  # not a folder
        ) from failure
    # A damaged file makes the decoder that meets it raise almost anything.
    except Exception as failure:
        reason = reason_of(failure, SHOWN_CHARACTERS)
        raise PredictionsError(f"{source}: can't read {what}: {reason}") from failure


def load_json(text: str | bytes, source: str, what: str = "the JSON") -> Any:
    """Return what a JSON document holds.

    Raises:
        PredictionsError: it is no JSON, too long, nested too deep, or holds a number of thousands
            of digits.
    """
    if len(text) > MOST_DOCUMENT_BYTES:
        raise PredictionsError(f"{source}: {what} is longer than {MOST_DOCUMENT_BYTES >> 20} MiB")
    try:
        return json.loads(text)
    except RecursionError:
        raise PredictionsError(f"{source}: can't read {what}: it is nested too deep") from None
    except ValueError as failure:
        raise PredictionsError(f"{source}: can't read {what}: {reason_of(failure)}") from failure


def json_entries(text: str, source: str) -> list[str]:
    """Return the entries of a document that is one JSON array, each as it stands there.

    Parsed all at once they would take many times their text.

    Raises:
        PredictionsError: as `load_json`.
    """
    if len(text) > MOST_DOCUMENT_BYTES:
        raise PredictionsError(f"{source}: the JSON is longer than {MOST_DOCUMENT_BYTES >> 20} MiB")
    decoder, found = json.JSONDecoder(), list[str]()

    def solid(at: int) -> int:
        while text[at : at + 1].isspace():
            at += 1
        return at

    at = text.index("[") + 1
    try:
        while True:
            first = solid(at)
            _, end = decoder.raw_decode(text, first)
            found.append(text[first:end])
            at = solid(end) + 1
            if text[at - 1 : at] != ",":
                break
    except RecursionError:
        raise PredictionsError(f"{source}: can't read the JSON: it is nested too deep") from None
    except ValueError as failure:
        raise PredictionsError(f"{source}: can't read the JSON: {reason_of(failure)}") from failure
    if text[at - 1 :].strip() != "]":
        raise PredictionsError(
            f"{source}: can't read the JSON: the array doesn't end where it should"
        )
    return found


def load_toml(path: Path, source: str) -> dict[str, Any]:
    """Return what a TOML file holds; `InputError` for one that isn't usable."""
    check_regular(path, source, InputError)
    if path.stat().st_size > MOST_DOCUMENT_BYTES:
        raise InputError(f"{source}: is longer than {MOST_DOCUMENT_BYTES >> 20} MiB")
    import tomllib  # few commands need it

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise InputError(f"{source}: is nested too deep") from None
    except (ValueError, OSError) as failure:
        raise InputError(f"{source}: is no TOML: {reason_of(failure)}") from failure


def optional(module: str, package: str, extra: str) -> Any:
    """Import a module of an optional package, or raise `MissingDependencyError`.

    One thread at a time: where two begin with modules of a package that import one another, Python
    gives one of them a module that isn't whole yet.
    """
    try:
        with _IMPORTING:
            return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this format needs {package}: pip install 'calibrant[{extra}]'"
        ) from error
