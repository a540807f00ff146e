"""The page of the study of losses: its tables, its pictures, and the numbers beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from calibrant.files.atomic import replacing
from calibrant.studies.losses import feature_norm, gate
from calibrant.studies.losses.figures import write_figures
from calibrant.studies.losses.paper import all_tables
from calibrant.studies.losses.record import as_document, join
from calibrant.studies.losses.runs import read_runs
from calibrant.studies.losses.tables import fill


def write_tables(place: Path, page: Path | None, resamples: int) -> None:
    """Print what the finished runs in a folder show, and write it into a page if there is one.

    Runs of the page's last making whose folders are gone stay in it, see `record`.
    """
    runs = read_runs(
        place,
        resamples,
        lambda words: print(f"reading {words}", file=sys.stderr, flush=True),
    )
    if page is not None:
        joined = join(runs, page.parent / "results/losses.json")
        runs = joined.runs
        for names, words in (
            (joined.again, "trained again, with the same results"),
            (joined.otherwise, "trained again, with other results than the page had"),
        ):
            for name in names:
                print(f"{name}: {words}", file=sys.stderr)
    tables = [*all_tables(runs), feature_norm.norms(runs), gate.gates(runs), gate.epochs(runs)]
    print("\n\n\n".join(map(str, tables)))
    if page is None:
        return
    filled = fill(page.read_text(encoding="utf-8"), tables)
    folder = page.parent
    (folder / "results").mkdir(exist_ok=True)
    numbers = json.dumps(as_document(runs), indent=1, allow_nan=False)
    for file, text in ((page, filled), (folder / "results/losses.json", numbers + "\n")):
        with replacing(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_figures(runs, folder / "images")
