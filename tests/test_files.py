"""Files of predictions: what is written comes back, and bad files are refused in one sentence."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.core.errors import (
    InputError,
    LooksLikeProbabilitiesWarning,
    MissingDependencyError,
    PredictionsError,
)
from calibrant.files import read_predictions, replacing, write_predictions
from calibrant.files.formats import numpy_files
from calibrant.predictions.last_layer import Head
from calibrant.predictions.predictions import Predictions

REAL = Path(__file__).parents[2] / "shared/data/predictions"

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]], dtype=np.float32)
PROBS = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]])
LABELS = np.array([0, 2])
TOP_LABEL = {
    "confidence": np.array([0.5, 0.25]),
    "pred_label": np.array([0, 5]),
    "true_label": np.array([1, 5]),
}


def refused(path: Path, message: str, error: type[Exception] = PredictionsError):
    """Expect an error of one line that begins with the path and then matches the message."""
    return pytest.raises(error, match=rf"\A{re.escape(str(path))}: [^\n]*{message}[^\n]*\Z")


# --- round trips

FORMATS = [".npz", ".npy", ".csv", ".parquet", ".safetensors"]
ARE = {"logits": "logits", "probs": "probs", "toplabel": "confidence"}
SCORE_NAMES = {"logits": "logits", "probs": "probs", "toplabel": "confidence"}


def file_name(kind: str, extension: str) -> str:
    return f"val_{SCORE_NAMES[kind]}.npy" if extension == ".npy" else f"val{extension}"


def assert_same(back: Predictions, p: Predictions, extension: str) -> None:
    assert back.kind == p.kind
    for field in ("scores", "known_labels", "predicted", "features"):
        got, want = getattr(back, field), getattr(p, field)
        if want is None:
            assert got is None
            continue
        np.testing.assert_array_equal(got, want, strict=extension != ".csv")
        assert np.array_equal(np.signbit(got), np.signbit(want))


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    rows, classes = draw(st.integers(1, 5)), draw(st.integers(2, 12))
    labels = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    kind = draw(st.sampled_from(list(SCORE_NAMES)))
    if kind == "toplabel":
        confidence = draw(arrays(np.float64, rows, elements=st.floats(0, 1)))
        return Predictions.from_confidence(confidence, labels[::-1], labels)
    dtype, width = draw(st.sampled_from([(np.float32, 32), (np.float64, 64)]))
    finite = st.floats(allow_nan=False, allow_infinity=False, width=width)
    logits = draw(arrays(dtype, (rows, classes), elements=finite))
    features = draw(st.none() | arrays(dtype, (rows, draw(st.integers(1, 11))), elements=finite))
    if kind == "logits":
        return Predictions.from_logits(logits, labels, features)
    weights = draw(arrays(dtype, (rows, classes), elements=st.floats(0, 1, width=width))) + dtype(1)
    return Predictions.from_probs(weights / weights.sum(axis=1, keepdims=True), labels, features)


@pytest.mark.parametrize("extension", FORMATS)
@settings(deadline=None)
@given(p=predictions())
def test_what_is_written_comes_back(extension: str, p: Predictions):
    with TemporaryDirectory() as folder:
        path = Path(folder, file_name(p.kind, extension))
        write_predictions(p, path)
        assert_same(read_predictions(path), p, extension)
        assert_same(read_predictions(str(path), are=ARE[p.kind]), p, extension)
        if extension != ".npy":
            assert os.listdir(folder) == [path.name]


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("kind", list(SCORE_NAMES))
def test_rows_without_labels(tmp_path: Path, extension: str, kind: str):
    p = {
        "logits": Predictions.from_logits(LOGITS, None, features=LOGITS),
        "probs": Predictions.from_probs(PROBS.astype(float), None),
        "toplabel": Predictions.from_confidence([0.5, 0.75], [1, 0], None),
    }[kind]
    path = tmp_path / file_name(kind, extension)
    write_predictions(p, path)
    with pytest.raises(PredictionsError, match=r"there is no '(labels|true_label)' or 'label'"):
        read_predictions(path)
    back = read_predictions(path, labelled=False)
    assert back.known_labels is None
    assert_same(back, p, ".csv")


@pytest.mark.parametrize("extension", FORMATS)
def test_the_last_layer_comes_back_where_the_format_can_hold_it(tmp_path: Path, extension: str):
    features = np.eye(len(LOGITS), dtype=np.float32)
    head = Head(LOGITS.T.astype(np.float32).copy(), np.zeros(LOGITS.shape[1]))
    reference = np.ones((5, len(LOGITS)), dtype=np.float32)
    p = Predictions.from_logits(LOGITS, LABELS, features, head=head, reference=reference)
    path = tmp_path / file_name("logits", extension)
    write_predictions(p, path)
    back = read_predictions(path)
    assert np.array_equal(back.features, features)
    if extension in (".csv", ".parquet"):
        assert back.head is back.reference is None
        return
    assert np.array_equal(back.head.weight, head.weight)
    assert np.array_equal(back.head.bias, head.bias)
    assert np.array_equal(back.reference, reference)


def test_a_header_is_read_again_where_python_fails_to_parse_it(tmp_path: Path, monkeypatch):
    np.savez(tmp_path / "p.npz", probs=[[0.2, 0.8]], labels=[1])
    read, failed = np.lib.format.read_array_header_1_0, []

    def fails_first(file, *rest):
        if not failed:
            failed.append(file.read(20))
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=47)")
        return read(file, *rest)

    monkeypatch.setattr(
        "calibrant.files.formats.numpy_files.npy.read_array_header_1_0", fails_first
    )
    assert read_predictions(tmp_path / "p.npz").scores.tolist() == [[0.2, 0.8]]
    assert failed


def test_half_a_last_layer(tmp_path: Path):
    np.savez(tmp_path / "half.npz", logits=LOGITS, labels=LABELS, head_weight=LOGITS.T)
    with pytest.raises(PredictionsError, match="there is a 'head_weight' but no 'head_bias'"):
        read_predictions(tmp_path / "half.npz")


@pytest.mark.parametrize("stale", ["labels", "label", "features", "head_weight"])
def test_npy_parts_of_other_rows_are_not_adopted(tmp_path: Path, stale: str):
    np.save(tmp_path / f"val_{stale}.npy", LABELS)
    with pytest.raises(InputError, match=rf"val_{stale}.npy lies beside it"):
        write_predictions(Predictions.from_logits(LOGITS, None), tmp_path / "val_logits.npy")


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_torch_scores_are_written(tmp_path: Path, extension: str, dtype: torch.dtype):
    logits = torch.tensor(LOGITS).to(dtype).requires_grad_()
    path = tmp_path / file_name("logits", extension)
    write_predictions(Predictions.from_logits(logits, LABELS, features=logits), path)
    back = read_predictions(path)
    assert np.array_equal(back.scores, LOGITS)
    assert np.array_equal(back.features, LOGITS)


@pytest.mark.parametrize("extension", FORMATS)
def test_transposed_and_big_endian_scores_are_written(tmp_path: Path, extension: str):
    logits = np.asfortranarray(LOGITS.astype(">f4"))
    path = tmp_path / file_name("logits", extension)
    write_predictions(Predictions.from_logits(logits, LABELS), path)
    assert np.array_equal(read_predictions(path).scores, LOGITS)


def test_half_precision_probs_that_csv_could_not_give_back(tmp_path: Path):
    p = Predictions.from_probs(np.full((2, 3), 1 / 3, dtype=np.float16), LABELS)
    write_predictions(p, tmp_path / "p.parquet")
    assert_same(read_predictions(tmp_path / "p.parquet"), p, ".parquet")
    with pytest.raises(PredictionsError, match=r"as float64, .* must sum to 1"):
        write_predictions(p, tmp_path / "p.csv")
    assert os.listdir(tmp_path) == ["p.parquet"]


def test_rows_of_a_long_csv_stay_in_order(tmp_path: Path):
    logits = np.random.default_rng(0).normal(size=(9_001, 3))
    p = Predictions.from_logits(logits, np.arange(9_001) % 3)
    write_predictions(p, tmp_path / "p.csv")
    assert_same(read_predictions(tmp_path / "p.csv"), p, ".csv")


# --- writing


def sample(source: str = "sample") -> Predictions:
    return Predictions.from_logits(LOGITS, LABELS, source=source)


@pytest.mark.parametrize("extension", FORMATS)
def test_overwriting(tmp_path: Path, extension: str):
    path = tmp_path / file_name("logits", extension)
    write_predictions(sample(), path)
    write_predictions(Predictions.from_logits(LOGITS + 1, LABELS), path)
    assert np.array_equal(read_predictions(path).scores, LOGITS + 1)
    with pytest.raises(InputError, match="exists already"):
        write_predictions(sample(), path, overwrite=False)
    assert np.array_equal(read_predictions(path).scores, LOGITS + 1)


def test_overwriting_what_is_memory_mapped(tmp_path: Path):
    path = tmp_path / "logits.npy"
    write_predictions(sample(), path)
    write_predictions(read_predictions(path), path)
    assert np.array_equal(read_predictions(path).scores, LOGITS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/p.npz", "the folder .* doesn't exist"),
        ("p.pt", "the extension '.pt' is unknown; expected .npz, .npy, .csv"),
        ("p.pkl", "pickles are refused"),
        ("p", "a name without extension is unknown"),
        ("p.npy", "the name must end in logits.npy"),
        ("probs.npy", "the name must end in logits.npy"),
        ("folder.npz", "no regular file"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.npz").mkdir()
    path = tmp_path / name
    with refused(path, message, InputError):
        write_predictions(sample(), path)
    assert os.listdir(tmp_path) == ["folder.npz"]


def test_csv_columns_have_the_documented_order(tmp_path: Path):
    p = Predictions.from_confidence(*TOP_LABEL.values())
    write_predictions(p, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == TOP_LABEL_CSV
    p = Predictions.from_logits(LOGITS, LABELS, features=LOGITS[:, :1])
    write_predictions(p, tmp_path / "p.csv")
    header = (tmp_path / "p.csv").read_text().partition("\n")[0]
    assert header == "label,logit_0,logit_1,logit_2,feature_0"


def test_npy_features_of_other_rows_are_not_adopted(tmp_path: Path):
    write_predictions(Predictions.from_logits(LOGITS, LABELS, LOGITS), tmp_path / "logits.npy")
    with pytest.raises(InputError, match=r"features.npy lies beside it"):
        write_predictions(sample(), tmp_path / "logits.npy")


def test_a_failed_write_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "logits.npy"
    write_predictions(sample(), path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    header, calls = numpy_files.write_npy_header, []

    def fails_the_second_time(*args: object, **kwargs: object) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("no space left")
        header(*args, **kwargs)

    monkeypatch.setattr(numpy_files, "write_npy_header", fails_the_second_time)
    with pytest.raises(OSError, match="no space left"):
        write_predictions(Predictions.from_logits(LOGITS + 1, LABELS), path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


# --- replacing


def interrupt(path: Path) -> None:
    path.write_text("ne")
    raise KeyboardInterrupt


def test_replacing_is_all_or_nothing(tmp_path: Path):
    path = tmp_path / "out.json"
    with replacing(path) as temporary:
        temporary.write_text("old")
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        interrupt(temporary)
    assert path.read_text() == "old"
    with replacing(str(path)) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.json"]


def test_replacing_follows_a_symbolic_link(tmp_path: Path):
    (tmp_path / "store").mkdir()
    real, link = tmp_path / "store/real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_replacing_spares_devices_and_folders(tmp_path: Path):
    for path in (os.devnull, tmp_path):
        with pytest.raises(InputError, match="no regular file"), replacing(path):
            pass


# --- keys


def save(path: Path, content: dict[str, np.ndarray]) -> Path:
    """Write a keyed file of any content."""
    if path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file(content, path)
    else:
        torch.save({key: torch.tensor(array) for key, array in content.items()}, path)
    return path


KEYED = [".npz", ".safetensors", ".pt", ".pth"]


@pytest.mark.parametrize("extension", [*KEYED, ".NPZ"])
def test_keyed_files(tmp_path: Path, extension: str):
    path = tmp_path / f"p{extension}"
    content = {"logits": LOGITS, "labels": LABELS, "features": PROBS, "epoch": LABELS}
    save(tmp_path / f"p{extension.lower()}", content).rename(path)
    p = read_predictions(path)
    assert p.source == str(path)
    assert p.kind == "logits"
    np.testing.assert_array_equal(p.scores, LOGITS, strict=True)
    assert np.array_equal(p.labels, LABELS)
    assert np.array_equal(p.features, PROBS)
    assert read_predictions(path, name="ResNet").source == "ResNet"


@pytest.mark.parametrize("extension", KEYED)
def test_kind_chooses_what_is_read(tmp_path: Path, extension: str):
    content = {"probs": PROBS, "logits": LOGITS, "labels": LABELS, **TOP_LABEL}
    path = save(tmp_path / f"p{extension}", content)
    with refused(path, "logits and probabilities that these logits don't make; .* --are logits or"):
        read_predictions(path)
    for kind in ("logits", "probs", "toplabel"):
        assert read_predictions(path, are=ARE[kind]).kind == kind
    assert np.array_equal(read_predictions(path, are="probs").labels, LABELS)
    assert np.array_equal(read_predictions(path, are="confidence").labels, TOP_LABEL["true_label"])


@pytest.mark.parametrize("extension", KEYED)
@pytest.mark.parametrize("true", ["true_label", "label", "labels"])
@pytest.mark.parametrize("said", ["pred_label", "predicted"])
def test_top_label_keys(tmp_path: Path, extension: str, true: str, said: str):
    confidence, predicted, labels = TOP_LABEL.values()
    content = {"confidence": confidence, said: predicted, true: labels}
    p = read_predictions(save(tmp_path / f"p{extension}", content))
    assert p.kind == "toplabel"
    assert np.array_equal(p.scores, confidence)
    assert np.array_equal(p.predicted, predicted)
    assert np.array_equal(p.labels, labels)


BAD_CONTENT = [
    (
        {"a": LABELS, "b": LABELS},
        "there is no 'logits' or 'probs' or 'prob' or 'logit' or 'confidence'; .*'a', 'b'",
    ),
    ({"logits": LOGITS, "wahr": LABELS}, "there is no 'labels' or .*'true_label'; .*'wahr'"),
    ({"confidence": PROBS[0, :2], "labels": LABELS}, "there is no 'pred_label' or 'predicted'"),
    ({"logits": LOGITS + np.nan, "labels": LABELS}, "'logits' .*row 0, column 0 holds nan"),
    (
        {"logits": LOGITS + np.inf, "labels": LABELS},
        "'logits' .*row 0, column 0 holds inf",
    ),
    ({"logits": LOGITS, "labels": LABELS + 1}, "'labels' .*0 to 2, but row 1 holds 3"),
    ({"logits": LOGITS, "labels": LABELS / 4}, "'labels' .*row 1 holds 0.5"),
    ({"logits": LOGITS, "labels": LABELS[:1]}, "'labels' has 1 entries, but there are 2 rows"),
    ({"probs": LOGITS**2, "labels": LABELS}, "'probs' must sum to 1, but row 0 sums to 5.25"),
    ({"logits": LOGITS[:0], "labels": LABELS[:0]}, "'logits' must have shape"),
    (
        {"logits": LOGITS, "labels": LABELS, "features": PROBS[:1]},
        "'features' has 1 entries, but there",
    ),
    ({**TOP_LABEL, "confidence": LABELS * 1.0}, r"'confidence' .*\[0, 1\], but row 1 holds 2"),
]


@pytest.mark.parametrize("extension", [".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize(("content", "message"), BAD_CONTENT)
def test_bad_content(tmp_path: Path, extension: str, content: dict[str, np.ndarray], message: str):
    path = save(tmp_path / f"p{extension}", content)
    with refused(path, message):
        read_predictions(path)


def test_wanted_kind_is_missing(tmp_path: Path):
    path = save(tmp_path / "p.npz", {"logits": LOGITS, "labels": LABELS})
    with pytest.raises(PredictionsError, match=r"there is no 'probs'; .*found 'logits', 'labels'"):
        read_predictions(path, are="probs")
    with pytest.raises(
        InputError,
        match=r"are must be one of probs, .*, score, not 'odds'",
    ):
        read_predictions(path, are="odds")
    with pytest.raises(PredictionsError, match=r"there is no '.*p.npz' to hold the labels"):
        read_predictions(path, labels=path)


def test_many_unknown_keys_are_cut_short(tmp_path: Path):
    path = save(tmp_path / "p.npz", {f"key{i}": LABELS for i in range(50)})
    with pytest.raises(PredictionsError, match=r"'key0', .*'key11', \.\.\.$"):
        read_predictions(path)


# --- paths and damaged files


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.npz", "there is no such file"),
        ("missing.csv", "there is no such file"),
        ("missing", "there is no such file or folder"),
        ("notes.txt", "the extension '.txt' is unknown; expected .npz, .npy, .csv, .parquet"),
        ("notes", "a name without extension is unknown; expected .npz"),
        ("p.pkl", "pickles are refused, because they can run code; .* .safetensors"),
        ("p.PICKLE", "pickles are refused"),
        ("p.joblib", "pickles are refused"),
        ("empty", "there is no 'logits' .*PREFIXlogits.npy .*found nothing"),
    ],
)
def test_paths_that_cannot_be_read(tmp_path: Path, name: str, message: str):
    for file in ("notes.txt", "notes", "p.pkl", "p.PICKLE", "p.joblib"):
        (tmp_path / file).write_bytes(pickle.dumps([1, 2]))
    (tmp_path / "empty").mkdir()
    with refused(tmp_path / name, message):
        read_predictions(tmp_path / name)


def test_messages_begin_with_the_path_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PredictionsError, match=r"^\./p\.npz: "):
        read_predictions("./p.npz")


EVERY_BINARY = [".npz", ".npy", ".parquet", ".safetensors", ".pt"]


def written(folder: Path, extension: str) -> Path:
    path = folder / file_name("logits", extension)
    if extension == ".pt":
        return save(path, {"logits": LOGITS, "labels": LABELS})
    write_predictions(sample(), path)
    return path


@pytest.mark.parametrize("extension", EVERY_BINARY)
@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"text\n" * 99, pickle.dumps([LOGITS])])
def test_files_of_something_else(tmp_path: Path, extension: str, content: bytes):
    path = written(tmp_path, extension)
    path.write_bytes(content)
    with refused(path, ""):
        read_predictions(path)


@pytest.mark.parametrize("extension", EVERY_BINARY)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.98])
def test_files_cut_short(tmp_path: Path, extension: str, share: float):
    path = written(tmp_path, extension)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with refused(path, ""):
        read_predictions(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("extension", EVERY_BINARY)
def test_flipped_bytes_never_escape(tmp_path: Path, extension: str):
    path = written(tmp_path, extension)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(PredictionsError):
            read_predictions(path)


def test_npz_with_a_bad_checksum(tmp_path: Path):
    path = save(tmp_path / "p.npz", {"logits": LOGITS, "labels": LABELS})
    content = path.read_bytes()
    place = content.index(LOGITS.tobytes())
    path.write_bytes(content[:place] + b"\1" + content[place + 1 :])
    with refused(path, "can't read 'logits': Bad CRC-32"):
        read_predictions(path)


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("extension", [".npz", ".npy", ".pt", ".pth"])
def test_code_in_a_file_is_not_run(tmp_path: Path, extension: str):
    sprung, path = tmp_path / "sprung", tmp_path / file_name("logits", extension)
    objects = np.array([[Trap(sprung), 1], [2, 3]], dtype=object)
    if extension == ".npz":
        np.savez(path, logits=objects, labels=LABELS)
    elif extension == ".npy":
        np.save(path, objects)
        np.save(tmp_path / "val_labels.npy", LABELS)
    else:
        torch.save({"logits": torch.tensor(LOGITS), "labels": Trap(sprung)}, path)
    with refused(path, "(can|could) run code"):
        read_predictions(path)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap should work"


def test_objects_in_keys_that_are_not_read_do_no_harm(tmp_path: Path):
    path = tmp_path / "p.npz"
    np.savez(path, logits=LOGITS, labels=LABELS, names=np.array([None]))
    assert read_predictions(path).n == 2


def test_npz_with_a_member_that_is_no_array(tmp_path: Path):
    path = save(tmp_path / "p.npz", {"labels": LABELS})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("logits", "text")
    with pytest.raises(PredictionsError, match=r"'logits' is no array; its name doesn't end"):
        read_predictions(path)


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="permissions don't bind here")
def test_unreadable_file(tmp_path: Path):
    path = save(tmp_path / "p.npz", {"logits": LOGITS, "labels": LABELS})
    path.chmod(0)
    with pytest.raises(PredictionsError, match="Permission denied"):
        read_predictions(path)


# --- npy


def test_npy_is_memory_mapped(tmp_path: Path):
    write_predictions(Predictions.from_logits(LOGITS, LABELS, LOGITS), tmp_path / "val_logits.npy")
    files = sorted(os.listdir(tmp_path))
    assert files == ["val_features.npy", "val_labels.npy", "val_logits.npy"]
    p = read_predictions(tmp_path / "val_logits.npy")
    for array in (p.scores, p.features):
        assert isinstance(array, np.memmap)
        assert array.mode == "r"


def test_folder_of_npy(tmp_path: Path):
    np.save(tmp_path / "probs.npy", PROBS)
    np.save(tmp_path / "labels.npy", LABELS)
    p = read_predictions(tmp_path)
    assert (p.kind, p.source) == ("probs", str(tmp_path))
    assert isinstance(p.scores, np.memmap)
    np.save(tmp_path / "logits.npy", LOGITS)
    with refused(tmp_path, "logits and probabilities that these logits don't make"):
        read_predictions(tmp_path)
    assert read_predictions(tmp_path, are="logits").kind == "logits"
    assert read_predictions(tmp_path, are="probs").kind == "probs"
    assert read_predictions(tmp_path / "probs.npy").kind == "probs"


def test_npy_of_any_name(tmp_path: Path):
    scores, labels = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(scores, PROBS)
    np.save(labels, LABELS)
    p = read_predictions(scores, are="probs", labels=labels)
    assert p.kind == "probs"
    assert np.array_equal(p.labels, LABELS)
    with pytest.warns(LooksLikeProbabilitiesWarning):
        assert read_predictions(scores, are="logits", labels=str(labels)).kind == "logits"
    with pytest.raises(PredictionsError, match="the name doesn't say what the array is"):
        read_predictions(scores)
    with pytest.raises(PredictionsError, match=r"there is no 'labels' .*file of labels given"):
        read_predictions(scores, are="probs")
    with refused(scores, "can't read 'labels': .*nowhere.npy"):
        read_predictions(scores, are="probs", labels=tmp_path / "nowhere.npy")


def test_given_labels_win_over_the_sibling(tmp_path: Path):
    write_predictions(sample(), tmp_path / "logits.npy")
    np.save(tmp_path / "other.npy", LABELS[::-1])
    p = read_predictions(tmp_path / "logits.npy", labels=tmp_path / "other.npy")
    assert p.labels.tolist() == [2, 0]


def test_npy_without_labels(tmp_path: Path):
    np.save(tmp_path / "val_logits.npy", LOGITS)
    with pytest.raises(PredictionsError, match=r"there is no 'labels' .*beside PREFIXlabels.npy"):
        read_predictions(tmp_path / "val_logits.npy")


# --- tensors


def test_bfloat16_and_half_tensors(tmp_path: Path):
    for dtype in (torch.bfloat16, torch.float16):
        content = {"logits": torch.tensor(LOGITS).to(dtype), "labels": torch.tensor(LABELS)}
        torch.save(content, tmp_path / "p.pt")
        safetensors.torch.save_file(content, tmp_path / "p.safetensors")
        for name in ("p.pt", "p.safetensors"):
            p = read_predictions(tmp_path / name)
            want = np.float32 if dtype == torch.bfloat16 else np.float16
            np.testing.assert_array_equal(p.scores, LOGITS.astype(want), strict=True)


def test_float8_tensors(tmp_path: Path):
    content = {"logits": torch.tensor(LOGITS).to(torch.float8_e4m3fn), "labels": torch.ones(2)}
    torch.save(content, tmp_path / "p.pt")
    safetensors.torch.save_file(content, tmp_path / "p.safetensors")
    for name in ("p.pt", "p.safetensors"):
        with pytest.raises(PredictionsError, match=r"(?i)can't read 'logits': .*(f8|float8)_e4m3"):
            read_predictions(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.tensor(LOGITS), "must hold a dict of tensors, not a Tensor"),
        ({"logits": LOGITS.tolist(), "labels": LABELS.tolist()}, "'logits' must be a tensor"),
        ({0: torch.tensor(LOGITS)}, "there is no 'logits' .*found '0'"),
        ({"logits": LOGITS}, "no torch file of tensors only"),
    ],
)
def test_torch_files_of_something_else(tmp_path: Path, content: object, message: str):
    torch.save(content, tmp_path / "p.pt")
    with pytest.raises(PredictionsError, match=message):
        read_predictions(tmp_path / "p.pt")


def test_torch_tensor_with_gradient(tmp_path: Path):
    content = {"logits": torch.tensor(LOGITS).requires_grad_(), "labels": torch.tensor(LABELS)}
    torch.save(content, tmp_path / "p.pt")
    assert np.array_equal(read_predictions(tmp_path / "p.pt").scores, LOGITS)


@pytest.mark.parametrize(
    ("extension", "module", "extra"),
    [(".pt", "torch", "torch"), (".parquet", "pyarrow.parquet", "arrow")],
)
def test_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, module: str, extra: str
):
    path = written(tmp_path, extension)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'calibrant\[{extra}\]'"):
        read_predictions(path)


def test_optional_packages_are_not_imported_early():
    code = (
        "import sys, calibrant.files; "
        "print([m for m in ('torch', 'pyarrow', 'safetensors') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- tables

TOP_LABEL_CSV = "true_label,pred_label,confidence\n1,0,0.5\n5,5,0.25\n"
LOGITS_CSV = "label,logit_0,logit_1,logit_2\n0,2,-1,0.5\n2,0,3,1\n"
PROBS_CSV = "label,prob_0,prob_1\n0,0.5,0.5\n1,0.25,0.75\n"


def csv_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "p.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        LOGITS_CSV,
        LOGITS_CSV.removesuffix("\n"),
        LOGITS_CSV + "\n",
        LOGITS_CSV + "  \n\n",
        "\n" + LOGITS_CSV.replace("\n", "\n\n"),
        LOGITS_CSV.replace("\n", "\r\n"),
        LOGITS_CSV.replace("\n", "\r"),
        "\ufeff" + LOGITS_CSV,
        LOGITS_CSV.replace(",", " , "),
        LOGITS_CSV.replace("label", "true_label"),
        LOGITS_CSV.replace("label", "labels"),
        LOGITS_CSV.replace("logit_", "logit_00"),
        '"label","logit_0","logit_1","logit_2"\n"0","2","-1",0.5\n"2",0,"3",1\n',
        "logit_2,logit_0,label,logit_1\n0.5,2,0,-1\n1,0,2,3\n",
        'file,label,logit_0,logit_1,logit_2\n"a, #""1""",0,2,-1,0.5\n\u00e9,2,0,3,1\n',
        "label,logits,logit_0,logit_1,logit_2,prob_7\n0,,2,-1,0.5,\n2,,0,3,1e0,x\n",
    ],
)
def test_ways_to_write_a_csv(tmp_path: Path, text: str):
    p = read_predictions(csv_file(tmp_path, text))
    assert p.kind == "logits"
    assert np.array_equal(p.scores, LOGITS)
    assert np.array_equal(p.labels, LABELS)


