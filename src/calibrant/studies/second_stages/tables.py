"""Tables of the second stages' study, in Markdown, between the markers of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

Results = dict[str, Any]
# Keys of a metric, what heads its column, and what to multiply it by.
SHOWN = (
    ("accuracy", "accuracy", 100),
    ("ece", "ECE", 100),
    ("adaece", "AdaECE", 100),
    ("mce", "MCE", 100),
    ("overconfidence", "O-ECE", 100),
    ("underconfidence", "U-ECE", 100),
    ("nll", "NLL", 1),
)
NETWORK = "network's head"
PAPER = {"tst": 1.09, "v-tst": 1.05, "balcal, frozen": 1.12, "maccal": 1.05}


def refresh(page: Path, results: Results, *, write: bool) -> dict[str, str]:
    """Return all tables by name; `write` puts each between its markers on the page.

    Raises:
        ValueError: the page lacks a marker.
    """
    runs = list(results.values())
    tables = {name: table(runs) for name, table in TABLES.items()}
    if write:
        for name, table in tables.items():
            write_table(page, name, table)
    return tables


def write_table(page: Path, name: str, table: str) -> None:
    """Put a table between its markers on a page.

    Raises:
        ValueError: the page lacks a marker.
    """
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{page}: lacks the markers of '{name}'")
    page.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


def what_was_run(runs: Sequence[Results]) -> str:
    """Return how many networks of each loss there are."""
    counts = {loss: sum(run["loss"] == loss for run in runs) for loss in losses(runs)}
    rows = {tuple(run["rows"]) for run in runs}
    sizes = "; ".join(f"{a} training, {b} validation and {c} test rows" for a, b, c in rows)
    networks = ", ".join(f"{loss} {count}" for loss, count in counts.items())
    return f"Networks: {networks}. Each: {sizes}."


def every_method(runs: Sequence[Results]) -> str:
    """Return a table for each stage-1 loss: all metrics, and what calibrators leave."""
    parts: list[str] = []
    for loss in losses(runs):
        of_loss = [run["methods"] for run in runs if run["loss"] == loss]
        floor = np.mean([run[NETWORK]["none"]["ece_floor_95"] for run in of_loss])
        rows: list[list[str]] = []
        for method in of_loss[0]:
            cells = [
                spread([run[method]["none"][key] for run in of_loss], scale)
                for key, _, scale in SHOWN
            ]
            for after in ("temperature", "smart"):
                for key, scale in (("ece", 100), ("nll", 1)):
                    cells.append(spread([run[method][after][key] for run in of_loss], scale))
            rows.append([name_of(method), *cells])
        head = [label for _, label, _ in SHOWN]
        head += ["ECE + TS", "NLL + TS", "ECE + SMART", "NLL + SMART"]
        parts.append(
            f"Stage 1: **{loss}**, {plural(len(of_loss))}; 95 % floor of the ECE about "
            f"{100 * floor:.2f}.\n\n" + markdown(["", *head], rows)
        )
    return "\n\n".join(parts)


def did_it_halve(runs: Sequence[Results]) -> str:
    """Return for each network what MaC-Cal made of ECE and accuracy."""
    rows: list[list[str]] = []
    for run, method in product(runs, ("maccal", "maccal, two layers")):
        before, after = (run["methods"][name]["none"] for name in (NETWORK, method))
        rows.append(
            [
                f"{run['loss']}, seed {run['seed']}",
                name_of(method),
                f"{100 * before['ece']:.2f} -> {100 * after['ece']:.2f}",
                f"{after['ece'] / before['ece']:.2f}",
                f"{100 * (after['accuracy'] - before['accuracy']):+.2f}",
                f"{after['nll'] - before['nll']:+.4f}",
                "; ".join(run["notes"][method]) or "-",
            ]
        )
    head = ["network", "", "ECE", "ratio", "accuracy, points", "NLL", "what the guard said"]
    return markdown(head, rows)


def ablation(runs: Sequence[Results]) -> str:
    """Return the steps of the paper's Table 5, on cross-entropy."""
    chosen = cross_entropy(runs)
    rows = [
        [name_of(name), *metrics_of([run["methods"][name]["none"] for run in chosen])]
        for name in (NETWORK, "retrain")
    ]
    for step in chosen[0]["ablation"]:
        rows.append([f"+ {step}", *metrics_of([run["ablation"][step] for run in chosen])])
    return markdown(["", *(label for _, label, _ in SHOWN)], rows)


def kappa_curve(runs: Sequence[Results]) -> str:
    """Return the sensitivity to kappa on validation rows (Fig. 7), on cross-entropy."""
    chosen = cross_entropy(runs)
    rows: list[list[str]] = []
    for place, point in enumerate(chosen[0]["kappa"]["curve"]):
        points = [run["kappa"]["curve"][place] for run in chosen]
        times = sum(
            run["kappa"]["chosen"] == run["kappa"]["curve"][place]["kappa"] for run in chosen
        )
        cells = [spread([each[key] for each in points], digits=2) for key in ("kappa", "retention")]
        cells += [spread([each[key] for each in points], 100) for key in SHARES]
        cells.append(spread([each["nll"] for each in points]))
        rows.append([f"{point['share']:g}", *cells, str(times)])
    head = ["share", "last kappa", "last retention", *LABELS, "NLL", "chosen, times"]
    return markdown(head, rows)


