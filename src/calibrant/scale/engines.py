"""Who does the work: processes of this machine, or the workers of a Dask cluster.

An engine calls one function with each shard, in any order, and hands on what it returns. What comes
out is whole numbers, so it doesn't matter which engine, how many workers, or in which order.

Shards through an engine: gathered as they are done, with progress.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    get_args,
)

from calibrant.core.errors import CalibrantError, InputError, PredictionsError
from calibrant.core.outputs import remove_live, removed_when_killed
from calibrant.core.progress import Progress, Watcher
from calibrant.core.threads import core_count, limit_threads, one_blas_thread
from calibrant.files.gate import optional
from calibrant.scale.shards import Shard

if TYPE_CHECKING:
    # What starts processes takes longer to import than many commands take, which start none.
    from concurrent.futures import Future, ProcessPoolExecutor

EngineName = Literal["processes", "dask"]
Item = TypeVar("Item")
Result = TypeVar("Result")
# A shard whose worker was killed goes to another one so many times.
RETRIES = 3
# How long a scheduler may take to answer.
ANSWER_SECONDS = 10


@dataclass(frozen=True)
class Engine:
    """What processes the shards.

    Attributes:
        name: ``"processes"`` of this machine, or ``"dask"``.
        workers: how many; None for one per core.
        scheduler: address of a running Dask scheduler; None for workers on this machine.

    Examples:
        >>> import calibrant as cb
        >>> cb.Engine("processes", workers=2).workers
        2
        >>> cb.Engine("spark")
        Traceback (most recent call last):
            ...
        calibrant.core.errors.InputError: engine must be one of processes, dask, not 'spark'; ...
    """

    name: EngineName = "processes"
    workers: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        names = ", ".join(get_args(EngineName))
        if self.name not in get_args(EngineName):
            raise InputError(
                f"engine must be one of {names}, not '{self.name}'; any other engine can call "
                "calibrant.scale.sample_of and calibrant.scale.merge"
            )
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.scheduler is not None and self.name != "dask":
            raise InputError("a scheduler goes with the engine dask only")

    def run(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, apart: bool = False
    ) -> Iterator[tuple[int, Result]]:
        """Yield the index of each item with the result of `function`, as they are finished.

        Args:
            function: what is called.
            items: with these.
            apart: whether even a single item gets a separate process, which may die without this
                one.

        Raises:
            CalibrantError: what `function` raised; or `InputError`, where workers keep dying.
        """
        workers = min(self.workers or core_count(), len(items))
        if self.name == "dask":
            yield from _on_dask(function, items, workers, self.scheduler)
        elif workers < 2 and not apart:
            for i, item in enumerate(items):
                # Dot products of long rows would wake the other cores for microseconds.
                with one_blas_thread():
                    result = function(item)
                yield i, result
        else:
            yield from _in_processes(function, items, max(1, workers))


class EngineFields(TypedDict, total=False):
    """Who works on files, as functions take it by name; see `evaluate`."""

    engine: Engine | None
    skip_broken: bool
    watch: Watcher | None


def _in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[tuple[int, Result]]:
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool

    refuse_unguarded_script()
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    # Workers are forked from a process that has imported what they need, once for all of them.
    called: Any = function
    while isinstance(called, partial):
        called = called.keywords.get("function", called.func)
    context.set_forkserver_preload(["__main__", called.__module__])
    left, died = dict(enumerate(items)), 0
    while left:
        try:
            with _pool(context, workers) as pool:
                running: dict[Future[Result], int] = {}
                waiting = iter(list(left.items()))
                # Few at a time, so that an error or an interrupt ends the work soon.
                for i, item in waiting:
                    with _without_interrupts():  # the first ones start processes
                        running[pool.submit(function, item)] = i
                    if len(running) > 2 * workers:
                        yield from _taken(running, left)
                while running:
                    yield from _taken(running, left)
        except BrokenProcessPool as error:
            died += 1
            if died > RETRIES:
                raise InputError(
                    "a process that worked on shards was killed again and again, most likely "
                    "because memory ran out; try fewer workers"
                ) from error


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Let processes that start here never hear of Ctrl-C, which a terminal sends to all of them.

    This one hears of it in the end, and ends them. They would say where they were just then.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which, as it starts, lets interrupts in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _taken(running: dict[Future[Any], int], left: dict[int, Any]) -> Iterator[tuple[int, Any]]:
    """Yield what is done of what runs, once something is."""
    from concurrent.futures import FIRST_COMPLETED, wait

    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        i = running[future]
        result = future.result()
        del running[future]
        del left[i]
        yield i, result


@contextmanager
def _pool(context: Any, workers: int) -> Generator[ProcessPoolExecutor]:
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker)
    try:
        yield pool
    except BaseException:
        # Nobody waits for what is being worked on.
        running: dict[int, Any] = getattr(pool, "_processes", None) or {}
        for process in list(running.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Let this worker use one thread, end with the process that it works for, and leave no file."""
    import multiprocessing

    limit_threads(1)
    removed_when_killed().__enter__()
    parent = multiprocessing.parent_process()
    if parent is not None:

        def end_with(parent: Any) -> None:
            parent.join()  # a pipe that closes, however the other end does
            remove_live()
            os._exit(1)

        threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def refuse_unguarded_script() -> None:
    """Raise `InputError` where processes would run the script that starts them once more each.

    They import the script to know what it defines. So the code that starts processes must be under
    ``if __name__ == "__main__":``.
    """
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return
    frame: Any = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        own = frame.f_globals.get("__name__") in ("__main__", "__mp_main__")
        if own and frame.f_code.co_name == "<module>" and frame.f_code.co_filename == path:
            break
        frame = frame.f_back
    else:
        return
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return
    line: int = frame.f_lineno
    for statement in statements:
        here = statement.lineno <= line <= (statement.end_lineno or 0)
        guard = isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
        if here and not guard:
            raise InputError(
                f"{path}: line {line} starts processes, which import this script and would run it "
                'once more each; put it behind if __name__ == "__main__": or take one process, '
                "engine=calibrant.Engine(workers=1)"
            )


