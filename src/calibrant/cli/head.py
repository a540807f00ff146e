"""The command `head`: retrain a classifier head on the features in files of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.help import OUTPUT, READING
from calibrant.cli.options import RESAMPLES, OutputOptions, option
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.core.arguments import parse_settings
from calibrant.core.errors import InputError
from calibrant.files import ReadOptions, read_predictions


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """The method, its arguments and the rows."""

    method: str = option("maccal", "maccal, retrain, tst, v-tst or balcal.", metavar="NAME")
    kappa: float | None = option(
        None, "MaC-Cal's factor on training accuracy; chosen on held-out rows if not given."
    )
    epochs: int = option(40, "Passes over the training rows.")
    settings: list[str] = option(
        [], "Argument of the method; may be repeated.", "--set", metavar="KEY=VALUE"
    )
    train: Path | None = option(
        None, "Rows that the network was trained on.", metavar="FILE", panel=READING
    )
    validation: Path | None = option(
        None,
        "Held-out rows to choose kappa or the epoch, and to fit the temperature that the new head "
        "is compared with.",
        metavar="FILE",
        panel=READING,
    )
    test: Path | None = option(None, "Rows to measure on.", metavar="FILE", panel=READING)
    data: Path | None = option(None, "Training images of a run, if they were moved.", panel=READING)
    resamples: int | None = option(None, RESAMPLES)
    seed: int = option(0, "Seed of all random draws.")


@dataclass(frozen=True, kw_only=True)
class SavedHeadOptions(OutputOptions):
    """Where the head is saved."""

    out: Path | None = option(None, "Save the head here (.safetensors).", panel=OUTPUT)


def head(
    options: HeadOptions,
    output: SavedHeadOptions,
    read: ReadOptions,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run of `calibrant train`, or one with train.npz, val.npz and "
            "test.npz; instead of --train, --validation and --test.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a new classifier head on frozen features, and measure it beside the old one.

    MaC-Cal's head is linear; --set bottleneck=true gives it the two layers of its paper.
    """
    from calibrant.training.second_stages.heads import FORMAT
    from calibrant.training.second_stages.outcome import run_second_stage
    from calibrant.training.second_stages.registry import make_second_stage

    out = output.out
    check_outputs([], [out, output.json])  # the files of a run may have to be made first
    arguments: dict[str, Any] = {"seed": options.seed, "epochs": options.epochs}
    arguments |= parse_settings(options.settings)
    if options.kappa is not None:
        arguments["kappa"] = options.kappa
    stage = make_second_stage(options.method, **arguments)
    train_file, validation_file, test_file = _files(run, options)
    check_outputs([train_file, validation_file, test_file], [out, output.json])
    if out is not None:
        FORMAT.check_extension(out)
    train_rows, test_rows = (read_predictions(file, read) for file in (train_file, test_file))
    validation_rows = None if validation_file is None else read_predictions(validation_file, read)
    with progress(stage.epochs, f"training {options.method}") as step:
        outcome = run_second_stage(
            stage,
            train_rows,
            test_rows,
            validation_rows,
            resamples=options.resamples,
            seed=options.seed,
            progress=step,
        )
    document: dict[str, Any] = {
        "train": str(train_file),
        "validation": None if validation_file is None else str(validation_file),
        "test": str(test_file),
        **outcome.as_dict(),
        "out": None if out is None else str(out),
    }
    text = str(outcome)
    if out is not None:
        stage.save(out)
        text += f"\n\nsaved to {out}"
    emit(text, document, output.json)


def _files(run: Path | None, options: HeadOptions) -> tuple[Path, Path | None, Path]:
    """Return the files of training, validation and test rows."""
    train, validation, test = options.train, options.validation, options.test
    if run is None:
        if train is None or test is None:
            raise InputError("give --train FILE and --test FILE, or the folder of a run")
        return train, validation, test
    if train or validation or test:
        raise InputError(
            "give either the folder of a run or --train, --validation and --test, not both"
        )
    from calibrant.training.second_stages.outcome import files_of_run

    return files_of_run(run, options.data)
