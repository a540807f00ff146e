"""Files that lie, never end, or are read while they are written; arrays of odd kinds."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from calibrant.core.errors import (
    CalibratorFileError,
    InputError,
    LooksLikeProbabilitiesWarning,
    PredictionsError,
)
from calibrant.files import ReadOptions, read_column, read_predictions, write_predictions
from calibrant.files.gate import load_json, load_toml
from calibrant.files.reading import PredictionFile
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.temperature.scaling import TemperatureScaling
from calibrant.predictions.predictions import Predictions
from calibrant.scale.shards import Shards

LOGITS = np.random.default_rng(0).normal(size=(30, 3))
LABELS = np.where(np.arange(30) % 3 == 0, LOGITS.argmin(axis=1), LOGITS.argmax(axis=1))


def refused(source: object, message: str):
    """Expect one line that begins with the source."""
    return pytest.raises(
        PredictionsError, match=rf"\A{re.escape(str(source))}: [^\n]*{message}[^\n]*\Z"
    )


# --- what is no regular file


PIPES = ["csv", "npz", "parquet", "safetensors", "jsonl", "h5", "arrow", "tsv", "feather"]


@pytest.mark.parametrize("name", [f"pipe.{extension}" for extension in PIPES])
def test_a_pipe_is_refused_at_once(name, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    with refused(path, "only regular files are read"):
        read_predictions(path)
    with refused(path, "only regular files are read"):
        read_column(path, "x")
    if path.suffix == ".safetensors":
        with pytest.raises(CalibratorFileError, match="only regular files are read"):
            load(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_is_refused_at_once(device, tmp_path):
    for name in ("endless.csv", "endless.safetensors"):
        (tmp_path / name).symlink_to(device)
        with refused(tmp_path / name, "only regular files are read"):
            read_predictions(tmp_path / name)
    np.save(tmp_path / "a-logits.npy", LOGITS)
    with refused(device, "only regular files are read"):
        read_predictions(tmp_path / "a-logits.npy", labels=device)


def test_a_name_that_no_system_takes_is_one_sentence(tmp_path):
    path = tmp_path / ("x" * 300 + ".npz")
    with refused(path, "can't be read: File name too long"):
        read_predictions(path)
    with pytest.raises(CalibratorFileError, match="File name too long"):
        load(path.with_suffix(".safetensors"))


# --- files that promise more than they hold


def npy_bytes(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """Return an .npy file, whose header may name another shape."""
    buffer = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + array.tobytes()


def zipped(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_a_header_that_promises_too_much_reserves_no_memory(tmp_path):
    lie = npy_bytes(LOGITS, (10**9, 3))
    path = zipped(tmp_path / "a.npz", [("logits.npy", lie), ("labels.npy", npy_bytes(LABELS))])
    (tmp_path / "b-logits.npy").write_bytes(lie)
    np.save(tmp_path / "b-labels.npy", LABELS)
    tracemalloc.start()
    try:
        with refused(path, r"'logits' says that it has shape \(1000000000, 3\)"):
            read_predictions(path)
        with refused(tmp_path / "b-logits.npy", "can't read 'logits'"):
            read_predictions(tmp_path / "b-logits.npy")
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()


def test_a_file_that_lacks_its_last_byte_is_said_to_be_shorter(tmp_path):
    (tmp_path / "b-logits.npy").write_bytes(npy_bytes(LOGITS)[:-1])
    np.save(tmp_path / "b-labels.npy", LABELS)
    with refused(tmp_path / "b-logits.npy", "its header says .* but the file is shorter"):
        read_predictions(tmp_path / "b-logits.npy")


def test_a_member_that_claims_to_be_more_than_can_be_packed_is_refused(tmp_path):
    members = [("logits.npy", npy_bytes(LOGITS)), ("labels.npy", npy_bytes(LABELS))]
    path = zipped(tmp_path / "a.npz", members, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    size = content.index(b"PK\1\2") + 24  # in the list at the end of the file
    content[size : size + 4] = (1 << 28).to_bytes(4, "little")
    path.write_bytes(content)
    with refused(path, "'logits' can't be 268435456 bytes, packed into"):
        read_predictions(path)


def test_an_array_that_repeats_its_numbers_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"logits": torch.zeros(1).expand(10**10, 5), "labels": torch.zeros(3)}, path)
    with refused(path, "repeats its stored numbers"):
        read_predictions(path)


def test_a_torch_file_that_is_packed_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"logits": torch.zeros(1000, 5), "labels": torch.zeros(1000)}, path)
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    zipped(path, members, zipfile.ZIP_DEFLATED)
    with refused(path, "is compressed, which torch files aren't"):
        read_predictions(path)


def test_a_torch_file_whose_parts_are_shorter_than_its_tensors_is_refused(tmp_path):
    # Mapped into memory, a tensor would go on into the bytes behind its part.
    path = tmp_path / "a.pt"
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}, path)
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    zipped(path, [(n, c[:320] if n.endswith("data/0") else c) for n, c in members])
    with refused(path, "'logits' is said to have 720 bytes, which no part of the file has"):
        read_predictions(path)


@pytest.mark.parametrize("part", ["data/0", "data/1"])
@pytest.mark.parametrize("place", ["header", "numbers"])
def test_a_torch_file_whose_numbers_were_damaged_is_refused(part, place, tmp_path):
    # Mapped into memory, torch doesn't look at checksums.
    path = tmp_path / "a.pt"
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}, path)
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(part))
    content = bytearray(path.read_bytes())
    at = info.header_offset + 2
    if place == "numbers":
        lengths = content[info.header_offset + 26 : info.header_offset + 30]
        name, extra = np.frombuffer(bytes(lengths), np.uint16)
        at = info.header_offset + 30 + int(name) + int(extra) + 6
    content[at] ^= 8
    path.write_bytes(content)
    with refused(path, "can't read the torch file: Bad"):
        read_predictions(path)


def test_an_older_torch_file_that_lists_the_numbers_of_one_tensor_only_is_refused(tmp_path):
    # torch gives the other tensor whatever is in memory.
    path, file = tmp_path / "old.pt", io.BytesIO()
    both = {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}
    torch.save(both, file, _use_new_zipfile_serialization=False)
    whole = file.getvalue()
    path.write_bytes(whole)
    assert read_predictions(path).n == len(LABELS)
    key = whole.rindex(b"\x80\x02]q\x00(X") + 7
    begin = key + 4 + int.from_bytes(whole[key : key + 4], "little")
    path.write_bytes(whole[:begin] + b"q\x01" + whole[whole.index(b"e.", begin) :])
    with refused(path, "it lacks the numbers of a tensor"):
        read_predictions(path)


def test_a_parquet_file_whose_footer_counts_other_rows_than_its_parts_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    write_predictions(Predictions.from_logits(LOGITS, LABELS), path)
    data, n = path.read_bytes(), len(LABELS)
    # Whole numbers are doubled there; what follows the number of all rows is a list.
    place = data.index(bytes([0x16, 2 * n, 0x19])) + 1
    path.write_bytes(data[:place] + bytes([2 * n - 2]) + data[place + 1 :])
    with refused(path, "its footer says 29 rows, and of its parts 30"):
        read_predictions(path)


def test_a_torch_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = tmp_path / "a.pt"
        torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    np.testing.assert_array_equal(read_predictions(path).labels, LABELS)


def test_lists_nested_deeper_than_arrays_go_are_one_sentence(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prob_0": 0.5, "prob_1": ' + "[" * 70 + "]" * 70 + ', "label": 0}\n')
    with refused(path, "can't read 'prob_1'"), PredictionFile(str(path), ReadOptions()) as file:
        file.check_header()
    with refused(path, ""):
        read_predictions(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"prob": 0.5, "label": 1}, ]', "Expecting value"),
        ('[{"prob": 0.5, "label": 1}', "doesn't end where it should"),
        ('[{"prob": 0.5, "label": 1}] 5', "doesn't end where it should"),
        ('[{"prob": 0.5, "label": 1} {"prob": 0.5, "label": 1}]', "doesn't end where it should"),
        ('[{"a": ' + "[" * 100_000, "nested too deep"),
        ('[{"prob": 0.5, "label": 1}, 7]', "line 2 is no JSON object"),
    ],
)
def test_an_array_of_objects_that_goes_wrong_is_one_sentence(text, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with refused(path, message):
        read_predictions(path)
    path.write_text(' \n[ {"prob": 0.5,\n "label": 1} ,\n\t{"prob": 0.25, "label": 0}\n]\n')
    assert read_predictions(path).n == 2


@pytest.mark.parametrize(
    ("row", "other"),
    [
        ({"confidence": 0.5, "correct": 1}, {"confidence": True, "correct": 1}),
        ({"confidence": 0.5, "correct": True}, {"confidence": 0.5, "correct": 0}),
        ({"probs": [0.5, 0.5], "label": 1}, {"probs": [True, 0], "label": 1}),
    ],
)
@pytest.mark.parametrize("batch", [1, 30])
def test_truth_values_among_numbers_of_json_are_refused(row, other, batch, tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [row] * 20 + [other] + [row] * 9
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with refused(path, "line 21: .* holds true or false where other lines hold numbers"):
        read_predictions(path)
    spans = [slice(start, start + batch) for start in range(0, 30, batch)]
    with (
        refused(path, "line 21: .* holds true or false where other lines hold numbers"),
        PredictionFile(str(path), ReadOptions()) as file,
    ):
        list(file.batches(spans))


def test_a_table_of_more_rows_than_memory_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from calibrant.files import write_predictions

    path = tmp_path / "a.parquet"
    write_predictions(Predictions.from_logits(LOGITS, LABELS), path)
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with refused(path, "more than this machine's memory"):
        read_predictions(path)


def test_a_member_that_is_there_twice_is_refused(tmp_path):
    two = [("labels.npy", npy_bytes(LABELS)), ("labels.npy", npy_bytes(LABELS[::-1].copy()))]
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = zipped(tmp_path / "a.npz", [("logits.npy", npy_bytes(LOGITS)), *two])
    with refused(path, r"'labels.npy' occurs twice"):
        read_predictions(path)
    with refused(path, r"'labels.npy' occurs twice"):
        read_column(path, "labels")


def test_a_member_that_is_no_array_is_refused(tmp_path):
    path = zipped(
        tmp_path / "a.npz",
        [("logits", b"text"), ("labels.npy", npy_bytes(LABELS)), ("site", b"text")],
    )
    with refused(path, "'logits' is no array; its name doesn't end in .npy"):
        read_predictions(path)
    with refused(path, "'site' is no array"):
        read_column(path, "site")


def test_numbers_of_thousands_of_digits_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    columns = {"label": [0, 1], f"logit_{'1' * 5000}": [0.0, 1.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with refused(tmp_path / "a.parquet", "there is no 'logits'"):
        read_predictions(tmp_path / "a.parquet")
    path = tmp_path / "c.safetensors"
    TemperatureScaling().fit(LOGITS, LABELS).save(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        header = file.metadata() | {"format_version": "1" * 5000}
    safetensors.numpy.save_file({"beta_": np.ones(())}, path, metadata=header)
    with pytest.raises(CalibratorFileError, match=r"has format version '1{20}', this version"):
        load(path)


# --- pairs of files


WRITER = """
import sys, numpy
from calibrant.files import write_predictions
from calibrant.predictions.predictions import Predictions
number = int(sys.argv[2])
rows = Predictions.from_logits(numpy.eye(4)[[number] * 500] * 9, numpy.full(500, number))
print("ready", flush=True)
for _ in range(200):
    write_predictions(rows, sys.argv[1])
