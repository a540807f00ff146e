"""Tables of the study of losses: means, and differences to cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.core.result import Table
from calibrant_studies.losses.probes import Estimate, epochs, gates, interval, norms, norms_by_line
from calibrant_studies.losses.statistics import (
    ABLATIONS,
    CONTROL,
    CONTROLS,
    LINES,
    METRICS,
    REFERENCE,
    SMALLER,
    SMART_FIT,
    Difference,
    Run,
    Side,
    difference,
    lines_of,
    mean,
    seeds_of,
)

TITLES = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "adaece": "AdaECE",
    "overconfidence": "O-ECE",
    "underconfidence": "U-ECE",
    "nll": "NLL",
}
# Of differences to cross-entropy.
COMPARED = ("accuracy", "ece", "adaece", "nll")
IN_WORDS = {
    "none": "as trained",
    "temperature": "after temperature scaling",
    "smart": "after SMART",
}


def which_runs(runs: Sequence[Run]) -> Table:
    """Return which seeds there are, and the settings that all have."""
    settings = runs[0].settings
    rows = [
        [line, str(len(seeds_of(runs, line))), ", ".join(map(str, seeds_of(runs, line)))]
        for line in lines_of(runs)
    ]
    missing = [line for line in LINES if line not in lines_of(runs)]
    precision = {"bf16": ", mixed precision bf16", "16": ", mixed precision fp16"}
    words = (
        f"Network {settings['net']}, protocol `{settings['protocol']}`"
        f"{precision.get(settings['precision'], '')}, {len(runs)} runs."
    )
    if missing:
        words += f" Not there: {', '.join(missing)}."
    return Table(["loss", "seeds", "which"], rows, notes=words)


def means(runs: Sequence[Run], after: str) -> Table:
    """Return mean, deviation and floor of every metric."""
    rows = [
        [
            _name(runs, line),
            *(mean_cell(runs, (line, after), metric) for metric in METRICS),
        ]
        for line in lines_of(runs)
    ]
    head = ["loss (seeds)", *(TITLES[metric] for metric in METRICS)]
    note = _other_fits(runs) if after == "smart" else ""
    return Table(head, rows, notes=note)


def _other_fits(runs: Sequence[Run]) -> str:
    """Return which lines stand here after a SMART that was fitted otherwise than today's."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        if run.smart_fit != SMART_FIT and run.line not in (
            known := lines.setdefault(run.smart_fit, [])
        ):
            known.append(run.line)
    return " ".join(
        f"After a SMART that was fitted by {fit}, before it was by {SMART_FIT}, for networks that "
        f"are gone: {', '.join(of)}."
        for fit, of in lines.items()
    )


def differences(runs: Sequence[Run], after: str) -> Table:
    """Return each line less cross-entropy, both after the same method."""
    return _less(runs, f"minus {REFERENCE}", after, (REFERENCE, after), COMPARED)


def against_scaled(runs: Sequence[Run]) -> Table:
    """Return each line as trained less cross-entropy after temperature scaling."""
    head = "as trained, minus cross-entropy + TS"
    return _less(runs, head, "none", (REFERENCE, "temperature"), COMPARED[1:])


def _less(
    runs: Sequence[Run], head: str, after: str, second: Side, metrics: Sequence[str]
) -> Table:
    rows = [
        [line, *(difference_cell(runs, (line, after), second, metric) for metric in metrics)]
        for line in lines_of(runs)
        if line != REFERENCE
    ]
    return Table([head, *(TITLES[metric] for metric in metrics)], rows)


def _name(runs: Sequence[Run], line: str) -> str:
    return f"{line} ({len(seeds_of(runs, line))})"


def mean_cell(runs: Sequence[Run], side: Side, metric: str) -> str:
    """Return mean, spread and floor as tables have them."""
    found = mean(runs, side, metric)
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    text = f"{scale * found.value:.{digits}f}"
    if found.deviation is not None:
        text += f" ± {scale * found.deviation:.{digits}f}"
    if found.interval is not None:
        text += f" ({' to '.join(f'{scale * end:.{digits}f}' for end in found.interval)})"
    return text if found.floor is None else f"{text} [{scale * found.floor:.{digits}f}]"


def difference_cell(runs: Sequence[Run], first: Side, second: Side, metric: str) -> str:
    """Return a difference with its interval, or nothing if there is none."""
    found = difference(runs, first, second, metric)
    return "" if found is None else interval_cell(found, metric)


def interval_cell(found: Difference, metric: str) -> str:
    """Return a difference with its interval, a star and the count of seeds."""
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    value, low, high = (f"{scale * x:+.{digits}f}" for x in (found.value, found.low, found.high))
    star = "*" if found.sign else ""
    apart = f"{found.agreeing()}/{found.known()}"
    if found.known() < len(found.by_seed):
        apart += f" of {len(found.by_seed)}"
    ends = "" if math.isnan(found.low) else f"{low} to {high}; "
    return f"{value}{star} ({ends}{apart})"


# Whether FeDLaS-LS is more than less smoothing, and whether it needs its parts.
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
    metrics = COMPARED
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


# What FeDLaS's paper says beside what is seen here, and all tables of the study of losses.
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

    ECE and AdaECE measure the same error, O-ECE and U-ECE are its two parts: the paper's
    statement about both is one claim, which counts as open where the two verdicts differ.
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
