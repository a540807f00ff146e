"""A network on images whose corruption gets worse: when does the monitor notice?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.errors import InputError
from calibrant.evaluation.numbers import percent
from calibrant.files import read_predictions
from calibrant.monitor.monitor import Monitor
from calibrant.posthoc.registry import make_calibrator
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_top

CLEAN, EACH = 4_000, 1_200
SEVERITIES = (1, 2, 3, 4, 5)
HEAD = ["corruption", *(f"gap {s}" for s in SEVERITIES), "level", "change", "since (interval)"]


def corrupted_streams(folder: Path, method: str, seed: int = 0) -> list[list[str]]:
    """Return a table row for each corruption: the gap at each severity, and the alarms.

    Each stream has `CLEAN` test images and then `EACH` at each severity, no image twice.

    Args:
        folder: of a training run.
        method: the calibrator, fitted on the run's validation rows.
        seed: of the order of the images.
    """
    import torch

    from calibrant.training.data.corruptions import CORRUPTIONS, corrupt
    from calibrant.training.data.dataset import read_data_set
    from calibrant.training.data.images import ImageSet
    from calibrant.training.run import RunSettings, load_network
    from calibrant.training.run.folder import CONFIG
    from calibrant.training.run.outputs import predict

    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: is no folder of a training run")
    network, normalise = load_network(folder)
    data = str(RunSettings.read(folder / CONFIG).data)
    cache = folder.resolve().parent / "image-cache"
    test = read_data_set(data, n_classes=None, cache=cache).test
    calibrator = make_calibrator(method).fit_predictions(read_predictions(folder / "val.npz"))
    order = np.random.default_rng(seed).permutation(len(test))
    if len(order) < CLEAN + EACH * len(SEVERITIES):
        raise InputError(f"{folder}: its test set has too few images for this study")

    def said(images: ImageSet) -> tuple[FloatArray, BoolArray]:
        outputs = predict(network, images, normalise)
        rows = Predictions.from_logits(outputs.logits.numpy(), outputs.labels.numpy())
        top = score_top(calibrator.apply_predictions(rows))
        return top.confidence, top.correct

    def part(start: int, size: int) -> ImageSet:
        index = torch.as_tensor(order[start : start + size])
        return ImageSet(test.batch(index), test.labels[index])

    table: list[list[str]] = []
    clean = said(part(0, CLEAN))
    for kind in [None, *CORRUPTIONS]:
        parts = [clean]
        for k, severity in enumerate(SEVERITIES):
            images = part(CLEAN + k * EACH, EACH)
            parts.append(said(images if kind is None else corrupt(images, kind, severity)))
        gaps = [percent(float(p.mean() - y.mean())) for p, y in parts[1:]]
        confidence, correct = (np.concatenate(column) for column in zip(*parts, strict=True))
        table.append([kind or "none", *gaps, *_alarms(confidence, correct)])
    return table


def _alarms(confidence: FloatArray, correct: BoolArray) -> list[str]:
    monitor = Monitor()
    monitor.update(confidence, correct)
    level, change = monitor.alarms.get("level"), monitor.alarms.get("change")
    since = "" if change is None else f"{change.since.row} ({change.since.low}-{change.since.high})"
    return ["" if alarm is None else str(alarm.row) for alarm in (level, change)] + [since]
