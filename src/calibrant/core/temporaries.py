"""Files that are being written: they don't outlive the process, however it ends.

Each has a name that says which process writes it. What ends in an exception, in `sys.exit` or by a
signal that can be caught removes its own; what a process left that was killed outright, the next
one to write in that folder removes.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

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
