"""Readers of image sets, each on small files of the true layout; splits and augmentation."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from PIL import Image  # noqa: E402

from calibrant.core.errors import InputError  # noqa: E402
from calibrant.training.data import ImageSet, Normalisation, read_data_set  # noqa: E402
from calibrant.training.data.columns import find_parquet, read_parquet_images  # noqa: E402
from calibrant.training.data.folders import (  # noqa: E402
    read_aircraft,
    read_class_folders,
    read_list,
)
from calibrant.training.data.small_sets import read_cifar, read_idx  # noqa: E402
from calibrant.training.run.rows import random_crop, random_flip, shuffled_split, split_by_class  # noqa: E402  # noqa: E402

REAL = Path(__file__).parents[2] / "shared/data/cifar10-jpeg"


def pixels(count: int, side: int = 8, seed: int = 0) -> np.ndarray:
    """Return (N, side, side, 3) random bytes."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_png(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(image))


def as_rows(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def write_hub(
    path: Path,
    images: np.ndarray,
    columns: dict[str, list[int]],
    image: str = "img",
    names: dict[str, list[str]] | None = None,
) -> None:
    cells = [{"bytes": png(one), "path": None} for one in images]
    table = pa.table({image: cells, **columns})
    if names is not None:
        features = {key: {"names": value, "_type": "ClassLabel"} for key, value in names.items()}
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def test_hub_files_of_several_parts(tmp_path: Path) -> None:
    train, test, names = pixels(5), pixels(2, seed=1), {"label": ["cat", "dog", "owl"]}
    write_hub(
        tmp_path / "data/train-00000-of-00002.parquet", train[:3], {"label": [2, 0, 1]}, names=names
    )
    write_hub(
        tmp_path / "data/train-00001-of-00002.parquet", train[3:], {"label": [1, 1]}, names=names
    )
    write_hub(tmp_path / "data/test-00000-of-00001.parquet", test, {"label": [0, 2]}, names=names)
    data = read_data_set(tmp_path)
    assert data.class_names == ("cat", "dog", "owl")
    assert data.n_classes == 3
    assert data.validation is None
    assert data.train.labels.tolist() == [2, 0, 1, 1, 1]
    np.testing.assert_array_equal(as_rows(data.train.batch(torch.arange(5))), train)
    np.testing.assert_array_equal(as_rows(data.test.batch(torch.tensor([1]))), test[1:])


def test_hub_files_in_the_folder_of_their_configuration(tmp_path: Path) -> None:
    names = {"label": ["a", "b"]}
    for split in ("train", "test"):
        part = tmp_path / f"cropped_digits/{split}-00000-of-00001.parquet"
        write_hub(part, pixels(2), {"label": [0, 1]}, "image", names)
    assert len(read_data_set(tmp_path).train) == 2
    with pytest.raises(InputError, match="only images in folders and Arrow files can be stretched"):
        read_data_set(tmp_path, size=(8, 8))
    write_hub(tmp_path / "full_numbers/train-00000-of-00001.parquet", pixels(1), {}, "image")
    with pytest.raises(InputError, match=r"several .*: cropped_digits, full_numbers; name one"):
        read_data_set(tmp_path)
    assert len(read_data_set(tmp_path / "cropped_digits").test) == 2


def test_fine_labels_of_cifar100_and_validation_images_of_tiny_imagenet(tmp_path: Path) -> None:
    columns = {"fine_label": [4, 1], "coarse_label": [0, 0]}
    for split in ("train", "test"):
        write_hub(tmp_path / f"c/{split}-00000-of-00001.parquet", pixels(2), columns)
    assert read_data_set(tmp_path / "c", n_classes=100).train.labels.tolist() == [4, 1]
    with pytest.raises(InputError, match="doesn't name its classes"):
        read_data_set(tmp_path / "c")
    with pytest.raises(InputError, match="labels go from 1 to 4, but there are 3 classes"):
        read_data_set(tmp_path / "c", n_classes=3)
    for split in ("train", "valid"):
        write_hub(
            tmp_path / f"t/{split}-00000-of-00001.parquet", pixels(2), {"label": [0, 1]}, "image"
        )
    tiny = read_data_set(tmp_path / "t", n_classes=2)
    assert len(tiny.test) == 2
    assert tiny.validation is None


def test_decoded_images_are_kept_until_the_files_change(tmp_path: Path) -> None:
    names = {"label": ["a", "b"]}
    for split in ("train", "test"):
        write_hub(tmp_path / f"{split}-0.parquet", pixels(2), {"label": [0, 1]}, names=names)
    cache = tmp_path / "cache"
    first = read_data_set(tmp_path, cache=cache)
    kept = {file: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert len(kept) == 2
    again = read_data_set(tmp_path, cache=cache)
    assert again.class_names == ("a", "b")
    assert torch.equal(again.train.images, first.train.images)
    assert {file: file.stat().st_mtime_ns for file in cache.iterdir()} == kept
    write_hub(tmp_path / "train-0.parquet", pixels(3, seed=2), {"label": [0, 1, 1]}, names=names)
    changed = read_data_set(tmp_path, cache=cache)
    np.testing.assert_array_equal(as_rows(changed.train.images), pixels(3, seed=2))


def test_parquet_without_images_and_damaged_images_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [1], "text": ["x"]}), tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match=r"train-0.parquet: no column of images"):
        read_data_set(tmp_path)
    table = pa.table({"img": [b"no picture"], "label": [1]})
    pq.write_table(table, tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match=r"train-0.parquet, row 0: holds no image"):
        read_data_set(tmp_path)
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"train-0.parquet: can't read the parquet file"):
        read_data_set(tmp_path)


