"""What FeDLaS adds to a training step: `python -m benchmarks.fedlas_step`.

A ResNet-20 for 32 x 32 images, SGD, one thread. Steps with torch's cross-entropy and with FeDLaS
take turns, so that both meet the same machine; times are processor time, which a busy machine
disturbs less. Where the noise of a whole step exceeds the difference, the loss timed alone says
what it adds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from calibrant.training import PenultimateFeatures
from calibrant.training.losses import FeDLaS


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        stride = 1 if width_in == width else 2
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = (
            nn.Identity() if stride == 1 else nn.Conv2d(width_in, width, 1, stride, bias=False)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's outputs."""
        return (self.body(inputs) + self.shortcut(inputs)).relu()


def resnet20(classes: int) -> nn.Sequential:
    """Return a network of three groups of three blocks."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Block(*pair) for pair in pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)
    )


def training_step(loss: nn.Module, rows: int, classes: int) -> Callable[[], None]:
    """Return a function that takes one step of SGD."""
    torch.manual_seed(0)
    network = resnet20(classes)
    tap = PenultimateFeatures(network) if isinstance(loss, FeDLaS) else None
    optimiser = torch.optim.SGD([*network.parameters(), *loss.parameters()], 0.1, 0.9)
    inputs, target = torch.randn(rows, 3, 32, 32), torch.randint(classes, (rows,))

    def step() -> None:
        logits = network(inputs)
        value = loss(logits, target, tap.features) if tap else loss(logits, target)
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()

    return step


def loss_step(loss: nn.Module, rows: int, classes: int) -> Callable[[], None]:
    """Return a function that does only what a step does for the loss and its own parameters."""
    torch.manual_seed(0)
    logits, features = torch.randn(rows, classes, requires_grad=True), torch.rand(rows, 64)
    target = torch.randint(classes, (rows,))
    own = list(loss.parameters())
    optimiser = torch.optim.SGD(own, 0.1, 0.9) if own else None

    def step() -> None:
        logits.grad = None
        more = (features,) if isinstance(loss, FeDLaS) else ()
        value = loss(logits, target, *more)
        if optimiser:
            optimiser.zero_grad()
        value.backward()
        if optimiser:
            optimiser.step()

    return step


def in_turn(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Return the processor seconds of `repeats` calls each, after two that don't count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-2, repeats):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if turn >= 0:
                times[name].append(time.process_time() - began)
    return times


def main() -> None:
    """Print the median step with each loss, and what the loss alone takes of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    losses: dict[str, nn.Module] = {"cross-entropy": nn.CrossEntropyLoss()}
    for base in ("ls", "mbls"):
        losses[f"fedlas-{base}"] = FeDLaS(chosen.classes, base, alpha=0.1)
    size = (chosen.rows, chosen.classes)
    whole = in_turn({n: training_step(loss, *size) for n, loss in losses.items()}, chosen.repeats)
    alone = in_turn({n: loss_step(loss, *size) for n, loss in losses.items()}, 200)
    plain = statistics.median(whole["cross-entropy"])
    least = statistics.median(alone["cross-entropy"])
    print(f"batch {chosen.rows}, {chosen.classes} classes, {chosen.repeats} steps each")
    for name in losses:
        pairs = zip(whole[name], whole["cross-entropy"], strict=True)
        paired = 100 * statistics.median(a / b - 1 for a, b in pairs)
        mine = statistics.median(alone[name])
        print(
            f"{name:14} step {1000 * statistics.median(whole[name]):7.1f} ms ({paired:+.1f} %), "
            f"loss alone {1000 * mine:6.2f} ms, {100 * (mine - least) / plain:+.2f} % of a step"
        )


if __name__ == "__main__":
    main()
