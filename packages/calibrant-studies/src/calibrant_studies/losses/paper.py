"""What FeDLaS's paper says beside what is seen here, and all tables of the study of losses."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core.tables import Table
from calibrant_studies.losses.controls import PAIRS, control, control_sentence, deciding, in_classes
from calibrant_studies.losses.feature_norm import Estimate, interval, norms, norms_by_line
from calibrant_studies.losses.gate import epochs, gates
from calibrant_studies.losses.runs import REFERENCE, Run
from calibrant_studies.losses.statistics import Difference, Side, difference, lines_of, mean
from calibrant_studies.losses.tables import (
    IN_WORDS,
    TITLES,
    against_scaled,
    difference_cell,
    differences,
    interval_cell,
    mean_cell,
    means,
    which_runs,
)

# Bahavan et al. 2026, tables 1 and 4: CIFAR-10 after 350 epochs, in percent. ECE and AdaECE of
# ResNet-50 and ResNet-101, the two parts of the ECE of ResNet-50.
PUBLISHED: dict[Side, dict[str, tuple[float, ...]]] = {
    ("cross-entropy", "none"): {
        "ece": (5.85, 5.74),
        "adaece": (5.84, 5.73),
        "overconfidence": (5.85,),
        "underconfidence": (0.0,),
    },
    ("label-smoothing", "none"): {
        "ece": (3.59, 3.07),
        "adaece": (4.09, 4.18),
        "overconfidence": (1.16,),
        "underconfidence": (2.45,),
    },
    ("fedlas-ls", "none"): {
        "ece": (1.29, 1.56),
        "adaece": (2.30, 1.92),
        "overconfidence": (0.89,),
        "underconfidence": (0.40,),
    },
    ("mbls", "none"): {
        "ece": (1.21, 1.38),
        "adaece": (3.34, 3.25),
        "overconfidence": (1.09,),
        "underconfidence": (0.12,),
    },
    ("fedlas-mbls", "none"): {
        "ece": (1.12, 1.27),
        "adaece": (3.20, 3.58),
        "overconfidence": (1.11,),
        "underconfidence": (0.02,),
    },
    ("acls", "none"): {"ece": (2.32, 2.22), "adaece": (2.99, 2.88)},
    ("focal", "none"): {"ece": (3.90, 4.60), "adaece": (3.86, 4.58)},
    ("dual-focal", "none"): {"ece": (2.46, 2.12), "adaece": (2.39, 2.15)},
    (REFERENCE, "temperature"): {"ece": (3.68, 3.62), "adaece": (3.67, 3.62)},
}
# What the paper says is lower than what, and in which metrics.
CLAIMS: tuple[tuple[Side, Side, tuple[str, ...]], ...] = (
    (
        ("fedlas-ls", "none"),
        ("label-smoothing", "none"),
        ("ece", "adaece", "overconfidence", "underconfidence"),
    ),
    (
        ("fedlas-mbls", "none"),
        ("mbls", "none"),
        ("ece", "adaece", "overconfidence", "underconfidence"),
    ),
    (("fedlas-ls", "none"), (REFERENCE, "none"), ("ece", "adaece")),
    (("fedlas-mbls", "none"), (REFERENCE, "none"), ("ece", "adaece")),
    (("fedlas-ls", "none"), (REFERENCE, "temperature"), ("ece", "adaece")),
    (("fedlas-mbls", "none"), (REFERENCE, "temperature"), ("ece", "adaece")),
    (("fedlas-mbls", "none"), ("acls", "none"), ("ece",)),
    (("fedlas-mbls", "none"), ("dual-focal", "none"), ("ece",)),
    ((REFERENCE, "none"), ("label-smoothing", "none"), ("underconfidence",)),
)

# Of one comparison, metrics that say the same: two measures of one error, and its two parts.
SAME_CLAIM = {"AdaECE": "ECE", "O-ECE": "parts", "U-ECE": "parts"}


def all_tables(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """Return every table with its heading; none without the line that the others are held to."""
    if REFERENCE not in lines_of(runs):
        return []
    found = [
        ("In short", summary(runs)),
        ("Runs", which_runs(runs)),
        *((f"Test images, {words}", means(runs, after)) for after, words in IN_WORDS.items()),
        *((f"Differences {words}", differences(runs, after)) for after, words in IN_WORDS.items()),
        ("Against cross-entropy with temperature scaling", against_scaled(runs)),
        ("ECE in the paper and here", published(runs)),
        ("The paper's claims", claims(runs)),
        ("Is FeDLaS-LS more than a smaller alpha?", control(runs)),
        ("The norm of the features", norms(runs)),
        ("The gate on test images", gates(runs)),
        ("The gate by epoch", epochs(runs)),
    ]
    return [(h, table if table.rows else Table([], [], notes=table.notes)) for h, table in found]


def summary(runs: Sequence[Run]) -> Table:
    """Return what the intervals say, in sentences that follow the runs."""
    trained, scaled = (REFERENCE, "none"), (REFERENCE, "temperature")
    accuracy, ece = (mean_cell(runs, trained, metric) for metric in ("accuracy", "ece"))
    points = [
        f"Cross-entropy as trained: accuracy {accuracy}, ECE {ece}; with one temperature "
        f"{mean_cell(runs, scaled, 'ece')}.",
        f"Accuracy against cross-entropy: {_sorted_out(runs, 'none', trained, 'accuracy')}.",
        f"ECE as trained against cross-entropy: {_sorted_out(runs, 'none', trained, 'ece')}.",
        "ECE as trained against cross-entropy with temperature scaling: "
        f"{_sorted_out(runs, 'none', scaled, 'ece')}.",
        "ECE against cross-entropy, both with temperature scaling: "
        f"{_sorted_out(runs, 'temperature', scaled, 'ece')}.",
        "NLL against cross-entropy, both with temperature scaling: "
        f"{_sorted_out(runs, 'temperature', scaled, 'nll')}.",
    ]
    for ours, base in PAIRS[:2]:
        parts = [
            f"{TITLES[metric]} {found}"
            for metric in ("ece", "overconfidence", "underconfidence", "accuracy", "nll")
            if (found := difference_cell(runs, ours, base, metric))
        ]
        if parts:
            points.append(f"{ours[0]} minus {base[0]}, as trained: {', '.join(parts)}.")
    points.append(control_sentence(runs))
    points += deciding(runs)
    points.append(norm_sentence(norms_by_line(runs)))
    points.append(claims(runs).notes.replace("Claims", "Claims of the FeDLaS paper", 1))
    points = [point for point in points if point]
    return Table([], [], notes="\n\n".join(f"- {point}" for point in points))


def _sorted_out(runs: Sequence[Run], after: str, second: Side, metric: str) -> str:
    """Return which lines lie below, above, or can't be told from another."""
    return in_classes(
        {
            line: found
            for line in lines_of(runs)
            if line != REFERENCE
            and (found := difference(runs, (line, after), second, metric)) is not None
        }
    )


