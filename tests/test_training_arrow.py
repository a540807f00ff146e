"""Images in Arrow files as the datasets library of Hugging Face writes them."""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.training.data import ImageFiles, read_data_set

Image = pytest.importorskip("PIL.Image")
datasets = pytest.importorskip("datasets")

PIXELS = np.random.default_rng(0).integers(256, size=(6, 8, 8, 3), dtype=np.uint8)
pytestmark = pytest.mark.filterwarnings("ignore")


def encoded(pixels: np.ndarray) -> dict[str, Any]:
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def a_set(rows: int) -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    columns = {
        "image": [encoded(pixels) for pixels in PIXELS[:rows]],
        "label": [row % 2 for row in range(rows)],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved") / "pets"
    both = datasets.DatasetDict({"train": a_set(6), "test": a_set(3)})
    both.save_to_disk(place, num_shards={"train": 2, "test": 1})
    return place


def test_a_saved_data_set_is_read_batch_by_batch(saved):
    found = read_data_set(saved)
    assert found.class_names == ("cat", "dog")
    assert (len(found.train), len(found.test), found.validation) == (6, 3, None)
    assert isinstance(found.train, ImageFiles)
    order = torch.tensor([5, 0, 3])
    images = found.train.batch(order).numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(images, PIXELS[order.numpy()])
    some = found.train.take(order)
    assert some.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(
        some.batch(torch.tensor([1])).numpy()[0], PIXELS[0].transpose(2, 0, 1)
    )
    assert read_data_set(saved, size=(4, 4)).train.batch(order).shape == (3, 3, 4, 4)


def test_only_the_images_of_a_batch_are_decoded(saved, monkeypatch):
    import calibrant.training.data.images as module

    seen: list[str] = []
    real = module.decode
    monkeypatch.setattr(module, "decode", lambda *a: (seen.append(a[1]), real(*a))[1])
    train = read_data_set(saved).train
    assert seen == []
    train.batch(torch.tensor([4]))
    assert len(seen) == 1
    assert seen[0].endswith("data-00001-of-00002.arrow, row 1")


def test_a_cache_is_read_wherever_its_files_lie(saved, tmp_path):
    place = tmp_path / "pets/default/0.0.0/1a2b"
    place.mkdir(parents=True)
    for number in range(2):
        file = saved / f"train/data-0000{number}-of-00002.arrow"
        shutil.copy(file, place / f"pets-train-0000{number}-of-00002.arrow")
    shutil.copy(saved / "test/data-00000-of-00001.arrow", place / "pets-test.arrow")
    (place / "cache-9f.arrow").write_bytes(b"of somebody's map")
    found = read_data_set(tmp_path / "pets")
    assert (len(found.train), len(found.test)) == (6, 3)
    shutil.copytree(place, place.parent / "3c4d")
    with pytest.raises(InputError, match="several folders in it hold Arrow files of 't"):
        read_data_set(tmp_path / "pets")


def test_what_is_no_data_set_of_images_is_named(tmp_path):
    (tmp_path / "train").mkdir()
    file = tmp_path / "train/data-00000-of-00001.arrow"
    file.write_bytes(b"no arrow")
    with pytest.raises(InputError, match=r"data-00000-of-00001\.arrow: can't read the Arrow file"):
        read_data_set(tmp_path)
    datasets.Dataset.from_dict({"text": ["a"], "label": [0]}).save_to_disk(tmp_path / "other/train")
    with pytest.raises(InputError, match="no column of images; expected one of img, image"):
        read_data_set(tmp_path / "other")


def test_a_network_is_trained_on_them(tmp_path):
    from calibrant.training.run import RunSettings, train

    parts = {"train": a_set(6), "validation": a_set(2), "test": a_set(3)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "pets")
    settings = RunSettings(
        str(tmp_path / "pets"), loss="fedlas-ls", epochs=1, batch_size=2, precision="32"
    )
    train(settings, tmp_path / "run")
    assert np.load(tmp_path / "run/test.npz")["logits"].shape == (3, 2)


def test_a_single_split_asks_for_both(tmp_path):
    a_set(4).save_to_disk(tmp_path / "one")
    with pytest.raises(InputError, match=r"but a single split; give the folder above .* or save"):
        read_data_set(tmp_path / "one")
    a_set(4).train_test_split(0.5).save_to_disk(tmp_path / "both")  # as the sentence says
    assert len(read_data_set(tmp_path / "both").train) == 2
