"""What each loss takes beside cross-entropy: `python -m benchmarks.losses`.

Value and gradient of one batch in float32, on one thread. The network isn't in it, nor RankMixup's
pass over one mixture a row. In every turn each is called once, in an order that is drawn anew, so
that all meet the same machine and nobody always comes after the same one. Printed are medians of
processor time with their quartiles, and how many times as long as cross-entropy each took, medians
over turns: this package's, torch's, and torch's with label smoothing. `--json
benchmarks/results/losses.json` keeps them for the reference pages.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.errors import TrainingWarning
from calibrant.core.text import format_table
from calibrant.training import make_loss
from calibrant.training.losses import LOSSES

SHAPES = ((128, 10), (128, 100), (128, 1000), (32, 50_000))
WIDTH = 64  # of the features
OWN, TORCHS = "cross-entropy", "torch's cross-entropy"
SMOOTHED = "torch's, smoothed"
MANY = 10_000  # classes, of which a quarter of the turns will do


def step(loss: nn.Module, logits: Tensor, target: Tensor, more: Mapping[str, Tensor]) -> None:
    """Compute a loss and its gradient."""
    logits.grad = None
    loss(logits, target, **more).backward()


def contenders(rows: int, classes: int) -> dict[str, Callable[[], None]]:
    """Return what to call for each loss."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, classes)).requires_grad_()
    target = torch.randint(0, classes, (rows,))
    one_hot = nn.functional.one_hot(target, classes).float()
    more: dict[str, dict[str, Tensor]] = {
        "crl": {"index": torch.arange(rows)},
        "rankmixup": {
            "mixed_logits": (3 * torch.randn(1, rows, classes)).requires_grad_(),
            "mixed_target": (0.7 * one_hot + 0.3 * one_hot.roll(1, 0))[None],
        },
    }
    more |= {name: {"features": torch.rand(rows, WIDTH)} for name in LOSSES if "fedlas" in name}
    torchs, smoothed = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.05)
    calls: dict[str, Callable[[], None]] = {
        TORCHS: lambda: step(torchs, logits, target, {}),
        SMOOTHED: lambda: step(smoothed, logits, target, {}),
    }
    for name in LOSSES:
        arguments: dict[str, Any] = {"samples": rows} if name == "crl" else {}
        loss = make_loss(name, classes, **arguments)
        own = more.get(name, {})
        calls[name] = lambda one=loss, own=own: step(one, logits, target, own)
    return calls


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--only", nargs="*", help="names of losses; cross-entropy is always there")
    parser.add_argument("--json", type=Path, help="write the medians to this file too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", TrainingWarning)  # of epochs and optimisers, of which none is
    torch.set_num_threads(1)
    table: list[list[str]] = []
    kept: dict[str, dict[str, dict[str, float]]] = {}
    for rows, classes in SHAPES:
        calls = contenders(rows, classes)
        if arguments.only:
            wanted = {TORCHS, SMOOTHED, OWN, *arguments.only}
            calls = {name: call for name, call in calls.items() if name in wanted}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(-3, arguments.turns if classes < MANY else arguments.turns // 4):
            for name in random.sample(list(calls), len(calls)):
                began = time.process_time()
                calls[name]()
                if turn >= 0:
                    seconds[name].append(time.process_time() - began)
        for name, taken in seconds.items():
            low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75])
            spread = f"{1e3 * middle:.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"
            own, torchs, smoothed = (
                float(np.median(np.divide(taken, seconds[other])))
                for other in (OWN, TORCHS, SMOOTHED)
            )
            times = [f"{each:.2f}" for each in (own, torchs, smoothed)]
            kept.setdefault(name, {})[f"{rows} x {classes}"] = {
                "ms": round(1e3 * middle, 4),
                "times": round(torchs, 2),
                "times_own": round(own, 2),
                "times_smoothed": round(smoothed, 2),
            }
            table.append([f"{rows} x {classes}", name, spread, *times])
    print(
        format_table(
            ["batch", "loss", "ms", *(f"times {each}" for each in (OWN, TORCHS, SMOOTHED))], table
        )
    )

    if arguments.json:
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
