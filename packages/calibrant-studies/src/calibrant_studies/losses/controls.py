"""Whether FeDLaS-LS is more than less smoothing, and whether it needs its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.core.tables import Table
from calibrant_studies.losses.runs import ABLATIONS, CONTROL, CONTROLS, SMALLER, Run
from calibrant_studies.losses.statistics import Difference, Side, difference, lines_of, mean
from calibrant_studies.losses.tables import TITLES, difference_cell, interval_cell

# Whether FeDLaS-LS is more than a smaller alpha.
CONTROLLED: tuple[Side, Side] = (("fedlas-ls", "none"), (CONTROL, "none"))
# FeDLaS and what it adds to, or has to beat.
PAIRS: tuple[tuple[Side, Side], ...] = (
    (("fedlas-ls", "none"), ("label-smoothing", "none")),
    (("fedlas-mbls", "none"), ("mbls", "none")),
    *((CONTROLLED[0], (line, "none")) for line in CONTROLS),
)


def control(runs: Sequence[Run]) -> Table:
    """Return FeDLaS-LS less label smoothing with less of it, and less itself without its parts."""
    metrics = ("accuracy", "ece", "adaece", "nll")
    rows = [
        [f"{line} ({mean(runs, (line, 'none'), 'ece').seeds})", *cells]
        for line in CONTROLS
        if all(
            cells := [
                difference_cell(runs, CONTROLLED[0], (line, "none"), metric) for metric in metrics
            ]
        )
    ]
    missing = [line for line in CONTROLS if line not in lines_of(runs)]
    head = ["fedlas-ls as trained, minus (seeds)", *(TITLES[metric] for metric in metrics)]
    return Table(head, rows, notes=f"Not there: {', '.join(missing)}." if missing else "")


def control_sentence(runs: Sequence[Run]) -> str:
    """Return what the control says, and of how many seeds; nothing without it."""
    cells = [
        f"{TITLES[metric]} {difference_cell(runs, *CONTROLLED, metric)}"
        for metric in ("ece", "nll")
    ]
    found = difference(runs, *CONTROLLED, "ece")
    return "" if found is None else control_words(cells, len(found.by_seed))


def control_words(cells: Sequence[str], seeds: int) -> str:
    """Return the sentence on the control from the cells of its table."""
    known = "one seed, which says nothing of others" if seeds == 1 else f"{seeds} seeds"
    return (
        f"fedlas-ls minus {CONTROL}, the control with about its mean alpha ({known}), as trained: "
        f"{', '.join(cells)}."
    )


def in_classes(found: dict[str, Difference]) -> str:
    """Return the names of differences that are below 0, above it, or open."""
    words: dict[int, list[str]] = {-1: [], 1: [], 0: []}
    for name, each in found.items():
        words[each.verdict].append(name if each.of_seeds else f"{name} (one seed)")
    labels = {-1: "lower", 1: "higher", 0: "open"}
    return "; ".join(f"{labels[sign]}: {', '.join(of) or 'none'}" for sign, of in words.items())


def deciding(runs: Sequence[Run]) -> list[str]:
    """Return what decides whether the norm and the gate of FeDLaS-LS add something, and its limit.

    One sentence for label smoothing with a smaller alpha, one for FeDLaS-LS without its norm or its
    gate, and one on what the intervals leave open.
    """
    points: list[str] = []
    everything: list[Difference] = []
    unseen: list[str] = []
    for lines, words in (
        (SMALLER, "What decides whether FeDLaS-LS is more than less smoothing: {}, as trained"),
        (ABLATIONS, "Without what it takes from the features, or without its gate: {}, as trained"),
    ):
        parts: list[str] = []
        for metric in ("ece", "nll"):
            found = {
                line: each
                for line in lines
                if (each := difference(runs, CONTROLLED[0], (line, "none"), metric)) is not None
            }
            if found:
                parts.append(f"{TITLES[metric]} against these: {in_classes(found)}")
                everything += found.values() if metric == "ece" else []
            unseen += [
                f"{TITLES[metric]} against {line} {interval_cell(each, metric)}"
                for line, each in found.items()
                if each.sign and not each.verdict and each.known() < len(each.by_seed)
            ]
        if parts:
            points.append(f"{words.format('fedlas-ls')}: {'. '.join(parts)}.")
    if unseen:
        points.append(
            "Open only because predictions are gone, so that single networks can't be looked at: "
            f"{'; '.join(unseen)}."
        )
    ends = [
        end
        for found in everything
        if not found.sign and not math.isnan(found.low)
        for end in (found.low, found.high)
    ]
    if ends:
        points.append(
            "What this doesn't show: that two are equal. Where the interval over seeds holds 0, "
            f"the ECE may differ by {100 * min(ends):+.2f} to {100 * max(ends):+.2f} points. Nor "
            "does it say anything of networks that were trained for so long that they are far more "
            "overconfident."
        )
    return points
