"""The served file under onnxruntime: rows in, what is said of them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

# No feature and no pixel comes near; beyond it the network's own sums overflow some time.
LARGEST = 1e6


class Unusable(ValueError):
    """Input that no row can be made of; the message is one sentence."""


class Model:
    """A network and its calibrator in one file, and from which confidence they answer.

    Attributes:
        said: the metadata of the file. names: of the classes. threshold: of answers.
        width: numbers that a row takes.
    """

    def __init__(self, path: Path, threads: int = 1, most_rows: int = 1024) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.said: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.names: list[str] = json.loads(self.said["class_names"])
        self.threshold = float(self.said.get("threshold", 0.0))
        self.most_rows = most_rows
        (given,) = self._session.get_inputs()
        self._input, self.width = given.name, int(given.shape[1])
        self.outputs = [one.name for one in self._session.get_outputs()]

    def rows(self, inputs: Any) -> np.ndarray:
        """Return (n, D) rows of one list of numbers, or of a list of them.

        Raises:
            Unusable: with a sentence that says which row, and what was expected.
        """
        wanted = f"{self.width} numbers"
        if not isinstance(inputs, list) or not inputs:
            raise Unusable(f"inputs must be a row of {wanted}, or a list of such rows")
        rows = inputs if isinstance(inputs[0], list) else [inputs]
        if len(rows) > self.most_rows:
            raise Unusable(
                f"inputs hold {len(rows)} rows, and one request may hold {self.most_rows}"
            )
        for place, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != self.width:
                found = f"{len(row)} numbers" if isinstance(row, list) else "no list"
                raise Unusable(f"row {place} of inputs has {found}, but the network takes {wanted}")
            if not all(type(number) in (int, float) for number in row):
                raise Unusable(f"row {place} of inputs holds something other than numbers")
        try:
            with np.errstate(over="ignore"):
                found = np.array(rows, dtype=np.float64).astype(np.float32)
        except OverflowError as error:  # whole numbers of hundreds of digits
            raise Unusable("inputs hold a number that is too large") from error
        bad = ~np.isfinite(found).all(axis=1)
        if bad.any():
            raise Unusable(f"row {int(bad.argmax())} of inputs holds NaN or infinity")
        large = (np.abs(found) > LARGEST).any(axis=1)
        if large.any():
            raise Unusable(f"row {int(large.argmax())} of inputs holds a number above {LARGEST:g}")
        return found

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs of the file by name.

        Raises:
            Unusable: numbers so large that the network's own overflow.
        """
        found = dict(zip(self.outputs, self._session.run(None, {self._input: rows}), strict=True))
        bad = ~np.isfinite(found["confidence"])
        if bad.any():
            raise Unusable(
                f"row {int(bad.argmax())} of inputs is too large for the network, which gives no "
                "number for it"
            )
        return found
