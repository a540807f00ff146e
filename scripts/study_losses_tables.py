"""Tables of the study of losses, for the terminal and for the page in the docs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from study_losses_runs import AFTER, LINES, METRICS, REFERENCE, Run
from study_losses_statistics import Difference, Side, difference, lines_of, mean, seeds_of

from calibrant.errors import InputError
from calibrant.tables import format_table

TITLES = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "adaece": "AdaECE",
    "overconfidence": "O-ECE",
    "underconfidence": "U-ECE",
    "nll": "NLL",
}
IN_WORDS = {
    "none": "as trained",
    "temperature": "after temperature scaling",
    "smart": "after SMART",
}
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


@dataclass(frozen=True)
class Table:
    """A table in two forms.

    Attributes:
        name: of its place in the page.
        title: above it in the terminal.
        head: of the columns.
        rows: as many cells each.
        note: a sentence below.
    """

    name: str
    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        parts = [self.title, format_table(self.head, self.rows) if self.rows else "", self.note]
        return "\n\n".join(part for part in parts if part)

    def markdown(self) -> str:
        """Return the table as the page has it."""
        if not self.rows:
            return self.note
        lines = [self.head, ["---", *["--:"] * (len(self.head) - 1)], *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.note}" if self.note else table


def fill(page: str, tables: Sequence[Table]) -> str:
    """Return a page with each table between ``<!-- table NAME -->`` and ``<!-- end -->``.

    Raises:
        InputError: the page has no such place, or has a place for which there is no table.
    """
    places = re.findall(r"<!-- table (\S+) -->", page)
    by_name = {table.name: table for table in tables}
    if sorted(places) != sorted(by_name):
        odd = sorted(set(places) ^ set(by_name)) or places
        raise InputError(f"the page and the tables don't agree on: {', '.join(odd)}")
    for name, table in by_name.items():
        place = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, found = place.subn(
            lambda match, table=table: f"{match[1]}\n{table.markdown()}\n\n{match[2]}", page
        )
        if found != 1:
            raise InputError(f"the page has no '<!-- end -->' for the table {name}")
    return page


def all_tables(runs: Sequence[Run]) -> list[Table]:
    """Return every table that needs nothing but the predictions."""
    return [
        which_runs(runs),
        *(means(runs, after) for after in AFTER),
        *(differences(runs, after) for after in AFTER),
        against_scaled(runs),
        published(runs),
        claims(runs),
    ]


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
        words += f" Not finished when this page was made: {', '.join(missing)}."
    return Table("runs", "Runs", ["loss", "seeds", "which"], rows, words)


def means(runs: Sequence[Run], after: str) -> Table:
    """Return mean, deviation and floor of every metric."""
    rows = [
        [
            _name(runs, line),
            *(_mean(runs, (line, after), metric) for metric in METRICS),
        ]
        for line in lines_of(runs)
    ]
    head = ["loss (seeds)", *(TITLES[metric] for metric in METRICS)]
    return Table(f"means-{after}", f"Test images, {IN_WORDS[after]}", head, rows)


def differences(runs: Sequence[Run], after: str) -> Table:
    """Return each line less cross-entropy, both after the same method."""
    metrics = ("accuracy", "ece", "adaece", "nll")
    rows = [
        [line, *(_difference(runs, (line, after), (REFERENCE, after), m) for m in metrics)]
        for line in lines_of(runs)
        if line != REFERENCE
    ]
    head = [f"minus {REFERENCE}", *(TITLES[metric] for metric in metrics)]
    return Table(f"differences-{after}", f"Differences {IN_WORDS[after]}", head, rows)


def against_scaled(runs: Sequence[Run]) -> Table:
    """Return each line as trained less cross-entropy after temperature scaling."""
    metrics = ("ece", "adaece", "nll")
    scaled = (REFERENCE, "temperature")
    rows = [
        [line, *(_difference(runs, (line, "none"), scaled, metric) for metric in metrics)]
        for line in lines_of(runs)
        if line != REFERENCE
    ]
    head = ["as trained, minus cross-entropy + TS", *(TITLES[metric] for metric in metrics)]
    return Table("against-scaled", "Against cross-entropy with temperature scaling", head, rows)


def published(runs: Sequence[Run]) -> Table:
    """Return the ECE of the paper beside the one here, in the paper's order."""
    sides = sorted(PUBLISHED, key=lambda side: PUBLISHED[side]["ece"][0])
    present = lines_of(runs)
    rows = [
        [
            side[0] + (" + TS" if side[1] == "temperature" else ""),
            *(f"{value:.2f}" for value in PUBLISHED[side]["ece"]),
            _mean(runs, side, "ece") if side[0] in present else "",
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
    return Table("published", "ECE in the paper and here", head, rows)


def claims(runs: Sequence[Run]) -> Table:
    """Return what the paper says is lower, and whether it is here."""
    rows: list[list[str]] = []
    verdicts: list[str] = []
    for first, second, metrics in CLAIMS:
        for metric in metrics:
            in_paper = "".join(f"{PUBLISHED[first][metric][0] - PUBLISHED[second][metric][0]:+.2f}")
            found = difference(runs, first, second, metric)
            verdicts.append(_verdict(found))
            rows.append(
                [
                    f"{_side(first)} below {_side(second)}",
                    TITLES[metric],
                    in_paper,
                    _interval(found, metric) if found else "",
                    verdicts[-1],
                ]
            )
    told = [verdict for verdict in verdicts if verdict]
    words = {"as published": "hold here", "the opposite": "are reversed", "open": "stay open"}
    counts = [
        f"{sum(verdict.startswith(start) for verdict in told)} {what}"
        for start, what in words.items()
    ]
    note = f"Of {len(told)} claims that could be checked, {', '.join(counts)}."
    head = ["the paper says", "metric", "published", "here", "verdict"]
    return Table("claims", "The paper's claims", head, rows, note)


def _verdict(found: Difference | None) -> str:
    if found is None:
        return ""
    words = {-1: "as published", 1: "the opposite", 0: "open"}[found.sign]
    return words if found.of_seeds else f"{words} (one seed)"


def _side(side: Side) -> str:
    return side[0] + (" + TS" if side[1] == "temperature" else "")


def _name(runs: Sequence[Run], line: str) -> str:
    return f"{line} ({len(seeds_of(runs, line))})"


def _mean(runs: Sequence[Run], side: Side, metric: str) -> str:
    found = mean(runs, side, metric)
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    text = f"{scale * found.value:.{digits}f}"
    if found.deviation is not None:
        text += f" ± {scale * found.deviation:.{digits}f}"
    return text if found.floor is None else f"{text} [{scale * found.floor:.{digits}f}]"


def _difference(runs: Sequence[Run], first: Side, second: Side, metric: str) -> str:
    found = difference(runs, first, second, metric)
    return "" if found is None else _interval(found, metric)


def _interval(found: Difference, metric: str) -> str:
    scale, digits = (1, 4) if metric == "nll" else (100, 2)
    value, low, high = (f"{scale * x:+.{digits}f}" for x in (found.value, found.low, found.high))
    star = "*" if found.sign else ""
    apart = f"; {found.agreeing()}/{len(found.by_seed)}"
    return f"{value}{star} ({low} to {high}{apart})"
