"""The verb `head`: retrain a classifier head on the features in files of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import Json, Resamples, Seed, Settings, read
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.core.arguments import parse_settings
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.training.second_stages.stage import SecondStage


def head(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run of `calibrant train`, or one with train.npz, val.npz and "
            "test.npz; instead of --train, --validation and --test.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="maccal, retrain, tst, v-tst or balcal.")] = "maccal",
    train: Annotated[
        Path | None,
        typer.Option(help="Rows that the network was trained on.", show_default=False),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Rows to measure on.", show_default=False)
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Held-out rows to choose kappa or the epoch on, and to fit the temperature that "
            "the new head is compared with.",
            show_default=False,
        ),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(
            help="MaC-Cal's factor on training accuracy; chosen on held-out rows if not given.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 40,
    settings: Settings = None,
    seed: Seed = 0,
    resamples: Resamples = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Training images of a run, if no longer where it found them.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the head here (.safetensors).", show_default=False),
    ] = None,
    json: Json = None,
) -> None:
    """Train a new classifier head on frozen features, and measure it beside the old one.

    MaC-Cal's head is linear; --set bottleneck=true gives it the two layers of its paper.
    """
    from calibrant.training.second_stages.heads import FORMAT
    from calibrant.training.second_stages.outcome import run_second_stage

    check_outputs([], [out, json])  # the files of a run may have to be made first
    stage = _stage(method, settings or [], seed=seed, epochs=epochs, kappa=kappa)
    train_file, validation_file, test_file = _files(run, train, validation, test, data)
    check_outputs([train_file, validation_file, test_file], [out, json])
    if out is not None:
        FORMAT.check_extension(out)
    train_rows, test_rows = read(train_file), read(test_file)
    validation_rows = None if validation_file is None else read(validation_file)
    with progress(stage.epochs, f"training {method}") as step:
        outcome = run_second_stage(
            stage,
            train_rows,
            test_rows,
            validation_rows,
            resamples=resamples,
            seed=seed,
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
    emit(text, document, json)


def _files(
    run: Path | None,
    train: Path | None,
    validation: Path | None,
    test: Path | None,
    data: Path | None,
) -> tuple[Path, Path | None, Path]:
    """Return the files of training, validation and test rows."""
    if run is None:
        if train is None or test is None:
            raise InputError("give --train FILE and --test FILE, or the folder of a run")
        return train, validation, test
    if train or validation or test:
        raise InputError(
            "give either the folder of a run or --train, --validation and --test, not both"
        )
    from calibrant.training.second_stages.outcome import files_of_run

    return files_of_run(run, data)


def _stage(
    method: str, settings: list[str], *, seed: int, epochs: int, kappa: float | None
) -> SecondStage:
    from calibrant.training.second_stages.registry import make_second_stage

    arguments: dict[str, Any] = {"seed": seed, "epochs": epochs} | parse_settings(settings)
    if kappa is not None:
        arguments["kappa"] = kappa
    return make_second_stage(method, **arguments)
