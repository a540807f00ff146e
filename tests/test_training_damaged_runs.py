"""Folders of runs whose files are damaged end in one sentence that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from calibrant.core.errors import InputError  # noqa: E402
from calibrant.training.data import DataSet, ImageSet  # noqa: E402
from calibrant.training.run import RunSettings, load_network, train  # noqa: E402

SETTINGS = RunSettings("made here", epochs=1, batch_size=8, loss="fedlas-ls")


def images(count: int, seed: int) -> ImageSet:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return ImageSet.from_rows(pixels, np.arange(count) % 3)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return DataSet(images(30, 0), images(9, 1), None, 3)


@pytest.fixture(scope="module")
def finished(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    train(SETTINGS, folder, data=data)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(content: dict[str, Any]) -> None:
    content["objective"] = {name[::-1]: value for name, value in content["objective"].items()}


def rename(content: dict[str, Any]) -> None:
    weights = content["objective"]
    names = ("network.fc.weight", "network.fc.bias")
    weights[names[0]], weights[names[1]] = weights[names[1]], weights[names[0]]


def spoil(content: dict[str, Any]) -> None:
    content["objective"]["network.fc.bias"][1] = float("nan")


def widen(content: dict[str, Any]) -> None:
    for state in content["optimizer"]["state"].values():
        state["momentum_buffer"] = torch.zeros(2, 2)


PARTS = ("format", "progress", "objective", "optimizer", "precision", "normalisation", "data")
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"without {name}": lambda content, name=name: content.pop(name) for name in PARTS},
    **{f"{name} a list": lambda content, name=name: content.update({name: [1]}) for name in PARTS},
    "no epoch": lambda content: content["progress"].pop("epoch"),
    "one more": lambda content: content["progress"].update(more=1),
    "epoch as text": lambda content: content["progress"].update(epoch="1"),
    "epoch below 0": lambda content: content["progress"].update(epoch=-1),
    "epoch without its row": lambda content: content["progress"].update(epoch=3),
    "history of text": lambda content: content["progress"].update(history=["a"]),
    "rows of text": lambda content: content["progress"].update(history=[{"epoch": "a"}]),
    "a sum of text": lambda content: content["progress"].update(loss_sum="a"),
    "names flipped": flip,
    "two weights exchanged": rename,
    "a weight that is no number": spoil,
    "a weight that is text": lambda content: content["objective"].update({"loss.x": "text"}),
    "deviation of 0": lambda content: content.update(normalisation=((0, 0, 0), (0, 1, 1))),
    "two colours": lambda content: content.update(normalisation=((0, 0), (1, 1))),
    "data a list": lambda content: content.update(data=[1]),
    "another format": lambda content: content.update(format=2),
    "a tensor as format": lambda content: content.update(format=torch.ones(2)),
}
# Damage to what only a run that goes on reads.
RESUMED = {"momentum of another shape": widen, "optimizer of text": lambda c: c.update(
    optimizer={"state": "a", "param_groups": []}
)}  # fmt: skip


@pytest.mark.parametrize("change", [*CHANGES, *RESUMED])
def test_a_checkpoint_that_lacks_something_is_named(change: str, run: Path, data: DataSet) -> None:
    content = torch.load(run / "last.ckpt", weights_only=True)
    (CHANGES | RESUMED)[change](content)
    torch.save(content, run / "last.ckpt")
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(InputError, match=r"last\.ckpt: ") as resumed:
        train(SETTINGS, run, data=data, resume=True)
    assert "\n" not in str(resumed.value)
    if change in CHANGES:
        with pytest.raises(InputError, match=r"last\.ckpt: "):
            load_network(run)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_checkpoint_damaged_at_random_is_refused_or_read(run: Path) -> None:
    content, rng = (run / "last.ckpt").read_bytes(), np.random.default_rng(0)
    sentences: list[str] = []
    for _ in range(60):
        damaged = bytearray(content)
        if rng.random() < 0.3:
            damaged = damaged[: int(rng.integers(len(damaged)))]
        else:
            # The pickle of names and shapes comes first.
            start = int(rng.choice([0, len(damaged) - 3000, int(rng.integers(len(damaged)))]))
            for place in start + rng.integers(0, 3000, 6):
                damaged[min(int(place), len(damaged) - 1)] = int(rng.integers(256))
        (run / "last.ckpt").write_bytes(damaged)
        try:
            load_network(run)
        except InputError as error:
            sentences.append(str(error))
    assert len(sentences) >= 20
    start = f"{run / 'last.ckpt'}: "
    assert all(words.startswith(start) and "\n" not in words for words in sentences)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"data": 1}',
        b'{"data": "x", "epochs": true}',
        b'{"data": "x", "nets": "resnet8"}',
        b'{"data": "x", "rate": "0.1"}',
        b'{"data": "x", "rate": NaN}',
        b'{"data": "x", "mixing_arguments": []}',
        b'{"data": "x", "seed": 1.5}',
        b'{"data": "x", "net": ["resnet8"]}',
        b'{"data": "x", "protocol": {}}',
    ],
)
def test_settings_of_a_run_that_make_no_sense_are_named(
    damage: bytes, run: Path, data: DataSet
) -> None:
    (run / "config.json").write_bytes(damage)
    with pytest.raises(InputError, match=r"config\.json: holds no settings of a run"):
        load_network(run)
    with pytest.raises(InputError, match=r"config\.json: holds no settings of a run"):
        train(SETTINGS, run, data=data, resume=True)


def test_settings_of_another_kind_are_refused_by_name() -> None:
    sound = json.loads(SETTINGS.as_json())
    for name, value, words in (
        ("net", ["resnet8"], "net must be text, not"),
        ("epochs", 1.5, "epochs must be a whole number above 0, not 1.5"),
        ("rate", "fast", "rate must be a finite number above 0, not 'fast'"),
        ("loss_arguments", [1], "loss_arguments must be arguments by their names"),
        ("seed", None, "seed must be a whole number of at least 0, not None"),
    ):
        with pytest.raises(InputError, match=words):
            RunSettings(**(sound | {name: value}))


class Torn(ImageSet):
    """Images of which one can't be read, which shows in the first epoch."""

    def batch(self, index: torch.Tensor) -> torch.Tensor:
        if len(index) == 8 and 29 in index:
            raise InputError("x.png: holds no image that can be decoded")
        return super().batch(index)


def test_a_run_that_fails_before_its_first_checkpoint_can_be_begun_again(
    data: DataSet, tmp_path: Path
) -> None:
    rows = images(30, 0)
    torn = DataSet(Torn(rows.images, rows.labels), data.test, data.test, 3)
    for _ in range(2):
        with pytest.raises(InputError, match=r"x\.png: holds no image"):
            train(SETTINGS, tmp_path / "run", data=torn)
    assert train(SETTINGS, tmp_path / "run", data=data) is not None
    with pytest.raises(InputError, match="holds a run already"):
        train(SETTINGS, tmp_path / "run", data=torn)
