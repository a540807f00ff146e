"""Confidence ranked between samples: by how often they were right, or how much they are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from math import log
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from calibrant.core.arguments import argument
from calibrant.core.errors import InputError
from calibrant.training.losses.base import (
    CalibrationLoss,
    ClassWeights,
    LossName,
    Rows,
    check_range,
    full_precision,
)
from calibrant.training.losses.checks import is_soft
from calibrant.training.losses.collectives import gather_rows

Ranked = Literal["max-probability", "entropy", "margin"]


@dataclass(eq=False, repr=False)
class CRL(CalibrationLoss):
    """Correctness ranking loss (Moon et al. 2020).

    CE_i + weight * max(0, -s (q_i - q_j) + |kappa_i - kappa_j|), j the next row of the batch that
    counts (the first after the last), s the sign of kappa_i - kappa_j, and kappa the share of past
    epochs in which the sample was right:

        kappa = (times right - least times right of any sample) / (past epochs - that least number),

    past epochs at least 1, kappa 0 where the divisor is 0. Where the kappas are equal the ranking
    term is 0 but counts in the mean. Times right are counted from the very logits of training,
    after the loss of the batch.

    Call it as ``loss(logits, target, index=index)``, and `end_epoch()` after each epoch. Without
    index it is plain cross-entropy, in eval mode only. Processes of a distributed run must hold
    equally many rows: each learns which samples were right on the others. Pairs are those of the
    micro-batch where gradients are accumulated.

    Args:
        samples: size of the training set.
        weight: of the ranking term.
        confidence: q: "max-probability", "entropy" (minus entropy over log K) or "margin" (between
            the two largest probabilities).
        reduction, ignore_index: see `CalibrationLoss`.

    Attributes:
        times_right: (samples,) buffer. epochs: () buffer, epochs that ended.
    """

    fails = (
        "it orders rows by how often they were right in training, and a network that is right "
        "on nearly all training rows leaves nothing to order"
    )
    names = (
        LossName(
            "crl",
            "cross-entropy plus ranking of confidence by how often samples were right",
            "Moon et al. 2020",
        ),
    )
    state = "times right by sample, epochs"
    distributed = "pairs of the local batch; counts of all, rows gathered"
    per_sample = False
    needs = frozenset({"index", "epochs"})

    samples: int = argument(whole=True, at_least=1)
    weight: float = argument(1.0, at_least=0)
    confidence: Ranked = argument("max-probability", choices=get_args(Ranked))
    # Pairs of rows count alike.
    _: KW_ONLY
    class_weights: ClassWeights = field(init=False, default_factory=lambda: None)

    times_right: Tensor = field(init=False)
    epochs: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("times_right", torch.zeros(self.samples, dtype=torch.int64))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        features: Tensor | None = None,
        *,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; in training mode, count who was right.

        Args:
            logits: (N, K).
            target: (N,) classes or `ignore_index`.
            features: not used.
            index: (N,) positions of the rows in the training set.

        Raises:
            InputError: no index in training mode, or shapes that don't fit.
        """
        if index is None:
            if self.training:
                raise InputError(
                    "CRL needs index=, the positions of the rows in the training set; let the data "
                    "set give them along with inputs and targets"
                )
            return super().forward(logits, target, features)
        if index.shape != target.shape and not is_soft(logits, target):
            raise InputError(
                f"index must have the target's shape {tuple(target.shape)}, "
                f"not {tuple(index.shape)}"
            )
        with full_precision(logits.device):
            rows = self._rows(logits, target, None)
            rows.index = index.reshape(-1).long()
            advice = "samples= is the size of the training set"
            check_range("the positions in index", rows.index, self.samples, advice)
            loss = self._reduce(rows, self._row_losses(rows), target.shape)
        if self._may_learn():
            self._count(rows)
        return loss

    def end_epoch(self) -> None:
        """Count one more past epoch."""
        self._ended = True
        self.epochs += 1

    def _row_losses(self, rows: Rows) -> Tensor:
        if rows.index is None:
            return rows.cross_entropy
        self._expect_epochs("loss.end_epoch()", "no sample ranks above another")
        score, kappa = self._score(rows), self._kappa(rows.index, rows.logits.dtype)
        partner = _next_valid(rows.valid)
        difference = kappa - kappa[partner]
        hinge = difference.abs() - difference.sign() * (score - score[partner])
        # No constraint between samples of equal standing: the hinge is 0 there by construction.
        return rows.cross_entropy + self.weight * hinge.relu()

    def _kappa(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        least = self.times_right.min()
        span = self.epochs.clamp_min(1) - least
        kappa = (self.times_right[index] - least).to(dtype) / span.clamp_min(1)
        return kappa.masked_fill(span <= 0, 0)

    def _score(self, rows: Rows) -> Tensor:
        if self.confidence == "max-probability":
            return rows.confidence
        probs = rows.log_probs.exp()
        if self.confidence == "margin":
            first, second = probs.topk(2, dim=1).values.unbind(1)
            return first - second
        logs = rows.log_probs.masked_fill(probs == 0, 0)
        return (probs * logs).sum(1) / log(probs.shape[1])

    @torch.no_grad()
    def _count(self, rows: Rows) -> None:
        index = rows.index
        assert index is not None
        index = torch.where(rows.valid, index, 0)
        right = (rows.correct * rows.weight).long()
        self.times_right.index_add_(0, gather_rows(index), gather_rows(right))


def _next_valid(valid: Tensor) -> Tensor:
    """Return (M,) the position of the next valid row, cyclically; any position for others."""
    order = torch.argsort((~valid).to(torch.int8), stable=True)
    rank = torch.arange(len(valid), device=valid.device)
    follower = torch.where(rank + 1 < valid.sum(), rank + 1, 0)
    return torch.empty_like(order).scatter_(0, order, order[follower])


# Noh et al.: mixtures of each image by form.
MIXTURES = {"mrl": 1, "m-ndcg": 3}


@dataclass(eq=False, repr=False)
class RankMixup(CalibrationLoss):
    """Cross-entropy plus a ranking of raw inputs above their mixtures (Noh et al. 2023).

    - "mrl": weight * max(0, max z_mix - max z_raw + margin), averaged over mixtures, 0 where both
      inputs of a mixture have the same class;
    - "m-ndcg": weight * (1 - ndcg): the top probabilities of the raw input and of its mixtures,
      most one-sided first, are scores s_r with gains 1, max t_1, max t_2, ...;
      DCG = sum_r s_r / log2(r + 1), IDCG the same with gains; ndcg = min(DCG / IDCG, IDCG / DCG).

    Call it as ``loss(logits, target, mixed_logits=..., mixed_target=...)``; mixture v of row i must
    contain input i. Without mixtures it is plain cross-entropy, in eval mode only.

    Args:
        form: "mrl" (one mixture) or "m-ndcg" (three in the paper).
        weight: of the ranking term.
        margin: of "mrl": 2 on CIFAR, 1 on Tiny-ImageNet.
        legacy_broadcast: average the hinge over all mixtures and multiply by the share that counts,
            as the released code does through a slip in shapes, instead of averaging the hinge of
            those that count.
        reduction, ignore_index: see `CalibrationLoss`.
    """

    fails = (
        "it orders confidences and doesn't set their size; every batch is also run through "
        "the network mixed"
    )
    names = (
        LossName(
            "rankmixup",
            "cross-entropy plus ranking of raw inputs above mixtures",
            "Noh et al. 2023",
            published={"tiny-imagenet": {"margin": 1.0}},
        ),
    )
    per_sample = False
    needs = frozenset({"mixed"})
    mixture_arguments: ClassVar[Mapping[str, Any]] = {"alpha": 2.0}  # theirs on CIFAR

    form: Literal["mrl", "m-ndcg"] = argument("mrl", choices=tuple(MIXTURES))
    weight: float = argument(0.1, at_least=0)
    margin: float = argument(2.0, at_least=0)
    legacy_broadcast: bool = False
    # A row is ranked against its mixtures, whatever their classes.
    _: KW_ONLY
    class_weights: ClassWeights = field(init=False, default_factory=lambda: None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mixtures = MIXTURES[self.form]

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        features: Tensor | None = None,
        *,
        mixed_logits: Tensor | None = None,
        mixed_target: Tensor | None = None,
    ) -> Tensor:
        """Return the loss.

        Args:
            logits: (N, K) of the raw inputs.
            target: (N,) classes or `ignore_index`.
            features: not used.
            mixed_logits: (V, N, K) of V mixtures of each input.
            mixed_target: (V, N, K) their soft labels, rows that sum to 1.

        Raises:
            InputError: no mixtures in training mode, or shapes that don't fit.
        """
        if mixed_logits is None or mixed_target is None:
            if self.training:
                raise InputError(
                    "RankMixup needs mixed_logits= and mixed_target= in training; "
                    "calibrant.training.Mixup makes such inputs, its soft_target the labels"
                )
            return super().forward(logits, target, features)
        shape = (*mixed_logits.shape[:1], *logits.shape)
        if logits.ndim != 2 or mixed_logits.shape != shape or mixed_target.shape != shape:
            raise InputError(
                "mixed_logits and mixed_target must be (V, N, K) beside logits (N, K), "
                f"not {tuple(mixed_logits.shape)} and {tuple(mixed_target.shape)} "
                f"beside {tuple(logits.shape)}"
            )
        with full_precision(logits.device):
            rows = self._rows(logits, target, None)
            if mixed_logits.dtype != torch.float64:
                mixed_logits = mixed_logits.float()
            purity = mixed_target.to(mixed_logits.dtype).amax(2)
            rank = self._hinge if self.form == "mrl" else self._ndcg_loss
            losses = rows.cross_entropy + self.weight * rank(rows, mixed_logits, purity)
            return self._reduce(rows, losses, target.shape)

    def _row_losses(self, rows: Rows) -> Tensor:
        return rows.cross_entropy

    def _hinge(self, rows: Rows, mixed_logits: Tensor, purity: Tensor) -> Tensor:
        hinge = (mixed_logits.amax(2) - rows.logits.amax(1) + self.margin).relu()
        counts = (purity < 1).to(hinge.dtype) * rows.weight
        if self.legacy_broadcast:
            share = counts.sum() / (len(purity) * rows.count).clamp_min(1)
            return hinge.mean(0) * share
        return (hinge * counts).mean(0)

    def _ndcg_loss(self, rows: Rows, mixed_logits: Tensor, purity: Tensor) -> Tensor:
        purity, order = purity.sort(dim=0, descending=True, stable=True)
        scores = mixed_logits.softmax(2).amax(2).gather(0, order)
        scores = torch.cat([rows.confidence[None], scores])
        gains = torch.cat([torch.ones_like(purity[:1]), purity])
        ranks = torch.arange(2, len(gains) + 2, device=gains.device, dtype=gains.dtype)
        ratio = (scores / ranks.log2()[:, None]).sum(0) / (gains / ranks.log2()[:, None]).sum(0)
        return 1 - torch.minimum(ratio, 1 / ratio)
