"""Workers end with the process that they work for, and a script without a guard is told so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

WORK = """
import os, sys, time
import calibrant as cb

def told(item):
    with open(os.path.join(sys.argv[1], str(os.getpid())), "w"):
        time.sleep(120)

def main():
    list(cb.Engine(workers=2).run(told, [0, 1, 2]))

"""
GUARDED = WORK + 'if __name__ == "__main__":\n    main()\n'


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def waited_for(done, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(done())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent_however_that_ends(how, tmp_path: Path):
    script, here = tmp_path / "script.py", tmp_path / "workers"
    script.write_text(GUARDED)
    here.mkdir()
    running = subprocess.Popen(
        [sys.executable, str(script), str(here)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert waited_for(lambda: len(list(here.iterdir())) == 2)
        workers = [int(path.name) for path in here.iterdir()]
        assert all(map(alive, workers))
        running.send_signal(how)
        assert waited_for(lambda: not any(map(alive, workers)))
    finally:
        running.kill()
        running.communicate()


def _reads_apart(path: Path) -> list[int]:
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if b"import h5py" in words and bytes(path) in words:
            found.append(int(place.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in Linux's /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_file_that_is_read_apart_without_end_leaves_no_process(how, tmp_path: Path):
    pytest.importorskip("h5py")
    path = tmp_path / "hang.h5"
    path.write_bytes((Path(__file__).parent / "data" / "hang.h5").read_bytes())
    running = subprocess.Popen(
        [sys.executable, "-m", "calibrant", "inspect", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert waited_for(lambda: _reads_apart(path))
        time.sleep(0.3)  # it imports
        running.send_signal(how)
        assert waited_for(lambda: not _reads_apart(path), 30)
        assert running.wait(10) != 0
    finally:
        running.kill()
        running.communicate()


def test_a_script_without_a_guard_is_told_so_once(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text('print("begun", flush=True)\n' + WORK + "main()\n")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "begun\n"
    last = done.stderr.strip().splitlines()[-1]
    assert 'put it behind if __name__ == "__main__":' in last
    assert "memory" not in done.stderr


def _fork_server_of(group: int) -> bool:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            own = os.getpgid(int(place.name)) == group
            if own and b"forkserver" in (place / "cmdline").read_bytes():
                return True
        except OSError:
            pass  # it has ended
    return False


def test_ctrl_c_while_workers_start_is_heard_by_one_process(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        GUARDED.replace("def main():\n", 'def main():\n    print("go", flush=True)\n')
    )
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    waited_for(lambda: _fork_server_of(running.pid), 60 if Path("/proc").exists() else 2)
    time.sleep(0.3)  # it imports
    os.killpg(running.pid, signal.SIGINT)
    said = running.communicate(timeout=120)[1]
    # That of the script itself.
    assert said.count("Traceback") == 1, said
    assert said.strip().endswith("KeyboardInterrupt")
