"""Arguments and options that several commands have, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from calibrant.cli.completion import complete_method, complete_metrics
from calibrant.cli.telling import told
from calibrant.core.errors import InputError
from calibrant.files.options import ReadOptions, RowKind
from calibrant.predictions.predictions import Predictions

File = Annotated[
    Path,
    typer.Argument(
        help="Predictions: npz, npy, csv, tsv, parquet, jsonl, safetensors, pt, h5, arrow."
    ),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Predictions: npz, npy, csv, parquet, arrow, safetensors, h5, pt. Several files, "
        "folders, globs, manifests and URLs are taken as one set, read in bounded memory.",
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Who works on many files: processes (of this machine) or dask. With it one file is "
        "read in bounded memory as well.",
        show_default=False,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Address of a running Dask scheduler.", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes, or Dask workers; without it one to a core.", show_default=False),
]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out files that can't be read, and say so.")
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH",
        help="Write JSON here; - for stdout, and then nothing else goes there.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="What to read from the file: logits, probs, toplabel, prob or logit (one score a row, "
        "of the positive class), binary (those, or two columns of classes), many-labels or tokens.",
        show_default=False,
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of binary predictions: the label of the positive class, where labels aren't 0 and 1.",
        show_default=False,
    ),
]
ClassAxis = Annotated[
    int, typer.Option(help="Of tokens and pixels: the axis of the classes, 1 for (N, K, H, W).")
]
IgnoreIndex = Annotated[
    int, typer.Option(help="Of tokens and pixels: the label of those that don't count.")
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Labels of .npy scores, if not beside them.", show_default=False),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column that names the cluster of each row (a patient, a document): its rows aren't "
        "independent, and are drawn, split and held out together.",
        show_default=False,
    ),
]
Weight = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column that says how much each row counts, if it isn't called weight.",
        show_default=False,
    ),
]
Metrics = Annotated[
    str,
    typer.Option(
        help="Names separated by commas, or all; empty for the usual ones. `calibrant metrics` "
        "lists them.",
        autocompletion=complete_metrics,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="Name of the method, as `calibrant methods` lists them; auto chooses by "
        "cross-validation.",
        autocompletion=complete_method,
    ),
]
Seed = Annotated[int, typer.Option(help="Of everything random; the same seed, the same result.")]
Resamples = Annotated[
    int | None,
    typer.Option(
        help="Bootstrap resamples behind the intervals; without it 1000, and fewer above "
        "100 000 rows.",
        show_default=False,
    ),
]
Level = Annotated[float, typer.Option(help="Coverage of the intervals, a fraction.")]
Report = Annotated[
    Path | None, typer.Option(help="Write a report page (HTML) here.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Argument of the method; may be repeated."),
]


def read(
    path: Path,
    kind: str | None = None,
    labels: Path | None = None,
    labelled: bool = True,
    cluster: str | None = None,
    positive: str | None = None,
    ignore_index: int = -100,
    weight: str | None = None,
    class_axis: int = -1,
) -> Predictions:
    """Return the predictions in a file."""
    from calibrant.files import read_predictions

    options = reading(
        kind,
        labels=labels,
        cluster=cluster,
        positive=positive,
        ignore_index=ignore_index,
        weight=weight,
        class_axis=class_axis,
        **told(),
    )
    return read_predictions(path, options, labelled=labelled)


def reading(
    kind: str | None,
    logits_key: str | None = None,
    probs_key: str | None = None,
    labels_key: str | None = None,
    class_columns: Sequence[str] = (),
    **fields: Any,
) -> ReadOptions:
    """Return how a file is read, from what options of the command line say."""
    if logits_key is not None and probs_key is not None:
        raise InputError(
            f"--logits-key and --probs-key name the scores twice, '{logits_key}' and '{probs_key}'"
        )
    are = {"toplabel": "confidence"}.get(str(kind), kind)
    if kind in get_args(RowKind):
        are = None
    else:
        kind = None
    for said, name in (("logits", logits_key), ("probs", probs_key)):
        if name is not None:
            are, fields["scores"] = said, name
    if labels_key is not None:
        fields["labels"] = labels_key
    return ReadOptions(
        are=are,  # type: ignore[arg-type]
        kind=kind,  # type: ignore[arg-type]
        classes=class_columns,
        **fields,
    )
