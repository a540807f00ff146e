"""Image sets that are damaged, or not what they claim to be, end in one sentence of one class."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from PIL import Image  # noqa: E402

from calibrant.core.errors import InputError  # noqa: E402
from calibrant.training.data import ImageSet, read_data_set  # noqa: E402
from calibrant.training.data.columns import read_parquet_images  # noqa: E402
from calibrant.training.data.folders import (  # noqa: E402
    read_aircraft,
    read_class_folders,
    read_cub,
    read_list,
)
from calibrant.training.data.images import decode  # noqa: E402
from calibrant.training.data.small_sets import read_cifar, read_idx  # noqa: E402

RNG = np.random.default_rng(0)


def encoded(kind: str = "PNG", side: int = 6) -> bytes:
    buffer = io.BytesIO()
    pixels = RNG.integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(file: Path, cells: Any, labels: Any) -> None:
    pq.write_table(pa.table({"img": cells, "label": labels}), file)


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return header + values.tobytes()


# --- Labels that are no class numbers are refused, not cast.


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0.5, 1.7], "row 0 holds 0.5"),
        ([1, None], "row 1 holds nan"),
        ([0, -1], "row 1 holds -1"),
        (["cat", "dog"], "hold numbers"),
        (pa.array([1, 2**63], pa.uint64()), "row 1 holds 9223372036854775808"),
    ],
)
def test_parquet_labels_that_name_no_class_are_refused(
    tmp_path: Path, labels: Any, words: str
) -> None:
    file = tmp_path / "train-0.parquet"
    write_parquet(file, [encoded(), encoded()], labels)
    with pytest.raises(InputError, match=rf"train-0\.parquet: 'label' must .*{words}"):
        read_parquet_images([file])


def test_labels_of_images_are_whole_numbers() -> None:
    with pytest.raises(InputError, match="labels must be int64"):
        ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2))


def test_labels_in_lists_beyond_what_a_class_number_can_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(encoded())
    for label in ("9" * 30, "1" * 5000, "²", "-1", "1.5"):
        (tmp_path / "list.txt").write_text(f"x.png {label}\n")
        with pytest.raises(InputError, match=r"list\.txt: line 1 is not of the form PATH LABEL"):
            read_list(tmp_path / "list.txt", tmp_path)
    (tmp_path / "list.txt").write_text(f"{'y' * 5000} 1\n")
    with pytest.raises(InputError, match=r"list\.txt: .*line 1"):
        read_list(tmp_path / "list.txt", tmp_path)
    (tmp_path / "images.txt").write_text("1 x.png\n2 x.png\n")
    (tmp_path / "train_test_split.txt").write_text("1 0\n2 1\n")
    (tmp_path / "classes.txt").write_text("1 crow\n")
    for label in ("9" * 30, "0", "-3", "one"):
        (tmp_path / "image_class_labels.txt").write_text(f"1 1\n2 {label}\n")
        with pytest.raises(InputError, match=r"image_class_labels\.txt: image '2' needs a class"):
            read_cub(tmp_path)


# --- Cells of parquet files.


def bomb() -> bytes:
    """Return the head of a PNG that claims to have more pixels than Pillow is willing to decode."""
    content = bytearray(encoded())
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


def broken_png() -> bytes:
    """Return a PNG whose second chunk has no valid name, which Pillow calls a syntax error."""
    content = bytearray(encoded())
    content[37:41] = b"\x00\x01\x02\x03"
    return bytes(content)


@pytest.mark.parametrize("cell", [bomb(), broken_png(), b"", b"P6\n-3 4\n255\n", encoded()[:60]])
def test_an_encoded_image_that_can_not_be_decoded_is_named_by_its_row(
    tmp_path: Path, cell: bytes
) -> None:
    file = tmp_path / "train-0.parquet"
    write_parquet(file, [encoded(), cell], [0, 1])
    with pytest.raises(InputError, match=r"train-0\.parquet, row 1: holds no image"):
        read_parquet_images([file])


def test_a_cell_without_bytes_is_named_by_its_row(tmp_path: Path) -> None:
    file = tmp_path / "train-0.parquet"
    for cells in ([{"path": "a"}, {"path": "b"}], ["text", "more"], [None, None], [1, 2]):
        write_parquet(file, cells, [0, 1])
        with pytest.raises(InputError, match=r"train-0\.parquet: row 0 of 'img' holds no encoded"):
            read_parquet_images([file])
    write_parquet(file, pa.array([], pa.binary()), pa.array([], pa.int64()))
    with pytest.raises(InputError, match=r"train-0\.parquet: holds no images"):
        read_parquet_images([file])


def test_an_image_no_higher_than_its_banner_is_refused() -> None:
    with pytest.raises(InputError, match="x: the image has 6 rows of pixels, of which 20 are cut"):
        decode(encoded(), "x", cut_bottom=20)


def test_a_damaged_cache_is_written_anew(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [encoded(), encoded()], [0, 1])
    whole = read_data_set(tmp_path, n_classes=2, cache=tmp_path / "cache")
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    again = read_data_set(tmp_path, n_classes=2, cache=tmp_path / "cache")
    assert torch.equal(again.train.images, whole.train.images)
    assert all(np.load(file)["labels"].tolist() == [0, 1] for file in tmp_path.glob("cache/*"))


# --- Binary layouts.


def test_idx_files_that_end_in_their_header_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    for length in range(4, 16):
        file.write_bytes(idx(np.zeros((2, 4, 4), np.uint8))[:length])
        with pytest.raises(InputError, match="ends within its header"):
            read_idx(file)
    # Sides whose product passes what an int64 holds.
    file.write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12)
    with pytest.raises(InputError, match="holds 0 values, but its header says"):
        read_idx(file)
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 4, 4), np.uint8)))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with pytest.raises(InputError, match=r"images must be bytes .* not uint8 of \(0, 4, 4\)"):
        read_data_set(tmp_path, n_classes=2)
    for images, labels in ((np.zeros(3), np.zeros(3)), (np.zeros((3, 4, 4)), np.zeros((3, 1)))):
        file.write_bytes(idx(images.astype(np.uint8)))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
        with pytest.raises(InputError, match="train images must have three dimensions"):
            read_data_set(tmp_path, n_classes=2)


def cifar(folder: Path) -> None:
    folder.mkdir(parents=True)
    row = bytes([1]) + bytes(3 * 32 * 32)
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(row)
    (folder / "test_batch.bin").write_bytes(row)
    (folder / "batches.meta.txt").write_text("cat\ndog\n")


def test_class_names_of_cifar_that_are_no_text_are_refused(tmp_path: Path) -> None:
    cifar(tmp_path / "cifar")
    (tmp_path / "cifar/batches.meta.txt").write_bytes(b"caf\xe9\n")
    told = r"cifar: can't read batches\.meta\.txt: it is no UTF-8 text .*; save it as UTF-8$"
    with pytest.raises(InputError, match=told):
        read_cifar(tmp_path / "cifar")


def test_a_link_that_leads_nowhere_in_an_archive_is_refused(tmp_path: Path) -> None:
    cifar(tmp_path / "cifar")
    (tmp_path / "cifar/data_batch_2.bin").unlink()
    archive = tmp_path / "cifar.tar"
    with tarfile.open(archive, "w") as file:
        file.add(tmp_path / "cifar", "cifar")
        link = tarfile.TarInfo("cifar/data_batch_2.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "gone"
        file.addfile(link)
    with pytest.raises(InputError, match=r"cifar\.tar: can't read the archive"):
        read_data_set(archive)


# --- All readers, files damaged at random.


def layouts(root: Path) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """Return a small sound copy of each layout, and what reads all of it."""
    cifar(root / "cifar")
    with tarfile.open(root / "archive.tar.gz", "w:gz") as file:
        file.add(root / "cifar", "cifar")
    (root / "archive").mkdir()
    shutil.move(root / "archive.tar.gz", root / "archive/c.tar.gz")
    for folder in ("idx", "parquet", "list", "cub/images", "air/images", "classes/a"):
        (root / folder).mkdir(parents=True)
    for split in ("train", "t10k"):
        images = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
        (root / f"idx/{split}-images-idx3-ubyte").write_bytes(idx(images))
        labels = gzip.compress(idx(np.array([0, 1, 1], np.uint8)))
        (root / f"idx/{split}-labels-idx1-ubyte.gz").write_bytes(labels)
    for split, kind in (("train", "PNG"), ("test", "JPEG")):
        cells = [{"bytes": encoded(kind), "path": None} for _ in range(2)]
        write_parquet(root / f"parquet/{split}-0.parquet", cells, [0, 1])
    for place in ("list/x.png", "cub/images/x.png", "classes/a/x.png"):
        (root / place).write_bytes(encoded())
    (root / "list/list.txt").write_text("x.png 1\nx.png 0\n")
    (root / "cub/images.txt").write_text("1 x.png\n2 x.png\n")
    (root / "cub/image_class_labels.txt").write_text("1 1\n2 1\n")
    (root / "cub/train_test_split.txt").write_text("1 0\n2 1\n")
    (root / "cub/classes.txt").write_text("1 crow\n")
    (root / "air/images/7.jpg").write_bytes(encoded("JPEG", 30))
    (root / "air/variants.txt").write_text("707\n")
    for split in ("train", "val", "test"):
        (root / f"air/images_variant_{split}.txt").write_text("7 707\n")

    def both(data: Any) -> None:
        for part in (data.train, data.test):
            part.batch(torch.arange(len(part)))

    def folders(sets: Any) -> None:
        for part in sets:
            part.batch(torch.arange(len(part)))

    return {
        "cifar": (root / "cifar", lambda place: both(read_data_set(place))),
        "archive": (root / "archive", lambda place: both(read_data_set(place / "c.tar.gz"))),
        "idx": (root / "idx", lambda place: both(read_data_set(place, n_classes=9))),
        "parquet": (root / "parquet", lambda place: both(read_data_set(place, n_classes=9))),
        "list": (root / "list", lambda place: folders([read_list(place / "list.txt", place)])),
        "cub": (root / "cub", lambda place: folders(read_cub(place, (6, 6)).sets.values())),
        "aircraft": (
            root / "air",
            lambda place: folders(read_aircraft(place, (6, 6)).sets.values()),
        ),
        "classes": (root / "classes", lambda place: folders([read_class_folders(place)[0]])),
    }


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes that were cut off, changed, put in or taken out, or replaced as a whole."""
    way, values = int(rng.integers(5)), bytearray(content)
    place = int(rng.integers(len(values) + 1))
    if way == 0:
        return bytes(values[:place])
    if way == 1:
        for _ in range(int(rng.integers(1, 9))):
            # Heads of files matter more than what they hold.
            end = len(values) if rng.random() < 0.5 else min(64, len(values))
            values[int(rng.integers(end))] = int(rng.integers(256))
        return bytes(values)
    if way == 2:
        return bytes(values[:place] + rng.bytes(int(rng.integers(1, 40))) + values[place:])
    if way == 3:
        return bytes(values[:place] + values[place + int(rng.integers(1, 40)) :])
    return rng.bytes(int(rng.integers(0, 200)))


