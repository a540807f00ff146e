"""Write the files that every later version of 1.x, and of 0.x, must read.

    python -m scripts.release.fixtures [VERSION] [--add]

They go to ``tests/formats/VERSION/``: a calibrator of every method and every kind of predictions, a
decision by every rule, a monitor's state with and without a promise, a head, and in
``expected.npz`` the rows that they are applied to and what they gave.
With ``--add`` files that are there stay as they were written, and those that lack are added.
Files of a version that CHANGELOG.md gives a date are never written again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import calibrant as cb
from calibrant.core.errors import CalibrationWarning
from calibrant.decision import decide_by, load_decision, save_decision
from calibrant.monitor.promise import Promise
from calibrant.posthoc.registry import AS_PUBLISHED, BUILT_IN
from calibrant.predictions.last_layer import Head

ROOT = Path(__file__).parents[2]
FORMATS = ROOT / "tests/formats"
EXPECTED = "expected.npz"
STATE, HEAD = "monitor-state.safetensors", "head.safetensors"
PROMISE_STATE = "monitor-promise-state.safetensors"
DECISION = "decision-"
FIT_ROWS, STREAM_ROWS, PROMISE_ROWS, READ_ROWS = 400, 150, 5, 8
CLASSES, LABELS = 3, 2
# What a large fit would add to a file says nothing new of its format.
SMALL: dict[str, dict[str, Any]] = {
    "auto": {"candidates": "temperature, svs-top-rest, venn-abers", "folds": 2, "repeats": 1},
    "given-groups": {"pairs": False},
    "group": {"partitions": 2},
    "procal-bms": {"reference_rows": 20},
}
# Of every kind of predictions, methods that keep something of their own of it.
OF_KIND = {
    "binary": ("platt", "beta", "isotonic", "venn-abers"),
    "toplabel": ("platt", "histogram", "auto"),
    "score": ("platt", "isotonic"),
    "per-label": ("per-label",),
    "names": ("svs+top-rest",),
}


def rows_of(arrays: Mapping[str, NDArray[Any]], kind: str) -> cb.Predictions:
    """Return rows of a kind of predictions, made of logits, labels and features."""
    logits, labels, features = arrays["logits"], arrays["labels"], arrays["features"]
    odds, correct = logits[:, 0], labels == 0
    match kind:
        case "binary":
            return cb.Predictions.from_binary(odds, correct, kind="logit")
        case "toplabel":
            return cb.Predictions.from_confidence(1 / (1 + np.exp(-odds)), correct=correct)
        case "score":
            return cb.Predictions.from_scores(odds, correct)
        case "per-label":
            probs = 1 / (1 + np.exp(-logits[:, :LABELS]))
            truth = np.stack([labels == label for label in range(LABELS)], axis=1)
            return cb.Predictions.from_many_labels(probs, truth)
        case "names":
            names = tuple("abc")
            return cb.Predictions.from_logits(
                logits, [names[label] for label in labels], class_names=names
            )
        case _:
            # The logits are those of the head, so that methods which rebuild them agree.
            head = Head(np.eye(CLASSES), np.zeros(CLASSES))
            return cb.Predictions.from_logits(logits, labels, features, head=head)


def answers(file: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return what a file of tests/formats gives for rows: the one way to write and to check it."""
    if file.name in (STATE, PROMISE_STATE):
        monitor = cb.Monitor.load(file)
        monitor.update(arrays["confidence"], arrays["correct"])
        alarms = [alarm.row for alarm in monitor.alarms.values()]
        return np.array([monitor.rows, monitor.log_r, *alarms], dtype=np.float64)
    if file.name == HEAD:
        import torch

        from calibrant.training.second_stages.heads import load_head

        with torch.no_grad():
            return load_head(file)(torch.tensor(arrays["features"])).numpy()
    if file.stem.startswith(DECISION):
        decision = load_decision(file)
        site = None if decision.beside is None else arrays["labels"] % 2
        columns = decision.of_rows(rows_of(arrays, ""), site)
        return np.stack([_numbers(np.asarray(column)) for column in columns.values()])
    kind = file.stem.partition("@")[2]
    applied = cb.load(file).apply_predictions(rows_of(arrays, kind))
    probs = applied.scores if applied.top_only else applied.probs
    return np.asarray(probs, dtype=np.float64)


