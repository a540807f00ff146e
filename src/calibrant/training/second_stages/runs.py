"""Second stages on the folder that `calibrant train` leaves."""

from __future__ import annotations

from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.training.run.folder import CONFIG

TRAIN, VALIDATION, TEST = "train.npz", "val.npz", "test.npz"


def files_of_run(folder: Path, data: Path | None = None) -> tuple[Path, Path | None, Path]:
    """Return the predictions of a run on its training, validation and test images.

    A run does not keep those on its training images. Where train.npz is missing, the network is run
    over them once, without augmentation, and the file is written into the folder.

    Args:
        folder: of a finished run, or any that holds the three files.
        data: where the images are, if no longer where the run found them.

    Raises:
        InputError: the folder or what is needed in it is missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    test = folder / TEST
    if not test.is_file():
        raise InputError(f"{folder}: holds no {TEST}; the run isn't finished")
    train = folder / TRAIN
    if not train.is_file():
        if not (folder / CONFIG).is_file():
            raise InputError(
                f"{folder}: holds no {TRAIN}, the network's predictions with features on its "
                "training rows"
            )
        write_training_predictions(folder, train, data)
    validation = folder / VALIDATION
    return train, validation if validation.is_file() else None, test


def write_training_predictions(folder: Path, file: Path, data: Path | None = None) -> None:
    """Run the network of a run over its own training images and write what it says of them."""
    from calibrant.training.data import read_data_set
    from calibrant.training.run.folder import write_outputs
    from calibrant.training.run.images import held_out
    from calibrant.training.run.outputs import predict
    from calibrant.training.run.settings import RunSettings
    from calibrant.training.run.trained import load_network

    settings = RunSettings.read(folder / CONFIG)
    network, normalise = load_network(folder)
    for name, value in network.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{folder}: '{name}' of the network holds NaN or infinity")
    images = read_data_set(
        settings.data if data is None else data,
        n_classes=settings.n_classes,
        size=settings.stretched,
        cache=folder.resolve().parent / "image-cache",
    )
    training, _ = held_out(images, settings)
    write_outputs(file, predict(network, training, normalise), network)
