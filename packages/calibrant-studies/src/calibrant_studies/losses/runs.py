"""The runs that the study of losses compares, and what each line is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

REFERENCE = "cross-entropy"
LINES = (
    *(REFERENCE, "label-smoothing", "fedlas-ls", "mbls", "fedlas-mbls", "acls", "focal"),
    *("dual-focal", "mixup"),
)
# FeDLaS-LS smooths less than its alpha says: is it more than label smoothing with a smaller one?
SMALLER = tuple(f"label-smoothing alpha={alpha}" for alpha in (0.02, 0.03, 0.04))
# About the mean alpha that FeDLaS-LS ends with.
CONTROL = "label-smoothing alpha=0.03"
# Does it need what it takes from the features, and its gate?
ABLATIONS = tuple(
    f"fedlas-ls {change}" for change in ("indicator=constant", "indicator=random", "gate=random")
)
CONTROLS = SMALLER + ABLATIONS
AFTER = ("none", "temperature", "smart")
# How SMART is fitted today: a record keeps results of networks that are gone, and those after
# another fit of SMART aren't comparable. To be renamed when the fit changes.
SMART_FIT = "six damped steps"
METRICS = ("accuracy", "ece", "adaece", "overconfidence", "underconfidence", "nll")


class Measured(NamedTuple):
    """A metric of one network on the test images; fractions, NLL in nats.

    Attributes:
        value: on the images themselves.
        low, high: ends of the bootstrap interval over test images; NaN where no record has them.
        floor: what honest confidences would show on average; None where there is no such thing.
        replicates: (R,) on resamples, which are the same for every network; None if the predictions
            are gone.
    """

    value: float
    low: float
    high: float
    floor: float | None
    replicates: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class Run:
    """A network that is trained.

    Attributes:
        line: its loss, or its mixing.
        seed: of the run.
        settings: of its training.
        scores: (after, metric) to what was measured.
        more: what else was found in it, by name: ``feature_norm``, ``gate_on_test_images``,
            ``gate_by_epoch``; and of a network that is gone ``differences`` to others.
        smart_fit: how the SMART behind `scores` was fitted.
        rows: tells test images apart; "" if the predictions are gone.
        again: whether it has the results of an earlier record: None if that doesn't know it.
    """

    line: str
    seed: int
    settings: Mapping[str, Any]
    scores: Mapping[tuple[str, str], Measured]
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    smart_fit: str = SMART_FIT
    rows: str = ""
    again: bool | None = None


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs by line, in the order of the tables, and seed."""
    known = [*LINES, *CONTROLS]
    places_of = {line: place for place, line in enumerate(known)}
    return sorted(runs, key=lambda run: (places_of.get(run.line, len(known)), run.line, run.seed))
