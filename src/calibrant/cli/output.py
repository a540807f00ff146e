"""Where the command line's words go: results to stdout, progress and warnings to stderr."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from calibrant.core.errors import (
    CalibrantError,
    CalibrationWarning,
    InputError,
    PlugInWarning,
    PredictionsError,
)
from calibrant.core.text import on_one_line, strict_json

BOLD, DIM, RED, YELLOW, GREEN = "1", "2", "1;31", "33", "1;32"
# The verdict, and each table's headings with the rule below them.
_VERDICT = re.compile(r"^(Use )(\S+)(?=\.(\s|$))", re.MULTILINE)
_HEADINGS = re.compile(r"^(.*\S.*)\n(-{8,})$", re.MULTILINE)


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal whose user wants colours.

    A variable NO_COLOR that isn't empty turns them off, and so does a terminal that says it is
    dumb; files and pipes never get any.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") == "dumb":
        return False
    if os.name == "nt" and "WT_SESSION" not in os.environ:
        return False
    return stream is not None and not stream.closed and stream.isatty()


def painted(text: str, stream: TextIO | None) -> str:
    """Return a result as a terminal shows it; the same text for any other stream."""
    if not has_colours(stream):
        return text
    text = _VERDICT.sub(lambda found: found[1] + coloured(GREEN, found[2]), text)
    return _HEADINGS.sub(lambda f: f"{coloured(BOLD, f[1])}\n{coloured(DIM, f[2])}", text)


def painted_sentence(sentence: str, stream: TextIO | None) -> str:
    """Return an error or a warning as a terminal shows it: its first word stands out."""
    kind, colon, rest = sentence.partition(":")
    colour = {"error": RED, "warning": YELLOW, "interrupted": YELLOW}.get(kind)
    if not colon or colour is None or not has_colours(stream):
        return sentence
    return f"{coloured(colour, kind + colon)}{rest}"


def coloured(colour: str, text: str) -> str:
    """Return a text in a colour."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def take_any_text() -> None:
    """Let stdout write out what its encoding lacks, such as names of files that aren't UTF-8."""
    stdout: Any = sys.stdout
    if isinstance(stdout, TextIOWrapper):  # it may be closed, or put in place by a caller
        stdout.reconfigure(errors="backslashreplace")


def finish_output() -> None:
    """Write out what stdout holds; that nobody reads it any more is no error.

    Raises:
        OSError: it can't be written, as on a full disk.
    """
    if sys.stdout is None:  # closed by whoever started this process
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more at its end, and would fail once more.
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


# What files are called in all that is printed, by their paths.
_called: dict[str, str] = {}


@contextmanager
def shown_as(path: str, name: str) -> Generator[None]:
    """Within the body a file goes by another name in all that is printed and raised.

    Raises:
        CalibrantError: what the body raised, with the name.
    """
    _called[path] = name
    try:
        yield
    except PredictionsError as error:
        error.reason, error.details, error.line = map(
            renamed, (error.reason, error.details, error.line)
        )
        raise
    except CalibrantError as error:
        said = renamed(str(error))
        if said == str(error):
            raise
        raise type(error)(said) from error
    finally:
        del _called[path]


def renamed(text: str) -> str:
    """Return a text in which files go by the names that they are shown by."""
    for path, name in _called.items():
        text = text.replace(path, name)
    return text


def emit(text: str, document: dict[str, Any] | list[Any], json_path: str | None) -> None:
    """Print `text`, and write `document` as JSON if asked to; with "-" only JSON goes to stdout."""
    if json_path is not None and json_path != "-":
        write_text(json_path, renamed(as_json(document)) + "\n")
    # The last thing that a command does: whoever reads it may have had enough.
    with suppress(BrokenPipeError):
        said = as_json(document) if json_path == "-" else painted(text, sys.stdout)
        print(renamed(said))
    finish_output()


