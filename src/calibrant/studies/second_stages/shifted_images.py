"""Images that a network was not trained for, and what it says of them, for the study of heads.

Corrupted test images (Fig. 5 of the MaC-Cal paper) and images of nothing (its Table 2). For the
latter the paper takes other photographs; here test images lose what makes them recognisable.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.studies.networks.images import shuffled

if TYPE_CHECKING:
    from calibrant.training.data.images import ImageSet

IMAGES = 1000
SEVERITIES = (1, 3, 5)
TILE = 8


class Shifted(NamedTuple):
    """What a network says of shifted images; `severity` is None where they show nothing."""

    kind: str
    severity: int | None
    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    labels: NDArray[np.int64]


def shifted(folder: Path) -> list[Shifted]:
    """Return a run's predictions on all shifted images; none where the folder is no run."""
    from calibrant.training.run import RunSettings, load_network
    from calibrant.training.run.folder import CONFIG
    from calibrant.training.run.outputs import predict

    if not (folder / CONFIG).is_file():
        return []
    network, normalise = load_network(folder)
    settings = RunSettings.read(folder / CONFIG)
    found: list[Shifted] = []
    for kind, severity, images in shifted_images(str(settings.data), str(folder.resolve().parent)):
        said = predict(network, images, normalise)
        arrays = (said.logits.numpy(), said.features.numpy(), said.labels.numpy())
        found.append(Shifted(kind, severity, *arrays))
    return found


@cache
def shifted_images(data: str, place: str) -> list[tuple[str, int | None, ImageSet]]:
    """Return the shifted images of a data set with kind and severity, the same for all runs."""
    import torch

    from calibrant.training.data.corruptions import CORRUPTIONS, corrupt
    from calibrant.training.data.dataset import read_data_set
    from calibrant.training.data.images import ImageSet

    everything = read_data_set(data, n_classes=None, cache=Path(place) / "image-cache").test
    index = torch.arange(min(IMAGES, len(everything)))
    test = ImageSet(everything.batch(index), everything.labels[index])
    images: list[tuple[str, int | None, ImageSet]] = [
        (kind, severity, corrupt(test, kind, severity))
        for kind in CORRUPTIONS
        for severity in SEVERITIES
    ]
    return images + [(kind, None, changed) for kind, changed in meaningless(test)]


def meaningless(images: ImageSet) -> Iterator[tuple[str, ImageSet]]:
    """Yield images without an object: with tiles, or all pixels, in an order of their own."""
    rng = np.random.default_rng(0)
    for kind, size in (("shuffled tiles", TILE), ("shuffled pixels", 1)):
        yield kind, shuffled(images, size, rng)