def _numbers(column: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column of a decision as numbers: of short texts their bytes, read as one number."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    return np.array([float(int.from_bytes(str(text).encode())) for text in column])


def drawn(rows: int, seed: int) -> dict[str, NDArray[Any]]:
    """Return logits that are too sure, and surer of some classes than others, with the rest."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, CLASSES))
    logits -= logits.mean(axis=1, keepdims=True)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    confidence = rng.uniform(0.5, 1, rows)
    said = logits * [1.0, 2.0, 4.0] + [1.5, 0.0, -1.5]
    return {
        "logits": said,
        "features": said,
        "labels": labels,
        "confidence": confidence,
        "correct": rng.random(rows) < 0.7 * confidence,
    }


def add(folder: Path) -> None:
    """Write the files of this version that aren't there yet, and what they give."""
    with TemporaryDirectory() as place, np.load(folder / EXPECTED) as kept:
        write(Path(place))
        everything = dict(kept)
        for file in sorted(Path(place).glob("*.safetensors")):
            if not (folder / file.name).exists():
                shutil.copy(file, folder)
                everything[f"of {file.name}"] = answers(file, everything)
    there = {f"of {file.name}" for file in folder.glob("*.safetensors")}
    everything = {n: a for n, a in everything.items() if n in there or not n.startswith("of ")}
    np.savez_compressed(folder / EXPECTED, **cast(dict[str, Any], everything))


def write(folder: Path) -> None:
    """Write the files of this version, and what they give."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, calibrator in _fitted(drawn(FIT_ROWS, seed=0)):
        calibrator.save(folder / f"{name.replace(':', '-')}.safetensors")
    said = drawn(STREAM_ROWS, seed=1)
    for name, rows, promise in (
        (STATE, STREAM_ROWS, None),
        (PROMISE_STATE, PROMISE_ROWS, Promise(0.1, 0.6)),
    ):
        monitor = cb.Monitor(window=50, promise=promise)
        monitor.update(said["confidence"][:rows], said["correct"][:rows])
        monitor.save(folder / name)
    _write_head(folder / HEAD)
    held_out, calibrator = rows_of(drawn(FIT_ROWS, seed=3), ""), cb.load(folder / "svs.safetensors")
    plain = cb.load(folder / "temperature.safetensors")
    for name, found in (
        ("risk", cb.decide(calibrator, held_out, risk=0.38)),
        ("cost", cb.decide(calibrator, held_out, error_cost=1.0, hand_over_cost=0.45)),
        ("cover", cb.decide(calibrator, held_out, cover=0.9)),
        ("precision", cb.decide(plain, held_out, precision=0.4, of=1)),
        ("recall", cb.decide(plain, held_out, recall=0.4, of=1)),
        ("by-class", decide_by(plain, held_out, "predicted", cover=0.8)),
        ("by-column", decide_by(plain, held_out, held_out.labels % 2, risk=0.43, by="site")),
    ):
        save_decision(found, folder / f"{DECISION}{name}.safetensors")
    rows = drawn(READ_ROWS, seed=2)
    given = {
        f"of {file.name}": answers(file, rows) for file in sorted(folder.glob("*.safetensors"))
    }
    everything: dict[str, Any] = rows | given
    np.savez_compressed(folder / EXPECTED, **everything)


def _fitted(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield every calibrator that can be saved, fitted, with the name of its file."""
    of_kind = {"": (*BUILT_IN, *AS_PUBLISHED), **OF_KIND}
    for kind, methods in of_kind.items():
        rows = rows_of(arrays, kind)
        for method in methods:
            calibrator = (
                cb.posthoc.PerLabel("platt")
                if method == "per-label"
                else cb.make_calibrator(method, **SMALL.get(method, {}))
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                calibrator.fit_predictions(rows)
            yield f"{method}@{kind}" if kind else method, calibrator


def _write_head(path: Path) -> None:
    import torch

    from calibrant.training.second_stages.heads import write_head

    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(CLASSES, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    write_head(path, head.double(), {})


def released(version: str) -> bool:
    """Return whether CHANGELOG.md gives a version a date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.search(rf"^## {re.escape(version)} - \d{{4}}-", text, re.MULTILINE) is not None


def main(arguments: list[str] | None = None) -> int:
    """Write the files of a version that isn't released yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", nargs="?", default=cb.__version__)
    parser.add_argument("--add", action="store_true", help="leave the files that are there")
    parser.add_argument("--just-prepared", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    version: str = options.version
    if released(version) and not options.just_prepared:
        print(f"{version} is released; its files stay as they are", file=sys.stderr)
        return 2
    (add if options.add else write)(FORMATS / version)
    files = list((FORMATS / version).iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} files of {size / 1000:.0f} KB in all in {FORMATS / version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
