"""Any file of predictions, opened to be read a batch of rows at a time; by extension."""

from __future__ import annotations

from calibrant.core.errors import PredictionsError
from calibrant.files.hugging_face import HuggingFaceRows, is_data_set
from calibrant.files.json_rows import JsonLinesRows
from calibrant.files.keys import OF_THE_NETWORK, Keys, readable
from calibrant.files.opening import extension_of, is_folder, is_url
from calibrant.files.row_files import (
    Hdf5Rows,
    NpyRows,
    NpzRows,
    RowFile,
    SafetensorsRows,
    TorchRows,
)
from calibrant.files.table_rows import ArrowRows, CsvRows, ParquetRows

ROW_FILES: dict[str, type[RowFile]] = {
    ".npz": NpzRows,
    ".npy": NpyRows,
    ".safetensors": SafetensorsRows,
    ".h5": Hdf5Rows,
    ".hdf5": Hdf5Rows,
    ".parquet": ParquetRows,
    ".arrow": ArrowRows,
    ".feather": ArrowRows,
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".pt": TorchRows,
    ".pth": TorchRows,
    ".jsonl": JsonLinesRows,
    ".ndjson": JsonLinesRows,
}
EXTENSIONS = tuple(ROW_FILES)


def open_rows(where: str, labels: str | None = None) -> RowFile:
    """Open a file of predictions, a folder of ``.npy`` arrays or a URL.

    Raises:
        PredictionsError: another format, no such file, or none that can be understood.
        MissingDependencyError: the format, or the URL, needs an optional package.
    """
    if not is_url(where) and is_data_set(where):
        return HuggingFaceRows(where)
    extension = ".npy" if is_folder(where) else extension_of(where)
    if extension not in ROW_FILES:
        found = f"the extension '{extension}'" if extension else "a name without extension"
        raise PredictionsError(f"{where}: {found} is unknown; expected {', '.join(ROW_FILES)}")
    if labels is not None and extension != ".npy":
        raise PredictionsError(f"{where}: a separate file of labels goes with .npy scores only")
    with readable("the file", where):
        return ROW_FILES[extension](where, labels)


def of_rows(keys: Keys) -> tuple[str, ...]:
    """Return the keys of a file that hold something for each row."""
    return tuple(key for key in keys.used if key not in OF_THE_NETWORK)