def _on_dask(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, scheduler: str | None
) -> Iterator[tuple[int, Result]]:
    distributed = optional("distributed", "dask and distributed", "dask")
    with _client(distributed, workers, scheduler) as client:
        # Not by the hash of the call: the files may have changed since it was last made.
        futures = client.map(function, list(items), pure=False, retries=RETRIES)
        index = {future.key: i for i, future in enumerate(futures)}
        for future in distributed.as_completed(futures):
            try:
                result = future.result()
            except distributed.KilledWorker as error:
                raise InputError(
                    "workers of the cluster were killed again and again, most likely because "
                    "memory ran out; give each of them more"
                ) from error
            future.release()
            yield index[future.key], result


@contextmanager
def _client(distributed: Any, workers: int, scheduler: str | None) -> Generator[Any]:
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout=ANSWER_SECONDS)
        except CalibrantError:
            raise
        except Exception as error:  # a wrong address fails in many ways
            raise InputError(f"no Dask scheduler answers at '{scheduler}': {error}") from error
        with client:
            yield client
        return
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


class Work(Protocol):
    """What an engine is given: a shard, or a part of one."""

    @property
    def where(self) -> str:
        """Its path or URL."""
        ...

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        ...


SomeWork = TypeVar("SomeWork", bound=Work)
Concerned = TypeVar("Concerned")


@dataclass(frozen=True, eq=False)
class Task(Generic[Concerned]):
    """A shard with what a piece of work is about: which of its rows, or where to write them.

    Attributes:
        shard: the shard.
        about: that.
    """

    shard: Shard
    about: Concerned

    @property
    def where(self) -> str:
        """Where the shard lies."""
        return self.shard.where

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self.shard.rows


class Broken(NamedTuple):
    """What comes of a shard that can't be read."""

    reason: str


def guarded(work: Any, function: Callable[[Any], Result]) -> Result | Broken:
    """Return what `function` makes of a shard, or why it can't be read."""
    try:
        return function(work)
    except PredictionsError as error:
        return Broken(str(error))


def through(
    engine: Engine,
    function: Callable[[SomeWork], Result],
    shards: Sequence[SomeWork],
    take: Callable[[int, Result], None],
    watch: Watcher | None = None,
    broken: dict[str, str] | None = None,
) -> None:
    """Call `function` with every shard, and `take` with the index and result of each.

    Shards that can't be read go into `broken`, with the reason; None to end with them.
    """
    began, rows, total = time.monotonic(), 0, sum(shard.rows for shard in shards)
    if watch is not None:
        watch(Progress(0, len(shards), 0, total, 0.0))
    called: Any = function if broken is None else partial(guarded, function=function)
    for done, (i, result) in enumerate(engine.run(called, shards), 1):
        if isinstance(result, Broken):
            assert broken is not None
            broken[shards[i].where] = result.reason
        else:
            take(i, result)
        rows += shards[i].rows
        if watch is not None:
            watch(Progress(done, len(shards), rows, total, time.monotonic() - began))


def gathered(
    engine: Engine,
    function: Callable[[Shard], Result],
    shards: Sequence[Shard],
    join: Callable[[Any, Any], Any],
    watch: Watcher | None = None,
    broken: dict[str, str] | None = None,
) -> Any:
    """Return what `function` makes of all shards, joined two by two as they are done.

    Shards in `broken` are left out, and those that turn out so are added; None to end with them.

    Raises:
        InputError: none could be read.
    """
    found: list[Any] = []

    def take(_: int, result: Result) -> None:
        found[:] = [join(found[0], result) if found else result]

    sound = [shard for shard in shards if shard.where not in (broken or {})]
    through(engine, function, sound, take, watch, broken)
    if not found:
        reasons = sorted((broken or {}).values())
        raise InputError(f"no file could be read: {reasons[0] if reasons else 'there are none'}")
    return found[0]
