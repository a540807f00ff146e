"""Image sets read into memory: CIFAR's archives, IDX, npz, SVHN's MATLAB files.

CIFAR's version for Python is pickles. A pickle is a program: it may name any function and call it.
What these files need is three names of NumPy by which arrays are put together; whatever else one
names is refused before it is looked up.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.files.gate import readable
from calibrant.training.data.images import ByteArray, ImageSet, Layout

SIDE = 32
MOST_DIMENSIONS = 4
# Old and new names of the same three things.
_KNOWN = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    for name in ("_reconstruct", "scalar")
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, content: bytes, source: str) -> None:
        # CIFAR's keys and file names are text of Python 2, which was bytes.
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._source = source

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what builds an array; refuse any other name."""
        if (module, name) not in _KNOWN:
            raise InputError(
                f"{self._source}: asks for {module}.{name}, which no array needs; a file like this "
                "could run any code, and isn't read"
            )
        if name == "encode":
            return _as_bytes
        if name == "ndarray":
            return np.ndarray
        if name == "dtype":
            return _plain_type
        multiarray: Any = np.zeros(1).__reduce__()[0]
        return multiarray if name == "_reconstruct" else _scalar

    def persistent_load(self, pid: Any, /) -> Any:
        """Refuse what lies outside of the file."""
        raise InputError(f"{self._source}: points to something outside of the file")


def _plain_type(kind: Any, *_: Any) -> np.dtype[Any]:
    """Return a type of whole numbers or bytes; arrays of objects could hold anything."""
    text = kind.decode() if isinstance(kind, bytes) else kind
    found = np.dtype(text) if isinstance(text, str) else None
    if found is None or found.kind not in "uib":
        raise InputError(f"holds an array of type {text!r}, not of whole numbers")
    return found


def _scalar(kind: np.dtype[Any], content: bytes) -> int:
    return int(np.frombuffer(content, dtype=kind)[0])


def _as_bytes(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise InputError(f"holds text in '{encoding}', where bytes of an array should be")
    return text.encode("latin1")


def unpickled(content: bytes, source: str) -> dict[str, Any]:
    """Return the mapping that a pickle of CIFAR holds: arrays, lists, text, bytes and numbers.

    Args:
        content: of the file.
        source: begins the error message.

    Raises:
        InputError: the pickle names anything but arrays, is damaged or holds no mapping.
    """
    try:
        found = _ArraysOnly(content, source).load()
    except InputError as error:
        sentence = str(error)
        whole = sentence if sentence.startswith(source) else f"{source}: {sentence}"
        raise InputError(whole) from None
    # A damaged pickle makes the machine that runs it raise almost anything.
    except Exception as error:
        raise InputError(f"{source}: is no whole pickle ({type(error).__name__})") from error
    if not isinstance(found, Mapping):
        raise InputError(f"{source}: holds no mapping, but {type(found).__name__}")
    table = cast(Mapping[Any, Any], found)
    return {_text(key): value for key, value in table.items()}


def images_of(parts: list[dict[str, Any]], label: str, source: str) -> ImageSet:
    """Return the images of several files, rows of 3 x 32 x 32 bytes under "data".

    Raises:
        InputError: an entry is missing or of another form.
    """
    for part in parts:
        missing = next((name for name in ("data", label) if name not in part), None)
        if missing is not None:
            raise InputError(f"{source}: no '{missing}', only: {', '.join(part)}")
        if not isinstance(part[label], list):
            kind = type(part[label]).__name__
            raise InputError(f"{source}: '{label}' must be a list of class numbers, not {kind}")
        data = part["data"]
        form = getattr(data, "shape", None), getattr(data, "dtype", None)
        if not isinstance(data, np.ndarray) or form != ((len(part[label]), 3 * SIDE**2), np.uint8):
            raise InputError(
                f"{source}: 'data' must be ({len(part[label])}, 3072) bytes, not {form[1]} of "
                f"{form[0]}"
            )
    rows = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, SIDE, SIDE)
    labels = np.concatenate([np.asarray(part[label]) for part in parts])
    return ImageSet.from_rows(rows.transpose(0, 2, 3, 1), labels, source)


