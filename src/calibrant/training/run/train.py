"""One run from its settings to its predictions, and a trained network taken up again."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.core.errors import (
    InputError,
    MissingDependencyError,
    TrainingWarning,
    warn_caller,
)
from calibrant.core.outputs import StrPath
from calibrant.core.text import reason_of
from calibrant.files import write_predictions
from calibrant.predictions.predictions import Predictions
from calibrant.training.data import CIFAR10_STATISTICS, IMAGENET_STATISTICS
from calibrant.training.data.dataset import DataSet, read_data_set
from calibrant.training.data.images import AS_IT_IS, Images, Normalisation
from calibrant.training.losses import LOSSES, CalibrationLoss, make_loss
from calibrant.training.nets import ImageClassifier, TappedNetwork, make_network, own_network
from calibrant.training.run.folder import (
    CONFIG,
    LAST,
    Observer,
    Progress,
    is_first_process,
    open_folder,
    write_history,
)
from calibrant.training.run.loop import Loop
from calibrant.training.run.objective import Objective
from calibrant.training.run.outputs import Outputs, predict_on_all_devices, write_outputs
from calibrant.training.run.rows import Examples, TrainingBatches, held_out, seed_everything
from calibrant.training.run.settings import RunSettings
from calibrant.training.run.trained import Ensemble, Trained, ensemble_of

_FABRIC_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


# Parameters: a run (settings, or data and network in hand), its folder, its machine, who watches.
def train(
    settings: RunSettings,
    out: StrPath,
    *,
    resume: bool = False,
    devices: int = 1,
    accelerator: str = "auto",
    checkpoint_every: int | None = None,
    cache: StrPath | None = None,
    data: DataSet | None = None,
    network: nn.Module | None = None,
    layer: str | None = None,
    observers: Sequence[Observer] = (),
) -> Trained | None:
    """Train a network, and write checkpoints, history and predictions to a folder.

    With the same settings the same machine gives the same weights, bit for bit, also if the run was
    interrupted and resumed from a checkpoint, even in the middle of an epoch.

    Args:
        settings: of the run.
        out: its folder.
        resume: go on from the last checkpoint in the folder, or begin if there is none.
        devices: how many to share each batch between. With more than one, the calling script is
            started again once for each of the others.
        accelerator: "cpu", "cuda", "mps" or "auto".
        checkpoint_every: steps between checkpoints within an epoch. There is one after each epoch.
        cache: folder for decoded images of parquet files.
        data: the data set, if it is already read; `settings.data` is then only its name. For data
            of your own, of any form, use `own_data`; Calibrant doesn't augment them.
        network: a module of your own, trained where it is; `settings.net` is then only its name.
        layer: name of its last layer, as in `predict`.
        observers: told of every step and epoch on the first device.

    Returns:
        The outcome; None on all devices but the first.

    Raises:
        InputError: settings, data or folder can't be used, or the network diverged.
        MissingDependencyError: Lightning isn't there.
    """
    folder = Path(out)
    for name, value in (("devices", devices), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if not isinstance(data, DataSet | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            "data must be what own_data(train_set, test_set, n_classes=K) makes of your sets, not "
            f"{type(data).__name__}"
        )
    if data is None:
        data = read_data_set(
            settings.data, n_classes=settings.n_classes, size=settings.stretched, cache=cache
        )
    if settings.members > 1:
        if network is not None or devices > 1:
            raise InputError(
                "members of an ensemble are made by the name of their network, on one device; give "
                "net='module:function' and devices=1, or train each by itself"
            )
        made = open_folder(folder, settings, resume=resume)
        with _nothing_left(folder, made=made):
            return _ensemble(
                settings,
                folder,
                lambda alone, place: train(
                    alone,
                    place,
                    resume=resume,
                    accelerator=accelerator,
                    checkpoint_every=checkpoint_every,
                    data=data,
                    layer=layer,
                    observers=observers,
                ),
            )
    data.warn_of_empty_classes()
    training, validation = held_out(data, settings)
    batches = _batches(settings, training, devices)
    with _objective(settings, data.n_classes, len(training), network, layer) as objective:
        fabric = _fabric(settings, devices, accelerator)
        if settings.precision == "16" and fabric.device.type == "cpu":
            warn_caller(TrainingWarning("on a CPU precision '16' is that of bfloat16"))
        # A process of another device finds what the first has made.
        made = is_first_process() and open_folder(folder, settings, resume=resume)
        with _nothing_left(folder, made=made), _quiet():
            fabric.launch()
            batches = replace(batches, rank=fabric.global_rank)
            loop = Loop(fabric, settings, objective, batches, validation, folder, checkpoint_every)
            if resume:
                loop.resume()
            if fabric.is_global_zero:
                loop.observers = tuple(observers)
            progress = loop.run()
            if fabric.is_global_zero:
                # A run that died between its last checkpoint and its history has no epoch to go.
                write_history(folder, progress)
            fabric.barrier()
            loop.load_selected()
            return _finish(fabric, loop, data, folder, progress)


def _ensemble(
    settings: RunSettings, folder: Path, train_one: Callable[[RunSettings, Path], Trained | None]
) -> Trained:
    """Train the members, each in a folder of its own, and write what they say together."""
    members: list[Trained] = []
    for number, alone in enumerate(settings.of_members()):
        one = train_one(alone, folder / f"member-{number}")
        assert one is not None  # on one device
        members.append(one)
    said: dict[str, Predictions] = {}
    for name in ("validation", "test"):
        file = folder / {"validation": "val.npz", "test": "test.npz"}[name]
        said[name] = ensemble_of([getattr(each, name) for each in members], str(file))
        write_predictions(said[name], file)
    network = Ensemble([each.network for each in members])
    normalise = members[0].normalise
    return Trained(folder, [], network, normalise, said["validation"], said["test"])


@contextmanager
def _nothing_left(folder: Path, *, made: bool) -> Generator[None]:
    """Let a run that ends before its first checkpoint leave a folder that the next can begin in."""
    try:
        yield
    except BaseException:
        if made and not (folder / LAST).exists():
            (folder / CONFIG).unlink(missing_ok=True)
        raise


def _fabric(settings: RunSettings, devices: int, accelerator: str) -> Any:
    try:
        with _quiet():
            from lightning.fabric import Fabric
            from lightning.fabric.strategies.ddp import DDPStrategy
    except ImportError as error:
        raise MissingDependencyError(
            "training needs Lightning: pip install 'calibrant[train]'"
        ) from error
    # Buffers of a loss are its statistics over all devices; the first's mustn't overwrite them.
    strategy: Any = DDPStrategy(broadcast_buffers=False) if devices > 1 else "auto"
    precision: Any = _FABRIC_PRECISION[settings.precision]
    try:
        with _quiet():
            return Fabric(
                accelerator=accelerator, devices=devices, strategy=strategy, precision=precision
            )
    # Each kind of device says in its own way that it isn't there.
    except Exception as error:
        fault = f"can't train on {devices} x '{accelerator}': {reason_of(error)}"
        raise InputError(fault) from error


@contextmanager
def _objective(
    settings: RunSettings, n_classes: int, samples: int, own: nn.Module | None, layer: str | None
) -> Generator[Objective]:
    """Yield what is trained, and leave nothing on a network of one's own that listens to it."""
    seed_everything(settings.seed)
    with ExitStack() as closing:
        if own is None and ":" in settings.net:
            own = own_network(settings.net, n_classes)
        if own is None:
            network = make_network(settings.net, n_classes)
        else:
            network = TappedNetwork(own, layer, n_classes=n_classes)
            closing.callback(network.close)
            if not any(parameter.requires_grad for parameter in own.parameters()):
                raise InputError(
                    "no parameter of the network can learn: requires_grad is False for all"
                )
        loss = _loss(settings, n_classes, samples)
        arguments = settings.mixing_arguments
        objective = Objective(network, loss, settings.mixing, arguments, samples=samples)
        closing.callback(objective.close)
        yield objective


