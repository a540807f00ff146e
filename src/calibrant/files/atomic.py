"""Outputs that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from os import fspath
from pathlib import Path

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.temporaries import temporary_beside

StrPath = str | os.PathLike[str]

# Of a disk, a quota or a limit that is full, and of one that fails.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# A writer that found no room has left less than this.
PROBE_BYTES = 1 << 20


def target_of(path: StrPath) -> Path:
    """Return the file that is written for `path`: a link stays one, and its target is replaced.

    Raises:
        InputError: the folder doesn't exist.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise InputError(f"{fspath(path)}: the folder {target.parent} doesn't exist")
    return target


@contextmanager
def replacing(path: StrPath) -> Generator[Path]:
    """Yield a temporary path in the folder of `path` to write to; on leaving it becomes `path`.

    If the body raises, an old file at `path` stays as it was and the temporary one is removed.
    The temporary path keeps the extension, since many writers go by it.

    Raises:
        InputError: the folder doesn't exist, `path` is there and no regular file, or there is no
            room or no permission to write it.
    """
    target = target_of(path)
    # Renaming over a device such as /dev/null would destroy it.
    if target.exists() and not target.is_file():
        raise InputError(f"{fspath(path)}: exists already and is no regular file")
    with temporary_beside(target) as temporary:
        try:
            yield temporary
            # Some writers make private files; the output gets the permissions of any other.
            temporary.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
            temporary.replace(target)
        except CalibrantError:
            raise
        except Exception as error:
            reason = _why_not_written(error, temporary)
            if reason is None:
                raise
            raise InputError(f"{fspath(path)}: can't be written: {reason}") from error


@contextmanager
def whole_set(folder: Path, *, exclusive: bool) -> Generator[None]:
    """Within the body nobody else that asks for the same folder puts its set of files in place.

    Files that belong together, as `.npy` scores and labels do, can't become visible in one step.
    Writers take the folder for themselves while they rename their files, readers share it while
    they open theirs, so that nobody sees a part of two sets. A system without such locks, or a
    folder that can't be locked, does without.
    """
    handle = None
    with suppress(ImportError, OSError):
        fcntl = import_module("fcntl")
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _why_not_written(error: Exception, temporary: Path) -> str | None:
    """Return what the system has against writing a file, if that is what an exception is about.

    Libraries wrap a full disk in exceptions of their own, so the disk itself is asked.
    """
    if isinstance(error, OSError) and error.errno is not None:
        of_this = str(error.filename) == str(temporary)
        if of_this or (error.filename is None and error.errno in NO_ROOM):
            return os.strerror(error.errno)
    try:
        with temporary.open("ab", buffering=0) as file:
            left = PROBE_BYTES
            while left > 0:
                left -= file.write(bytes(left))
    except OSError as refusal:
        return refusal.strerror
    return None


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
