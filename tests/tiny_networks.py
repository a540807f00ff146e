"""Networks that train in a moment, and inputs that they can learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 4


def tiny_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


def images(rows: int = 64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    target = torch.randint(CLASSES, (rows,), generator=draw)
    inputs = torch.randn(rows, 1, 8, 8, generator=draw) / 2
    # The class brightens a corner.
    for row, label in enumerate(target.tolist()):
        inputs[row, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1.5
    return inputs, target


class Reader(nn.Module):
    """A transformer classifier whose outputs look like those of the transformers library."""

    def __init__(self, tokens: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tokens = tokens
        self.embed = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        hidden = self.block(self.embed(words))
        return {"logits": self.classifier(hidden if self.tokens else hidden[:, 0])}
