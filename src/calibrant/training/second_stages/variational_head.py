"""The head of V-TST: a Gaussian code of a row's features, and a classifier of samples from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class VariationalHead(nn.Module):
    """A Gaussian code of Z numbers a row, and a linear classifier of samples from it.

    `forward` is deterministic: it averages the probabilities of S samples whose noise is fixed and
    saved with the head, the same for all rows, and returns their logarithm.

    Args:
        features: D.
        latent: Z.
        n_classes: K.
        samples: S.
    """

    noise: Tensor

    def __init__(self, features: int, latent: int, n_classes: int, samples: int) -> None:
        super().__init__()
        wide = 3 * latent
        self.mean = nn.Sequential(nn.Linear(features, wide), nn.ReLU(), nn.Linear(wide, latent))
        self.spread = nn.Sequential(
            nn.Linear(features, wide), nn.ReLU(), nn.Linear(wide, latent), nn.LogSigmoid()
        )
        self.classifier = nn.Linear(latent, n_classes)
        self.register_buffer("noise", torch.zeros(samples, latent))

    def encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, Z) means and logarithms of variances, which are below 1."""
        return self.mean(features), self.spread(features)

    def forward(self, features: Tensor) -> Tensor:
        """Return (N, K) logarithms of the averaged probabilities."""
        mean, log_variance = self.encode(features)
        deviation = (log_variance / 2).exp()
        total: Tensor | None = None
        for noise in self.noise:
            logits = self.classifier(mean + deviation * noise)
            part = functional.log_softmax(logits, dim=1)
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        return total - torch.log(torch.tensor(float(len(self.noise)))).to(total)


def divergence_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return (N,) KL(N(mean, variance) || N(0, 1)), summed over the Z numbers of a row."""
    return (log_variance.exp() + mean.square() - 1 - log_variance).sum(1) / 2
