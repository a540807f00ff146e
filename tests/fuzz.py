"""Damage real files of every kind that is read, and words of the command line, and see what comes.

    python -m tests.fuzz [--minutes 10] [--seed 0] [--only NAME,NAME] [--case NUMBER]

Bytes are damaged, and values of documents that keep their form: files of predictions of every
format, calibrators, heads, states of monitors, lines of a stream, manifests, declarations of
studies, ONNX networks, folders of shards and images. A damaged file is either read as another
package reads it, and the same whole and in batches, or it ends in one sentence of the one error
class, and on the command line in exit code 2 with one line. Whatever else happens is printed as a
finding, with the seed and the number of the case that repeats it (its file then lies in the working
folder): any other exception, more than ten seconds of processor time, more than 300 MB of memory, a
file left behind, numbers that another reader sees differently.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_damage import Rng, damaged, odd_arrays
from fuzz_sound import FORMS, WRITERS, arrays_of, npy_bytes, read_otherwise, write_zip
from fuzz_values import odd, other_state, other_values

from calibrant.cli.app import run
from calibrant.core.errors import CalibrantError
from calibrant.files import ReadOptions, read_predictions
from calibrant.files.reading import PredictionFile
from calibrant.posthoc.loading import load
from calibrant.predictions.predictions import Predictions

MOST_SECONDS, MOST_BYTES = 10, 300 << 20
# What stands before a line to paste, behind a refusal.
PASTED = "to read it so: "
# Rows of a batch; one by one takes its time.
STEPS = (*(7, 13, 1000) * 3, 1)


class Endless(BaseException):
    """A case took longer than any should."""


# --- watching one case


@dataclass
class Watch:
    """What came of all cases."""

    folder: Path
    seed: int = 0
    quiet: bool = False
    number: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def found(self, name: str, what: str) -> None:
        line = f"{name}: {what}"
        if not self.quiet and self.findings[line] == 0:
            print(f"--seed {self.seed} --case {self.number}: {line}", flush=True)
        self.findings[line] += 1

    def see(self, name: str, call: Callable[[], Any], *, files: bool = True) -> Any:
        """Call, and return what comes, or None after a refusal."""
        before = _listing(self.folder) if files else ()
        peak, started, value = _memory_from_now(), time.process_time(), None
        self.cases[name.split()[0]] += 1
        with _limit(MOST_SECONDS * 6):
            try:
                value = call()
            except CalibrantError as error:
                self.refused[name.split()[0]] += 1
                if "\n" in str(error) or not str(error):
                    self.found(name, f"not one line: {str(error)!r}")
            except Endless:
                self.found(name, "does not end")
            except Exception as error:
                self.found(name, f"{type(error).__name__}: {str(error)[:150]}")
        seconds, grown = time.process_time() - started, _peak() - peak
        self.slowest = max(self.slowest, (seconds, name))
        self.largest = max(self.largest, (grown, name))
        if seconds > MOST_SECONDS:
            self.found(name, f"{seconds:.0f} s")
        if grown > MOST_BYTES:
            self.found(name, f"{grown >> 20} MB")
        if files and _listing(self.folder) != before:
            left = sorted(set(_listing(self.folder)) - set(before))
            self.found(name, f"left behind: {left}")
            for path in left:
                (self.folder / path).unlink(missing_ok=True)
        return value


def _listing(folder: Path) -> tuple[str, ...]:
    start, found = len(str(folder)) + 1, list[str]()
    for place, _, names in os.walk(folder):
        found += [os.path.join(place, name)[start:] for name in names]
    return tuple(sorted(found))


def _memory_from_now() -> int:
    """Let the peak of the resident memory begin here, where the system can, and return it."""
    with contextlib.suppress(OSError):
        os.write(_opened("/proc/self/clear_refs", os.O_WRONLY), b"5")
    return _peak()


def _peak() -> int:
    with contextlib.suppress(OSError):
        status = os.pread(_opened("/proc/self/status", os.O_RDONLY), 1 << 16, 0)
        found = re.search(rb"VmHWM:\s*(\d+)", status)
        return 0 if found is None else int(found[1]) << 10
    return 0


@cache
def _opened(path: str, mode: int) -> int:
    return os.open(path, mode)


@contextlib.contextmanager
def _limit(seconds: int) -> Generator[None]:
    def ring(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- files of predictions


def differs(ours: Predictions, path: Path) -> str:
    """Return how predictions that were read differ from another reading, or nothing."""
    try:
        theirs = read_otherwise(path)
    except Exception as error:
        return f"read, but not by others: {type(error).__name__}"
    pairs: list[tuple[str, Any, Any]] = []
    lower = {name.lower(): array for name, array in theirs.items()}
    truth = [lower[name] for name in ("labels", "label", "true_label") if name in lower]
    if ours.kind == "toplabel":
        pairs.append(("confidence", ours.scores, theirs.get("confidence")))
        if ours.class_names is None:  # names are numbered by the alphabet
            pairs.append(("pred_label", ours.predicted, theirs.get("pred_label")))
    elif ours.binary:
        pairs.append(("prob", ours.positive_probs, theirs.get("prob")))
    else:
        pairs.append((ours.kind, ours.scores, theirs.get(ours.kind)))
    if ours.class_names is None:
        pairs.append(("labels", ours.labels, truth[0] if truth else None))
    for name, mine, others in pairs:
        if others is None:
            return f"no {name} for others"
        try:
            mine, others = np.asarray(mine, float), np.asarray(others).astype(float)
        except (TypeError, ValueError):
            return f"{name} is no number for others"
        if mine.shape != np.squeeze(others).shape and mine.shape != others.shape:
            return f"{name} {mine.shape}, for others {others.shape}"
        ways = [others]
        if name == "probs" and others.ndim == 2:  # what is rounded is divided by its sum
            ways.append(others / others.sum(axis=1, keepdims=True))
        same = [np.isclose(mine.ravel(), way.ravel(), rtol=1e-6, atol=1e-6) for way in ways]
        if not np.any(same, axis=0).all():
            return f"other {name}"
    return ""


def read_and_compare(watch: Watch, name: str, path: Path, step: int) -> None:
    """Read a file whole and in batches, and see whether both and another package agree."""
    refused = watch.refused[name.split()[0]]
    ours = watch.see(name, lambda: read_predictions(path))
    if isinstance(ours, Predictions):
        said = differs(ours, path)
        if said:
            watch.found(name, said)
    elif watch.refused[name.split()[0]] == refused:
        return  # a finding by itself
    parts = watch.see(f"{name} in batches", lambda: in_batches(path, step))
    if (parts is None) != (ours is None):
        watch.found(name, f"read {'whole' if parts is None else 'in batches'} only")
    elif isinstance(ours, Predictions):
        for field_ in ("scores", "known_labels", "predicted", "features", "weights"):
            one, other = getattr(ours, field_), getattr(parts, field_)
            if (one is None) != (other is None) or not np.array_equal(one, other):
                watch.found(name, f"other {field_} in batches")


def in_batches(path: Path, step: int) -> Predictions:
    """Read all rows of a file in batches of so many."""
    with PredictionFile(str(path), ReadOptions()) as file:
        file.check_header()
        spans = [slice(a, min(a + step, file.rows)) for a in range(0, file.rows, step)]
        parts = [rows for rows, _ in file.batches(spans, features=True)]
    rows = Predictions.concatenate(parts)
    if rows.weights is not None:
        rows.counted  # noqa: B018 - weights of all rows together may be 0
    return rows


def damage_predictions(watch: Watch, name: str, form: str, rng: Rng) -> Path:
    """Write one damaged file, and return where it lies."""
    file, write = WRITERS[name]
    path = watch.folder / file
    arrays = arrays_of("logits" if name == "npy" else form)
    way = rng.random()
    if way < 0.25:  # sound bytes of odd arrays
        key = list(arrays)[int(rng.integers(len(arrays)))]
        with contextlib.suppress(Exception):
            write(path, arrays | {key: odd_arrays(arrays[key], rng)})
            return path
    if way < 0.4 and name in ("npz", "packed"):  # damage that no checksum tells
        members = {f"{key}.npy": npy_bytes(array) for key, array in arrays.items()}
        key = list(members)[int(rng.integers(len(members)))]
        members[key] = damaged(members[key], npy_bytes(np.zeros((9, 3))), rng)
        write_zip(path, members, packed=name == "packed")
        return path
    if name == "jsonl" and way < 0.6:
        rows = sound(name, form)[file].splitlines()
        at = int(rng.integers(len(rows)))
        rows[at] = json.dumps(other_values(json.loads(rows[at]), rng)).encode()
        path.write_bytes(b"\n".join(rows))
        return path
    files = dict(sound(name, "logits" if name == "npy" else form))
    other = files[file][::-1] if rng.random() < 0.5 else _another(rng)
    struck = "labels.npy" if name == "npy" and rng.random() < 0.4 else file
    files[struck] = damaged(files[struck], other, rng)
    for each, content in files.items():
        (watch.folder / each).write_bytes(content)
    return watch.folder / file


@cache
def sound(name: str, form: str, rows: int = 40, seed: int = 0) -> dict[str, bytes]:
    """Return a sound file of a format and form by its name; of some formats several."""
    file, write = WRITERS[name]
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / file, arrays_of(form, rows, seed))
        return {path.name: path.read_bytes() for path in Path(place).iterdir()}


def _another(rng: Rng) -> bytes:
    """Return a sound file of some format and form."""
    names = [name for name in WRITERS if name != "npy"]
    name, form = names[int(rng.integers(len(names)))], FORMS[int(rng.integers(len(FORMS)))]
    return sound(name, form, 25, 1)[WRITERS[name][0]]


def tidy(watch: Watch, keep: set[str]) -> None:
    with os.scandir(watch.folder) as entries:
        left = [entry for entry in entries if entry.name not in keep]
    for entry in left:
        shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)


# --- what is fitted, and saved

METHODS_TRIED = (
    *("temperature", "smart", "svs", "isotonic", "top-rest", "svs+top-rest", "auto", "histogram"),
    *("venn-abers", "spline", "beta", "vector", "matrix", "dirichlet", "ets", "probit", "irm"),
)


def calibrators(folder: Path) -> dict[str, bytes]:
    """Return sound files of calibrators, a head and a monitor's state."""
    from calibrant.monitor.monitor import Monitor
    from calibrant.posthoc.registry import make_calibrator

    rows = arrays_of("logits", 400)
    found: dict[str, bytes] = {}
    path = folder / "c.safetensors"
    right = rows["labels"] == rows["logits"].argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in METHODS_TRIED:
            make_calibrator(method).fit(rows["logits"], rows["labels"]).save(path)
            found[method] = path.read_bytes()
        for method in ("platt", "isotonic", "auto"):
            scores = rows["logits"].max(axis=1)
            make_calibrator(method).fit(scores, right, kind="score").save(path)
            found[f"{method} of scores"] = path.read_bytes()
            make_calibrator(method).fit(scores, right, kind="logits").save(path)
            found[f"{method} of events"] = path.read_bytes()
    monitor = Monitor()
    top = arrays_of("toplabel", 400)
    monitor.update(top["confidence"], top["pred_label"] == top["true_label"])
    monitor.save(folder / "state.safetensors")
    found["monitor"] = (folder / "state.safetensors").read_bytes()
    return found


