"""Lives of a monitor that follows a growing file, each ended by kill -9; run by a test.

    python killed_monitor.py FOLDER LIVES ROWS_A_LIFE

Prints how many lives were ended, and what the monitor knows in the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from calibrant.monitor import streams
from calibrant.monitor.checkpointing import Checkpoints
from calibrant.monitor.monitor import Monitor
from calibrant.monitor.rows import Reading

# Many steps, and so many states, a life.
streams.BYTES_AT_ONCE, streams.POLL_SECONDS = 400, 0.001


def live(rows: str, state: Path, follow: streams.Following | None) -> Monitor:
    monitor = Monitor.load(state) if state.exists() else Monitor(window=100)
    checkpoints = Checkpoints(monitor, state, seconds=0.0)
    checkpoints.keep(streams.feed(monitor, [rows], Reading(), follow=follow))
    checkpoints.save()
    return monitor


def main(folder: Path, lives: int, rows_a_life: int) -> None:
    rows, state, ended = folder / "rows.jsonl", folder / "state", 0
    random.seed(0)
    waiting = [
        json.dumps(
            {"confidence": round(random.uniform(0.5, 1), 4), "correct": random.random() < 0.6}
        )
        for _ in range(lives * rows_a_life)
    ]
    with rows.open("w") as file:
        for life in range(lives):
            text = "\n".join(waiting[life * rows_a_life : (life + 1) * rows_a_life]) + "\n"
            # The writer is in the middle of a line at times.
            cut = random.randrange(len(text))
            file.write(text[:cut])
            file.flush()
            child = os.fork()
            if child == 0:
                live(str(rows), state, streams.Following(files=True))
            time.sleep(random.uniform(0.0, 0.02))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            ended += os.WIFSIGNALED(status)
            file.write(text[cut:])
            file.flush()
    monitor = live(str(rows), state, None)
    whole = live(str(rows), folder / "other", None)
    found, wanted = monitor.as_dict(details=True), whole.as_dict(details=True)
    left = [path.name for path in folder.iterdir() if path.name.startswith(".calibrant")]
    print(json.dumps([ended, monitor.rows, found == wanted, left]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