def names_of(table: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """Return the class names of CIFAR's file of metadata."""
    names = table.get(key)
    return None if not isinstance(names, list) else tuple(map(_text, cast(list[Any], names)))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class _Layout:
    """A binary version of CIFAR: rows of `label_bytes` and then 3 x 32 x 32 pixels."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    label_bytes: int
    # Of the version for Python: the names of labels and of class names; None for the binary one.
    keys: tuple[str, str] | None = None


CIFAR10 = _Layout(
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    ("test_batch.bin",),
    "batches.meta.txt",
    1,
)
# The first of its two labels is the coarse one.
CIFAR100 = _Layout(("train.bin",), ("test.bin",), "fine_label_names.txt", 2)

PICKLED10 = _Layout(
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("test_batch",),
    "batches.meta",
    0,
    ("labels", "label_names"),
)
PICKLED100 = _Layout(("train",), ("test",), "meta", 0, ("fine_labels", "fine_label_names"))


def read_cifar(path: Path) -> tuple[ImageSet, ImageSet, tuple[str, ...] | None]:
    """Read the training and the test images, and the class names, of CIFAR-10 or CIFAR-100.

    Args:
        path: the folder with the .bin files, or the (compressed) tar archive as published.

    Raises:
        InputError: a file is missing or is no whole number of rows.
    """
    layout = _layout(path)
    if layout is None:
        raise InputError(f"{path}: holds neither CIFAR-10 nor CIFAR-100")
    contents = _contents(path, (*layout.train, *layout.test, layout.names))
    if layout.keys is not None:
        return _from_pickles(contents, layout, layout.keys, path)
    train, test = (
        _cifar_rows([_member(contents, name, path) for name in names], layout, path)
        for names in (layout.train, layout.test)
    )
    names = contents.get(layout.names)
    with readable(layout.names, str(path)):
        return train, test, None if names is None else tuple(names.decode().split())


def _layout(path: Path) -> _Layout | None:
    present = _names_in(path)
    for layout in (CIFAR10, CIFAR100):
        if layout.test[0] in present:
            return layout
    # A name such as "test" says little alone.
    pickled = (PICKLED10, PICKLED100)
    return next((one for one in pickled if present >= {one.test[0], one.names}), None)


def _from_pickles(
    contents: dict[str, bytes], layout: _Layout, keys: tuple[str, str], path: Path
) -> tuple[ImageSet, ImageSet, tuple[str, ...] | None]:
    label, names = keys
    train, test = (
        images_of(
            [unpickled(_member(contents, name, path), f"{path}, {name}") for name in files],
            label,
            str(path),
        )
        for files in (layout.train, layout.test)
    )
    meta = unpickled(_member(contents, layout.names, path), f"{path}, {layout.names}")
    return train, test, names_of(meta, names)


def _names_in(path: Path) -> set[str]:
    if path.is_dir():
        with readable("the folder", str(path)):
            return {item.name for item in path.iterdir()}
    if ".tar" not in path.suffixes:
        return set()
    with readable("the archive", str(path)), tarfile.open(path) as archive:
        return {Path(name).name for name in archive.getnames()}


def _contents(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    if path.is_dir():
        with readable("the binary files", str(path)):
            return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    found: dict[str, bytes] = {}
    with readable("the archive", str(path)), tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if Path(member.name).name in names else None
            if file is not None:
                found[Path(member.name).name] = file.read()
    return found


def _member(contents: dict[str, bytes], name: str, path: Path) -> bytes:
    if name not in contents:
        raise InputError(f"{path}: {name} is missing")
    return contents[name]


def _cifar_rows(parts: Sequence[bytes], layout: _Layout, path: Path) -> ImageSet:
    width = layout.label_bytes + 3 * SIDE**2
    values = np.frombuffer(b"".join(parts), dtype=np.uint8)
    if len(values) == 0 or len(values) % width:
        raise InputError(
            f"{path}: the binary files hold {len(values)} bytes, not a multiple of the {width} "
            "that each image takes"
        )
    rows = values.reshape(-1, width)
    pixels = rows[:, layout.label_bytes :].reshape(-1, 3, SIDE, SIDE)
    labels = rows[:, layout.label_bytes - 1]
    return ImageSet.from_rows(pixels.transpose(0, 2, 3, 1), labels, str(path))


def _idx_images(folder: Path, split: str) -> ImageSet:
    """Read MNIST's files (or those of a set made like it) of one split, plain or gzipped.

    Grey becomes RGB, and 28x28 images get a black frame of two pixels, since the networks are made
    for 32x32.
    """
    parts: list[NDArray[Any]] = []
    for kind in ("images-idx3", "labels-idx1"):
        file = _idx_file(folder, split, kind)
        if file is None:
            raise InputError(f"{folder}: {split}-{kind}-ubyte (or .gz) is missing")
        parts.append(read_idx(file))
    images, labels = parts
    if images.ndim != 3 or labels.ndim != 1:
        raise InputError(
            f"{folder}: the {split} images must have three dimensions and their labels one, not "
            f"{images.ndim} and {labels.ndim}"
        )
    if images.shape[1:] == (28, 28):
        images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    return ImageSet.from_rows(images, labels, f"{folder}, {split}")


def _idx_file(folder: Path, split: str, kind: str) -> Path | None:
    # Some mirrors write a dot for the second hyphen.
    names = [f"{split}-{form}-ubyte" for form in (kind, kind.replace("-idx", ".idx"))]
    candidates = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    return next((file for file in candidates if file.is_file()), None)


def read_idx(file: Path) -> ByteArray:
    """Read one IDX file of bytes: a magic number, the big-endian lengths, then the values.

    Raises:
        InputError: it is no such file, or its length isn't what its header says.
    """
    with readable("the IDX file", str(file)):
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    # Two zeros, 8 for unsigned bytes, and the number of dimensions.
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise InputError(f"{file}: is no IDX file of bytes")
    if content[3] > MOST_DIMENSIONS:
        raise InputError(f"{file}: says that it has {content[3]} dimensions, which no images have")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise InputError(f"{file}: ends within its header")
    shape = tuple(int(side) for side in np.frombuffer(content[4:start], dtype=">u4"))
    values = np.frombuffer(content[start:], dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise InputError(f"{file}: holds {len(values)} values, but its header says {shape}")
    return values.reshape(shape)


SPLITS = {
    "train": ("train.npz",),
    "validation": ("val.npz", "valid.npz", "validation.npz"),
    "test": ("test.npz",),
}


def read_arrays(folder: Path) -> dict[str, ImageSet]:
    """Read `images` (N, H, W, 3) or (N, H, W), uint8, and `labels` (N,) of each split there is.

    Raises:
        InputError: a file can't be read, or lacks one of the two, or they are no images; or there
            are two files of one split.
    """
    found: dict[str, ImageSet] = {}
    for split, names in SPLITS.items():
        files = [folder / name for name in names if (folder / name).is_file()]
        if len(files) > 1:
            both = " and ".join(file.name for file in files)
            raise InputError(f"{folder}: holds {both}, which are of one split; keep one of them")
        if files:
            found[split] = _images(files[0])
    return found


def _images(file: Path) -> ImageSet:
    if not is_zipfile(file):
        raise InputError(
            f"{file}: can't read the arrays: is no npz file, or cut short; numpy.savez writes one"
        )
    with readable("the arrays", str(file)), file.open("rb") as opened:
        content: Any = np.load(opened, allow_pickle=False)
        present = list(content)
        arrays = [content[name] for name in ("images", "labels") if name in present]
    if len(arrays) < 2:
        raise InputError(
            f"{file}: needs the arrays images and labels, but has: {', '.join(present) or 'none'}"
        )
    return ImageSet.from_rows(arrays[0], arrays[1], str(file))


SVHN = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def _digits_of(file: Path) -> ImageSet:
    """Read SVHN's ``X`` (32, 32, 3, N), uint8, and ``y`` (N, 1); 10 stands for the digit 0."""
    from scipy.io import loadmat

    if not file.is_file():
        raise InputError(f"{file}: is missing")
    with readable("the MATLAB file", str(file)):
        content: dict[str, Any] = loadmat(str(file), variable_names=["X", "y"])
    missing = [name for name in ("X", "y") if name not in content]
    if missing:
        raise InputError(f"{file}: needs the arrays X and y, but lacks {' and '.join(missing)}")
    images, labels = content["X"], content["y"]
    if images.ndim != 4 or labels.size != images.shape[-1]:
        raise InputError(
            f"{file}: X of shape {images.shape} and y of shape {labels.shape} are not images "
            "(32, 32, 3, N) with N labels"
        )
    return ImageSet.from_rows(images.transpose(3, 0, 1, 2), np.ravel(labels) % 10, str(file))


def _folder_with(name: str) -> Callable[[Path], Path | None]:
    return lambda folder: folder if (folder / name).is_file() else None


def _all_cifar(path: Path) -> tuple[dict[str, Any], Sequence[str] | None]:
    train, test, names = read_cifar(path)
    return {"train": train, "test": test}, names


CIFAR = Layout(
    "CIFAR's files or archive",
    lambda path: path if _layout(path) is not None else None,
    lambda path, _, __: _all_cifar(path),
)
DIGITS = Layout(
    "SVHN's .mat files",
    _folder_with(SVHN["train"]),
    lambda folder, _, __: (
        {split: _digits_of(folder / name) for split, name in SVHN.items()},
        tuple("0123456789"),
    ),
)
ARRAYS = Layout(
    "train.npz and test.npz",
    _folder_with(SPLITS["train"][0]),
    lambda folder, _, __: (dict(read_arrays(folder)), None),
)
IDX = Layout(
    "IDX files",
    lambda folder: folder if _idx_file(folder, "train", "images-idx3") else None,
    lambda folder, _, __: (
        {
            split: _idx_images(folder, word)
            for split, word in (("train", "train"), ("test", "t10k"))
        },
        None,
    ),
)
