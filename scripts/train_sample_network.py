"""Train the small network whose predictions ship as Calibrant's sample data.

It learns CIFAR-10 (Krizhevsky, 2009) from the Hub's parquet files, ends with epochs on plain
images until it fits them almost perfectly, and so is about as overconfident as real networks are.
Only its predictions are saved. With torch, numpy, pyarrow, pillow and tqdm installed:

    python scripts/train_sample_network.py --data DIR --out src/calibrant/sample_data

DIR holds train-00000-of-00001.parquet and test-00000-of-00001.parquet. The files that ship came
from seed 0, 16 epochs and two threads, on two CPU cores shared with other work:

    validation: 5000 rows, accuracy 85.00%, NLL 0.6243, ECE 9.09%, ties for the largest logit 0
    test: 10000 rows, accuracy 84.45%, NLL 0.6505, ECE 9.35%, ties for the largest logit 1
    22.7 minutes

Short runs with one seed agreed bit for bit on one machine; other CPUs may round differently.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

CLASSES = 10
FEATURES = 64
VALIDATION_ROWS = 5_000
BATCH = 250  # divides the 45 000 training rows: no short last step
PLAIN_SHARE = 0.5  # the last epochs see no augmentation, so that the network grows overconfident
MAX_SHIFT = 3
PEAK_RATE = 0.15
ECE_BINS = 15

Array = npt.NDArray[Any]


class Labelled(NamedTuple):
    """Images (N, 3, 32, 32), bytes unless scaled for the network, and their class numbers (N,)."""

    images: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> Labelled:
        return Labelled(self.images[index], self.labels[index])


def conv_norm_relu(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Stage(nn.Module):
    """Halve the sides of the image, then refine it by one residual block."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shrink = conv_norm_relu(inputs, outputs, stride=2)
        self.refine = nn.Sequential(*(conv_norm_relu(outputs, outputs) for _ in range(2)))

    def forward(self, images: Tensor) -> Tensor:
        shrunk = self.shrink(images)
        return shrunk + self.refine(shrunk)


class SampleNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm_relu(3, 32), Stage(32, 64), Stage(64, 128), Stage(128, FEATURES)
        )
        self.head = nn.Linear(FEATURES, CLASSES)

    def features(self, images: Tensor) -> Tensor:
        return self.body(images).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def read_images(parquet: Path) -> Labelled:
    table = pq.read_table(parquet, columns=["img", "label"])
    jpegs = table["img"].combine_chunks().field("bytes").to_pylist()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")) for jpeg in jpegs])
    labels = table["label"].to_numpy().astype(np.int64)
    return Labelled(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels))


