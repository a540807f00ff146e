"""Small logs of evaluation tools in the layouts that their versions have, made here by code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = ("red", "green", "a very long blue", "pink")


def choices_of(rows: int, seed: int = 0, widths: tuple[int, ...] = (4,)) -> list[dict[str, Any]]:
    """Return questions: log-likelihoods, with and without the question, and the right choice."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for row in range(rows):
        width = widths[row % len(widths)]
        logs = np.round(rng.normal(-6, 2, width), 3)
        found.append(
            {
                "logs": logs.tolist(),
                "without": np.round(rng.normal(-8, 1, width), 3).tolist(),
                "texts": list(TEXTS[:width]),
                "gold": int(rng.integers(width)),
            }
        )
    return found


def metrics_of(question: dict[str, Any]) -> dict[str, float]:
    """Return what the harness says of a question."""
    logs, gold = np.array(question["logs"]), question["gold"]
    lengths = np.array([len(text) for text in question["texts"]])
    sizes = np.array([len(text.encode()) for text in question["texts"]])
    scored = {
        "acc": logs,
        "acc_norm": logs / lengths,
        "acc_bytes": logs / sizes,
        "acc_mutual_info": logs - np.array(question["without"]),
    }
    return {name: float(values.argmax() == gold) for name, values in scored.items()}


# Parameters: what versions and tasks of the harness differ in.
def harness_rows(
    questions: list[dict[str, Any]],
    *,
    metrics: tuple[str, ...] = ("acc", "acc_norm"),
    text: bool = True,
    arguments: str = "named",
    target: str = "index",
    filters: tuple[str, ...] = ("none",),
) -> list[dict[str, Any]]:
    """Return samples of lm-evaluation-harness.

    Args:
        questions: see `choices_of`.
        metrics: that stand in the rows; `acc_mutual_info` brings likelihoods without the question.
        text: whether numbers are text, as they are in files of samples of later versions.
        arguments: ``"named"`` (gen_args_0), ``"pairs"`` (lists) or ``"none"``.
        target: ``"index"`` or ``"text"``.
        filters: one row for each; none for versions that had none.
    """
    found: list[dict[str, Any]] = []
    for number, question in enumerate(questions):
        both = "acc_mutual_info" in metrics
        logs = question["logs"] + (question["without"] if both else [])
        contexts = ["What colour?"] * len(question["logs"]) + [""] * len(question["without"]) * both
        texts = [f" {text}" for text in question["texts"]] * (2 if both else 1)
        pairs: list[list[Any]] = [[str(x), "False"] if text else [x, False] for x in logs]
        stated = list(zip(contexts, texts, strict=True))
        gold = question["gold"]
        row: dict[str, Any] = {
            "doc_id": number,
            "doc": {"question": "What colour?"},
            "target": (str(gold) if text else gold)
            if target == "index"
            else question["texts"][gold],
            "arguments": {
                f"gen_args_{i}": {"arg_0": a, "arg_1": b} for i, (a, b) in enumerate(stated)
            }
            if arguments == "named"
            else stated,
            "resps": [[pair] for pair in pairs],
            "filtered_resps": pairs,
            "doc_hash": f"hash-{number}",
        }
        if arguments == "none":
            del row["arguments"]
        row |= {name: value for name, value in metrics_of(question).items() if name in metrics}
        found += [{**row, "filter": name, "metrics": list(metrics)} for name in filters] or [row]
    return found


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def letter_rows(rows: int, seed: int = 0, sharp: float = 3.0) -> list[dict[str, Any]]:
    """Return questions with a log-probability a letter, less than all of it on the letters."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for number in range(rows):
        z = rng.normal(size=5) * sharp
        logs = z - np.log(np.exp(z).sum())
        scores = dict(zip("ABCD", logs[:4].tolist(), strict=True))
        said = max("ABCD", key=lambda letter: scores[letter])
        gold = said if rng.random() < 0.6 else "ABCD"[int(rng.integers(4))]
        found.append(
            {
                "scores": scores,
                "gold": gold,
                "pred": said,
                "correct": int(said == gold),
                "question_id": str(number),
                "subject": ("law", "physics")[number % 2],
            }
        )
    return found
