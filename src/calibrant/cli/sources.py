"""Where a command reads rows: from one file into memory, or from many files in parts."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.options import EngineOptions
from calibrant.cli.output import check_outputs, progress
from calibrant.files.options import ReadOptions

if TYPE_CHECKING:
    from calibrant.scale.engines import Engine
    from calibrant.scale.map_reduce import Progress
    from calibrant.scale.shards import Shards


@dataclass(frozen=True)
class ShardSource:
    """Files that a command was given, and how they are read.

    Attributes:
        files: as they were given.
        read: which columns are read, and as what.
        engine: which processes read them.
    """

    files: Sequence[str]
    read: ReadOptions = ReadOptions()  # noqa: RUF009 - it is frozen
    engine: EngineOptions = EngineOptions()  # noqa: RUF009

    @property
    def many(self) -> bool:
        """Whether an engine reads them in parts, rather than one file into memory."""
        from calibrant.scale.file_discovery import stands_for_many

        return self.engine.given or (stands_for_many(self.files) and not self.logs)

    @property
    def logs(self) -> bool:
        """Whether all files are logs of evaluations, which are read together into memory."""
        from calibrant.files.formats.logs.reader import is_log

        return all(is_log(file) for file in self.files)

    def one(self) -> tuple[Path, ReadOptions]:
        """Return the file to read into memory, and how: several logs are read as one set."""
        return Path(self.files[0]), self.read.but(beside=self.files[1:])

    def by(self) -> Engine:
        """Return what reads many files."""
        from calibrant.scale.engines import Engine

        name: Any = self.engine.engine or "processes"
        return Engine(name, self.engine.workers, self.engine.scheduler)

    def shards(self, outputs: Sequence[Path | str | None] = (), *, labelled: bool = True) -> Shards:
        """Return many files, once their headers are read.

        Args:
            outputs: paths that the command writes to.
            labelled: whether rows need labels.

        Raises:
            InputError: an output would replace one of the files.
        """
        from calibrant.scale.shards import Shards

        skip = self.engine.skip_broken
        shards = Shards(self.files, self.read, skip_broken=skip, labelled=labelled)
        check_outputs([Path(shard.where) for shard in shards], outputs)
        return shards


@contextmanager
def working(source: ShardSource, shards: Shards, what: str) -> Generator[dict[str, Any]]:
    """Yield how a function of the library works on shards, with a bar on a terminal."""
    with progress(len(shards), what) as advance:

        def watch(state: Progress) -> None:
            advance(str(state), state.shards, state.of)

        skip = source.engine.skip_broken
        yield {"engine": source.by(), "skip_broken": skip, "watch": watch}
