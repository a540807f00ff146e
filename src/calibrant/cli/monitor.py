"""`calibrant monitor`: watch a stream of confidences and outcomes."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.help import OUTPUT
from calibrant.cli.options import ReportOptions, option
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError, PredictionsError
from calibrant.files import ReadOptions

if TYPE_CHECKING:
    from calibrant.monitor.checkpointing import Refitted
    from calibrant.monitor.monitor import Monitor
    from calibrant.monitor.planning import Plan
    from calibrant.monitor.promise import Promise
    from calibrant.monitor.rows import Reading
    from calibrant.monitor.streams import Following

ALARM = 3
TESTS, STATES = "Tests and groups", "States and lines"


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """The tests, what they are told, and how long rows are waited for."""

    state: Path | None = option(None, "Keep the state in this file; continue from it if it exists.")
    tolerance: float | None = option(
        None,
        "How far a probability may be from its confidence without an alarm, a fraction. Default: "
        "0.02.",
        panel=TESTS,
    )
    alpha: float | None = option(
        None,
        "Highest probability of a false alarm of the level test, over the whole stream, if rows "
        "(with --cluster: clusters) don't depend on those before. Default: 0.05.",
        panel=TESTS,
    )
    average_run_length: float | None = option(
        None,
        "Least number of rows (with --cluster: clusters) between false alarms of the change test, "
        "on average, if they don't depend on those before. Default: 100000.",
        metavar="ROWS",
        panel=TESTS,
    )
    window: int | None = option(
        None, "Rows of the shortest windows. Default: 1000.", metavar="ROWS", panel=TESTS
    )
    by: str | None = option(
        None,
        "Test groups too, all under one guarantee: class (predicted), or the name of a column or "
        "key.",
        metavar="NAME",
        panel=TESTS,
    )
    time: str | None = option(
        None,
        "Report by hour too: column or key of the time of each prediction, seconds since 1970 or "
        "ISO 8601.",
        metavar="NAME",
        panel=TESTS,
    )
    n_groups: int | None = option(None, "How many groups there will be, if known.", panel=TESTS)
    open_clusters: int | None = option(
        None,
        "With --cluster: how many clusters may be unfinished at once. Default: 1, so a cluster is "
        "counted when the next one begins.",
        panel=TESTS,
    )
    decision: Path | None = option(
        None,
        "A decision of `calibrant decide`: watch its promise too, in rows that `calibrant apply` "
        "wrote with it; by groups, in all of them together.",
        metavar="DECISION",
        panel=TESTS,
    )
    of: int | None = option(
        None,
        "Watch the probability of this class, not of the predicted one.",
        metavar="CLASS",
        panel=TESTS,
    )
    follow: bool = option(
        False, "Keep reading files of JSON lines as they grow, until interrupted."
    )
    idle: float | None = option(
        None,
        "With --follow: end after so many seconds without a row.",
        metavar="SECONDS",
        panel=STATES,
    )
    anew: bool = option(
        False,
        "Start the tests of --state again, after an alarm; windows, past alarms and the place in "
        "the files stay.",
    )
    skip_broken: bool = option(
        False, "Leave out lines without a usable row, and count them.", panel=STATES
    )
    plan: float | None = option(
        None,
        "Only say after how many rows, or clusters, a drift of this size would be seen.",
        metavar="POINTS",
        panel=TESTS,
    )
    merge: list[Path] = option(
        [],
        "Show the states of several monitors together; may be repeated.",
        metavar="STATE",
        panel=STATES,
    )


@dataclass(frozen=True, kw_only=True)
class WatchOptions(ReportOptions):
    """Where findings are written."""

    on_alarm: str | None = option(
        None,
        "Shell command to run when an alarm rises; it gets JSON on its standard input.",
        metavar="COMMAND",
        panel=OUTPUT,
    )
    refit: str = option(
        "auto",
        "Method of the refit that is written beside the state at an alarm, ready for apply; "
        "`calibrant methods` lists them.",
        metavar="METHOD",
        panel=OUTPUT,
    )
    metrics_out: Path | None = option(
        None, "Keep a file in Prometheus' text format up to date here.", panel=STATES
    )
    save_seconds: float = option(
        1.0,
        "Write the state this often, and at the end.",
        metavar="SECONDS",
        panel=STATES,
    )
    details: bool = option(False, "Add all details to the JSON.", panel=STATES)


def monitor(
    options: MonitorOptions,
    output: WatchOptions,
    read: ReadOptions,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STREAM...",
            help="Files of predictions, folders of them, files of JSON lines (.jsonl), or - for "
            "JSON lines on standard input.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Watch confidences and outcomes; exit code 3 is an alarm: the confidences are wrong."""
    from calibrant.monitor.checkpointing import Checkpoints, only_one
    from calibrant.monitor.rows import Reading
    from calibrant.monitor.streams import feed, feed_outcomes
    from calibrant.posthoc.registry import make_calibrator

    make_calibrator(output.refit)  # which raises if there is none of that name
    streams = _files_of_folders(streams or [])
    inputs = [Path(stream) for stream in streams if stream != "-"]
    state, key = options.state, read.id or "id"
    outcomes, read = [Path(path) for path in read.outcomes], read.but(outcomes=())
    outputs = [state, output.report, output.metrics_out, output.json]
    check_outputs([*inputs, *outcomes, *options.merge], outputs)
    names = ("tolerance", "alpha", "average_run_length", "window", "n_groups", "open_clusters")
    given = {name: getattr(options, name) for name in names}
    settings = {name: value for name, value in given.items() if value is not None}
    if options.open_clusters is not None and read.cluster is None and not options.merge:
        raise InputError("--open-clusters goes with --cluster COLUMN, which names the clusters")
    by, of, acted = options.by, options.of, None
    if options.decision is not None:
        settings["promise"], by, of, acted = _promise(options.decision, by, of)
    if options.merge:
        if streams or state or outcomes:
            raise InputError("--merge only shows states; leave out streams and --state")
        other = {"by": options.by, "of": options.of, "follow": options.follow or None}
        other |= {"anew": options.anew or None}
        other |= {"idle": options.idle, "on_alarm": output.on_alarm}
        _refuse_beside_merge(settings | other)
        watched = _merged(options.merge)
        Checkpoints(watched, None, output.metrics_out).save()
        _finish(watched, output)
        return
    if not streams and not outcomes and not options.anew:
        raise InputError("monitor takes a STREAM: a file, or - for standard input")
    reading = Reading(
        by,
        of,
        key,
        acted=acted,
        skip_broken=options.skip_broken,
        waits=state is not None,
        time=options.time,
        read=read,
        outcomes_apart=bool(outcomes) or options.plan is not None,
    )
    if options.anew and (options.plan is not None or state is None or not state.exists()):
        raise InputError("--anew needs a --state that exists; leave out --plan")
    if options.plan is not None:
        found = _plan(streams, reading, settings, options.plan)
        emit(str(found), found.as_dict(), output.json)
        return
    live = options.follow or "-" in streams
    waiting = _until_signal(follow=options.follow, live=live, idle=options.idle)
    with only_one(state), waiting as following:
        watched = _begun(state, settings)
        if options.anew:
            watched.begin_anew()
        checkpoints = Checkpoints(
            watched,
            state,
            output.metrics_out,
            output.on_alarm,
            output.save_seconds,
            output.report if live else None,
            output.refit,
        )
        checkpoints.keep(feed(watched, streams, reading, read=read, follow=following))
        for path in outcomes:
            before = watched.rows, watched.waiting.repeated
            checkpoints.keep(feed_outcomes(watched, str(path), key, read))
            # With a state the predictions may come in a later run.
            if state is None and before == (watched.rows, watched.waiting.repeated):
                raise InputError(
                    f"{path}: none of its outcomes belongs to a prediction that was read; --id "
                    "names the column of the ids, and with --state outcomes wait for predictions"
                )
        if state is None:  # nothing follows
            checkpoints.keep([list(watched.close_clusters())])
        checkpoints.save()
        _check_counted(watched, kept=state is not None)
        refit = checkpoints.refit()
    _finish(watched, output, refit)


