"""What a training took: seconds by the clock, and seconds of the processor."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from calibrant.files.atomic import replacing

FILE = "seconds.json"


@dataclass
class Spent:
    """How long something took.

    Attributes:
        clock: seconds that passed.
        processor: seconds that this process computed, all its threads together. They don't grow
            when others use the machine; None where the work was done elsewhere, on a GPU.
    """

    clock: float = 0.0
    processor: float | None = 0.0

    def __add__(self, other: Spent) -> Spent:
        both = (self.processor, other.processor)
        known = None if None in both else sum(cast("tuple[float, float]", both))
        return Spent(self.clock + other.clock, known)

    def write(self, folder: Path) -> None:
        """Keep it in a folder."""
        with replacing(folder / FILE) as temporary:
            temporary.write_text(json.dumps(vars(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Spent | None:
        """Return what was kept in a folder; None if nothing was."""
        try:
            found: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if isinstance(found, dict):
                kept = cast("dict[str, Any]", found)
                processor = kept["processor"]
                return cls(float(kept["clock"]), None if processor is None else float(processor))
            return cls(float(found), None)  # earlier versions kept the clock alone
        except (OSError, ValueError, TypeError, KeyError):
            return None


@contextmanager
def measured(on: str = "cpu") -> Generator[Spent]:
    """Measure the block: what it took is known behind it.

    Args:
        on: where its work is done: "cpu", "cuda", "mps" or "auto", as Lightning understands them.
    """
    spent = Spent()
    began, computed = time.perf_counter(), time.process_time()
    yield spent
    spent.clock = time.perf_counter() - began
    spent.processor = time.process_time() - computed if _on_processor(on) else None


def _on_processor(accelerator: str) -> bool:
    import torch

    others = (torch.cuda.is_available(), torch.backends.mps.is_available())
    return accelerator == "cpu" or (accelerator == "auto" and not any(others))
