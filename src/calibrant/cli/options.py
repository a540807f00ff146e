"""Options of commands, and the rows that they name.

An option is declared once, as a field of a dataclass that commands take whole. A command is a
function whose parameters are arguments, as typer has them, and such dataclasses:

    @dataclass(frozen=True)
    class SpreadOptions:
        tails: float = option(0.05, "Share of the rows in either tail.")

    def spread(file: File, options: SpreadOptions, read: ReadOptions) -> None: ...

`flattened` makes of it a function that typer understands, with ``--tails`` and the options of the
other dataclasses.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from calibrant.cli.help import EXPLAINED, HELP_ALL, INTERVALS, MANY, OUTPUT, OWN, explain_all
from calibrant.cli.output import check_outputs, progress, shown_as
from calibrant.core.errors import InputError
from calibrant.core.outputs import temporary_beside
from calibrant.core.text import names_in
from calibrant.files import ReadOptions, read_column, read_predictions
from calibrant.files.formats import FORMATS
from calibrant.files.options import FormatName
from calibrant.files.reading import proposing

if TYPE_CHECKING:
    from calibrant.core.progress import Progress
    from calibrant.predictions.predictions import Predictions
    from calibrant.scale.shards import Shards


def complete_methods(incomplete: str) -> list[str]:
    """Return the methods that a list separated by commas may go on with."""
    from calibrant.posthoc.registry import METHODS

    return _continued(incomplete, [*METHODS, "all"])


def complete_method(incomplete: str) -> list[str]:
    """Return the methods whose name begins so."""
    from calibrant.posthoc.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_metrics(incomplete: str) -> list[str]:
    """Return the metrics that a list separated by commas may go on with."""
    from calibrant.metrics.registry import metrics_named

    return _continued(incomplete, [*(m.name for m in metrics_named("all")), "all"])


def complete_metric(incomplete: str) -> list[str]:
    """Return the metrics whose name begins so."""
    from calibrant.metrics.registry import metrics_named

    return [m.name for m in metrics_named("all") if m.name.startswith(incomplete)]


def _continued(incomplete: str, names: Iterable[str]) -> list[str]:
    done, comma, begun = incomplete.rpartition(",")
    taken = {name.strip() for name in done.split(",")}
    return [f"{done}{comma}{n}" for n in names if n.startswith(begun.strip()) and n not in taken]


def complete_group(incomplete: str) -> list[str]:
    """Return the kinds of groups whose name begins so; columns have names of their own."""
    return [n for n in ("class", "label", "margin", "confidence") if n.startswith(incomplete)]


def all_methods() -> str:
    """Return the names of all methods, as a paragraph."""
    from calibrant.posthoc.registry import METHODS

    return f"Methods: {', '.join(METHODS)}; chains as svs+top-rest."


def all_metrics() -> str:
    """Return the names of all metrics, as a paragraph."""
    from calibrant.metrics.registry import METRICS

    return f"Metrics: {', '.join(METRICS)}."


def complete_loss(incomplete: str) -> list[str]:
    """Return the losses whose name begins so; none where torch isn't installed."""
    try:
        from calibrant.training import LOSSES
    except ImportError:
        return []
    return [name for name in LOSSES if name.startswith(incomplete)]


# What options were called once, and what they are called now; filled as commands are made.
RENAMED: dict[str, str] = {}
RESAMPLES = "Bootstrap resamples behind the intervals. Default: 1000; fewer above 100 000 rows."

File = Annotated[
    Path,
    typer.Argument(
        help="Predictions: npz, npy, csv, tsv, parquet, jsonl, safetensors, pt, h5, arrow."
    ),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Predictions: npz, npy, csv, tsv, parquet, jsonl, safetensors, pt, h5, arrow; several "
        "files, a folder, glob, manifest or URL are one set; - is standard input (--format).",
    ),
]


