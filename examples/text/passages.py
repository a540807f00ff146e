"""Passages of the Python language reference, which comes with every Python."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

WORDS = 24  # of a passage
VOCABULARY = 2_000


class Passages(NamedTuple):
    """Words of N passages and where they are from.

    Attributes:
        words: (N, WORDS) numbers of words; 0 is a rare one.
        labels: (N,) topics.
    """

    words: Tensor
    labels: Tensor


class Rows(Dataset[dict[str, Tensor]]):
    """Passages as mappings, as tokenisers give them; "labels" isn't an argument of the network."""

    def __init__(self, passages: Passages) -> None:
        self.passages = passages

    def __len__(self) -> int:
        return len(self.passages.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"words": self.passages.words[row], "labels": self.passages.labels[row]}


def read_passages(topics: int = 6) -> tuple[list[str], list[Passages]]:
    """Return the names of the longest topics, and their passages for training, validation, test.

    Of each topic three fifths of the passages, a fifth and a fifth, drawn at random: neighbours
    share their words, so this is an easy test.
    """
    from pydoc_data.topics import topics as texts

    longest = sorted(texts, key=lambda name: -len(texts[name]))[:topics]
    cut = [
        [words[i : i + WORDS] for i in range(0, len(words) - WORDS + 1, WORDS)]
        for words in (re.findall(r"[a-z_]+|[^\sa-z_]", texts[name].lower()) for name in longest)
    ]
    everything = [(passage, label) for label, passages in enumerate(cut) for passage in passages]
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0)).tolist()
    ends = [0, 3 * len(order) // 5, 4 * len(order) // 5, len(order)]
    parts = [[everything[i] for i in order[low:high]] for low, high in pairwise(ends)]
    counts = Counter(word for passage, _ in parts[0] for word in passage)
    numbers = {word: i for i, (word, _) in enumerate(counts.most_common(VOCABULARY - 1), start=1)}
    return longest, [_numbered(part, numbers) for part in parts]


def _numbered(part: Sequence[tuple[list[str], int]], numbers: dict[str, int]) -> Passages:
    words = [[numbers.get(word, 0) for word in passage] for passage, _ in part]
    return Passages(torch.tensor(words), torch.tensor([label for _, label in part]))