def heads() -> dict[str, bytes]:
    """Return sound files of heads of second stages."""
    from calibrant.training.second_stages.registry import make_second_stage

    rng = np.random.default_rng(0)
    features, found = rng.normal(size=(60, 5)).astype(np.float32), dict[str, bytes]()
    for method in ("retrain", "maccal"):
        stage = make_second_stage(method, epochs=1, seed=0)
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            labels = features[:, :3].argmax(axis=1)
            stage.fit(features, labels, (features, labels)).save(Path(place) / "h.safetensors")
            found[method] = (Path(place) / "h.safetensors").read_bytes()
    return found


def see_head(watch: Watch, kept: dict[str, bytes], rng: Rng) -> None:
    from calibrant.training.second_stages.heads import load_head

    path = watch.folder / "head.safetensors"
    content, other = (kept[str(name)] for name in rng.choice(list(kept), 2))
    path.write_bytes(damaged(content, other, rng))
    watch.see("head", lambda: load_head(path))


def see_images(watch: Watch, rng: Rng) -> None:
    """Damage one file of a layout of images, and read all of it."""
    from test_training_damaged_data import LAYOUTS, layouts

    with tempfile.TemporaryDirectory() as place:
        sound, read = layouts(Path(place))[str(rng.choice(LAYOUTS))]
        files = sorted(file for file in sound.rglob("*") if file.is_file())
        file, other = (files[int(i)] for i in rng.integers(len(files), size=2))
        file.write_bytes(damaged(file.read_bytes(), other.read_bytes(), rng))
        watch.see("images", lambda: read(sound))