def test_top_label_csv(tmp_path: Path):
    p = read_predictions(csv_file(tmp_path, TOP_LABEL_CSV))
    assert p.kind == "toplabel"
    assert np.array_equal(p.scores, TOP_LABEL["confidence"])
    assert np.array_equal(p.predicted, TOP_LABEL["pred_label"])
    assert np.array_equal(p.labels, TOP_LABEL["true_label"])


def test_kind_chooses_the_columns(tmp_path: Path):
    path = csv_file(
        tmp_path,
        "label,logit_0,logit_1,prob_0,prob_1,confidence,predicted\n1,3,4,0.5,0.5,0.75,0\n",
    )
    with refused(path, "logits and probabilities that these logits don't make"):
        read_predictions(path)
    assert read_predictions(path, are="logits").scores.tolist() == [[3, 4]]
    assert read_predictions(path, are="probs").scores.tolist() == [[0.5, 0.5]]
    assert read_predictions(path, are="confidence").scores.tolist() == [0.75]


BAD_HEADERS = [
    ("label,score\n", "there is no 'logits' .*expected the columns label .*found 'label', 'score'"),
    ("logit_0,logit_1\n", "there is no 'labels' or 'label' or 'true_label'"),
    ("label,confidence\n", "there is no 'pred_label' or 'predicted'"),
    ("label,logit_0,logit_2\n", "the column 'logit_1' is missing, though there is a 'logit_2'"),
    ("label,logit_1,logit_2\n", "the column 'logit_0' is missing"),
    ("label,prob_0,prob_1,feature_1\n", "the column 'feature_0' is missing"),
    ("label,label,prob_0,prob_1\n", "the column 'label' occurs twice"),
    ("label,prob_0,prob_1,prob_1\n", "the column 'prob_1' occurs twice"),
    ("label,prob_0,prob_99999999999999\n", "the column 'prob_1' is missing"),
]
BAD_ROWS = [
    ("", "is empty; expected a header and rows"),
    ("\n\n", "is empty"),
    (LOGITS_CSV[: LOGITS_CSV.index("\n")], "has a header, but no rows"),
    (LOGITS_CSV[: LOGITS_CSV.index("\n")] + "\n\n", "has a header, but no rows"),
    (LOGITS_CSV + "1,2,3\n", "line 4 has 3 cells, but the header has 4"),
    (LOGITS_CSV + "1,2,3,4,\n", "line 4 has 5 cells, but the header has 4"),
    (LOGITS_CSV + "1\n0,1,1,1\n", "line 4 has 1 cell, but"),
    (LOGITS_CSV + "\n\n1,2,,4\n", "line 6, column 'logit_1': expected .*, found a blank cell"),
    (LOGITS_CSV + ",1,,\n", "line 4, column 'label': .*0 to 2, found a blank cell"),
    (LOGITS_CSV + "1,2,n/a,4\n", "line 4, column 'logit_1': expected a finite .*, found 'n/a'"),
    (LOGITS_CSV + "1,2,1_000,4\n", "line 4, column 'logit_1': .*, found '1_000'"),
    (LOGITS_CSV + "1,2,\uff11,4\n", "line 4, column 'logit_1': .*, found '\uff11'"),
    (LOGITS_CSV + "1,2,nan,4\n", "line 4, column 'logit_1': .*, found 'nan'"),
    (LOGITS_CSV + "1,2,1e999,4\n", "line 4, column 'logit_1': .*, found '1e999'"),
    (LOGITS_CSV + "3,1,1,1\n", "line 4, column 'label': .*from 0 to 2, found '3'"),
    (LOGITS_CSV + "0.5,1,1,1\n", "line 4, column 'label': expected a whole number .*'0.5'"),
    (LOGITS_CSV + "cat,1,1,1\n", "line 4, column 'label': .*found 'cat'"),
    (LOGITS_CSV + f"{'x' * 99},1,1,1\n", f"line 4, column 'label': .*found '{'x' * 40}'$"),
    (LOGITS_CSV + '1,1,"1,1\n1,1,1,1\n', "line 5 has 3 cells"),
    (LOGITS_CSV + '1,1,1,"1\n1,1,1,1\n', "line 5 ends a quoted cell that goes over several lines"),
    (LOGITS_CSV.replace("label", "feature_0,label"), "line 2 has 4 cells, but the header has 5"),
    (
        PROBS_CSV + "0,1,2\n",
        r"line 4: the columns prob_0, .* must sum to 1, but sum to 3; .*--are log",
    ),
    (PROBS_CSV + "0,-1,2\n", "line 4, column 'prob_0': expected .*at least 0, found '-1'"),
    (TOP_LABEL_CSV + "0,0,1.5\n", "line 4, column 'confidence': .*from 0 to 1, found '1.5'"),
    (TOP_LABEL_CSV + "0,-1,0.5\n", "line 4, column 'pred_label': .*whole number from 0, .*'-1'"),
    (TOP_LABEL_CSV + "inf,0,0.5\n", "line 4, column 'true_label': .*found 'inf'"),
    ("label,logit_0\n0,1\n", "'logits' must have shape .*not .1, 1."),
    (b"label,logit_0,logit_1,na\xefve\n0,1,1,1\n", "it is no UTF-8 text .*iconv -f WINDOWS-1252"),
    (LOGITS_CSV.encode() + b"\xff,1,1,1\n", "it is no UTF-8 text .*iconv -f WINDOWS-1252"),
    (LOGITS_CSV.encode() + b"\0,1,1,1\n", "line 4, column 'label'"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [(header + "1,1,1,1\n", message) for header, message in BAD_HEADERS] + BAD_ROWS,
)
def test_bad_csv(tmp_path: Path, text: str | bytes, message: str):
    path = csv_file(tmp_path, text)
    with refused(path, message):
        read_predictions(path)


def test_unclosed_quote_in_a_column_that_is_not_read(tmp_path: Path):
    path = csv_file(tmp_path, 'label,logit_0,logit_1,note\n0,1,1,a\n0,1,1,"b\n0,1,1,c\n')
    with pytest.raises(PredictionsError, match=r"line 4 ends a quoted cell .*is a quote missing"):
        read_predictions(path)


def test_parquet_ignores_other_columns_and_order(tmp_path: Path):
    path = tmp_path / "p.parquet"
    columns = {f"logit_{k}": LOGITS[:, k] for k in (2, 0, 1)}
    pq.write_table(pa.table({"file": ["a", None], **columns, "true_label": LABELS}), path)
    p = read_predictions(path)
    np.testing.assert_array_equal(p.scores, LOGITS, strict=True)
    assert np.array_equal(p.labels, LABELS)


def test_parquet_in_row_groups(tmp_path: Path):
    logits = np.random.default_rng(0).normal(size=(1000, 2))
    table = pa.table(
        {"label": np.arange(1000) % 2, "logit_0": logits[:, 0], "logit_1": logits[:, 1]}
    )
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=64)
    assert np.array_equal(read_predictions(tmp_path / "p.parquet").scores, logits)