def _check_counted(watched: Monitor, *, kept: bool) -> None:
    """Raise `InputError` if nothing was counted though there were lines, or outcomes.

    Where a state is kept, the predictions of outcomes may come in a later run.
    """
    if watched.rows or watched.unlabelled.rows:
        return
    if watched.unreadable.lines:
        raise InputError(f"no line holds a usable row. {watched.unreadable}".rstrip("."))
    if watched.waiting.outcomes and not kept:
        raise InputError(
            f"none of {watched.waiting.outcomes} outcomes belongs to a prediction that was read; "
            "with --state outcomes wait for predictions that come later"
        )


def _promise(
    path: Path, by: str | None, of: int | None
) -> tuple[Promise, str | None, int | None, str]:
    """Return the promise of a decision, its groups and class, and what apply writes of it."""
    from calibrant.decision.decision_file import load_decision
    from calibrant.decision.grouped import GroupedDecision
    from calibrant.monitor.promise import promise_of

    decision = load_decision(path)
    promise, first = promise_of(decision), decision
    if isinstance(decision, GroupedDecision):
        first = next(iter(decision.groups.values()))
        groups = decision.beside or "class"
        if by not in (None, groups):
            raise InputError(f"{path}: has a threshold for each {groups}; leave out --by")
        by = groups
    own = getattr(first, "of", None)
    if of is not None and of != own:
        about = "the predicted class" if own is None else f"class {own}"
        raise InputError(f"{path}: is about {about}; leave out --of")
    return promise, by, own, "answer" if own is None else "called"