def see_shards(watch: Watch, form: str, rng: Rng) -> None:
    """Measure, fit to and calibrate a folder of files of which one is damaged."""
    names = [name for name in WRITERS if name not in ("npy", "legacy", "hdf5")]
    name = names[int(rng.integers(len(names)))]
    folder, (file, write) = watch.folder / "shards", WRITERS[name]
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}{Path(file).suffix}", arrays_of(form, seed=number))
    path = folder / f"{int(rng.integers(3))}{Path(file).suffix}"
    path.write_bytes(damaged(path.read_bytes(), _another(rng), rng))
    out = str(watch.folder / "out.safetensors")
    words = [
        ["measure", str(folder)],
        ["measure", str(folder), "--skip-broken"],
        ["fit", str(folder), "--method", "temperature", "--out", out],
    ]
    see_command(watch, [*words[int(rng.integers(3))], "--workers", "1"])


def see_manifest(watch: Watch, rng: Rng) -> None:
    """Name files in a manifest that names others, or itself, or nothing."""
    from calibrant.scale.shards import Shards

    file = WRITERS["npz"][0]
    (watch.folder / file).write_bytes(sound("npz", "logits")[file])
    places = [
        file,
        "./" + file,
        "m.json",
        "m.txt",
        "*",
        "../*",
        ".",
        "/dev/null",
        "a\0b",
        "~",
        "**",
    ]
    path = watch.folder / ("m.json" if rng.random() < 0.7 else "m.txt")
    named = [str(place) for place in rng.choice(places, int(rng.integers(1, 4)))]
    if path.suffix == ".txt":
        path.write_bytes(damaged("\n".join(named).encode(), b"", rng))
    else:
        path.write_text(json.dumps(other_values([*named, file], rng)))
    watch.see("manifest", lambda: Shards(str(path)))