def as_json(document: dict[str, Any] | list[Any]) -> str:
    """Return strict JSON, in which what is not finite is null."""
    return strict_json(document, indent=2)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all. A device such as /dev/null is written to directly."""
    if Path(path).exists() and not Path(path).is_file():
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    from calibrant.core.outputs import replacing

    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def warnings_to_stderr() -> Generator[None]:
    """Print warnings about fits and plug-ins as one line each."""
    ours = (CalibrationWarning, PlugInWarning)
    with warnings.catch_warnings():
        for category in ours:
            warnings.simplefilter("always", category)
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, ours):
                with suppress(BrokenPipeError):  # the work goes on when nobody listens
                    sentence = painted_sentence(
                        on_one_line(f"warning: {renamed(str(message))}"), sys.stderr
                    )
                    print(sentence, file=sys.stderr)
            else:
                shown(message, category, *rest, **more)

        warnings.showwarning = show
        yield


@contextmanager
def progress(
    total: int | None, what: str, *, remaining: bool = False, shown: bool = True
) -> Generator[Callable[..., None]]:
    """Yield a function to call with the name of each step as it begins; None: any number of them.

    A caller that knows better may add how many steps are done and how many there are:
    ``advance(step, done, of)``. What the name has behind a line break is drawn below the bar, where
    it has the whole width of the terminal.

    Draws a bar on a terminal and nothing when stderr is piped.

    Args:
        total: number of steps, if it is known already.
        what: is going on.
        remaining: show the time that is left, for steps that take equally long.
        shown: False draws nothing, as where another process draws already.
    """
    if not shown or not sys.stderr.isatty():
        yield _draw_nothing
        return
    from rich.console import Console, RenderableType
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Steps(MofNCompleteColumn):
        """Steps of a known number; nothing, rather than a question mark, where it isn't known."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    class Left(ProgressColumn):
        """The time that is left if other steps are like those that are done, with its name.

        rich's own column forgets steps that are half a minute old, and with them all long ones.
        """

        def render(self, task: Task) -> Text:
            began, before = task.fields["began"]
            if not task.total or task.completed <= before:
                return Text()
            each = (time.monotonic() - began) / (task.completed - before)
            left = timedelta(seconds=round(each * (task.total - task.completed)))
            return Text(f"left {left}", style="progress.remaining")

    class Bar(Progress):
        """The bar, and below it what needs more room."""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            for task in self.tasks:
                if task.fields["below"]:
                    yield Text(task.fields["below"], no_wrap=True, overflow="ellipsis")

    whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns: list[ProgressColumn] = [
        TextColumn(what, markup=False, table_column=whole),
        BarColumn(20),
        Steps(table_column=whole),
        TimeElapsedColumn(table_column=whole),
    ]
    if remaining:
        columns.append(Left(table_column=whole))
    # What is at work gives way on a narrow terminal; time and numbers don't.
    step_column = TextColumn("{task.fields[step]}", markup=False, table_column=rest)
    bar = Bar(*columns, step_column, console=Console(stderr=True), transient=True, expand=True)
    with bar:
        task = bar.add_task(what, total=total, step="", below="", began=(0.0, 0))
        started, counted = False, False

        def advance(step: str, done: int | None = None, of: int | None = None) -> None:
            nonlocal started, counted
            beside, _, below = step.partition("\n")
            told: dict[str, Any] = {"step": beside, "below": below}
            if not counted and (total is not None or of is not None):
                # What came before, or was there from an earlier run, doesn't tell how long one is.
                counted, told["began"] = True, (time.monotonic(), done or 0)
            if done is None:
                told["advance"] = 1 if started else 0
            else:
                told |= {"completed": done, "total": of}
            bar.update(task, **told)
            started = True

        yield advance


def _draw_nothing(step: str, done: int | None = None, of: int | None = None) -> None:
    pass


def check_outputs(
    inputs: Sequence[Path | None], outputs: Sequence[Path | str | None], made: Path | None = None
) -> None:
    """Check, before any work is done, where a command will write.

    Args:
        inputs: what it reads.
        outputs: what it writes.
        made: a folder that it makes if need be.

    Raises:
        InputError: an output would replace an input or another output, or its folder isn't there.
    """
    from calibrant.core.outputs import target_of

    taken = {Path(path).resolve(): "is read by this command" for path in inputs if path is not None}
    for path in outputs:
        if path is None or path == "-":
            continue
        place = Path(path).resolve()
        if made is None or made.resolve() not in place.parents:
            target_of(path)
        if place in taken and (place.is_file() or not place.exists()):
            raise InputError(f"{path}: {taken[place]}; write to another file")
        taken[place] = "is another output of this command"
