"""What each loss takes beside cross-entropy: `python -m benchmarks.losses`.

Value and gradient of one batch in float32, on one thread, of all losses that need no positions of
rows and no mixtures. In every turn each is called once, in an order that is drawn anew, so that all
meet the same machine and nobody always comes after the same one. Printed are medians of wall time
with their quartiles, and how many times as long as this package's cross-entropy each took.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.text import format_table
from calibrant.training import make_loss
from calibrant.training.losses import LOSSES

SHAPES = ((128, 10), (256, 100), (256, 1000))
WIDTH = 64  # of the features
OWN, TORCHS = "cross-entropy", "torch's cross-entropy"
NAMES = [name for name in LOSSES if name not in ("crl", "rankmixup")]


def step(loss: nn.Module, logits: Tensor, target: Tensor, features: Tensor | None) -> None:
    """Compute a loss and its gradient."""
    logits.grad = None
    value = loss(logits, target) if features is None else loss(logits, target, features)
    value.backward()


def contenders(rows: int, classes: int) -> dict[str, Callable[[], None]]:
    """Return what to call for each loss."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, classes)).requires_grad_()
    target = torch.randint(0, classes, (rows,))
    features = torch.rand(rows, WIDTH)
    torchs, losses = nn.CrossEntropyLoss(), [(name, make_loss(name, classes)) for name in NAMES]
    calls = {
        name: lambda one=loss: step(
            one, logits, target, features if "features" in one.needs else None
        )
        for name, loss in losses
    }
    return {TORCHS: lambda: step(torchs, logits, target, None)} | calls


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--only", nargs="*", help="names of losses; cross-entropy is always there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table: list[list[str]] = []
    for rows, classes in SHAPES:
        calls = contenders(rows, classes)
        if arguments.only:
            wanted = {TORCHS, OWN, *arguments.only}
            calls = {name: call for name, call in calls.items() if name in wanted}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(-3, arguments.turns):
            for name in random.sample(list(calls), len(calls)):
                began = time.perf_counter()
                calls[name]()
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - began)
        own = float(np.median(seconds[OWN]))
        for name, taken in seconds.items():
            low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75])
            spread = f"{1e3 * middle:.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"
            table.append([f"{rows} x {classes}", name, spread, f"{middle / own:.2f}"])
    print(format_table(["batch", "loss", "ms", "of cross-entropy"], table))


if __name__ == "__main__":
    main()