def see_declaration(watch: Watch, declared: list[str], rng: Rng) -> None:
    """Read a declaration of a study with other values, or other bytes."""
    from calibrant_studies.declaration import read_study

    text = str(rng.choice(declared))
    lines = text.splitlines()
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(lines)))
        key, equals, _ = lines[at].partition("=")
        way = rng.random()
        if equals and way < 0.6:
            value = odd(rng)
            with contextlib.suppress(ValueError):
                lines[at] = f"{key}= {json.dumps(value).replace('null', 'nan')}"
        elif way < 0.8:
            del lines[at]
        else:
            lines.insert(at, str(rng.choice(lines)))
        lines = lines or [""]
    content = "\n".join(lines).encode("utf-8", "replace")
    path = watch.folder / "study.toml"
    path.write_bytes(damaged(content, b"", rng) if rng.random() < 0.3 else content)
    watch.see("declaration", lambda: read_study(path))


def see_lines(watch: Watch, rng: Rng) -> None:
    """Read lines of a stream of which some hold other values."""
    made = [
        {"confidence": 0.8, "correct": True, "id": "a"},
        {"id": "a", "label": 1},
        {"logits": [1.0, 2.0, 0.0], "label": 1, "id": 3},
        {"probs": {"cat": 0.75, "dog": 0.25}, "label": "cat"},
        {"confidence": 0.9, "predicted": "cat", "label": "dog", "group": "b"},
    ]
    rows = [made[int(i)] for i in rng.integers(len(made), size=int(rng.integers(1, 6)))]
    at = int(rng.integers(len(rows)))
    rows[at] = other_values(rows[at], rng)
    text = "\n".join(json.dumps(row) for row in rows).encode()
    path = watch.folder / "stream.jsonl"
    path.write_bytes(damaged(text, b"", rng) if rng.random() < 0.3 else text)
    see_command(watch, ["monitor", str(path), *(["--skip-broken"] * int(rng.integers(2)))])


