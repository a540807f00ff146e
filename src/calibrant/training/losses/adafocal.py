"""AdaFocal: the exponent of focal loss follows the calibration of a validation set."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.losses.arguments import number, whole
from calibrant.training.losses.base import CalibrationLoss, ClassWeights, Reduction
from calibrant.training.losses.collectives import world_size
from calibrant.training.losses.focal import rest
from calibrant.training.losses.rows import Rows


class AdaFocal(CalibrationLoss):
    """Focal loss with a gamma per bin, moved by validation calibration (Ghosh et al. 2022).

    A row takes the gamma of the bin of its p_y: (1 - p_y)^gamma CE for gamma >= 0, and the
    "inverse" (1 + p_y)^|gamma| CE below, where the bin is underconfident. After each epoch call
    `update_from_validation`: bins become equal-mass bins of validation confidence, and with the
    gap E_b = mean confidence - accuracy of bin b

        gamma_b <- gamma_b exp(rate E_b)  if gamma_b > 0, else  gamma_b exp(-rate E_b),

    then |gamma_b| < switch jumps to the other sign at magnitude `switch`, and gamma_b is clipped.
    The bins are of top-label confidence but looked up by p_y, as in the paper. The validation rows
    are used up by this: don't also report on them.

    Args:
        n_bins: number of bins.
        rate: lambda of the update.
        gamma_min: lower limit of gamma.
        gamma_max: upper limit of gamma.
        switch: magnitude below which gamma changes sign.
        reduction: see `CalibrationLoss`.
        ignore_index: see `CalibrationLoss`.
        class_weights: see `CalibrationLoss`.

    Attributes:
        edges: (bins + 1,) buffer. gammas: (bins,) buffer. Equal widths and 1 at first.
    """

    needs = frozenset({"validation"})
    edges: Tensor
    gammas: Tensor

    def __init__(
        self,
        n_bins: int = 15,
        rate: float = 1.0,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        switch: float = 0.2,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(
            reduction=reduction, ignore_index=ignore_index, class_weights=class_weights
        )
        self.n_bins = whole("n_bins", n_bins, at_least=1)
        self.rate = number("rate", rate, at_least=0)
        self.gamma_min = number("gamma_min", gamma_min, at_most=0)
        self.gamma_max = number("gamma_max", gamma_max, above=0)
        self.switch = number("switch", switch, at_least=0)
        self.register_buffer("edges", torch.linspace(0, 1, self.n_bins + 1))
        self.register_buffer("gammas", torch.ones(self.n_bins))

    def _row_losses(self, rows: Rows) -> Tensor:
        likely = rows.true_log_prob.exp()
        inner = self.edges[1:-1].to(likely.dtype)
        band = torch.bucketize(likely.detach(), inner, right=True)
        gamma = self.gammas.to(likely.dtype)[band]
        base = torch.where(gamma >= 0, rest(rows), 1 + likely).clamp_min(1e-12)
        return base ** gamma.abs() * rows.cross_entropy

    @torch.no_grad()
    def update_from_validation(self, logits: Tensor, target: Tensor) -> None:
        """Move bins and gammas by how far off the network is on held-out rows.

        In a distributed run all processes call it; the outcome of process 0, which therefore needs
        the whole validation set, is taken by all.

        Args:
            logits: (N, K) or (N, K, ...) of the validation set, network in eval mode.
            target: (N,) or (N, ...).

        Raises:
            InputError: no row that counts, logits that are no numbers, or shapes that don't fit.
        """
        rows = self._rows(logits, target, None)
        # On the host: once an epoch, and not every accelerator has float64.
        confidence = rows.confidence[rows.valid].cpu().double()
        correct = rows.correct[rows.valid].cpu().double()
        if not len(confidence):
            raise InputError("the validation set of AdaFocal has no row that counts")
        if confidence.isnan().any():
            raise InputError("the validation logits of AdaFocal must be numbers, but some are NaN")
        edges = _equal_mass_edges(confidence, self.n_bins)
        # Bins are (lo, hi]; the smallest confidence, equal to the first edge, is in none.
        band = torch.bucketize(confidence, edges) - 1
        inside = band >= 0
        gaps = torch.zeros(self.n_bins, dtype=torch.float64)
        sizes = gaps.clone()
        gaps.index_add_(0, band[inside], (confidence - correct)[inside])
        sizes.index_add_(0, band[inside], torch.ones_like(confidence)[inside])
        gamma = self.gammas.cpu().double()
        gamma = gamma * torch.exp(gamma.sign() * self.rate * gaps / sizes.clamp_min(1))
        jump = self.switch * torch.where(gamma > 0, -torch.ones_like(gamma), 1)
        gamma = torch.where(gamma.abs() < self.switch, jump, gamma)
        self.gammas.copy_(gamma.clamp(self.gamma_min, self.gamma_max))
        self.edges.copy_(edges)
        if world_size() > 1:
            dist.broadcast(self.gammas, 0)
            dist.broadcast(self.edges, 0)


def _equal_mass_edges(confidence: Tensor, n_bins: int) -> Tensor:
    """Return (bins + 1,) edges between sorted confidences, interpolated at equal ranks."""
    ordered = confidence.sort().values
    last = len(ordered) - 1
    rank = torch.linspace(0, len(ordered), n_bins + 1, dtype=torch.float64)
    rank = rank.clamp_max(last)
    low = rank.floor().long()
    high = (low + 1).clamp_max(last)
    return torch.lerp(ordered[low], ordered[high], rank - low)
