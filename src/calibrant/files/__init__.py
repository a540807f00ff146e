"""Read and write files of predictions, in the format that the extension names.

`calibrant.files.formats` lists the formats. `predictions` beside `label_ids`, as the Trainer of
Hugging Face names them, are logits and labels; other names are said by `ReadOptions`. Columns of
scores may be lists, or be named after the classes (``prob_cat``). `label`, `labels` and
`true_label` mean the same everywhere, and so do `pred_label` and `predicted`. An optional `weight`
(N,) says how much each row counts; of tokens and many labels it may be of the shape of their
labels. `class_names` and `label_names` are text, in a safetensors file JSON in its header. Keys and
columns with other names are ignored.
"""

from calibrant.core.outputs import StrPath, replacing
from calibrant.files.columns import read_column
from calibrant.files.options import ReadFields, ReadOptions
from calibrant.files.reading import read_predictions
from calibrant.files.rewriting import write_predictions

__all__ = [
    "ReadFields",
    "ReadOptions",
    "StrPath",
    "read_column",
    "read_predictions",
    "replacing",
    "write_predictions",
]
