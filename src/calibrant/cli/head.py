"""The verb `head`: retrain a classifier head on the features in files of predictions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.options import Json, Resamples, Seed, Settings
from calibrant.cli.output import check_outputs, emit, progress
from calibrant.core.errors import InputError
from calibrant.core.settings import parse_literals
from calibrant.predictions.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.evaluation.evaluate import Evaluation
    from calibrant.training.heads.one_temperature import BesideTemperature
    from calibrant.training.heads.stage import SecondStage


def head(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run of `calibrant train`, or one with train.npz, val.npz and "
            "test.npz; instead of --train, --val and --test.",
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
    val: Annotated[
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
    from calibrant.evaluation.evaluate import evaluate
    from calibrant.training.heads.one_temperature import beside_temperature

    stage = _stage(method, settings or [], seed=seed, epochs=epochs, kappa=kappa)
    train_file, val_file, test_file = _files(run, train, val, test, data)
    check_outputs([train_file, val_file, test_file], [out, json])
    fit_rows, test_rows = _with_features(train_file), _with_features(test_file)
    held_out = None if val_file is None else _with_features(val_file)
    _check_same_classes(fit_rows, held_out, test_rows)
    started = time.perf_counter()
    _fit(stage, fit_rows, held_out)
    seconds = time.perf_counter() - started
    after = Predictions.from_logits(
        stage.logits(test_rows.features), test_rows.labels, source=f"{method} on {test_file}"
    )
    baseline = evaluate(test_rows, resamples=resamples, seed=seed)
    result = evaluate(after, resamples=resamples, seed=seed)
    beside = None
    if held_out is not None:
        beside = beside_temperature(held_out, test_rows, after, resamples=resamples, seed=seed)
    if out is not None:
        stage.save(out)
    document: dict[str, Any] = {
        "method": method,
        "arguments": stage.get_params(),
        "train": str(train_file),
        "val": None if val_file is None else str(val_file),
        "test": str(test_file),
        "baseline": baseline.as_dict(),
        "metrics": result.as_dict()["metrics"],
        "one_temperature": None if beside is None else beside.as_dict(),
        "kappa": None,
        **stage.summary(),
        "seconds": seconds,
        "notes": stage.notes_,
        "history": [record.as_dict() for record in stage.history_],
        "out": None if out is None else str(out),
    }
    emit(_describe(stage, baseline, result, beside, seconds, out), document, json)


def _files(
    run: Path | None, train: Path | None, val: Path | None, test: Path | None, data: Path | None
) -> tuple[Path, Path | None, Path]:
    """Return the files of training, validation and test rows."""
    if run is None:
        if train is None or test is None:
            raise InputError("give --train FILE and --test FILE, or the folder of a run")
        return train, val, test
    if train or val or test:
        raise InputError("give either the folder of a run or --train, --val and --test, not both")
    from calibrant.training.heads.runs import files_of_run

    return files_of_run(run, data)


def _stage(
    method: str, settings: list[str], *, seed: int, epochs: int, kappa: float | None
) -> SecondStage:
    from calibrant.training.heads.registry import make_head

    arguments: dict[str, Any] = {"seed": seed, "epochs": epochs} | parse_literals(settings)
    if kappa is not None:
        arguments["kappa"] = kappa
    return make_head(method, **arguments)


def _with_features(file: Path) -> Predictions:
    from calibrant.files import read_predictions

    rows = read_predictions(file)
    if rows.features is None:
        raise InputError(
            f"{file}: there is no 'features', which a second stage learns from; save the network's "
            "penultimate layer, (N, D), beside the logits"
        )
    return rows


def _check_same_classes(train: Predictions, val: Predictions | None, test: Predictions) -> None:
    for rows in (val, test):
        if rows is None:
            continue
        if rows.classes != train.classes:
            raise InputError(
                f"{rows.source}: has {rows.classes} classes, but {train.source} {train.classes}"
            )
        assert rows.features is not None
        assert train.features is not None
        width, expected = rows.features.shape[1], train.features.shape[1]
        if width != expected:
            raise InputError(f"{rows.source}: has {width} features, but {train.source} {expected}")


def _fit(stage: SecondStage, train: Predictions, val: Predictions | None) -> None:
    with progress(stage.epochs, f"training {stage.method}") as step:
        stage.fit(
            train.features,
            train.labels,
            None if val is None else (val.features, val.labels),
            classes=train.classes,
            reference_logits=None if val is None else val.logits,
            progress=step,
        )


def _describe(
    stage: SecondStage,
    baseline: Evaluation,
    result: Evaluation,
    beside: BesideTemperature | None,
    seconds: float,
    out: Path | None,
) -> str:
    from calibrant.core.text import format_table, wrap
    from calibrant.evaluation.evaluate import show

    rows = [
        [after.metric.title, show(after.metric, before.value), show(after.metric, after.value)]
        for before, after in zip(baseline.results.values(), result.results.values(), strict=True)
    ]
    summary = stage.summary()
    chosen = None
    if "kappa" in summary:
        plain = "the plainly retrained head"
        chosen = plain if summary["plain_chosen"] else f"kappa {summary['kappa']:.3g}"
    parts = [
        format_table(["metric", "network's head", stage.method], rows),
        f"{stage.epochs} epochs in {seconds:.1f} s" + ("" if chosen is None else f", {chosen}"),
        wrap(result.headline()),
        wrap(
            "Without held-out rows (--val) nothing says what one temperature on the network's head "
            "would have done."
            if beside is None
            else str(beside)
        ),
        "" if out is None else f"saved to {out}",
    ]
    return "\n\n".join(part for part in parts if part)