def option(
    default: Any,
    help: str,
    *names: str,
    metavar: str | None = None,
    panel: str = OWN,
    complete: Callable[[str], list[str]] | None = None,
    reads: bool = False,
) -> Any:
    """Return a field of a dataclass that is an option of commands.

    Args:
        default: its value unless given; `...` for an option that must be given.
        help: what it is for, in a sentence.
        names: how it is written, if not as the field with two dashes.
        metavar: stands for its value in help texts.
        panel: the panel of the help text that it belongs to.
        complete: what the shell offers after the beginning of a value.
        reads: whether it names predictions, of which ``-`` is standard input.
    """
    about = {
        "help": help,
        "names": names,
        "metavar": metavar,
        "panel": panel,
        "complete": complete,
        "reads": reads,
    }
    if default == []:
        return field(default_factory=list[Any], metadata=about)
    return field(default=MISSING if default is ... else default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """What is measured, and how intervals are drawn."""

    metrics: str = option(
        "",
        "Names separated by commas, or all; `calibrant metrics` lists them.",
        metavar="NAMES",
        complete=complete_metrics,
    )
    resamples: int | None = option(
        None,
        RESAMPLES,
        panel=INTERVALS,
    )
    level: float = option(0.95, "Coverage of the intervals, a fraction.", panel=INTERVALS)
    seed: int = option(0, "Seed of all random draws.", panel=INTERVALS)

    @property
    def drawn(self) -> dict[str, Any]:
        """What `evaluate` and its kin are told of it."""
        return vars(self) | {"metrics": names_in(self.metrics) or None}


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which processes read many files."""

    engine: str | None = option(
        None,
        "Read in parallel: processes (on this machine) or dask. With it even one file is read in "
        "bounded memory.",
        metavar="NAME",
        panel=MANY,
    )
    scheduler: str | None = option(
        None, "Address of a running Dask scheduler.", metavar="ADDRESS", panel=MANY
    )
    workers: int | None = option(
        None, "Number of processes, or of Dask workers. Default: one per core.", panel=MANY
    )
    skip_broken: bool = option(
        False, "Leave out files that can't be read, and name them.", panel=MANY
    )

    @property
    def given(self) -> bool:
        """Whether any of them is given, so that even one file is read by an engine."""
        return self != EngineOptions()


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where a command writes its result, beside the terminal."""

    json: str | None = option(
        None,
        "Write JSON to this file; - for stdout, which then has nothing else.",
        metavar="PATH",
        panel=OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """The same, with a page."""

    report: Path | None = option(None, "Write a page (HTML) to this file.", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class PageOptions(ReportOptions):
    """The same, with a page that lists rows."""

    images: Path | None = option(
        None,
        "Pictures of the rows, shown small on the page: a .npy file of shape (N, H, W) or "
        "(N, H, W, 3), uint8.",
        panel=OUTPUT,
    )

    def __post_init__(self) -> None:
        if self.images is not None and self.report is None:
            raise InputError("--images are shown on a page: name it with --report PAGE.html")

    def names_of_rows(self, file: Path | None, read: ReadOptions) -> dict[str, Any]:
        """Return what `to_html` is told of the rows that a file holds; None for many files."""
        from calibrant.files.columns import read_ids, read_images

        ids = None if file is None else read_ids(file, read)
        return {"ids": ids, "images": None if self.images is None else read_images(self.images)}


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Which method is fitted, and its arguments."""

    method: str = option(
        "auto",
        "Name of the method, as `calibrant methods` lists them; auto chooses by cross-validation.",
        metavar="NAME",
        complete=complete_method,
    )
    settings: list[str] = option(
        [], "Argument of the method; may be repeated.", "--set", metavar="KEY=VALUE"
    )


_EXPLAINS_ALL = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=explain_all, help="Explain all options."),
]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that typer understands: dataclasses it takes become options, one a field.

    Fields with a default that commands mustn't change have no ``help`` in their metadata.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    reading = ["file", "files"]
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
            reading += [each.name for each in fields(groups[name]) if each.metadata.get("reads")]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    if any(
        each.metadata.get("panel", OWN) not in EXPLAINED
        for kind in groups.values()
        for each, _ in _options(kind)
    ):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(HELP_ALL, kind, default=False, annotation=_EXPLAINS_ALL)
        )

    @wraps(command)
    def run(**values: Any) -> None:
        values.pop(HELP_ALL, None)
        with _from_stdin(values, reading if ReadOptions in groups.values() else []):
            given = {name: kind(**_taken(kind, values)) for name, kind in groups.items()}
            command(**values, **given)

    by_keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextmanager
def _from_stdin(values: dict[str, Any], reading: Sequence[str]) -> Generator[None]:
    """Put what standard input holds into a file in place of ``-``, for readers that go back.

    Args:
        values: of arguments and options, by name; those that are ``-`` become the file.
        reading: which of them name predictions.

    Raises:
        InputError: nobody said its format, or it is named twice.
    """
    given = {name: values[name] for name in reading if values.get(name) is not None}
    named = [place for name in given for place in _places(given[name]) if str(place) == "-"]
    if not named:
        yield
        return
    if len(named) > 1:
        raise InputError("-: is standard input, which is read once; name a file for the other one")
    if values["format"] is None:
        raise InputError(
            f"-: is standard input; say its format: --format {' or '.join(get_args(FormatName))}"
        )
    format: FormatName = ReadOptions(format=values["format"]).format or "npz"
    ending = FORMATS[format].extensions[0]
    with (
        tempfile.TemporaryDirectory(prefix="calibrant-") as folder,
        temporary_beside(Path(folder) / f"standard-input{ending}") as path,
    ):
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        for name, value in given.items():
            own = [type(place)(path) if str(place) == "-" else place for place in _places(value)]
            values[name] = own if isinstance(value, list) else own[0]
        with shown_as(str(path), "-"):
            yield


def _places(value: Any) -> list[Any]:
    """Return the paths that an argument or option holds."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _options(kind: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields of a dataclass that are options, with their types."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if "help" in each.metadata:
            yield each, hints[each.name]


def _taken(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of a dataclass out of the values of a command; those not given are left."""
    found = {each.name: values.pop(each.name) for each, _ in _options(kind)}
    return {name: value for name, value in found.items() if value is not None}


def _parameters(kind: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter of typer's for each option of a dataclass."""
    for each, hint in _options(kind):
        about, default = each.metadata, each.default
        written = f"--{each.name.replace('_', '-')}"
        names = about.get("names") or (written,)
        RENAMED.update(about.get("formerly", {}))
        type_, choices = _type_of(hint)
        complete = about.get("complete")
        if complete is None and choices:
            complete = _completing(choices)
        metavar = about.get("metavar") or _metavar(type_, choices)
        if each.default_factory is not MISSING or default in ((), None):
            type_, default = type_ | None, None
        declared = typer.Option(
            *names,
            help=about["help"],
            metavar=metavar,
            rich_help_panel=about.get("panel", OWN),
            show_default=default not in (None, "") and default is not False,
            autocompletion=complete,
        )
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[type_, declared],
        )


def _type_of(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the type of an option's value on the command line, and the words it is one of."""
    for each in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if get_origin(each) is Literal:
            return str, get_args(each)
        if each in (bool, int, float, Path) or get_origin(each) is list:
            return each, ()
    return str, ()


def _completing(words: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _metavar(type_: Any, choices: tuple[str, ...]) -> str | None:
    """Return what stands for a value in a help text; None for a flag."""
    if type_ is bool:
        return None
    if type_ in (Path, list[Path]):
        return "PATH"
    return "WORD" if choices else {int: "N", float: "X"}.get(type_, "TEXT")


@dataclass(frozen=True)
class Source:
    """Files that a command was given, and how they are read.

    Attributes:
        files: as they were given.
        read: which columns are read, and as what.
        engine: which processes read them.
        parts: whether even a single file is read in parts.
    """

    files: Sequence[str]
    read: ReadOptions = ReadOptions()  # noqa: RUF009 - it is frozen
    engine: EngineOptions = EngineOptions()
    parts: bool = False

    @property
    def many(self) -> bool:
        """Whether an engine reads them in parts, rather than one file into memory."""
        from calibrant.scale.shards import stands_for_many

        if self._named_like_a_manifest and self.read.format is not None:
            return self.parts or self.engine.given
        return self.parts or self.engine.given or (stands_for_many(self.files) and not self.logs)

    @property
    def _named_like_a_manifest(self) -> bool:
        """Whether it is one file that may be a list of others, or hold rows under such a name."""
        return len(self.files) == 1 and Path(self.files[0]).suffix.lower() in (".txt", ".json")

    @property
    def logs(self) -> bool:
        """Whether all files are logs of evaluations, which are read together into memory."""
        from calibrant.files.formats.logs.reader import is_log

        return all(is_log(file) for file in self.files)

    def one(self) -> tuple[Path, ReadOptions]:
        """Return the file to read into memory, and how: several logs are read as one set."""
        return Path(self.files[0]), self.read.but(beside=self.files[1:])

    def rows(
        self,
        outputs: Sequence[Path | str | None] = (),
        *,
        labelled: bool = True,
    ) -> Predictions | Shards:
        """Return the rows of one file, or many files, once their headers are read.

        Args:
            outputs: paths that the command writes to.
            labelled: whether rows need labels.

        Raises:
            InputError: an output would replace one of the files.
        """
        labels = None if self.read.labels is None else Path(self.read.labels)
        if not self.many:
            check_outputs([*map(Path, self.files), labels], outputs)
            return read_predictions(*self.one(), labelled=labelled)
        from calibrant.scale.shards import Shards

        skip = self.engine.skip_broken
        with proposing(self.files[0], self.read) if self._named_like_a_manifest else nullcontext():
            shards = Shards(self.files, self.read, skip_broken=skip, labelled=labelled)
        check_outputs([*(Path(shard.where) for shard in shards), labels], outputs)
        return shards

    def column(self, name: str, rows: Predictions | Shards) -> Any:
        """Return a column that stands beside the rows, in memory."""
        import numpy as np

        if not self.many:
            where, options = self.one()
            return read_column(where, name, options)
        shards: Any = rows
        return np.concatenate([batch.column for shard in shards for batch in shard.batches(name)])

    def groups(self, by: str, rows: Predictions | Shards) -> Any:
        """Return what groups are to the library: a kind, or a column, of many files its name."""
        kind = kind_of_groups(by)
        return kind or (by if self.many else self.column(by, rows))

    @contextmanager
    def working(self, what: str) -> Generator[dict[str, Any]]:
        """Yield how a function of the library works on the rows, with a bar on a terminal."""
        engine = None
        if self.many:
            from calibrant.scale.engines import Engine

            name: Any = self.engine.engine or "processes"
            engine = Engine(name, self.engine.workers, self.engine.scheduler)
        with watching(what) as watch:
            yield {"engine": engine, "skip_broken": self.engine.skip_broken, "watch": watch}


def kind_of_groups(by: str) -> str | None:
    """Return which kind of groups the library has by a name; None if it is that of a column."""
    from calibrant.evaluation.grouping import GroupKind

    kind = "predicted" if by == "class" else by
    return kind if kind in get_args(GroupKind) else None


def each_of(files: Sequence[str]) -> list[str]:
    """Return the sets of rows that arguments stand for, each by itself.

    Of several arguments each is one, a folder of logs too; a single folder stands for its logs.
    """
    from calibrant.files.formats.logs.reader import logs_at

    logs = logs_at(files[0]) if len(files) == 1 and Path(files[0]).is_dir() else []
    return [file.where for _, file in logs] or list(files)


@contextmanager
def watching(what: str, *, remaining: bool = False) -> Generator[Any]:
    """Yield what functions of the library tell of their work, to be drawn as a bar.

    Args:
        what: is going on.
        remaining: show the time that is left, for steps that take equally long.
    """
    with progress(None, what, remaining=remaining) as advance:

        def watch(state: Progress) -> None:
            if state.of > 1:
                advance(str(state), state.done, state.of)

        yield watch
