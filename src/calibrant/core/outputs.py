"""Files that are being written: there whole or not at all, and gone with the process that failed.

A temporary one has a name that says which process writes it. What ends in an exception, in
`sys.exit` or by a signal that can be caught removes its own; what a process left that was killed
outright, the next one to write in that folder removes.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from os import fspath
from pathlib import Path
from types import FrameType

from calibrant.core.errors import CalibrantError, InputError

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


NAME = re.compile(r"\.calibrant-(?P<place>[0-9a-f]{8})-(?P<process>[0-9]+)-[0-9a-f]{16}(\..*)?")
# Nobody can ask whether a process of another machine is alive; no file takes this long to write.
SECONDS_OF_ANOTHER_MACHINE = 24 * 3600
# What ends a process that doesn't catch it. An interrupt is an exception in Python already.
DEADLY = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]

_live: set[Path] = set()
_tidied: set[Path] = set()


@contextmanager
def temporary_beside(target: Path) -> Generator[Path]:
    """Yield a path to write to in the folder of `target`, with its extension; then remove it.

    The first of a process in a folder also removes what dead processes left there.
    """
    tidy(target.parent)
    name = f".calibrant-{_place()}-{os.getpid()}-{os.urandom(8).hex()}{target.suffix}"
    temporary = target.with_name(name)
    _live.add(temporary)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        # An interrupt before this line leaves the name to `remove_live`.
        _live.discard(temporary)


def tidy(folder: Path) -> None:
    """Remove what processes that are dead by now left in a folder, once for each folder."""
    place = folder.absolute()
    if place in _tidied:
        return
    _tidied.add(place)
    # To tidy is a courtesy: a folder that can't be listed is the writer's business.
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _is_left_over(entry):
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_left_over(entry: os.DirEntry[str]) -> bool:
    match = NAME.fullmatch(entry.name)
    if match is None or not entry.is_file(follow_symlinks=False):
        return False
    # On Windows, to ask for a process by a signal would end it.
    if match["place"] == _place() and os.name == "posix":
        return not _runs(int(match["process"]))
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > SECONDS_OF_ANOTHER_MACHINE


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, and belongs to somebody else
        return True
    return True


def _place() -> str:
    """Return what tells apart the machines, and the containers, whose process numbers mean more."""
    try:
        numbered = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        numbered = 0
    node = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return f"{zlib.crc32(f'{node} {numbered}'.encode()):08x}"


def remove_live() -> None:
    """Remove what this process is writing just now."""
    for temporary in list(_live):
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


atexit.register(remove_live)
if hasattr(os, "register_at_fork"):
    # The files of a parent aren't those of a child, whose end must not remove them.
    os.register_at_fork(after_in_child=_live.clear)


@contextmanager
def removed_when_killed() -> Generator[None]:
    """Within the body, remove live temporary files when a signal ends the process.

    The process still dies of that signal, so that whoever sent it sees so. A signal that is
    ignored, as under `nohup`, or handled already stays so. Outside the main thread nothing is done.
    """
    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in DEADLY:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _die)
                ours.append(number)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _die:
                signal.signal(number, signal.SIG_DFL)


def _die(number: int, frame: FrameType | None) -> None:
    remove_live()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
