"""How work is shared among the cores: over chunks of rows, by threads of our own, and BLAS on one.

A BLAS with threads of its own splits products of a few columns, which take microseconds, into parts
that wait for each other. That costs more than it gains on an idle machine and, on one that is busy
with something else, hundreds of times the product itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache
from importlib import import_module
from threading import Lock
from typing import Any, TypeVar

MOST_WORKERS = 8
_limit: list[int] = []
_alone: ContextVar[bool] = ContextVar("alone", default=False)
T = TypeVar("T")
Found = TypeVar("Found")


def core_count() -> int:
    """Return how many cores this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def worker_count() -> int:
    """Return how many threads to share work among: the cores this process may use, at most 8."""
    return 1 if _alone.get() else min(core_count(), *_limit, MOST_WORKERS)


def limit_threads(most: int) -> None:
    """Let this process share work among no more threads, those of BLAS too, as one of many."""
    _limit[:] = [most]
    _controller("scipy.linalg" in sys.modules).limit(limits=most, user_api="blas")


def each_at_once(
    items: Sequence[T],
    work: Callable[[T], Found],
    workers: int,
    begin: Callable[[T], None] = lambda _: None,
) -> list[Found]:
    """Return what `work` makes of every item, in their order, some at a time.

    Each item has one core: what shares work among threads does without them in there. After an
    error no further item is begun, and the first error in the order of the items is raised.

    Args:
        items: what to work on.
        work: is called in a copy of the caller's context.
        workers: how many at a time; one works on them in the caller's thread.
        begin: is called with each item before it, in their order, one call at a time.
    """
    found, errors = dict[int, Found](), dict[int, BaseException]()
    waiting, lock = iter(enumerate(items)), Lock()

    def share(alone: bool) -> None:
        _alone.set(alone)
        while True:
            with lock:
                place = None if errors else next(waiting, None)
                if place is None:
                    return
                begin(place[1])
            try:
                found[place[0]] = work(place[1])
            except BaseException as error:  # raised below
                errors[place[0]] = error

    workers = min(workers, len(items))
    if workers < 2:
        copy_context().run(share, _alone.get())
    else:
        import_module("scipy.linalg")  # whose BLAS is to have one thread as well
        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(copy_context().run, share, True) for _ in range(workers)]
            try:
                for each in running:
                    each.result()
            except BaseException:  # an interruption: what is begun ends, and nothing else begins
                with lock:
                    waiting = iter(())
                raise
    if errors:
        raise errors[min(errors)]
    return [found[i] for i in range(len(items))]


def mapped(work: Callable[[T], Found], items: Sequence[T]) -> list[Found]:
    """Return what `work`, in which NumPy does most, makes of each item, on every core.

    What is of one piece stays in the caller's thread: to start others takes longer than small work.
    """
    workers = min(worker_count(), len(items))
    with one_blas_thread():
        if workers < 2:
            return list(map(work, items))
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, items))


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
