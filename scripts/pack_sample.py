"""Round what a run left for validation and test images to the sample data of the package.

The network is trained by the command line itself, with half of its epochs on images as they are,
which it then fits almost by heart and is about as overconfident as large networks are:

    calibrant train --data cifar10/ --net resnet20 --protocol quick --plain-share 0.5 \\
        --precision bf16 --seed 0 --out sample-run
    python scripts/pack_sample.py sample-run src/calibrant/sample_data

A run with one thread ends with the same weights on the same machine; other CPUs may round
differently. `sample_data/README.md` has the numbers that this prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from calibrant.core.outputs import replacing
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import read_predictions
from calibrant.predictions.predictions import Predictions

PARTS = {"val": "validation", "test": "test"}  # file of the run to file of the package
# For the network's own float32 arithmetic, beside the rounding of logits and features to float16.
FLOAT32_NOISE = 1e-4


def rounded(rows: Predictions) -> dict[str, np.ndarray]:
    """Return the arrays of one file: float16 for what there is a lot of."""
    if rows.features is None or rows.head is None:
        raise ValueError(f"{rows.source}: a sample needs features and the last layer")
    return {
        "logits": np.asarray(rows.scores).astype(np.float16),
        "features": np.asarray(rows.features).astype(np.float16),
        "labels": rows.labels.astype(np.uint8),
        "head_weight": np.asarray(rows.head.weight, dtype=np.float32),
        "head_bias": np.asarray(rows.head.bias, dtype=np.float32),
    }


def largest_error(arrays: dict[str, np.ndarray]) -> float:
    """Return by how much head times features misses the logits.

    Raises:
        ValueError: by more than rounding explains, or a number overflows float16.
    """
    logits, features = (arrays[name].astype(np.float64) for name in ("logits", "features"))
    weight, bias = arrays["head_weight"], arrays["head_bias"]
    if not (np.isfinite(logits).all() and np.isfinite(features).all()):
        raise ValueError("a logit or a feature overflows float16")
    half_ulp = float(np.finfo(np.float16).eps) / 2
    allowed = FLOAT32_NOISE + half_ulp * (np.abs(logits) + np.abs(features) @ np.abs(weight.T))
    error = np.abs(features @ weight.T + bias - logits)
    if (error > allowed).any():
        raise ValueError(f"the head does not give the logits: off by up to {error.max():.3g}")
    return float(error.max())


def tied_rows(logits: np.ndarray) -> int:
    """Return how many rows have more than one largest logit after rounding."""
    return int(((logits == logits.max(axis=1, keepdims=True)).sum(axis=1) > 1).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Round a run's predictions to sample data.")
    parser.add_argument("run", type=Path, help="folder of calibrant train")
    parser.add_argument("out", type=Path, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for source, name in PARTS.items():
        arrays = rounded(read_predictions(arguments.run / f"{source}.npz"))
        error = largest_error(arrays)
        path = arguments.out / f"{name}.npz"
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        print(evaluate(read_predictions(path)))
        ties = tied_rows(arrays["logits"])
        print(f"largest error of the head: {error:.3g}; rows with ties: {ties}\n")


if __name__ == "__main__":
    main()
