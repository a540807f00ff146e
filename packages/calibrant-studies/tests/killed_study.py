"""Lives of a study, each ended by kill -9 before or amid one of its steps on disk; run by a test.

    python killed_study.py DECLARATION DATA OUT

Prints how many lives were ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calibrant as cb
import calibrant_studies as studies

ONE = cb.Engine(workers=1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mortal(steps: int) -> None:
    """Make this process die at its step on disk of this number, or in the middle of a write."""
    left = [steps]

    def wrap(name: str) -> None:
        real: Callable[..., Any] = getattr(Path, name)

        def step(self: Path, *words: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                if name == "write_text":
                    real(self, words[0][: len(words[0]) // 2], **more)
                die()
            return real(self, *words, **more)

        setattr(Path, name, step)

    for name in ("write_text", "replace", "unlink", "chmod"):
        wrap(name)


def main(declaration: str, data: str, out: str) -> None:
    random.seed(0)
    # Read once: what is done in each life are the cells.
    studies.run(declaration, data=data, out=f"{out}-other", engine=ONE)
    ended, status = 0, 1
    while status:
        child = os.fork()
        if child == 0:
            mortal(random.randrange(1, 12))
            studies.run(declaration, data=data, out=out, engine=ONE)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended += os.WIFSIGNALED(status)
    print(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