def published(runs: Sequence[Run]) -> Table:
    """Return the ECE of the paper beside the one here, in the paper's order."""
    sides = sorted(PUBLISHED, key=lambda side: PUBLISHED[side]["ece"][0])
    present = lines_of(runs)
    rows = [
        [
            side[0] + (" + TS" if side[1] == "temperature" else ""),
            *(f"{value:.2f}" for value in PUBLISHED[side]["ece"]),
            mean_cell(runs, side, "ece") if side[0] in present else "",
            "/".join(
                f"{PUBLISHED[side][part][0]:.2f}" for part in ("overconfidence", "underconfidence")
            )
            if "overconfidence" in PUBLISHED[side]
            else "",
            "/".join(
                f"{100 * mean(runs, side, part).value:.2f}"
                for part in ("overconfidence", "underconfidence")
            )
            if side[0] in present
            else "",
        ]
        for side in sides
    ]
    head = ["loss", "ResNet-50", "ResNet-101", "here", "O/U-ECE, ResNet-50", "O/U-ECE, here"]
    return Table(head, rows)


def claims(runs: Sequence[Run]) -> Table:
    """Return what the paper says is lower, and whether it is here."""
    rows: list[list[str]] = []
    for first, second, metrics in CLAIMS:
        for metric in metrics:
            in_paper = "".join(f"{PUBLISHED[first][metric][0] - PUBLISHED[second][metric][0]:+.2f}")
            found = difference(runs, first, second, metric)
            rows.append(
                [
                    f"{_side(first)} below {_side(second)}",
                    TITLES[metric],
                    in_paper,
                    interval_cell(found, metric) if found else "",
                    _verdict(found),
                ]
            )
    head = ["the paper says", "metric", "published", "here", "verdict"]
    return Table(head, rows, notes=tally(rows))


def tally(rows: Sequence[Sequence[str]]) -> str:
    """Return how many claims came out how, from the rows of their table.

    ECE and AdaECE measure the same error, O-ECE and U-ECE are its two parts: what the paper says of
    both is one claim, which counts as open where the two verdicts differ.
    """
    by_claim: dict[tuple[str, str], set[str]] = {}
    for comparison, metric, *_, verdict in rows:
        if verdict:
            claim = comparison, SAME_CLAIM.get(metric, metric)
            by_claim.setdefault(claim, set()).add(verdict.removesuffix(" (one seed)"))
    told = [min(found) if len(found) == 1 else "open" for found in by_claim.values()]
    counts = [f"{told.count(words)} {words}" for words in ("as published", "the opposite", "open")]
    return f"Claims that could be checked: {len(told)}; {', '.join(counts)}."


def norm_sentence(found: dict[str, list[list[Estimate]]]) -> str:
    """Return whether the norm or the confidence says more about being right.

    Args:
        found: of each line, for each run, its estimates in the order of `NORM_COLUMNS`.
    """
    if not found:
        return ""
    sides = {
        line: [interval([each[i] for each in runs]) for i in (2, 3)] for line, runs in found.items()
    }
    less = sum(norm[2] < confidence[1] for norm, confidence in sides.values())
    ends = [
        f"{min(side[i][0] for side in sides.values()):.2f} to "
        f"{max(side[i][0] for side in sides.values()):.2f}"
        for i in range(2)
    ]
    own = [
        f"{line} {sides[line][0][0]:.2f} against {sides[line][1][0]:.2f}"
        for line in sides
        if line.startswith("fedlas")
    ]
    words = (
        "Whether an image is classified rightly, the feature norm tells worse than the confidence "
        f"with {less} of {len(sides)} losses (intervals apart): AUROC {ends[0]} against {ends[1]}"
    )
    return f"{words}; {', '.join(own)}." if own else f"{words}."


def _verdict(found: Difference | None) -> str:
    if found is None:
        return ""
    words = {-1: "as published", 1: "the opposite", 0: "open"}[found.verdict]
    return words if found.of_seeds else f"{words} (one seed)"


def _side(side: Side) -> str:
    return side[0] + (" + TS" if side[1] == "temperature" else "")
