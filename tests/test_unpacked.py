"""Files that unpack to far more than they are: refused, and read part by part.

Memory at most ten times the file and 500 MB is what `gate` promises of reading.
"""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import people_files_further  # noqa: F401 - it registers its files
import people_files_of_tools  # noqa: F401 - as does this
import pytest
from people_files import CASES

from calibrant.cli.app import run
from calibrant.core.errors import PredictionsError
from calibrant.files import read_predictions
from calibrant.files.formats.tables import unpacked_sizes

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = 60_000
FIXTURES = Path(__file__).parents[2] / "shared/review/fixtures"


def columns(rows: int = ROWS) -> dict[str, np.ndarray]:
    labels = np.arange(rows) % 4 > 0
    return {
        "label": labels.astype(np.int64),
        "prob_0": np.full(rows, 0.25),
        "prob_1": np.full(rows, 0.75),
    }


def arrow(path: Path, batch: int, compression: str = "zstd") -> None:
    table = pa.table(columns())
    options = ipc.IpcWriteOptions(compression=compression)
    opened = ipc.new_stream if path.stem.startswith("stream") else ipc.new_file
    with opened(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=batch)


def lists(path: Path) -> None:
    own = columns()
    probs = np.stack([own["prob_0"], own["prob_1"]], axis=1)
    table = pa.table({"probs": probs.tolist(), "label": own["label"]})
    parquet.write_table(table, path, row_group_size=10_000)


def packed(path: Path) -> None:
    own = columns()
    probs = np.stack([own["prob_0"], own["prob_1"]], axis=1)
    np.savez_compressed(path, probs=probs, labels=own["label"])


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    own = columns()
    with h5py.File(path, "w") as file:
        probs = np.stack([own["prob_0"], own["prob_1"]], axis=1)
        chunks = {"compression": "gzip"}
        file.create_dataset("probs", data=probs, chunks=(1000, 2), **chunks)
        file.create_dataset("labels", data=own["label"], chunks=(1000,), **chunks)


def text(path: Path) -> None:
    own = columns()
    rows = [",".join(map(str, cells)) for cells in zip(*own.values(), strict=True)]
    path.write_bytes(gzip.compress("\n".join([",".join(own), *rows]).encode()))


