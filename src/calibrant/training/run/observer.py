"""Who watches a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calibrant.training.run.folder import write_history
from calibrant.training.run.state import Progress


class Observer:
    """Told what happens in a run; a base to derive from. It must not change the run.

    An exception raised in here ends the run, which can be taken up again from its last checkpoint.
    """

    def on_start(self, steps_per_epoch: int) -> None:
        """The first step of this process is about to begin."""

    def on_step(self, progress: Progress) -> None:
        """A step is done; `progress.step` is the next one."""

    def on_epoch(self, progress: Progress) -> None:
        """An epoch is done; its row is the last of the history."""


@dataclass(eq=False)
class Announcer(Observer):
    """Says in words which step is going on.

    Attributes:
        epochs: how many the run has.
        say: called as each step begins with the words, how many steps are done, and how many the
            run has. Of the words, what the last whole epoch came to is a line of its own.
    """

    epochs: int
    say: Callable[[str, int, int], None]
    _steps: int = 0

    def on_start(self, steps_per_epoch: int) -> None:
        """Remember the number, and say nothing of a first step that may be anywhere."""
        self._steps = steps_per_epoch

    def on_step(self, progress: Progress) -> None:
        """Name the epoch, and what the last whole one came to, if there is one."""
        words = f"epoch {progress.epoch + 1} of {self.epochs}"
        if progress.history:
            last = progress.history[-1]
            words += (
                f"\nepoch {int(last['epoch'])}: training loss {last['train_loss']:.3f}, "
                f"validation accuracy {last['validation_accuracy']:.1%}"
            )
        self.say(words, progress.epoch * self._steps + progress.step, self.epochs * self._steps)


@dataclass(frozen=True, eq=False)
class HistoryWriter(Observer):
    """Keeps the files of the history up to date.

    Attributes:
        folder: of the run.
    """

    folder: Path

    def on_epoch(self, progress: Progress) -> None:
        """Write the rows of all finished epochs."""
        write_history(self.folder, progress)
