"""The numbers of docs/appendix/language-models.md, from logs in a folder and from simulated slices.

    python -m scripts.language_models LOGS [--page docs/appendix/language-models.md]

prints the tables, or puts them into the page between its comments ``<!-- name -->`` and
``<!-- end -->``. Files that aren't in LOGS are left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import calibrant as cb
from calibrant.comparison.transfer import Transfer, transfer
from calibrant.core.errors import PredictionsError
from calibrant.evaluation import slices
from calibrant.evaluation.evaluate import evaluate
from calibrant.files import read_column
from calibrant.files.reading import read_with_slice

WHOLE, PRUNED = "mmlu_qwen3_8b_sparsity000.jsonl", "mmlu_qwen3_8b_sparsity050.jsonl"
GPT4O, QWEN = "mmlu_pro_gpt-4o-2024-08-06.csv", "mmlu_pro_Qwen3-8B.csv"
AS_THEY_ARE: dict[str, Any] = {"signal": "letters-unnormalised"}
WORDS: dict[str, Any] = {"signal": "verbal_linguistic_confidence"}
PERPLEXITY: dict[str, Any] = {"signal": "logit_perplexity_confidence"}
LOGS: list[tuple[str, str, dict[str, Any]]] = [
    ("Qwen3-8B, MMLU, letters renormalised", WHOLE, {}),
    ("the same, letters as they are", WHOLE, AS_THEY_ARE),
    ("the same model half pruned, letters renormalised", PRUNED, {}),
    ("the same, letters as they are", PRUNED, AS_THEY_ARE),
    ("GPT-4o, MMLU anatomy, letters among the likeliest tokens", "gpt4o_anatomy_Direct.csv", {}),
    ("GPT-4o, MMLU-Pro, stated number", GPT4O, {}),
    ("GPT-4o, MMLU-Pro, stated words", GPT4O, WORDS),
    ("GPT-4o, MMLU-Pro, perplexity (a score)", GPT4O, PERPLEXITY),
    ("Qwen3-8B, MMLU-Pro, stated number", QWEN, {}),
    ("Qwen3-8B, MMLU-Pro, stated words", QWEN, WORDS),
    ("Qwen3-8B, MMLU-Pro, perplexity (a score)", QWEN, PERPLEXITY),
    ("Llama-7b, ARC, its own confidence", "bplaut_arc_Llama-7b.txt", {}),
]
# Fewer rows can't be halved and say anything.
FEWEST = 100
DRAWS = 2000


def before_and_after(folder: Path) -> str:
    """Return ECE and AURC on one half of each log, before and after a fit to the other."""
    lines = [
        "| log and signal | rows | accuracy | ECE before | ECE after | AURC before, after |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, file, options in LOGS:
        if not (folder / file).exists():
            continue
        rows = cb.read_predictions(folder / file, **options)
        fit, test = rows.split(0.5, 0)
        fitted = cb.posthoc.make_calibrator("auto").fit_predictions(fit)
        metrics = ["ece", "accuracy", "aurc"]
        raw, after = (
            evaluate(each, metrics=metrics) for each in (test, fitted.apply_predictions(test))
        )
        ece = "none" if rows.kind == "score" else _with_floor(raw["ece"])
        lines.append(
            f"| {name} | {_thousands(rows.n)} | {_percent(raw['accuracy'].value)} | {ece} | "
            f"{_with_floor(after['ece'])} | {_percent(raw['aurc'].value)}, "
            f"{_percent(after['aurc'].value)} |"
        )
    return "\n".join(lines)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _with_floor(found: Any) -> str:
    ends = f"{_percent(found.low)} to {_percent(found.high)}"
    return f"{_percent(found.value)} ({ends}), {_percent(found.floor_95)}"


def others(folder: Path) -> str:
    """Return what is said of the logs that are too small for two halves, or hold no confidence."""
    lines = ["| log | rows | what is said |", "|---|---:|---|"]
    known = {file for _, file, _ in LOGS}
    for path in sorted(folder.iterdir()):
        if path.name in known:
            continue
        try:
            rows, some = read_with_slice(path)
            if some is not None:
                found = slices.accuracy_of_all(some.score, some.outcome, clusters=some.clusters)
                said = f"accuracy of all rows {found.all_rows}; slice alone {found.slice_alone}"
                lines.append(f"| `{path.name}` | {len(some.score)} | {said} |")
                continue
            if rows is None or rows.n >= FEWEST:
                continue
            found = evaluate(rows, metrics=["ece", "accuracy"])
            said = f"ECE {_with_floor(found['ece'])}; accuracy {_percent(found['accuracy'].value)}"
            number = str(rows.n)
        except PredictionsError as reason:
            text = str(reason).replace(f"{path}: ", "").replace("|", "\\|")
            said, number = f"refused: {text.partition('. Its own')[0]}", "none"
        lines.append(f"| `{path.name}` | {number} | {said} |")
    return "\n".join(lines)


def pruned(folder: Path) -> str:
    """Return what one temperature of a model is worth after pruning, and the other way round."""
    found = transfer(
        {
            "whole model": cb.read_predictions(folder / WHOLE),
            "half pruned": cb.read_predictions(folder / PRUNED),
        }
    )
    lines = [f"| fitted on | {' | '.join(found.sets)} |", "|---|---:|---:|"]
    for fitted_on in ("as they are", *found.sets):
        cells = [_cell(found, fitted_on, on) for on in found.sets]
        lines.append(f"| {fitted_on} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Transfer, fitted_on: str, measured_on: str) -> str:
    cell = found.cells[fitted_on, measured_on]
    mark = ""
    if (fitted_on, measured_on) in found.differences:
        _, low, high = found.differences[fitted_on, measured_on]
        mark = " -" if high < 0 else " +" if low > 0 else ""
    return f"{cell.value:.3f} ({cell.low:.3f} to {cell.high:.3f}){mark}"


def elsewhere(folder: Path) -> str:
    """Return how often maps of subjects, categories and models help others."""
    files = {"GPT-4o": folder / GPT4O, "Qwen3-8B": folder / QWEN}
    sets: list[tuple[str, str, Mapping[str, cb.Predictions]]] = [
        ("57 subjects of MMLU, Qwen3-8B, letters", "temperature", _by(folder / WHOLE, "subject")),
        ("14 categories of MMLU-Pro, Qwen3-8B, stated number", "beta", _by(files["Qwen3-8B"])),
        ("14 categories of MMLU-Pro, GPT-4o, stated number", "beta", _by(files["GPT-4o"])),
        (
            "GPT-4o and Qwen3-8B, MMLU-Pro, stated number",
            "beta",
            {name: cb.read_predictions(file) for name, file in files.items()},
        ),
    ]
    lines = [
        "| sets | method | helps other sets | harms | can't tell |",
        "|---|---|---:|---:|---:|",
    ]
    for name, method, rows in sets:
        found = transfer(rows, method)
        helps, harms, open_ = np.array([found.counts(one) for one in found.sets]).sum(axis=0)
        of = f"{_thousands(helps)} of {_thousands(helps + harms + open_)}"
        shown = method if method == "beta" else "one temperature"
        lines.append(f"| {name} | {shown} | {of} | {harms} | {_thousands(open_)} |")
    return "\n".join(lines)


def _by(file: Path, column: str = "category") -> dict[str, cb.Predictions]:
    rows, groups = cb.read_predictions(file), read_column(file, column)
    return {str(g): rows.take(np.flatnonzero(groups == g)) for g in np.unique(groups)}


def slices_of_logs() -> str:
    """Return the coverage of the accuracy of all rows over simulated logs, and its width."""
    slices.PERMUTATIONS = 1  # the test of the slice isn't looked at here
    lines = [
        "| simulated log | coverage | width | coverage of the slice alone | its width |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, options in {
        "1 000 rows, 200 labels, a good judge": {},
        "the same, a judge that says nothing": {"judge": 0.0},
        "1 000 rows, 50 labels, a good judge": {"labelled": 50},
        "2 000 rows in clusters of 4, 480 labels": {"n": 2000, "copies": 4, "labelled": 480},
        "1 000 rows, about 200 labels drawn by score, their probabilities known": {
            "by_score": True
        },
        "1 000 rows, 200 labels, 97 % right": {"right": 0.97},
    }.items():
        hits, widths = np.zeros(2), np.zeros(2)
        for found, truth in _simulated(**options):
            for i, one in enumerate((found.all_rows, found.slice_alone)):
                hits[i] += one.low <= truth <= one.high
                widths[i] += one.high - one.low
        cells = [100 * hits[0], 100 * widths[0], 100 * hits[1], 100 * widths[1]]
        lines.append(f"| {name} | {' | '.join(f'{cell / DRAWS:.1f}' for cell in cells)} |")
    return "\n".join(lines)


# Parameters: what the simulated logs differ in.
def _simulated(
    *,
    n: int = 1000,
    labelled: int = 200,
    copies: int = 1,
    judge: float = 1.0,
    right: float = 0.6,
    by_score: bool = False,
) -> Iterator[tuple[slices.SliceAccuracy, float]]:
    """Yield what is found on logs drawn from a law, and the accuracy of that law."""
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        # An answer's probability of being right, shared by the answers to its prompt.
        share = np.repeat(rng.beta(2 * right, 2 * (1 - right), n // copies), copies)
        outcome = (rng.uniform(size=n) < share).astype(float)
        score = judge * share + (1.2 - judge) * rng.uniform(size=n)
        prompts = np.repeat(np.arange(n // copies), copies)
        inclusion = None
        if by_score:
            inclusion = np.clip(0.05 + 0.3 * (score > np.median(score)), 0, 1)
            known = rng.uniform(size=n) < inclusion
        else:
            known = np.isin(prompts, rng.permutation(n // copies)[: labelled // copies])
        yield (
            slices.accuracy_of_all(
                score,
                np.where(known, outcome, np.nan),
                clusters=prompts if copies > 1 else None,
                inclusion=inclusion,
                seed=seed,
            ),
            right,
        )


def main() -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    tables = {
        "before and after": lambda: before_and_after(given.logs),
        "others": lambda: others(given.logs),
        "pruned": lambda: pruned(given.logs),
        "elsewhere": lambda: elsewhere(given.logs),
        "slices": slices_of_logs,
    }
    for name, make in tables.items():
        if given.only and name != given.only:
            continue
        text = make()
        print(f"{name}\n\n{text}\n", flush=True)
        if given.page is not None:
            old = given.page.read_text(encoding="utf-8")
            place = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
            new = place.sub(lambda match, text=text: f"{match[1]}{text}{match[2]}", old)
            given.page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
