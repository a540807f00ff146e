"""`calibrant train`: a network from images to predictions."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.cli.help import OUTPUT
from calibrant.cli.options import OutputOptions, complete_loss, option
from calibrant.cli.output import as_json, check_outputs, emit, progress, write_text
from calibrant.core.arguments import parse_settings
from calibrant.core.errors import MissingDependencyError

PROTOCOL, IMAGES, DEVICES = "Instead of the protocol's values", "Images", "Devices and storage"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The network, its loss and how long it is trained."""

    data: Path = option(..., "Folder or archive of images with labels.")
    net: str = option(
        "resnet8",
        "The network: a name, or module:function, your own function of the number of classes, "
        "which may return a pretrained network.",
        metavar="NAME",
    )
    loss: str = option("cross-entropy", "The loss.", metavar="NAME", complete=complete_loss)
    loss_arguments: list[str] = option(
        [], "Argument of the loss; may be repeated.", "--set", metavar="KEY=VALUE"
    )
    loss_settings_for: str | None = option(
        None, "Begin with the loss's published settings for this data set.", metavar="DATA"
    )
    mixing: str = option("none", "Mix inputs: none, mixup, regmixup, mit or mit-a.", metavar="NAME")
    mixing_arguments: list[str] = option(
        [], "Argument of the mixing, such as alpha=0.4.", "--mix-set", metavar="KEY=VALUE"
    )
    protocol: str = option(
        "quick",
        "mukhoti, mukhoti-tiny, acls, acls-tiny, plp, quick or adamw (with cosine and warm-up). "
        "Append +ema or +swa to average the weights, +plp to freeze layers from the top.",
        metavar="NAME",
    )
    members: int = option(
        1,
        "Networks to train, each with its own seed; their probabilities are averaged (an "
        "ensemble).",
    )
    seed: int = option(0, "Seed of all random draws.")
    epochs: int | None = option(None, "Passes over the training rows.", panel=PROTOCOL)
    batch_size: int | None = option(None, "Images per step, over all devices.", panel=PROTOCOL)
    rate: float | None = option(None, "Peak learning rate.", panel=PROTOCOL)
    weight_decay: float | None = option(None, "Weight decay.", panel=PROTOCOL)
    plain_share: float | None = option(
        None,
        "Share of the epochs, at the end, without augmentation; the network grows overconfident in "
        "them.",
        panel=PROTOCOL,
    )
    n_classes: int | None = option(
        None, "Number of classes, if the data don't name them.", panel=IMAGES
    )
    image_size: int | None = option(
        None, "Stretch the images of folders to this height and width.", panel=IMAGES
    )
    training_rows: int | None = option(
        None,
        "Train on this many images, drawn at random. Default: all that aren't held out.",
        panel=IMAGES,
    )
    precision: str = option(
        "32", "32; bf16 or 16 for mixed precision in training.", metavar="BITS", panel=DEVICES
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(OutputOptions):
    """Where the run lies, and on which devices it is computed."""

    out: Path = option(..., "Folder of the run.", panel=OUTPUT)
    layer: str | None = option(
        None,
        "Name of the last layer in a network of your own. Default: its last linear layer.",
        metavar="NAME",
    )
    resume: bool = option(False, "Continue the run in the folder.", panel=OUTPUT)
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints within an epoch.", panel=DEVICES
    )
    cache: Path | None = option(
        None,
        "Folder for decoded images, for the next run. Default: image-cache beside --out.",
        panel=DEVICES,
    )
    devices: int = option(1, "Devices to share each batch between.", panel=DEVICES)
    accelerator: str = option("auto", "auto, cpu, cuda or mps.", metavar="NAME", panel=DEVICES)


def train(options: TrainOptions, output: RunOptions) -> None:
    """Train a network on images, and write its predictions to a folder."""
    out, cache = output.out, output.cache
    check_outputs([options.data], [output.json], made=out)
    run = _run_functions()
    from calibrant.training.run.folder import is_first_process

    chosen = run.RunSettings(
        **vars(options)
        | {
            "data": str(options.data),
            "loss_arguments": parse_settings(options.loss_arguments),
            "mixing_arguments": parse_settings(options.mixing_arguments),
        }
    )
    # One process draws the bar; those of other devices share its terminal.
    with progress(None, "training", remaining=True, shown=is_first_process()) as say:
        say("\nreading and decoding the images")
        trained = run.train(
            chosen,
            out,
            resume=output.resume,
            devices=output.devices,
            accelerator=output.accelerator,
            checkpoint_every=output.checkpoint_every,
            layer=output.layer,
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
    emit(str(outcome), document, output.json)


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