@pytest.mark.parametrize(("header", "message"), BAD_HEADERS)
def test_bad_parquet_columns(tmp_path: Path, header: str, message: str):
    path = tmp_path / "p.parquet"
    names = header.strip().split(",")
    pq.write_table(pa.Table.from_arrays([pa.array([1, 1])] * len(names), names=names), path)
    with refused(path, message):
        read_predictions(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ["cat", "dog"]}, "column 'label' must hold numbers, not string"),
        ({"label": [True, False]}, "column 'label' must hold numbers, not bool"),
        ({"logit_1": [1.0, None]}, "row 1, column 'logit_1': the cell is blank"),
        ({"label": [None, 1]}, "row 0, column 'label': the cell is blank"),
        ({"logit_0": [float("nan"), 1.0]}, "'logits' must be finite, but row 0, column 0"),
        ({"label": [0, 2]}, "'labels' must be whole numbers from 0 to 1, but row 1 holds 2"),
        ({"logit_0": [[1.0], [2.0]]}, "column 'logit_0' must hold numbers, not list"),
    ],
)
def test_bad_parquet_cells(tmp_path: Path, change: dict[str, list[object]], message: str):
    path = tmp_path / "p.parquet"
    pq.write_table(
        pa.table({"label": [0, 1], "logit_0": [0.0, 1], "logit_1": [1.0, 0]} | change), path
    )
    with refused(path, message):
        read_predictions(path)


def test_parquet_without_rows(tmp_path: Path):
    path = tmp_path / "p.parquet"
    empty = pa.array([], pa.float32())
    pq.write_table(pa.table({"label": empty, "logit_0": empty, "logit_1": empty}), path)
    with pytest.raises(PredictionsError, match=r"'logits' must have shape .* N >= 1"):
        read_predictions(path)


# --- real files


@pytest.mark.parametrize(
    ("name", "kind", "rows", "classes"),
    [
        ("imagenet-resnet101-toplabel.csv", "toplabel", 50_000, None),
        ("cifar10-resnet50-cross-entropy-val.npz", "logits", 5_000, 10),
        ("cifar100-wideresnet-16-4.npz", "probs", 10_000, 100),
    ],
)
def test_real_files(name: str, kind: str, rows: int, classes: int | None):
    if not (REAL / name).exists():
        pytest.skip("the larger real data lie beside the checkout, and aren't there")
    p = read_predictions(REAL / name)
    assert (p.kind, p.n, p.n_classes) == (kind, rows, classes)
    if kind == "toplabel":
        assert (p.predicted == p.labels).mean() > 0.7
        assert p.scores[0] == 0.6856766939163208