def _loss(settings: RunSettings, n_classes: int, samples: int) -> CalibrationLoss:
    arguments = dict(settings.loss_arguments)
    known = inspect.signature(LOSSES[settings.loss]).parameters if settings.loss in LOSSES else ()
    if "samples" in known:
        arguments.setdefault("samples", samples)
    return make_loss(settings.loss, n_classes, dataset=settings.loss_settings_for, **arguments)


def _batches(settings: RunSettings, training: Images, devices: int) -> TrainingBatches:
    own = isinstance(training, Examples)
    return TrainingBatches(
        training,
        statistics_for(training),
        settings.images_per_step,
        settings.seed,
        settings.recipe.padding,
        settings.recipe.drop_last,
        world=devices,
        plain_from=0 if own else settings.total_epochs - settings.plain_epochs,
    )


def statistics_for(images: Images) -> Normalisation:
    """Return CIFAR-10's statistics for images of its size, as papers do, and ImageNet's above."""
    if isinstance(images, Examples):
        return AS_IT_IS
    # A few, so that images of several sizes are refused before anything is written.
    side = images.batch(torch.arange(min(16, len(images)))).shape[-1]
    return CIFAR10_STATISTICS if side <= 32 else IMAGENET_STATISTICS


def _finish(
    fabric: Any, loop: Loop, data: DataSet, folder: Path, progress: Progress
) -> Trained | None:
    network, normalise = loop.objective.network, loop.batches.normalise
    outputs: dict[str, Outputs] = {}
    for name, images in (("val", loop.validation), ("test", data.test)):
        outputs[name] = predict_on_all_devices(fabric, network, images, normalise)
    if not fabric.is_global_zero:
        return None
    predictions: dict[str, Predictions] = {}
    for name, output in outputs.items():
        file = folder / f"{name}.npz"
        write_outputs(file, output, network)
        predictions[name] = Predictions.from_logits(
            output.logits.numpy(), output.labels.numpy(), output.features.numpy(), source=str(file)
        )
    found = network.cpu().eval()
    return Trained(
        folder,
        progress.history,
        found if isinstance(found, ImageClassifier) else found.network,
        normalise,
        predictions["val"],
        predictions["test"],
    )


@contextmanager
def _quiet() -> Generator[None]:
    """Keep from the user what Lightning and its kin have to say about themselves."""
    logs = [logging.getLogger(f"lightning.{part}") for part in ("fabric", "pytorch")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            yield
        finally:
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)
