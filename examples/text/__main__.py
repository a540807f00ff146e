"""Train a small transformer on passages of the Python reference, and say how calibrated it is.

python -m examples.text --loss fedlas-ls --out runs/text
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.training.run import RunSettings, evaluate_run, own_data, train
from examples.text.passages import VOCABULARY, WORDS, Rows, read_passages


class Reader(nn.Module):
    """A transformer of one layer over the words of a passage; the mean of its outputs decides."""

    def __init__(self, n_classes: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(WORDS, width) / 10)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, batch_first=True)
        self.head = nn.Linear(width, n_classes)

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        """Return the logits (N, K) of passages (N, T)."""
        return {"logits": self.head(self.layer(self.words(words) + self.places).mean(1))}


def main(words: Sequence[str] | None = None) -> None:
    """Train, and print what the test passages say."""
    parser = argparse.ArgumentParser("examples.text", description=__doc__)
    parser.add_argument("--loss", default="fedlas-ls")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/text"))
    arguments = parser.parse_args(words)
    topics, parts = read_passages()
    learn, validation, test = (Rows(part) for part in parts)
    torch.manual_seed(arguments.seed)
    settings = RunSettings(
        "topics of the Python reference",
        net="transformer of one layer",
        loss=arguments.loss,
        epochs=arguments.epochs,
        batch_size=32,
        rate=0.2,
        seed=arguments.seed,
        precision="32",
    )
    data = own_data(learn, test, validation=validation, n_classes=len(topics))
    trained = train(
        settings, arguments.out, data=data, network=Reader(len(topics)), layer="head", resume=True
    )
    print(f"{len(learn)} passages of {', '.join(topics)}")
    if trained is not None:
        print(evaluate_run(settings, trained))


if __name__ == "__main__":
    main()
