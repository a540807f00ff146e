"""CIFAR's pickles are read as data, and as nothing else."""

from __future__ import annotations

import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.training.data import read_data_set
from calibrant.training.data.small_sets import unpickled

RNG = np.random.default_rng(4)
PIXELS = RNG.integers(256, size=(6, 3072), dtype=np.uint8)


def cifar10(folder: Path, protocol: int = 2) -> Path:
    folder.mkdir()
    files = {f"data_batch_{number}": number for number in range(1, 6)} | {"test_batch": 0}
    for name, row in files.items():
        content = {b"data": PIXELS[row : row + 1], b"labels": [row % 2], b"filenames": [b"a.png"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    meta = {b"label_names": [b"cat", b"dog"], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))
    return folder


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_version_for_python_is_read_from_folder_and_archive(tmp_path, protocol):
    folder = cifar10(tmp_path / "cifar-10-batches-py", protocol)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    for place in (folder, tmp_path / "cifar.tar.gz"):
        found = read_data_set(place)
        assert found.class_names == ("cat", "dog")
        assert found.train.labels.tolist() == [1, 0, 1, 0, 1]
        images = found.train.batch(torch.arange(5)).numpy()
        np.testing.assert_array_equal(images.reshape(5, 3072), PIXELS[1:])
        assert len(found.test) == 1


def test_cifar100_takes_the_fine_labels(tmp_path):
    for name in ("train", "test"):
        content = {b"data": PIXELS, b"fine_labels": [3, 1, 0, 2, 1, 0], b"coarse_labels": [0] * 6}
        (tmp_path / name).write_bytes(pickle.dumps(content, 2))
    names = {b"fine_label_names": [b"a", b"b", b"c", b"d"]}
    (tmp_path / "meta").write_bytes(pickle.dumps(names, 2))
    found = read_data_set(tmp_path)
    assert found.n_classes == 4
    assert found.train.labels.tolist() == [3, 1, 0, 2, 1, 0]


def test_strings_of_python_2_are_bytes():
    raw = PIXELS[:2].tobytes()
    # As Python 2 wrote them: names, types and pixels are its strings of bytes.
    content = b"".join(
        [
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n",
            b"K\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", len(raw)) + raw + b"tbs.",
        ]
    )
    np.testing.assert_array_equal(unpickled(content, "old")["data"], PIXELS[:2])


class Runs:
    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Runs(os.system, "touch {}"), r"posix\.system|nt\.system"),
        (Runs(eval, "open('{}', 'w')"), r"builtins\.eval|__builtin__\.eval"),
        (Runs(getattr, "a", "upper"), r"(builtins|__builtin__)\.getattr"),
        (np.float64, r"numpy\.float64"),
        ({1, 2}, r"(builtins|__builtin__)\.set"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2])
def test_whatever_is_no_array_is_refused_by_name(tmp_path, value, name, protocol):
    mark = tmp_path / "ran"
    if isinstance(value, Runs):
        function, given = value.call
        value = Runs(function, *(part.format(mark) for part in given))
    content = pickle.dumps({b"data": value}, protocol)
    with pytest.raises(InputError, match=rf"batch 1: asks for ({name}), which no array needs"):
        unpickled(content, "batch 1")
    assert not mark.exists()


def test_arrays_of_objects_and_damage_are_refused():
    objects = pickle.dumps({b"data": np.array([Runs(print, "x")], dtype=object)}, 2)
    with pytest.raises(InputError, match=r"batch: (asks for|holds an array of type 'O8')"):
        unpickled(objects, "batch")
    whole = pickle.dumps({b"data": PIXELS}, 2)
    for content in (b"", whole[:-100], b"no pickle"):
        with pytest.raises(InputError, match="batch: is no whole pickle"):
            unpickled(content, "batch")
    with pytest.raises(InputError, match="holds no mapping, but list"):
        unpickled(pickle.dumps([1]), "batch")


def test_a_file_without_pixels_is_named(tmp_path):
    folder = cifar10(tmp_path / "c")
    (folder / "test_batch").write_bytes(pickle.dumps({b"labels": [1]}, 2))
    with pytest.raises(InputError, match="no 'data', only: labels"):
        read_data_set(folder)
    content = {b"data": PIXELS[:1, :9], b"labels": [1]}
    (folder / "test_batch").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(
        InputError, match=r"'data' must be \(1, 3072\) bytes, not uint8 of \(1, 9\)"
    ):
        read_data_set(folder)
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": PIXELS, b"labels": 1}, 2))
    with pytest.raises(InputError, match="'labels' must be a list of class numbers, not int"):
        read_data_set(folder)
