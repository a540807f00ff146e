"""Sample predictions that ship with the package: a small network on CIFAR-10, overconfident."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Literal

from calibrant.files import read_predictions
from calibrant.predictions.predictions import Predictions

# CIFAR-10's classes, in the order of their numbers.
CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def load_sample(part: Literal["validation", "test"]) -> Predictions:
    """Return logits, features, last layer and labels of 5 000 validation or 10 000 test rows.

    Classes are numbers; `CLASS_NAMES` has their names. `sample_data/README.md` says how the rows
    were made.

    Examples:
        >>> import calibrant as cb
        >>> test = cb.load_sample("test")
        >>> test
        <Predictions 'sample test': 10000 rows x 10 classes, logits>
        >>> from calibrant.metrics import accuracy
        >>> f"says {test.probs.max(1).mean():.2f}, is {accuracy(test.probs, test.labels):.2f}"
        'says 0.90, is 0.84'
    """
    name = f"{part}.npz"
    with as_file(files("calibrant").joinpath("sample_data", name)) as path:
        return read_predictions(path, name=f"sample {part}")
