"""What random masks do to a trained head that has not learnt to live with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.core.arrays import Array, to_numpy
from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import whole
from calibrant.training.second_stages.held_out import Held, measure_logits
from calibrant.training.second_stages.seeds import MASK, generator_for
from calibrant.training.second_stages.sources import FeatureRows
from calibrant.training.second_stages.tensors import tensor_of


@dataclass(frozen=True, kw_only=True)
class MaskedInference(Held):
    """How a head does with a share of its connections; means over repeats.

    Attributes:
        retention: probability that a connection is kept.
    """

    retention: float


def mask_at_inference(
    weight: Array,
    bias: Array,
    features: Array,
    labels: Array,
    retentions: Sequence[float] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    *,
    batch_size: int = 128,
    repeats: int = 5,
    seed: int = 0,
) -> list[MaskedInference]:
    """Measure a linear head whose weights are masked at random, anew for every batch.

    Confidence falls with the share of connections, and so does accuracy: the motive for retraining
    under masks.

    Args:
        weight: (K, D) of the trained head; kept weights are not rescaled.
        bias: (K,), not masked.
        features: (N, D) held-out features.
        labels: (N,) classes.
        retentions: probabilities of keeping a connection.
        batch_size: rows that share a mask.
        repeats: how often all rows are measured; the results are averaged.
        seed: of the masks.

    Raises:
        InputError: arrays that don't fit, or a number out of range.

    References:
        Section 4.1 of the MaC-Cal paper (arXiv 2508.09116).
    """
    batch_size, repeats = (
        whole(name, value, at_least=1)
        for name, value in (("batch_size", batch_size), ("repeats", repeats))
    )
    seed = whole("seed", seed, at_least=0)
    matrix = tensor_of(np.array(to_numpy(weight), dtype=np.float64))
    offset = tensor_of(np.array(to_numpy(bias), dtype=np.float64))
    rows = FeatureRows.checked(features, labels, len(matrix), source="features")
    if matrix.shape != (rows.n_classes, rows.width) or offset.shape != (rows.n_classes,):
        raise InputError(
            f"the head must have weights (K, {rows.width}) and biases (K,), not "
            f"{tuple(matrix.shape)} and {tuple(offset.shape)}"
        )
    results: list[MaskedInference] = []
    for retention in retentions:
        if not 0 <= retention <= 1:
            raise InputError(f"a retention must lie between 0 and 1, not {retention}")
        runs = [
            _measure(
                matrix, offset, rows, retention, batch_size, generator_for(MASK, seed, run)
            ).as_dict()
            for run in range(repeats)
        ]
        means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        results.append(MaskedInference(retention=retention, **means))
    return results


def _measure(
    weight: Tensor,
    bias: Tensor,
    rows: FeatureRows,
    retention: float,
    batch_size: int,
    generator: torch.Generator,
) -> Held:
    parts: list[Tensor] = []
    for features, _ in rows.passes(batch_size):
        # The same uniform numbers for every retention: the curves are smooth in it.
        uniform = torch.rand(weight.shape, generator=generator, dtype=torch.float64)
        masked = weight * (uniform < retention)
        parts.append(features.cpu().double() @ masked.T + bias)
    return measure_logits(torch.cat(parts), rows)[0]
