"""`calibrant monitor`: watch a stream of confidences and outcomes."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import Kind, Report
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.monitor.monitor import Monitor
    from calibrant.monitor.streams import Following

ALARM = 3


def monitor(
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STREAM...",
            help="Files of predictions, files of JSON lines (.jsonl), or - for JSON lines on "
            "standard input.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Keep the state here, and go on from it if it is there."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="How far a probability may be off, a fraction; 0.02 if not given."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Probability of a false alarm of the level test, ever; 0.05 if not given."
        ),
    ] = None,
    average_run_length: Annotated[
        float | None,
        typer.Option(
            help="Rows to a false alarm of the change test, on average; 100000 if not given."
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Rows of the shortest windows; 1000 if not given.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Test groups too, all under one guarantee: class (predicted), or the name of a "
            "column or key."
        ),
    ] = None,
    n_groups: Annotated[
        int | None, typer.Option(help="How many groups there will be, if known.")
    ] = None,
    of: Annotated[
        int | None,
        typer.Option(help="Watch the probability of this class, not of the predicted one."),
    ] = None,
    key: Annotated[
        str, typer.Option("--id", help="Key or column of ids, where outcomes come apart.")
    ] = "id",
    outcomes: Annotated[
        list[Path] | None,
        typer.Option(help="Outcomes by id: JSON lines or a table; may be repeated."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on when files of JSON lines grow, until a signal."),
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(help="With --follow: end after so many seconds without a row."),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(help="Show what states of replicas say together; may be repeated."),
    ] = None,
    on_alarm: Annotated[
        str | None,
        typer.Option(help="Command of the shell to run when an alarm rises; JSON on its stdin."),
    ] = None,
    metrics_out: Annotated[
        Path | None, typer.Option(help="Write Prometheus' text format here, again and again.")
    ] = None,
    save_seconds: Annotated[
        float, typer.Option(help="Write the state this often, and at the end.")
    ] = 1.0,
    details: Annotated[
        bool, typer.Option("--details", help="Add all that is known to the JSON.")
    ] = False,
    kind: Kind = None,
    report: Report = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="PATH", help="Write JSON here; - for stdout."),
    ] = None,
) -> None:
    """Watch confidences and outcomes; exit code 3 if they have stopped being honest."""
    from calibrant.monitor.checkpointing import Checkpoints
    from calibrant.monitor.rows import Reading
    from calibrant.monitor.streams import feed, feed_outcomes

    inputs = [Path(stream) for stream in streams or [] if stream != "-"]
    check_outputs([*inputs, *(outcomes or []), *(merge or [])], [state, report, metrics_out, json])
    given = {
        "tolerance": tolerance,
        "alpha": alpha,
        "average_run_length": average_run_length,
        "window": window,
        "n_groups": n_groups,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if merge:
        if streams or state or outcomes:
            raise InputError("--merge only shows what states say; leave out streams and --state")
        other = {"by": by, "of": of, "follow": follow or None, "idle": idle, "on_alarm": on_alarm}
        _refuse_beside_merge(settings | other)
        watched = _merged(merge)
        Checkpoints(watched, None, metrics_out).save()
        _finish(watched, report, json, details=details)
        return
    if not streams and not outcomes:
        raise InputError("monitor takes a STREAM: a file, or - for standard input")
    watched = _begun(state, settings)
    checkpoints = Checkpoints(watched, state, metrics_out, on_alarm, save_seconds)
    reading = Reading(by, of, key)
    live = follow or "-" in (streams or [])
    with _until_signal(follow=follow, live=live, idle=idle) as following:
        checkpoints.keep(feed(watched, streams or [], reading, kind=kind, follow=following))  # type: ignore[arg-type]
        for path in outcomes or []:
            checkpoints.keep(feed_outcomes(watched, str(path), key))
    checkpoints.save()
    _finish(watched, report, json, details=details)


def _begun(state: Path | None, settings: dict[str, Any]) -> Monitor:
    """Return the monitor of a state, or a new one."""
    from calibrant.monitor.monitor import Monitor

    if state is None or not state.exists():
        return Monitor(**settings)
    watched = Monitor.load(state)
    for name, value in settings.items():
        if getattr(watched, name) != value:
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
            raise InputError(f"--merge only shows what states say; leave out --{option}")


def _merged(states: list[Path]) -> Monitor:
    from calibrant.monitor.monitor import Monitor

    first, *others = [Monitor.load(path) for path in states]
    return first.merge(*others)


@contextmanager
def _until_signal(*, follow: bool, live: bool, idle: float | None) -> Generator[Following | None]:
    """Yield how to wait for rows; an interrupt or SIGTERM then ends that in good order."""
    from calibrant.monitor.streams import Following

    if idle is not None and not follow:
        raise InputError("--idle goes with --follow")
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


def _finish(
    watched: Monitor,
    report: Path | None,
    json: str | None,
    *,
    details: bool,
) -> None:
    """Write and print what was found; an alarm is an exit code."""
    if report is not None:
        watched.to_html(report)
    emit(str(watched), watched.as_dict(details=details), json)
    if watched.alarms:
        raise typer.Exit(ALARM)