def masks(runs: Sequence[Results]) -> str:
    """Return what masks do to a head that has not learnt with them (Fig. 1)."""
    chosen = cross_entropy(runs)
    rows: list[list[str]] = []
    for place, point in enumerate(chosen[0]["masks_at_inference"]):
        points = [run["masks_at_inference"][place] for run in chosen]
        cells = [spread([point[key] for point in points], 100) for key in SHARES]
        rows.append([f"{point['retention']:g}", *cells])
    return markdown(["share kept", *LABELS], rows)


def corruptions(runs: Sequence[Results]) -> str:
    """Return the ECE and accuracy over all corruptions by severity (Fig. 5), on cross-entropy."""
    chosen = [run for run in cross_entropy(runs) if any(run["corruptions"].values())]
    if not chosen:
        return "None of the runs has its network."
    severities = sorted({cell["severity"] for cell in chosen[0]["corruptions"][NETWORK]})
    rows: list[list[str]] = []
    for method in chosen[0]["corruptions"]:
        cells: list[str] = []
        for key in ("accuracy", "ece"):
            for severity in severities:
                means = [
                    np.mean(
                        [
                            cell[key]
                            for cell in run["corruptions"][method]
                            if cell["severity"] == severity
                        ]
                    )
                    for run in chosen
                ]
                cells.append(spread(means, 100))
        rows.append([name_of(method), *cells])
    head = [f"{label}, severity {at}" for label in ("accuracy", "ECE") for at in severities]
    return markdown(["", *head], rows)


def out_of_distribution(runs: Sequence[Results]) -> str:
    """Return AUROC and FPR95 for each kind of unknown image, on cross-entropy."""
    chosen = [run for run in cross_entropy(runs) if any(run["out_of_distribution"].values())]
    if not chosen:
        return "None of the runs has its network."
    kinds = list(chosen[0]["out_of_distribution"][NETWORK])
    rows: list[list[str]] = []
    for method in chosen[0]["out_of_distribution"]:
        found = [run["out_of_distribution"][method] for run in chosen]
        cells = [
            spread([kind_of[kind][key] for kind_of in found], 100)
            for kind in kinds
            for key in ("auroc", "fpr95")
        ]
        rows.append([name_of(method), *cells])
    head = [f"{key}, {kind}" for kind in kinds for key in ("AUROC", "FPR95")]
    return markdown(["", *head], rows)


def cost(runs: Sequence[Results]) -> str:
    """Return the seconds of stage 2, and of both stages as a multiple of the first (Table 4)."""
    timed = [run["seconds"] for run in runs if run["seconds"]["stage 1"]]
    if not timed:
        return "No run says how long its first stage took."
    # All first stages are the same work; what some took longer is what they waited for.
    first = min(run["stage 1"] for run in timed)
    rows = [["stage 1", f"{first:.0f}", "1", "1"]]
    for method in timed[0]:
        if method == "stage 1":
            continue
        seconds = [run[method] for run in timed]
        ratio = spread([1 + each / first for each in seconds], digits=3)
        paper = f"{PAPER[method]:.2f}" if method in PAPER else "-"
        rows.append([name_of(method), spread(seconds, digits=1), ratio, paper])
    head = ["", "seconds", "both stages over stage 1", "the paper's, ResNet-50"]
    return markdown(head, rows)


SHARES, LABELS = ("accuracy", "confidence", "ece"), ("accuracy", "confidence", "ECE")
TABLES: dict[str, Callable[[Sequence[Results]], str]] = {
    "networks": what_was_run,
    "halved": did_it_halve,
    "methods": every_method,
    "ablation": ablation,
    "kappa": kappa_curve,
    "masks": masks,
    "corruptions": corruptions,
    "unknown images": out_of_distribution,
    "cost": cost,
}


def losses(runs: Sequence[Results]) -> list[str]:
    """Return the losses in the order in which they come."""
    return list(dict.fromkeys(run["loss"] for run in runs))


def cross_entropy(runs: Sequence[Results]) -> list[Results]:
    """Return the runs of cross-entropy, or all if there is none."""
    return [run for run in runs if run["loss"] == "cross-entropy"] or list(runs)


def metrics_of(values: Sequence[dict[str, float]]) -> list[str]:
    """Return all metrics of some heads as cells."""
    return [spread([each[key] for each in values], scale) for key, _, scale in SHOWN]


def spread(values: Iterable[Any], scale: float = 1, digits: int | None = None) -> str:
    """Return mean and standard deviation; the mean alone of a single value."""
    numbers = scale * np.array(list(values), dtype=np.float64)
    digits = (2 if scale == 100 else 4) if digits is None else digits
    mean = f"{numbers.mean():.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {numbers.std(ddof=1):.{digits}f}"


def name_of(method: str) -> str:
    """Return a method's name as the page writes it."""
    name, comma, rest = method.partition(",")
    return method if method.startswith(NETWORK) else f"`{name}`{comma}{rest}"


def plural(count: int) -> str:
    """Return a number of networks in words."""
    return "one network" if count == 1 else f"{count} networks"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