FILES: dict[str, Callable[[Path], None]] = {
    "a.parquet": lambda path: parquet.write_table(pa.table(columns()), path),
    "lists.parquet": lists,
    "stream.arrow": lambda path: arrow(path, 1000),
    "a.arrow": lambda path: arrow(path, 1000),
    "lz4.feather": lambda path: arrow(path, 1000, "lz4"),
    "a.npz": packed,
    "a.h5": hdf5,
    "a.csv.gz": text,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_repeated_numbers_is_read_part_by_part(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    FILES[name](path)
    whole = read_predictions(path)
    assert whole.n == ROWS
    # As a file of a thousand times as many rows would meet the gate itself.
    # Of text half of it, as the text itself is counted.
    most = 1 << 21 if name.endswith("csv.gz") else 1 << 20
    monkeypatch.setattr("calibrant.files.gate.MOST_MORE", most)
    with pytest.raises(
        PredictionsError, match=r"takes [12] MB of memory, far more than the .* of "
    ):
        read_predictions(path)
    assert run(["calibrant", "measure", str(path)]) == 2
    line = re.search(r"to read it so: (.*)", capsys.readouterr().err)
    assert line is not None
    pasted = shlex.split(line[1])[1:]
    assert pasted[1:4] == [str(path), "--workers", "1"]
    assert run(["calibrant", *pasted, "--resamples", "20"]) == 0
    assert "60000 rows" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.arrow", "stream.arrow"])
@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_the_size_of_a_batch_is_known_before_it_is_unpacked(
    compression: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    arrow(path, 25_000, compression)
    with path.open("rb") as file:
        sizes = [size for size in unpacked_sizes(file) if size]
    # Two columns of float64 and one of int64.
    assert len(sizes) == 3
    assert 24 * ROWS <= sum(sizes) < 24 * ROWS + 3 * 3 * 64


def test_a_batch_that_can_only_be_unpacked_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.arrow"
    arrow(path, ROWS)
    monkeypatch.setattr("calibrant.files.gate.MOST_MORE", 1 << 18)
    with pytest.raises(
        PredictionsError, match=r"a batch takes 1 MB .* of the file; at most 0.33.* write smaller"
    ):
        read_predictions(path)


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet", "h5"])
def test_one_long_cell_does_not_make_room_for_itself_in_every_row(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{extension}"
    said = ["ant"] * 1000 + ["x" * 5000]
    truth = ["ant"] * 1001
    if extension == "csv":
        rows = [f"0.5,{a},{b}\n" for a, b in zip(said, truth, strict=True)]
        path.write_text("confidence,pred_label,true_label\n" + "".join(rows))
    elif extension == "jsonl":
        rows = [
            f'{{"confidence": 0.5, "pred_label": "{a}", "true_label": "{b}"}}\n'
            for a, b in zip(said, truth, strict=True)
        ]
        path.write_text("".join(rows))
    elif extension == "parquet":
        own = {"confidence": np.full(1001, 0.5), "pred_label": said, "true_label": truth}
        parquet.write_table(pa.table(own), path)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["confidence"], file["pred_label"] = np.full(1001, 0.5), said
            file["true_label"] = truth
    assert read_predictions(path).n == 1001
    monkeypatch.setattr("calibrant.files.gate.MOST_MORE", 1 << 20)
    with pytest.raises(
        PredictionsError, match=r"text of '/?pred_label', up to 5000 letters, takes"
    ):
        read_predictions(path)


def test_a_long_list_before_short_ones_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    monkeypatch.setattr("calibrant.files.gate.MOST_MORE", 1 << 18)
    rows = [[0.5] * (100_000 - 99), *[[0.5]] * 99]
    parquet.write_table(pa.table({"probs": rows, "label": [0] * 100}), path)
    with pytest.raises(PredictionsError, match="the table takes 80 MB of memory"):
        read_predictions(path)
    rows = [[0.5, 0.5], [0.25, 0.25, 0.5]]
    parquet.write_table(pa.table({"probs": rows, "label": [0, 1]}), path)
    with pytest.raises(PredictionsError, match="lists of 'probs' differ in length"):
        read_predictions(path)


READ = """
import re, sys, warnings
import pyarrow.parquet, pyarrow.ipc
import calibrant as cb
from calibrant.core.errors import CalibrantError

def peak():
    with open("/proc/self/status") as lines:
        return int(re.search(r"VmHWM:\\s*(\\d+)", lines.read())[1]) / 1024

before = peak()
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    try:
        cb.read_predictions(path)
    except CalibrantError:
        pass
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is Linux's to tell")
@pytest.mark.parametrize("rows", [5_500_000, 20_000_000])
def test_reading_takes_ten_times_the_file_and_500_megabytes_at_most(
    rows: int, tmp_path: Path
) -> None:
    # As many rows as are read, just so, and far more.
    part = pa.table(columns(rows // 10))
    path, batches = tmp_path / "a.parquet", tmp_path / "a.arrow"
    options = ipc.IpcWriteOptions(compression="zstd")
    with (
        parquet.ParquetWriter(path, part.schema) as file,
        ipc.new_stream(batches, part.schema, options=options) as stream,
    ):
        for _ in range(10):
            file.write_table(part)
            stream.write_table(part)
    words = [sys.executable, "-c", READ, str(path), str(batches)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert float(done.stdout) < 500


# --- files that ended or stopped a process, with little memory


COMMANDS = """
import contextlib, io, sys
import calibrant.files.formats.hdf5 as hdf5
from calibrant.cli.app import run

hdf5.MOST_SECONDS = 2
for command in ("measure", "inspect"):
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["calibrant", command, sys.argv[1]]) == 2
"""


def limited() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="the files of the review aren't here")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits memory otherwise")
@pytest.mark.parametrize("name", ["abort.arrow", "segv.arrow", "hang.h5"])
def test_damaged_files_of_the_review_end_in_one_sentence(name: str) -> None:
    pytest.importorskip("h5py")
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(FIXTURES / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 2


ALL_IN_ONE = """
import contextlib, io, pathlib, resource, sys
from calibrant.cli.app import run

for count, place in enumerate(sys.argv[1:]):
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["calibrant", "measure", place, "--resamples", "20"]) in (0, 2)
    if not count:  # the libraries are there
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + 10 * pathlib.Path(place).stat().st_size
        most += 500 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read as Linux says")
def test_files_as_people_have_them_take_ten_times_the_file_and_half_a_gigabyte(
    tmp_path: Path,
) -> None:
    names = ["one_hot_columns_bare_names", "parquet_of_lists", "plain_npz", "pandas_index"]
    names += ["one_json_array", "long_table", "table_of_markdown", "two_models_in_arrays"]
    places: list[str] = []
    for name in names:
        (tmp_path / name).mkdir()
        places.append(str(CASES[name].write(tmp_path / name)))
    done = subprocess.run(
        [sys.executable, "-c", ALL_IN_ONE, *places],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["parquet", "keys", "packed"])
def test_a_refusal_takes_no_table_whole_that_may_be_more_than_its_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas, taken = pytest.importorskip("pandas"), list[str]()
    for name in ("read_csv", "read_json", "read_parquet"):
        monkeypatch.setattr(pandas, name, lambda where, **_: taken.append(where))
    path = tmp_path / {"parquet": "a.parquet", "keys": "a.jsonl", "packed": "a.csv.gz"}[kind]
    if kind == "parquet":
        parquet.write_table(pa.table({"a": np.arange(50), "b": np.arange(50)}), path)
    elif kind == "keys":
        path.write_text("".join(f'{{"k{row}": 1}}\n' for row in range(50)))
    else:
        path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 50))
    with pytest.raises(PredictionsError):
        read_predictions(path)
    assert not taken
    (tmp_path / "b.csv").write_text("a,b\n" + "1,2\n" * 50)
    with pytest.raises(PredictionsError):
        read_predictions(tmp_path / "b.csv")
    assert taken == [str(tmp_path / "b.csv")]
