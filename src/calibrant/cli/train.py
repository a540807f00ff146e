"""`calibrant train`: a network from images to predictions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.options import Json
from calibrant.cli.output import as_json, check_outputs, emit, progress, write_text
from calibrant.core.arguments import parse_settings
from calibrant.core.errors import MissingDependencyError

_OF_PROTOCOL = "Default: that of the protocol."


def train(
    data: Annotated[Path, typer.Option(help="Folder or archive of images; see docs/training.md.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    net: Annotated[str, typer.Option(help="The network.")] = "resnet8",
    loss: Annotated[str, typer.Option(help="The loss.")] = "cross-entropy",
    loss_arguments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Argument of the loss; may be repeated."),
    ] = None,
    loss_settings_for: Annotated[
        str | None,
        typer.Option(help="Begin with the loss's published settings for this data set."),
    ] = None,
    mixing: Annotated[
        str, typer.Option(help="Mix inputs: none, mixup, regmixup, mit or mit-a.")
    ] = "none",
    mixing_arguments: Annotated[
        list[str] | None,
        typer.Option("--mix-set", metavar="KEY=VALUE", help="Argument of the mixing, as alpha."),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="mukhoti, mukhoti-tiny, acls, acls-tiny, plp or quick; with +plp behind it, "
            "layers are frozen from the top."
        ),
    ] = "quick",
    epochs: Annotated[int | None, typer.Option(help=_OF_PROTOCOL, show_default=False)] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help=f"Images a step, over all devices. {_OF_PROTOCOL}", show_default=False),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help=f"Peak learning rate. {_OF_PROTOCOL}", show_default=False),
    ] = None,
    plain_share: Annotated[
        float | None,
        typer.Option(
            help="Share of the epochs, at the end, without augmentation; the network grows "
            f"overconfident in them. {_OF_PROTOCOL}",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed, the same run.")] = 0,
    n_classes: Annotated[
        int | None,
        typer.Option(help="How many classes, if the data don't say.", show_default=False),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Stretch the images of folders to this height and width.", show_default=False
        ),
    ] = None,
    training_rows: Annotated[
        int | None,
        typer.Option(
            help="Train on so many images, drawn at random by the seed. Default: all that aren't "
            "held out.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[int, typer.Option(help="Devices to share each batch between.")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="32; bf16 or 16 for mixed precision in training.")
    ] = "32",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Steps between checkpoints within an epoch.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the folder.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for decoded images, for the next run. Default: image-cache beside --out.",
            show_default=False,
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Train a network, and write its predictions for validation and test images to a folder."""
    check_outputs([data], [json], made=out)
    run = _run_functions()
    from calibrant.training.run.folder import is_first_process

    chosen = run.RunSettings(
        data=str(data),
        net=net,
        loss=loss,
        loss_arguments=parse_settings(loss_arguments or []),
        loss_settings_for=loss_settings_for,
        mixing=mixing,
        mixing_arguments=parse_settings(mixing_arguments or []),
        protocol=protocol,
        epochs=epochs,
        batch_size=batch_size,
        rate=rate,
        plain_share=plain_share,
        seed=seed,
        n_classes=n_classes,
        image_size=image_size,
        precision=precision,
        training_rows=training_rows,
    )
    # One process draws the bar; those of other devices share its terminal.
    with progress(None, "training", remaining=True, shown=is_first_process()) as say:
        say("\nreading and decoding the images")
        trained = run.train(
            chosen,
            out,
            resume=resume,
            devices=devices,
            accelerator=accelerator,
            checkpoint_every=checkpoint_every,
            cache=out.resolve().parent / "image-cache" if cache is None else cache,
            observers=(run.Announcer(chosen.total_epochs, say),),
        )
    if trained is None:
        # A process of another device, whose work is done. Threads of its process group may outlive
        # what they stand on while the interpreter ends, and abort with a message.
        sys.stderr.flush()
        os._exit(0)
    outcome = run.evaluate_run(chosen, trained)
    document = outcome.as_dict()
    write_text(trained.folder / "evaluation.json", as_json(document) + "\n")
    emit(str(outcome), document, json)


def _run_functions() -> Any:
    """Import what trains; torch and Lightning take seconds to load and may be missing."""
    try:
        from calibrant.training import run
    except ImportError as error:
        if isinstance(error, MissingDependencyError) or error.name not in ("torch", "lightning"):
            raise
        raise MissingDependencyError(
            f"training needs {error.name}: pip install 'calibrant[train]'"
        ) from error
    return run