def hold_out(data: Labelled, rows: int, seed: int) -> tuple[Labelled, Labelled]:
    """Split at random, not by class, into what is left and `rows` held-out rows."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed))
    return data.rows(order[rows:]), data.rows(order[:rows])


def to_network_input(images: Tensor) -> Tensor:
    """Scale bytes to [-2, 2], which is roughly unit variance; batch norm does the rest."""
    scaled = images.to(torch.float32).div_(63.75).sub_(2.0)
    return scaled.contiguous(memory_format=torch.channels_last)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror every other image, on average, and shift each by up to MAX_SHIFT pixels."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (MAX_SHIFT,) * 4)
    corner = torch.randint(0, 2 * MAX_SHIFT + 1, (2, count, 1), generator=generator)
    rows = corner[0] + torch.arange(height)
    columns = corner[1] + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    # One gather for the whole batch: a loop over the images would cost more than the network.
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def batches(data: Labelled, generator: torch.Generator, *, augmented: bool) -> Iterator[Labelled]:
    for index in torch.randperm(len(data.labels), generator=generator).split(BATCH):
        images, labels = data.rows(index)
        if augmented:
            images = augment(images, generator)
        yield Labelled(to_network_input(images), labels)


def train(network: SampleNetwork, data: Labelled, epochs: int, seed: int) -> None:
    steps = len(data.labels) // BATCH
    optimizer = torch.optim.SGD(
        network.parameters(), lr=PEAK_RATE, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=PEAK_RATE,
        total_steps=epochs * steps,
        pct_start=0.2,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    generator = torch.Generator().manual_seed(seed)
    augmented_epochs = epochs - round(PLAIN_SHARE * epochs)
    network.train()
    for epoch in range(1, epochs + 1):
        epoch_batches = batches(data, generator, augmented=epoch <= augmented_epochs)
        total_loss = 0.0
        # disable=None: a bar on a terminal, nothing in a log file.
        for images, labels in tqdm(epoch_batches, total=steps, leave=False, disable=None):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = network(images)
            loss = F.cross_entropy(logits.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total_loss += loss.item()
        print(f"epoch {epoch:2d} of {epochs}: training loss {total_loss / steps:.4f}", flush=True)


@torch.inference_mode()
def predict(network: SampleNetwork, data: Labelled) -> dict[str, Array]:
    """The arrays of one file. The network runs in float32; only its results are float16."""
    network.eval()
    parts = data.images.split(BATCH)
    features = torch.cat([network.features(to_network_input(part)) for part in parts])
    return {
        "logits": network.head(features).numpy().astype(np.float16),
        "features": features.numpy().astype(np.float16),
        "labels": data.labels.numpy().astype(np.uint8),
        "head_weight": network.head.weight.numpy(),
        "head_bias": network.head.bias.numpy(),
    }


def check(arrays: dict[str, Array]) -> None:
    """Raise ValueError if storing in float16 did more than round."""
    logits, features = (arrays[name].astype(np.float64) for name in ("logits", "features"))
    weight, bias = arrays["head_weight"], arrays["head_bias"]
    if not (np.isfinite(logits).all() and np.isfinite(features).all()):
        raise ValueError("a logit or a feature overflows float16")
    half_ulp = float(np.finfo(np.float16).eps) / 2
    # 1e-4 is for the network's own float32 arithmetic, the rest for rounding to float16.
    allowed = 1e-4 + half_ulp * (np.abs(logits) + np.abs(features) @ np.abs(weight.T))
    error = np.abs(features @ weight.T + bias - logits)
    if (error > allowed).any():
        raise ValueError(f"the head does not give the logits: off by up to {error.max():.3g}")


def describe(arrays: dict[str, Array]) -> str:
    """Score the rounded logits, so that a reader of the file finds the same numbers."""
    logits, labels = arrays["logits"].astype(np.float64), arrays["labels"]
    logits -= logits.max(axis=1, keepdims=True)
    tied_rows = int(((logits == 0).sum(axis=1) > 1).sum())
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    nll = -log_probs[np.arange(len(labels)), labels].mean()
    correct = logits.argmax(axis=1) == labels
    confidence = np.exp(log_probs.max(axis=1))
    # right=True makes the bins (lo, hi], as in the usual definition of the ECE.
    bins = np.digitize(confidence, np.linspace(0, 1, ECE_BINS + 1)[1:-1], right=True)
    ece = np.abs(np.bincount(bins, weights=confidence - correct)).sum() / len(labels)
    return (
        f"{len(labels)} rows, accuracy {correct.mean():.2%}, NLL {nll:.4f}, ECE {ece:.2%}, "
        f"ties for the largest logit {tied_rows}"
    )


def save(path: Path, arrays: dict[str, Array]) -> None:
    """Write under a temporary name first, so that a broken run leaves no broken file."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    partial.replace(path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the network behind the sample data.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the files to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    started = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)

    given = read_images(arguments.data / "train-00000-of-00001.parquet")
    test = read_images(arguments.data / "test-00000-of-00001.parquet")
    training, validation = hold_out(given, VALIDATION_ROWS, arguments.seed)
    network = SampleNetwork()
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train(network, training, arguments.epochs, arguments.seed)

    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, data in {"validation": validation, "test": test}.items():
        arrays = predict(network, data)
        check(arrays)
        save(arguments.out / f"{name}.npz", arrays)
        print(f"{name}: {describe(arrays)}")
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
