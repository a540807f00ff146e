"""How work is shared among the cores: over chunks of rows, by threads of our own, and BLAS on one.

A BLAS with threads of its own splits products of a few columns, which take microseconds, into parts
that wait for each other. That costs more than it gains on an idle machine and, on one that is busy
with something else, hundreds of times the product itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

MOST_WORKERS = 8
_limit: list[int] = []


def core_count() -> int:
    """Return how many cores this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def worker_count() -> int:
    """Return how many threads to share work among: the cores this process may use, at most 8."""
    return min(core_count(), *_limit, MOST_WORKERS)


def limit_threads(most: int) -> None:
    """Let this process share work among no more threads, as one process of many."""
    _limit[:] = [most]


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Keep the BLAS of NumPy, and of `scipy.linalg` if loaded, to one thread until the end.

    The limit is one of the process. Where several threads ask for it, threadpoolctl decides whether
    it ends with the first or the last.
    """
    with _controller("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=2)
def _controller(with_scipy: bool) -> Any:
    """Return what limits the libraries that are loaded by now; finding them takes a millisecond."""
    from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs]

    return ThreadpoolController()
