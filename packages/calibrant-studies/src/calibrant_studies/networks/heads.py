"""Heads of second stages: trained once, kept as a file, and read by every cell about them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.predictions.predictions import Predictions
from calibrant_studies.measuring import quietly
from calibrant_studies.networks.plans import Plan

if TYPE_CHECKING:
    from torch import nn

    from calibrant.training.second_stages import SecondStage


@dataclass(frozen=True)
class Head:
    """A head that a second stage has trained.

    Attributes:
        module: (N, D) features in, (N, K) logits out.
        history: what was kept of each epoch.
        notes: what the fit warned of.
    """

    module: nn.Module
    history: list[dict[str, float]]
    notes: list[str]

    def logits(self, features: Any) -> Any:
        """Return (N, K) logits of (N, D) features."""
        import torch

        from calibrant.training.second_stages.sources import (
            READ_ROWS,
            head_logits,
            row_parts,
            tensor_of,
        )

        rows = tensor_of(np.asarray(features))
        parts = [head_logits(self.module, part) for part in row_parts(rows, READ_ROWS)]
        return torch.cat(parts).numpy()


def file_of(plan: Plan, digest: str) -> str:
    """Return what the file of a plan's head is called; `digest` is that of its network."""
    told = [digest, plan.stage, dict(plan.stage_arguments), plan.seed, __version__]
    text = json.dumps(told, sort_keys=True)
    return f"head-{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"


def fitted(
    plan: Plan, training: Predictions, validation: Predictions, test: Predictions
) -> SecondStage:
    """Return the second stage of a plan, fitted to the features of the training rows.

    Raises:
        InputError: one of the sets holds no features.
    """
    from calibrant.training.second_stages import make_second_stage

    stage = make_second_stage(plan.stage, **{"seed": plan.seed, **plan.stage_arguments})
    for part in (training, validation, test):
        if part.features is None:
            raise InputError(f"{part.source}: holds no features for a second stage to learn from")
    fit_to(stage, training, validation)
    return stage


def fit_to(stage: SecondStage, training: Predictions, validation: Predictions) -> None:
    """Fit a second stage to the features of the training rows, beside the network's own head."""
    with quietly():
        stage.fit(
            training.features,
            training.labels,
            (validation.features, validation.labels),
            n_classes=validation.n_classes,
            reference_logits=validation.logits,
        )


def kept(file: Path) -> Head:
    """Return the head in a file."""
    from calibrant.training.second_stages import load_head
    from calibrant.training.second_stages.heads import FORMAT

    header, _ = FORMAT.read(file)
    return Head(load_head(file), json.loads(header["history"]), json.loads(header["notes"]))