"""


def test_readers_of_a_pair_see_arrays_of_one_writer(tmp_path):
    path = tmp_path / "a-logits.npy"
    line = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*line, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            found = read_predictions(path)
            np.testing.assert_array_equal(np.asarray(found.scores).argmax(axis=1), found.labels)
            reads += 1
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert reads > 20


# --- arrays of other kinds


class Table:
    """Like a data frame: not an array, but it can become one."""

    def __init__(self, values: np.ndarray):
        self.values, self.shape, self.columns = values, values.shape, list("abc")

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_a_table_is_taken_as_the_array_that_it_makes():
    ours = TemperatureScaling().fit(Table(LOGITS), LABELS)
    plain = TemperatureScaling().fit(LOGITS, LABELS)
    assert ours.beta_ == plain.beta_
    np.testing.assert_array_equal(ours.predict_proba(Table(LOGITS)), plain.predict_proba(LOGITS))


def test_a_table_of_text_is_one_sentence():
    with pytest.raises(PredictionsError, match="'logits' must hold real numbers"):
        TemperatureScaling().fit(Table(LOGITS.astype(object)), LABELS)


def test_floats_wider_than_float64_come_back_as_float64():
    wide = LOGITS.astype(np.longdouble)
    calibrator = TemperatureScaling().fit(wide, LABELS)
    probs = calibrator.predict_proba(wide)
    assert probs.dtype == np.float64
    np.testing.assert_array_equal(probs, calibrator.predict_proba(LOGITS))


@pytest.mark.parametrize("method", ["none", "temperature", "histogram", "svs", "top-rest"])
def test_rows_of_very_many_classes_sum_to_one(method):
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(12, 128_000))).astype(np.float16)
    labels = np.where(np.arange(12) % 3 == 0, 0, logits.argmax(axis=1))
    probs = make_calibrator(method).fit(logits, labels).predict_proba(logits)
    assert probs.dtype == np.float32
    assert np.abs(probs.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6


# --- probabilities that are called logits


def test_probabilities_passed_as_logits_are_warned_of_at_the_callers_line():
    probs = TemperatureScaling().fit(LOGITS, LABELS).predict_proba(LOGITS)
    for rows in (probs, probs.astype(np.float32), torch.asarray(probs)):
        with pytest.warns(LooksLikeProbabilitiesWarning, match="lies in .0, 1. and sums to 1") as w:
            make_calibrator("none").fit(rows, LABELS)
        assert [str(warning.filename) for warning in w] == [__file__]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [LOGITS, np.log(np.full((9, 3), 1 / 3)), np.eye(3), np.eye(3) * 5])
def test_logits_are_not_warned_of(rows):
    Predictions.from_logits(rows, np.arange(len(rows)) % 3)


# --- formats of rows


def test_a_folder_of_arrow_files_can_not_lead_elsewhere(tmp_path):
    pytest.importorskip("pyarrow")
    folder = tmp_path / "set"
    folder.mkdir()
    state = folder / "state.json"
    for content, message in [
        ('{"_data_files": [{"filename": "../../etc/passwd"}]}', "lists a file elsewhere"),
        ('{"_data_files": [{"filename": "a.arrow"}]}', "there is no such file"),
        ('{"_data_files": []}', "lists no files of rows"),
        ('{"_data_files": 3}', "can't read the list of files"),
        ("[]", "'state.json' must hold an object"),
        ("{", "can't read 'state.json'"),
    ]:
        state.write_text(content)
        with pytest.raises(PredictionsError, match=message) as found:
            read_predictions(folder)
        assert str(found.value).startswith(str(folder))
    os.mkfifo(folder / "a.arrow")
    state.write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    with pytest.raises(PredictionsError, match="only regular files are read"):
        read_predictions(folder)


def test_rows_of_json_take_bounded_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    row = '{"label": 1, "logits": [' + ", ".join(["0.123456789"] * 50) + "]}\n"
    path.write_text(row * 20_000)
    tracemalloc.start()
    try:
        read_predictions(path)
        # The array takes 8 MB, twice that while parts are joined; Python's floats would take 40.
        assert tracemalloc.get_traced_memory()[1] < 3.5e7
    finally:
        tracemalloc.stop()


# --- files that ended or stopped the process


@pytest.mark.parametrize("name", ["abort.arrow", "segv.arrow"])
def test_an_arrow_file_whose_offsets_lead_outside_is_one_sentence(name, tmp_path):
    pytest.importorskip("pyarrow")
    path = Path(__file__).parent / "data" / name
    with refused(path, "can't read the Arrow file: .*[Oo]ffset"):
        read_predictions(path)
    with refused(path, "can't read the Arrow file: .*[Oo]ffset"):
        read_column(path, "label")
    with refused(path, "can't read the Arrow file: .*[Oo]ffset"):
        Shards(path)


def test_a_parquet_file_whose_footer_ends_pyarrow_is_one_sentence():
    # Asked for what its footer says of a column, pyarrow ends the process.
    pytest.importorskip("pyarrow")
    path = Path(__file__).parent / "data" / "histogram.parquet"
    with refused(path, "can't read the file: Definition level histogram size mismatch"):
        read_predictions(path)


def test_a_manifest_that_names_everything_is_refused(tmp_path):
    (tmp_path / "m.txt").write_text("/\n")
    with pytest.raises(PredictionsError):
        Shards(tmp_path / "m.txt")


def test_an_hdf5_file_whose_heap_goes_in_circles_is_refused_in_time(monkeypatch):
    pytest.importorskip("h5py")
    path = Path(__file__).parent / "data" / "hang.h5"
    monkeypatch.setattr("calibrant.files.formats.hdf5.MOST_SECONDS", 2)
    with refused(path, "'confidence' must hold real numbers, not text"):
        read_predictions(path)
    with refused(path, "'/confidence' can't be read, or not within 2 seconds; is the file damaged"):
        read_column(path, "confidence")


def test_text_of_an_hdf5_file_is_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["site"] = ["north", "süd"]
    with pytest.raises(PredictionsError, match="there is no 'logits'"):
        read_predictions(tmp_path / "a.h5")
    assert read_column(tmp_path / "a.h5", "site").tolist() == ["north", "süd"]


def test_documents_that_are_nested_too_deep_or_too_long_are_one_sentence(tmp_path, monkeypatch):
    with refused("a.json", "can't read the JSON: it is nested too deep"):
        load_json("[" * 100_000, "a.json")
    with refused("a.json", "can't read the JSON: a whole number has more than 4300 digits"):
        load_json("[" + "1" * 5000 + "]", "a.json")
    (tmp_path / "a.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(InputError, match="nested too deep"):
        load_toml(tmp_path / "a.toml", "a.toml")
    monkeypatch.setattr("calibrant.files.gate.MOST_DOCUMENT_BYTES", 1 << 20)
    with refused("a.json", "is longer than 1 MiB"):
        load_json(" " * (2 << 20), "a.json")


def test_tensors_that_overlap_or_leave_bytes_between_them_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    numbers = LOGITS.astype(np.float32).tobytes()

    def write(label_offsets: list[int], content: bytes) -> None:
        header = {
            "logits": {"dtype": "F32", "shape": [30, 3], "data_offsets": [0, 360]},
            "labels": {"dtype": "I64", "shape": [30], "data_offsets": label_offsets},
        }
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content)

    write([360, 600], numbers + LABELS.tobytes())
    assert read_predictions(path).n == 30
    for read in (read_predictions, Shards):
        write([120, 360], numbers)
        with refused(path, "'labels' doesn't begin where the tensor before it ends"):
            read(path)
        write([400, 640], numbers + bytes(40) + LABELS.tobytes())
        with refused(path, "'labels' doesn't begin where the tensor before it ends"):
            read(path)
        write([360, 600], numbers + LABELS.tobytes() + b"more")
        with refused(path, "it goes on behind the tensors"):
            read(path)


def test_a_label_of_any_size_takes_no_more_memory_than_another(tmp_path):
    path = tmp_path / "top.csv"
    path.write_text("confidence,pred_label,true_label\n" + "0.9,3,3\n" * 20 + f"0.9,{2**62},3\n")
    assert read_predictions(path).n == 21