def see_network(watch: Watch, network: bytes, calibrator: bytes, rng: Rng) -> None:
    """Put a calibrator behind a damaged ONNX network."""
    path, own = watch.folder / "network.onnx", watch.folder / "t.safetensors"
    path.write_bytes(damaged(network, calibrator, rng))
    fitted = load(own)
    watch.see("network", lambda: fitted.to_onnx(behind=path))


def network_bytes() -> bytes:
    """Return an ONNX network of five inputs and three classes."""
    from onnx import TensorProto, helper

    weight = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["logits"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.ravel())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model.SerializeToString()


def see_calibrator(watch: Watch, name: str, content: bytes, other: bytes, rng: Rng) -> None:
    path = watch.folder / "damaged.safetensors"
    keep = rng.random() < 0.6
    path.write_bytes(other_state(content, rng) if keep else damaged(content, other, rng))
    if name == "monitor":
        from calibrant.monitor.monitor import Monitor

        monitor = watch.see("state", lambda: Monitor.load(path))
        if monitor is not None:
            top = np.linspace(0.1, 0.9, 30)
            watch.see("state", lambda: monitor.update(top, top > 0.4))
            watch.see("state", lambda: str(monitor.as_dict(details=True)))
        return
    loaded = watch.see(f"calibrator {name}", lambda: load(path))
    if loaded is not None and loaded.n_classes_ < 10_000:
        logits = np.random.default_rng(1).normal(size=(50, loaded.n_classes_)) * 4
        given = logits[:, 0] if loaded.kind_ == "score" else logits
        kind = "score" if loaded.kind_ == "score" else "logits"

        def gives() -> None:
            probs = np.asarray(loaded.predict_proba(given, kind=kind))
            if not (np.isfinite(probs).all() and (probs >= 0).all()):
                raise ValueError("gives what are no probabilities")
            if not np.allclose(probs.sum(axis=1), 1, atol=1e-5):
                raise ValueError("rows don't sum to 1")

        watch.see(f"calibrator {name}", gives)


# --- the command line