def _files_of_folders(streams: list[str]) -> list[str]:
    """Return streams with the files of predictions in a folder, in their order, in its place."""
    from calibrant.scale.shards import located

    found = list[str]()
    for stream in streams:
        try:
            found += located(stream) if Path(stream).is_dir() else [stream]
        except PredictionsError:  # a folder that is one log
            found.append(stream)
    return found


def _begun(state: Path | None, settings: dict[str, Any]) -> Monitor:
    """Return the monitor of a state, or a new one."""
    from calibrant.monitor.monitor import Monitor

    if state is None or not state.exists():
        return Monitor(**settings)
    watched = Monitor.load(state)
    for name, value in settings.items():
        if getattr(watched, name) != value:
            if name == "promise":
                raise InputError(
                    f"{state}: was begun with another decision, or without one; begin a new state"
                )
            option = name.replace("_", "-")
            raise InputError(
                f"{state}: was begun with --{option} {getattr(watched, name)}, which can't be "
                "changed; begin a new state"
            )
    return watched


def _refuse_beside_merge(options: dict[str, Any]) -> None:
    """Raise `InputError` if an option is given that only rows to come could heed."""
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise InputError(f"--merge only shows states; leave out --{option}")


def _merged(states: list[Path]) -> Monitor:
    from calibrant.monitor.monitor import Monitor

    first, *others = [Monitor.load(path) for path in states]
    return first.merge(*others)


@contextmanager
def _until_signal(*, follow: bool, live: bool, idle: float | None) -> Generator[Following | None]:
    """Yield how to wait for rows; an interrupt or SIGTERM then ends that in good order."""
    from calibrant.monitor.streams import Following

    if idle is not None and not (follow and idle >= 0):
        raise InputError("--idle goes with --follow, and takes a number of seconds from 0")
    if not live:
        yield None
        return
    stopped: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    before = [signal.signal(number, lambda number, _: stopped.append(number)) for number in numbers]
    try:
        yield Following(lambda: bool(stopped), idle, files=follow)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _plan(streams: list[str], reading: Reading, settings: dict[str, Any], points: float) -> Plan:
    """Return what it takes to see a drift of so many points, from the confidences of streams."""
    from calibrant.monitor.planning import Confidences
    from calibrant.monitor.streams import feed

    found = Confidences()
    for _ in feed(found, streams, reading, read=reading.read):
        pass
    return found.plan(points / 100, **settings)


def _finish(watched: Monitor, output: WatchOptions, refit: Refitted | None = None) -> None:
    """Write and print the state; an alarm is an exit code."""
    if output.report is not None:
        watched.to_html(output.report)
    text = watched.findings().to_text("" if refit is None else str(refit))
    emit(text, watched.as_dict(details=output.details), output.json)
    if watched.alarms:
        raise typer.Exit(ALARM)
