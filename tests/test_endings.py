"""How processes end: what they leave behind, what they say, and their exit codes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import app
from calibrant.core import outputs
from calibrant.core.errors import InputError
from calibrant.files import replacing, write_predictions
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions

# The command line, with a writer that writes a part of the file and never comes to its end.
SLOW_APPLY = """
import sys, time
from pathlib import Path
from calibrant.cli import main
from calibrant.files.formats.numpy_files import NpzWriter

def slow(writer, arrays):
    path = Path(writer.archive.fp.name)
    print("writing", flush=True)
    time.sleep(600)

NpzWriter.add = slow
main()
"""
SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            print("importing", flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Slow())
from calibrant.cli import main
main()
"""


@pytest.fixture
def folder(tmp_path, labelled_logits) -> Path:
    logits, labels = labelled_logits(300, 4)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    TemperatureScaling().fit(logits, labels).save(tmp_path / "t.safetensors")
    return tmp_path


HALVES = Predictions.from_probs(np.full((1, 2), 0.5), np.zeros(1))


# Tests that a shell runs in the background inherit that some signals are ignored.
HEARS_SIGNALS = """
import signal
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def start(folder: Path, program: str, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", HEARS_SIGNALS + program, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def applying(folder: Path, program: str = SLOW_APPLY) -> subprocess.Popen[str]:
    process = start(folder, program, "apply", "t.safetensors", "val.npz", "--out", "out.npz")
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def content(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_kills_leaves_no_temporary_file(folder, number):
    before = content(folder)
    process = applying(folder)
    assert len(content(folder)) == len(before) + 1
    process.send_signal(number)
    assert ended(process) == (-number, "")
    assert content(folder) == before


def test_an_interrupt_leaves_no_temporary_file_and_ends_in_one_line(folder):
    before = content(folder)
    process = applying(folder)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert (code, said.count("\n")) == (130, 1)
    assert said.startswith("interrupted: no output is half written; run the same command again")
    assert content(folder) == before


def test_the_end_of_a_child_leaves_its_parents_files_alone(folder):
    forking = SLOW_APPLY.replace(
        "    time.sleep(600)",
        "    import os, signal\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.waitpid(child, 0)\n"
        "    sys.exit(0 if path.exists() else 1)",
    )
    assert ended(applying(folder, forking)) == (0, "")


def test_what_a_killed_process_left_is_tidied_by_the_next(folder, monkeypatch):
    monkeypatch.setattr(outputs, "_tidied", set())  # this process wrote there already
    before = content(folder)
    process = applying(folder)
    process.kill()
    ended(process)
    assert len(content(folder)) == len(before) + 1
    write_predictions(HALVES, folder / "other.npz")
    assert content(folder) == sorted([*before, "other.npz"])


def test_what_a_living_process_writes_is_not_tidied(folder):
    before = content(folder)
    process = applying(folder)
    try:
        write_predictions(HALVES, folder / "other.npz")
        assert len(content(folder)) == len(before) + 2
    finally:
        process.kill()
        ended(process)


def test_of_another_machine_only_old_files_are_tidied(tmp_path):
    of_another = ".calibrant-00000000-1-{}.npz"
    old, new = (tmp_path / of_another.format(digit * 16) for digit in "ab")
    for path in (old, new):
        path.touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    with replacing(tmp_path / "out.npz") as temporary:
        temporary.touch()
    assert content(tmp_path) == sorted([new.name, "out.npz"])


@pytest.mark.parametrize("module", ["calibrant.cli.app", "typer", "numpy", "scipy"])
def test_an_interrupt_while_importing_is_one_line(folder, module):
    process = start(
        folder, SLOW_IMPORT.format(module=module), "fit", "val.npz", "--out", "f.safetensors"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert (code, said.count("\n")) == (130, 1)
    assert said.startswith("interrupted: ")
    assert "run the same command again" in said


def test_an_interrupt_says_how_to_go_on() -> None:
    assert app._interrupted(["calibrant", "train", "--out", "run"]) == (
        "interrupted: run the same command with --resume to go on from the last checkpoint"
    )
    for words in (["calibrant"], ["calibrant", "measure", "a.npz"]):
        assert app._interrupted(words).endswith("run the same command again")


# --- output that can't be written


def command(folder: Path, line: str) -> tuple[int, str]:
    """Run a line of a shell in which $calibrant is the command line; return exit code, stderr."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "calibrant": f"{sys.executable} -m calibrant"},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "",
        "measure val.npz --resamples 20",
        "measure val.npz --json -",
        "methods",
        "--help",
        "fit --help",
    ],
)
def test_a_closed_pipe_is_no_error(folder, words):
    assert command(folder, f"$calibrant {words} | true") == (0, "")


def test_a_closed_stdout_is_no_error(folder):
    assert command(folder, "$calibrant measure val.npz --resamples 20 >&-") == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_for_stdout_is_one_sentence(folder):
    code, errors = command(folder, "$calibrant measure val.npz --resamples 20 > /dev/full")
    assert (code, errors) == (2, "error: No space left on device\n")


@pytest.mark.parametrize("name", ["o.npz", "o.csv", "o.parquet", "o.safetensors", "o-probs.npy"])
def test_no_room_for_an_output_is_one_sentence_and_no_file(folder, name):
    # A limit on the size of files fails in the middle of a file, as a full disk does.
    rows = np.random.default_rng(0).normal(size=(20_000, 4))
    np.savez(folder / "val.npz", logits=rows)
    before = content(folder)
    line = f"ulimit -f 16; $calibrant apply t.safetensors val.npz --out {name}"
    assert command(folder, line) == (2, f"error: {name}: can't be written: File too large\n")
    assert content(folder) == before


def test_no_room_for_a_calibrator_is_one_sentence_and_no_file(folder):
    before = content(folder)
    line = "ulimit -f 0; $calibrant fit val.npz --method temperature --out new.safetensors"
    code, errors = command(folder, line)
    assert (code, errors) == (2, "error: new.safetensors: can't be written: File too large\n")
    assert content(folder) == before


def test_a_full_disk_behind_an_error_of_a_library_is_found_out(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"out\.bin: can't be written: File too large"):
            fail_to_write(tmp_path / "out.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path) == []


def test_another_error_of_a_library_stays_what_it_is(tmp_path):
    with pytest.raises(RuntimeError, match="of some library"):
        fail_to_write(tmp_path / "out.bin")
    assert content(tmp_path) == []


def fail_to_write(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(bytes(4000))
        raise RuntimeError("of some library")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_refusal_names_the_target_not_a_temporary_file(folder):
    code, errors = command(folder, "$calibrant measure val.npz --report /proc/r.html")
    assert code == 2
    assert errors == "error: /proc/r.html: can't be written: No such file or directory\n"