def said(words: list[str]) -> tuple[int, str]:
    """Return exit code and standard error of the command line."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            code = run(["calibrant", *words])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, errors.getvalue()


def see_command(watch: Watch, words: list[str]) -> None:
    """Call a command, and see that it ends well, or with one line and no output.

    What it may leave behind is what its words name.
    """
    name = "cli " + " ".join(word.replace(str(watch.folder) + "/", "") for word in words)
    before = set(_listing(watch.folder))
    ended = watch.see(name, lambda: said(words), files=False)
    left = set(_listing(watch.folder)) - before
    if ended is None:
        return
    code, text = ended
    errors = [line for line in text.splitlines() if line.startswith("error:")]
    if code == 2:
        watch.refused["cli"] += 1
    if code not in (0, 2, 3) or (code == 2) != (len(errors) == 1):
        watch.found(name, f"exit code {code}, {text[:200]!r}")
    lines = text.splitlines()
    while lines and lines[-1].startswith((PASTED, "details: ")):
        lines.pop()
    if code == 2 and not (lines and lines[-1].startswith("error:")):
        watch.found(name, f"ends in {text[-200:]!r}")
    # What can't be read is inspected all the same.
    none = code == 2 and words[0] != "inspect"
    asked = set() if none else {str(Path(word).name) for word in words}
    if left - asked:
        watch.found(name, f"exit code {code}, left behind {sorted(left)}")
    for path in left:
        (watch.folder / path).unlink(missing_ok=True)


def commands_on(watch: Watch, file: Path, rng: Rng) -> None:
    """Call one of the commands that read predictions on a damaged file."""
    sound, out = str(watch.folder / "t.safetensors"), watch.folder / "out"
    words = [
        ["measure", str(file), "--resamples", "20"],
        ["measure", str(file), "--resamples", "20", "--by", "class", "--json", f"{out}.json"],
        ["inspect", str(file)],
        ["fit", str(file), "--method", "temperature", "--out", f"{out}.safetensors"],
        ["apply", sound, str(file), "--out", f"{out}.npz"],
        ["monitor", str(file), "--state", f"{out}.safetensors"],
        ["compare", "--fit", str(file), "--test", str(file), "--methods", "none,temperature"],
    ][int(rng.integers(7))]
    if words[0] == "compare":
        words += ["--resamples", "20"]
    see_command(watch, words)


ODD_WORDS = [
    "", "0", "-1", "1e999", "nan", "1.5", "99999999999999999999", "x" * 300, "é\n", "/dev/null",
    "/proc/self/mem", "/", "nothing.npz", "temperature", "ece", "ece,ece", "all", "class", "=",
    "n_bins=0", "n_bins=-3", "n_bins=[1]", "caf\udce9", "-", "--", "--help", "logits", "out.npz",
    "5", "a=b",
]  # fmt: skip
# A name with a byte that isn't UTF-8.
NOT_UTF8 = "caf\udce9.npz"
# What starts processes, never ends, or takes as long as it was asked to.
LEFT_OUT = {
    "engine", "workers", "scheduler", "follow", "on_alarm", "resamples", "idle", "sample", "seeds",
    "install_completion", "show_completion", "merge",
}  # fmt: skip


@cache
def _all_commands() -> Any:
    import typer

    from calibrant.cli.app import app

    return typer.main.get_command(app)


@contextlib.contextmanager
def cheaper() -> Generator[None]:
    """Do once what every call of the command line does anew, and draw little."""
    from calibrant.cli import app
    from calibrant.evaluation import power

    made, draws = app.command_of, power.SIMULATIONS
    app.command_of, power.SIMULATIONS = cache(made), 50
    try:
        yield
    finally:
        app.command_of, power.SIMULATIONS = made, draws


def odd_words(rng: Rng, files: list[str]) -> list[str]:
    """Return a command with options that hold anything."""
    group = _all_commands()
    names = ["measure", "fit", "apply", "compare", "inspect", "export", "monitor", "methods"]
    name = names[int(rng.integers(len(names)))]
    words = [name]
    for _ in range(int(rng.integers(1, 3))):
        words.append(str(rng.choice(files if rng.random() < 0.85 else ODD_WORDS)))
    options = [p for p in group.get_command(None, name).params if p.opts[0].startswith("-")]
    options = [option for option in options if option.name not in LEFT_OUT]
    for _ in range(int(rng.integers(0, 4))):
        option = options[int(rng.integers(len(options)))]
        words.append(option.opts[0])
        if not getattr(option, "is_flag", False):
            words.append(str(rng.choice(ODD_WORDS + files)))
    if name in ("measure", "compare"):
        words += ["--resamples", "20"]
    if name == "compare":
        words += ["--methods", "none,temperature"]
    return words


# --- all of it


@cheaper()
def fuzz(folder: Path, seed: int, numbers: Iterable[int], only: str = "") -> Watch:
    """Try damaged files in turn, and return what came of it.

    Args:
        folder: an empty one; the working folder becomes it for the while.
        seed: each case is drawn from it and its number.
        numbers: of the cases.
        only: names of formats, and ``words``, ``calibrator``, ``head``, ``images`` and
            ``shards``, separated by commas; or all.
    """
    watch = Watch(folder, seed)
    kept = calibrators(folder)
    for path in folder.iterdir():
        path.unlink()
    others: dict[str, Callable[[Rng], None]] = {}
    kept_heads, network = heads(), network_bytes()
    others["head"] = partial(see_head, watch, kept_heads)
    others["manifest"] = partial(see_manifest, watch)
    others["lines"] = partial(see_lines, watch)
    others["network"] = partial(see_network, watch, network, kept["temperature"])
    with contextlib.suppress(ImportError):  # a distribution of its own
        import calibrant_studies

        files = sorted((Path(calibrant_studies.__file__).parent / "declared").glob("*.toml"))
        texts = [file.read_text("utf-8") for file in files]
        others["declaration"] = partial(see_declaration, watch, texts)
    # What takes long comes less often, but within the first few hundred cases.
    quick = [*WRITERS, *["calibrator"] * 4, "manifest", "declaration", "network", "head"]
    quick = [kind for kind in quick if kind in (*WRITERS, "calibrator") or kind in others]
    kinds = [*quick * 4, "words", "words", "images", "shards", "lines"]
    here = Path.cwd()
    os.chdir(folder)
    try:
        for watch.number in numbers:
            kind = kinds[watch.number % len(kinds)]
            if only and kind not in only.split(","):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tidy(watch, set())
                (folder / "t.safetensors").write_bytes(kept["temperature"])
                rng = np.random.default_rng([seed, watch.number])
                if kind in others:
                    others[kind](rng)
                else:
                    one_case(watch, kind, kept, rng)
    finally:
        os.chdir(here)
    return watch


def for_minutes(minutes: float) -> Generator[int]:
    """Yield 0, 1, 2, ... for so long."""
    end = time.monotonic() + 60 * minutes
    for number in itertools.count():
        if time.monotonic() > end:
            return
        yield number


def one_case(watch: Watch, kind: str, kept: dict[str, bytes], rng: Rng) -> None:
    if kind == "calibrator":
        names = list(kept)
        name, other = (names[int(i)] for i in rng.integers(len(names), size=2))
        see_calibrator(watch, name, kept[name], kept[other], rng)
        return
    if kind == "images":
        see_images(watch, rng)
        return
    form = FORMS[int(rng.integers(len(FORMS)))]
    if kind == "shards":
        see_shards(watch, form, rng)
        return
    if kind == "words":
        file = WRITERS["npz"][0]
        (watch.folder / file).write_bytes(sound("npz", form)[file])
        with contextlib.suppress(OSError):  # some systems have no such names
            shutil.copy(watch.folder / file, watch.folder / NOT_UTF8)
        see_command(watch, odd_words(rng, [file, "t.safetensors", NOT_UTF8]))
        return
    path = damage_predictions(watch, kind, form, rng)
    if rng.random() < 0.9:
        read_and_compare(watch, f"{kind} {form}", path, int(rng.choice(STEPS)))
    else:
        commands_on(watch, path, rng)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    one = arguments.case
    place = tempfile.mkdtemp()
    # Before Python's own, which it removes when the process ends.
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    tempfile.tempdir = place
    folder = Path(place) / "files"
    folder.mkdir()
    numbers = for_minutes(arguments.minutes) if one is None else [one]
    started = time.monotonic()
    watch = fuzz(folder, arguments.seed, numbers, arguments.only)
    stray = [n for n in os.listdir(place) if not n.startswith((folder.name, "pymp-"))]
    if one is not None:
        shutil.copytree(folder, f"case-{one}", dirs_exist_ok=True)
    for name, count in watch.cases.items():
        print(f"{name:12} {count:7d} cases, {watch.refused[name]} refused")
    print(f"slowest {watch.slowest[0]:.1f} s ({watch.slowest[1]})")
    print(f"most memory {watch.largest[0] >> 20} MB ({watch.largest[1]})")
    if stray:
        print(f"left behind in the folder of temporary files: {stray}")
    rate = watch.number / max(time.monotonic() - started, 1e-9)
    print(
        f"{watch.number + 1} cases ({rate:.0f} a second), in which {sum(watch.cases.values())} "
        f"calls were watched; {len(watch.findings)} findings"
    )
    return 1 if watch.findings or stray else 0


if __name__ == "__main__":
    sys.exit(main())
