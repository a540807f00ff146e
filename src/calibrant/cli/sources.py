"""Where a command reads rows: from one file into memory, or from many files in parts."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from calibrant.cli.options import EngineOptions
from calibrant.cli.output import check_outputs, progress
from calibrant.core.errors import PredictionsError
from calibrant.files import ReadOptions, read_column, read_predictions
from calibrant.files.reading import with_proposal

if TYPE_CHECKING:
    from calibrant.core.progress import Progress
    from calibrant.predictions.predictions import Predictions
    from calibrant.scale.shards import Shards


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
    engine: EngineOptions = EngineOptions()  # noqa: RUF009
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
        try:
            shards = Shards(self.files, self.read, skip_broken=skip, labelled=labelled)
        except PredictionsError as error:
            if not self._named_like_a_manifest:
                raise
            raise with_proposal(error, self.files[0], self.read) from error
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
