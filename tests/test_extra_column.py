"""Columns to group by, from every format that has them."""

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.files import read_column

LOGITS = np.random.default_rng(0).normal(size=(60, 3))
LABELS = np.arange(60) % 3
SITE = np.array(["north", "south"] * 30)


def write(path):
    if path.suffix == ".npz":
        np.savez(path, logits=LOGITS, labels=LABELS, site=SITE)
    elif path.suffix == ".csv":
        head = "label,logit_0,logit_1,logit_2,site"
        rows = [
            ",".join([str(y), *map(str, z), s])
            for y, z, s in zip(LABELS, LOGITS, SITE, strict=True)
        ]
        path.write_text("\n".join([head, *rows]) + "\n")
    elif path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {f"logit_{k}": LOGITS[:, k] for k in range(3)}
        parquet.write_table(arrow.table({"label": LABELS, **columns, "site": SITE}), path)
    else:
        from safetensors.numpy import save_file

        save_file({"logits": LOGITS, "labels": LABELS, "site": (SITE == "north") * 1}, path)


@pytest.mark.parametrize("extension", ["npz", "csv", "parquet", "safetensors"])
def test_a_column_is_read_row_by_row(tmp_path, extension):
    path = tmp_path / f"p.{extension}"
    write(path)
    expected = (SITE == "north") * 1 if extension == "safetensors" else SITE
    np.testing.assert_array_equal(read_column(path, "site"), expected)


@pytest.mark.parametrize("extension", ["npz", "csv", "parquet", "safetensors"])
def test_a_missing_column_is_named(tmp_path, extension):
    path = tmp_path / f"p.{extension}"
    write(path)
    with pytest.raises(cb.PredictionsError, match="there is no column 'ward'"):
        read_column(path, "ward")


def test_the_command_line_measures_by_a_column(tmp_path, capsys, monkeypatch):
    path = tmp_path / "p.npz"
    write(path)
    arguments = ["calibrant", "measure", str(path), "--by", "site", "--resamples", "50"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    printed = capsys.readouterr().out
    assert "north" in printed
    assert "south" in printed


def test_a_format_without_columns_is_refused(tmp_path):
    with pytest.raises(cb.PredictionsError, match="can be read from"):
        read_column(tmp_path / "logits.npy", "site")