def cifar_bytes(images: np.ndarray, *labels: list[int]) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.hstack([np.array(labels, dtype=np.uint8).T, planes]).tobytes()


def test_binary_cifar10_in_a_folder_and_in_its_archive(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    train = pixels(10, 32)
    for number in range(5):
        part = cifar_bytes(train[2 * number :][:2], [number, 9 - number])
        (folder / f"data_batch_{number + 1}.bin").write_bytes(part)
    (folder / "test_batch.bin").write_bytes(cifar_bytes(train[:1], [3]))
    (folder / "batches.meta.txt").write_text("".join(f"class{k}\n" for k in range(10)) + "\n")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    for place in (folder, archive):
        data = read_data_set(place)
        assert data.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
        assert data.class_names[9] == "class9"
        np.testing.assert_array_equal(as_rows(data.train.images), train)
        np.testing.assert_array_equal(as_rows(data.test.images), train[:1])
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin is missing"):
        read_cifar(folder)


def test_binary_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    images = pixels(3, 32)
    (tmp_path / "train.bin").write_bytes(cifar_bytes(images, [1, 2, 3], [40, 99, 0]))
    (tmp_path / "test.bin").write_bytes(cifar_bytes(images[:1], [1], [7]))
    data = read_data_set(tmp_path, n_classes=100)
    assert data.train.labels.tolist() == [40, 99, 0]
    np.testing.assert_array_equal(as_rows(data.train.images), images)
    (tmp_path / "test.bin").write_bytes(b"12345")
    with pytest.raises(InputError, match="hold 5 bytes, not a multiple of the 3074"):
        read_data_set(tmp_path, n_classes=100)


def idx_bytes(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return header + values.tobytes()


def test_idx_files_plain_and_gzipped(tmp_path: Path) -> None:
    grey = pixels(4, 28)[..., 0]
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(grey))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(4, dtype=np.uint8)))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(grey[:2])))
    labels = gzip.compress(idx_bytes(np.array([3, 3], dtype=np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(labels)
    data = read_data_set(tmp_path, n_classes=10)
    assert data.test.labels.tolist() == [3, 3]
    assert data.train.images.shape == (4, 3, 32, 32)
    for colour in range(3):
        np.testing.assert_array_equal(data.train.images[:, colour, 2:30, 2:30].numpy(), grey)
    assert data.train.images[:, :, :2].sum() == 0
    damaged = tmp_path / "damaged"
    damaged.write_bytes(idx_bytes(grey)[:-1])
    with pytest.raises(InputError, match=r"holds 3135 values, but its header says \(4, 28, 28\)"):
        read_idx(damaged)


def test_class_folders_number_by_name_and_shifted_sets_keep_the_numbers(tmp_path: Path) -> None:
    images = pixels(6, 10)
    for number, name in enumerate(("n03", "n01", "n02")):
        write_png(tmp_path / f"data/train/{name}/a.JPEG", images[number])
    write_png(tmp_path / "data/test/n03/b.png", images[3])
    write_png(tmp_path / "shift/blur/5/n02/c.jpeg", images[4])
    data = read_data_set(tmp_path / "data")
    assert data.class_names == ("n01", "n02", "n03")
    assert data.train.labels.tolist() == [0, 1, 2]
    assert data.test.labels.tolist() == [2]
    np.testing.assert_array_equal(as_rows(data.train.batch(torch.tensor([2]))), images[:1])
    shifted, _ = read_class_folders(tmp_path / "shift/blur/5", None, data.class_names)
    assert shifted.labels.tolist() == [1]
    with pytest.raises(InputError, match="no class of the training set is called 'n02'"):
        read_class_folders(tmp_path / "shift/blur/5", None, ("n01",))


def test_files_of_several_sizes_need_one_to_stretch_to(tmp_path: Path) -> None:
    write_png(tmp_path / "a/x.png", pixels(1, 6)[0])
    write_png(tmp_path / "b/y.png", pixels(1, 9)[0])
    both = torch.arange(2)
    with pytest.raises(InputError, match="differ in size"):
        read_class_folders(tmp_path)[0].batch(both)
    stretched, _ = read_class_folders(tmp_path, (5, 7))
    assert stretched.batch(both).shape == (2, 3, 5, 7)
    assert stretched.load().images.equal(stretched.batch(both))


def test_lists_as_in_imagenet_lt(tmp_path: Path) -> None:
    image = pixels(1)[0]
    write_png(tmp_path / "train/n01/with space.png", image)
    listed = tmp_path / "ImageNet_LT_train.txt"
    listed.write_text("train/n01/with space.png 17\n")
    files = read_list(listed, tmp_path)
    assert files.labels.tolist() == [17]
    np.testing.assert_array_equal(as_rows(files.batch(torch.tensor([0])))[0], image)
    listed.write_text("train/n01/with space.png 17\ntrain/n01/gone.png 3\n")
    with pytest.raises(InputError, match=r"line 2 names .*gone\.png, which isn't there"):
        read_list(listed, tmp_path)


def test_cub(tmp_path: Path) -> None:
    images = pixels(3, 10)
    for number, name in enumerate(("001.Crow/a.jpg", "002.Owl/b.jpg", "002.Owl/c.jpg")):
        write_png(tmp_path / "images" / name, images[number])
    (tmp_path / "images.txt").write_text("1 001.Crow/a.jpg\n2 002.Owl/b.jpg\n3 002.Owl/c.jpg\n")
    (tmp_path / "image_class_labels.txt").write_text("1 1\n2 2\n3 2\n")
    (tmp_path / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
    (tmp_path / "classes.txt").write_text("1 001.Crow\n2 002.Owl\n")
    data = read_data_set(tmp_path, size=(10, 10))
    assert data.class_names == ("001.Crow", "002.Owl")
    assert data.train.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [1]
    np.testing.assert_array_equal(as_rows(data.test.batch(torch.tensor([0])))[0], images[1])
    assert read_data_set(tmp_path).test.batch(torch.tensor([0])).shape == (1, 3, 448, 448)


def test_aircraft_loses_its_banner(tmp_path: Path) -> None:
    image = pixels(1, 50)[0]
    write_png(tmp_path / "data/images/0001.jpg", image)
    (tmp_path / "data/variants.txt").write_text("707-320\nBoeing 717\n")
    for split in ("train", "val", "test"):
        (tmp_path / f"data/images_variant_{split}.txt").write_text("0001 Boeing 717\n")
    found = read_aircraft(tmp_path, None)
    assert set(found.sets) == {"train", "validation", "test"}
    assert found.sets["test"].labels.tolist() == [1]
    np.testing.assert_array_equal(
        as_rows(found.sets["train"].batch(torch.tensor([0])))[0], image[:30]
    )


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    cub, idx, python = (tmp_path / name for name in ("cub", "idx", "python"))
    for folder in (cub, idx, python):
        folder.mkdir()
    (cub / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(InputError, match=r"images\.txt: can't read the list: .*No such file"):
        read_data_set(cub)
    (cub / "images.txt").write_text("1 a.jpg\n2 b.jpg\n")
    (cub / "train_test_split.txt").write_text("1 0\n2 1\n")
    (cub / "classes.txt").write_text("1 crow\n")
    with pytest.raises(
        InputError, match=r"image_class_labels\.txt: image '2' needs a class number"
    ):
        read_data_set(cub)
    (cub / "image_class_labels.txt").write_text("1 1\n2 1\n")
    with pytest.raises(InputError, match=r"a\.jpg: can't read the image: .*No such file"):
        read_data_set(cub).test.batch(torch.tensor([0]))
    (idx / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"idx3-ubyte\.gz: can't read the IDX file"):
        read_data_set(idx)
    (tmp_path / "cifar.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cifar\.tar\.gz: can't read the archive"):
        read_data_set(tmp_path / "cifar.tar.gz")
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (python / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"data_batch_1: is no whole pickle"):
        read_data_set(python)


def test_unknown_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no data set of a known layout"):
        read_data_set(tmp_path)
    with pytest.raises(InputError, match="there is no such file or folder"):
        read_data_set(tmp_path / "gone")


def test_images_and_labels_must_fit() -> None:
    with pytest.raises(InputError, match="must be uint8 of shape"):
        ImageSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="there are 2 images"):
        ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_normalisation_by_hand() -> None:
    normalise = Normalisation((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    images = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert normalise(images)[0, :, 0, 0].tolist() == [1.0, 3.0, 1.0]
    assert normalise(images).dtype == torch.float32


def test_the_shuffled_split_is_that_of_the_reference_code() -> None:
    indices = list(range(50_000))
    np.random.seed(1)  # noqa: NPY002
    np.random.shuffle(indices)  # noqa: NPY002
    training, validation = shuffled_split(50_000, 1)
    assert validation.tolist() == indices[:5_000]
    assert training.tolist() == indices[5_000:]
    with pytest.raises(InputError, match="too few"):
        shuffled_split(9, 1)


def test_the_split_by_class_takes_a_share_of_each() -> None:
    labels = torch.tensor(np.random.default_rng(0).permutation(np.repeat(np.arange(7), 50)))
    training, validation = split_by_class(labels, 3)
    assert torch.bincount(labels[validation]).tolist() == [5] * 7
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(350))
    assert validation.tolist() != split_by_class(labels, 4)[1].tolist()


def test_crops_are_windows_of_the_framed_image() -> None:
    images = torch.arange(1, 2 * 3 * 5 * 6 + 1).reshape(2, 3, 5, 6)
    many = images.repeat(200, 1, 1, 1)
    cropped = random_crop(many, torch.Generator().manual_seed(0), padding=2)
    framed = torch.nn.functional.pad(images, (2,) * 4)
    windows = {
        (which, top, left): framed[which, :, top : top + 5, left : left + 6]
        for which in range(2)
        for top in range(5)
        for left in range(5)
    }
    seen = set()
    for row, crop in enumerate(cropped):
        found = [place for place, window in windows.items() if torch.equal(window, crop)]
        assert [which for which, _, _ in found] == [row % 2]
        seen.update(found)
    assert len(seen) == len(windows)
    assert random_crop(images, torch.Generator(), padding=0, size=4).shape == (2, 3, 4, 4)


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(1, 3, 2, 4).repeat(1000, 1, 1, 1)
    flipped = random_flip(images, torch.Generator().manual_seed(0))
    mirrored = (flipped == images.flip(3)).all(dim=(1, 2, 3))
    assert ((flipped == images).all(dim=(1, 2, 3)) ^ mirrored).all()
    assert 440 <= mirrored.sum() <= 560


@pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not beside this checkout")
def test_the_real_cifar10() -> None:
    files = find_parquet(REAL)
    assert list(files) == ["train", "test"]
    images, names = read_parquet_images(files["test"])
    assert names[:3] == ("airplane", "automobile", "bird")
    assert torch.bincount(images.labels).tolist() == [1000] * 10
    assert images.images.shape == (10_000, 3, 32, 32)
    # The published means of the training images; JPEG and another set move them a little.
    means = images.images.double().mean(dim=(0, 2, 3)) / 255
    np.testing.assert_allclose(means.numpy(), (0.4914, 0.4822, 0.4465), atol=0.01)
