"""Outputs that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from os import fspath
from pathlib import Path

from calibrant.core.errors import InputError

StrPath = str | os.PathLike[str]


@contextmanager
def replacing(path: StrPath) -> Generator[Path]:
    """Yield a temporary path in the folder of `path` to write to; on leaving it becomes `path`.

    If the body raises, an old file at `path` stays as it was and the temporary one is removed.
    The temporary path keeps the extension, since many writers go by it.

    Raises:
        InputError: the folder doesn't exist, or `path` is there and no regular file.
    """
    # A symbolic link stays one, and what it points to is replaced.
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise InputError(f"{fspath(path)}: the folder {target.parent} doesn't exist")
    # Renaming over a device such as /dev/null would destroy it.
    if target.exists() and not target.is_file():
        raise InputError(f"{fspath(path)}: is there already and no regular file")
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        # Some writers make private files; the output gets the permissions of any other.
        temporary.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
