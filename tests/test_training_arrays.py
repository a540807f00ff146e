"""Images in npz files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.training.data import read_data_set

PIXELS = np.random.default_rng(0).integers(256, size=(4, 8, 8, 3), dtype=np.uint8)


def test_arrays_are_read_with_their_own_validation_rows(tmp_path):
    for name, rows in (("train", PIXELS), ("val", PIXELS[:1]), ("test", PIXELS[:2, ..., 0])):
        np.savez(tmp_path / f"{name}.npz", images=rows, labels=np.arange(len(rows)) % 2)
    found = read_data_set(tmp_path, n_classes=2)
    assert found.train.labels.tolist() == [0, 1, 0, 1]
    images = found.train.batch(torch.arange(4)).numpy()
    np.testing.assert_array_equal(images.transpose(0, 2, 3, 1), PIXELS)
    assert found.validation is not None
    assert len(found.validation) == 1
    grey = found.test.batch(torch.arange(2)).numpy()
    np.testing.assert_array_equal(grey, np.repeat(PIXELS[:2, None, ..., 0], 3, 1))
    with pytest.raises(InputError, match="doesn't name its classes"):
        read_data_set(tmp_path)


def test_what_is_no_array_of_images_is_refused(tmp_path):
    file = tmp_path / "train.npz"
    np.savez(file, images=PIXELS)
    with pytest.raises(InputError, match=r"train\.npz: needs the arrays .*has: images"):
        read_data_set(tmp_path, n_classes=2)
    np.savez(file, images=PIXELS / 255, labels=np.zeros(4, int))
    with pytest.raises(InputError, match=r"must be bytes \(uint8\)"):
        read_data_set(tmp_path, n_classes=2)
    np.savez(file, images=PIXELS, labels=np.array([{}] * 4))
    with pytest.raises(InputError, match=r"train\.npz: can't read the arrays"):
        read_data_set(tmp_path, n_classes=2)
    file.write_bytes(b"no arrays")
    with pytest.raises(InputError, match=r"train\.npz: can't read the arrays"):
        read_data_set(tmp_path, n_classes=2)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_rows_are_found_by_any_of_their_names(tmp_path, name):
    for file in ("train", "test", name):
        np.savez(tmp_path / f"{file}.npz", images=PIXELS, labels=np.arange(4) % 2)
    found = read_data_set(tmp_path, n_classes=2).validation
    assert found is not None
    assert len(found) == 4
    np.savez(tmp_path / "val.npz", images=PIXELS, labels=np.arange(4) % 2)
    if name != "val":
        with pytest.raises(InputError, match=f"holds val.npz and {name}.npz, .* keep one"):
            read_data_set(tmp_path, n_classes=2)


def test_what_lies_there_instead_is_said(tmp_path):
    np.savez(tmp_path / "arrays.npz", images=PIXELS)
    with pytest.raises(InputError, match=r"known layout; it holds arrays\.npz, where there should"):
        read_data_set(tmp_path)
    with pytest.raises(InputError, match="known layout, but a file; give the folder that it lies"):
        read_data_set(tmp_path / "arrays.npz")
    (tmp_path / "train.npz").write_text("images")
    with pytest.raises(
        InputError, match=r"train\.npz: .* is no npz file, or cut short; numpy\.savez"
    ):
        read_data_set(tmp_path, n_classes=2)