LAYOUTS = (
    "cifar", "archive", "idx", "parquet", "list", "cub", "aircraft", "classes"
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_is_damaged_ends_in_the_one_error_class(layout: str, tmp_path: Path) -> None:
    sound, read = layouts(tmp_path)[layout]
    check_damage(sound, read, LAYOUTS.index(layout))


def check_damage(sound: Path, read: Callable[[Path], Any], seed: int) -> None:
    """Damage files of a folder at random: reading it ends well, or in one sentence each time."""
    read(sound)
    rng = np.random.default_rng(seed)
    sentences: list[str] = []
    files = sorted(file for file in sound.rglob("*") if file.is_file())
    for _ in range(120):
        file = files[int(rng.integers(len(files)))]
        content = file.read_bytes()
        file.write_bytes(damaged(content, rng))
        try:
            with warnings.catch_warnings():
                # Of Pillow's, on images that it reads in spite of their damage.
                warnings.simplefilter("ignore")
                read(sound)
        except InputError as error:
            sentences.append(str(error))
        finally:
            file.write_bytes(content)
    # Damage to pixels alone can't be seen.
    assert len(sentences) >= 20
    assert all(words.startswith(str(sound)) and "\n" not in words for words in sentences)


@pytest.mark.parametrize("dimensions", [5, 70, 255])
def test_more_dimensions_than_images_have_are_refused(tmp_path: Path, dimensions: int) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    sides = np.ones(dimensions, dtype=">u4").tobytes()
    file.write_bytes(bytes([0, 0, 8, dimensions]) + sides + b"x")
    with pytest.raises(InputError, match=f"it has {dimensions} dimensions, which no images have"):
        read_idx(file)
