"""A network on images whose corruption gets worse: when does the monitor notice?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from calibrant.core.arguments import unknown
from calibrant.core.arrays import BoolArray, FloatArray
from calibrant.core.errors import InputError
from calibrant.monitor.monitor import Monitor
from calibrant.predictions.scoring import score_top
from calibrant_studies.cells import Cell
from calibrant_studies.inputs import Inputs
from calibrant_studies.kinds.base import RESAMPLED, Measure
from calibrant_studies.measuring import mean_with_interval
from calibrant_studies.networks.cells import NetworkKind
from calibrant_studies.networks.plans import NONE
from calibrant_studies.networks.trained import Network

SEVERITIES = (1, 2, 3, 4, 5)
_GAPS = {
    f"gap-{s}": Measure(f"gap-{s}", f"gap {s}", 100, 1, "neither", "confidence less accuracy")
    for s in SEVERITIES
}
_ROWS = {
    "level": Measure("level", "level alarm", 1, 0, "neither", "row of the alarm"),
    "change": Measure("change", "change alarm", 1, 0, "neither", "row of the alarm"),
    "since": Measure("since", "off since", 1, 0, "neither", "row; the monitor's own interval"),
}


class AlarmsOnImages(NetworkKind):
    """Let a monitor watch clean test images, then each severity of one corruption, none twice."""

    version: ClassVar[str] = "1"
    unread: ClassVar[tuple[str, ...]] = RESAMPLED
    axes: ClassVar[tuple[str, ...]] = ("input", "network", "method", "corruption")
    defaults: ClassVar[Mapping[str, Any]] = {
        **NetworkKind.defaults,
        "clean": 4000,  # images
        "each": 1200,  # images of each severity
        "order": 0,  # seed of the order of the images
    }

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Gaps by severity, and the rows of alarms."""
        return {**_GAPS, **_ROWS}

    def measuring(self, cell: Cell) -> dict[str, Any]:
        """Return corruption and stream."""
        sizes = {name: self.setting(cell, name) for name in ("clean", "each", "order")}
        return {"corruption": cell.at["corruption"], **sizes}

    def measure(self, cell: Cell, network: Network, inputs: Inputs) -> dict[str, Any]:
        """Return gaps with normal intervals, and what the monitor says."""
        import torch

        from calibrant_studies.corruptions import CORRUPTIONS, corrupt

        corruption = cell.at["corruption"]
        if corruption not in (NONE, *CORRUPTIONS):
            raise unknown((NONE, *CORRUPTIONS), corruption, "corruption")
        clean, each = self.setting(cell, "clean"), self.setting(cell, "each")
        images = network.test_images()
        order = np.random.default_rng(self.setting(cell, "order")).permutation(len(images))
        if len(order) < clean + each * len(SEVERITIES):
            raise InputError(
                f"{network.plan.name}: has {len(order)} test images, not {clean} clean ones and "
                f"{each} for each of {len(SEVERITIES)} severities; --set clean=, each= fewer"
            )
        speak = network.speaker(network.head())
        parts: list[tuple[FloatArray, BoolArray]] = []
        for severity in (0, *SEVERITIES):
            start = clean + (severity - 1) * each if severity else 0
            chosen = order[start : start + (each if severity else clean)]
            part = images.take(torch.as_tensor(chosen))
            if severity and corruption != NONE:
                part = corrupt(part, corruption, severity)
            top = score_top(speak(network.says_of(part)))
            parts.append((top.confidence, top.correct))
        values = {
            f"gap-{severity}": mean_with_interval(confidence - correct)
            for severity, (confidence, correct) in zip(SEVERITIES, parts[1:], strict=True)
        }
        monitor = Monitor()
        monitor.update(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        for name, alarm in monitor.alarms.items():
            values[name] = {"value": alarm.row}
        change = monitor.alarms.get("change")
        if change is not None:
            since = change.since
            values["since"] = {"value": since.row, "low": since.low, "high": since.high}
        return {"values": values}


KIND = AlarmsOnImages()
