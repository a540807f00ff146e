"""What second stages do to calibration, on the networks of `calibrant train`.

    python -m calibrant.studies.second_stages RUNS [--epochs 20] [--out FILE] [--docs]

RUNS is a folder of run folders named LOSS-SEED. Every finished run of the losses asked for is
taken, however many there are. Each method is trained on its training rows with the run's seed,
chooses what it has to choose on the validation rows, and is measured on the test rows, before and
after temperature scaling and SMART fitted on the same validation rows. Further: MaC-Cal step by
step (the paper's Table 5), its kappa (Fig. 7), masks at inference (Fig. 1), corrupted images
(Fig. 5), images of nothing (Table 2) and what it costs (Table 4).

Results are kept in the file after every run. A run that is in there already, with the same test
predictions, epochs and methods, isn't repeated; results of other methods are dropped. `--docs`
writes the tables into docs/second-stages.md. Both files are those of the checkout that the study is
started in; `--out` names another file of results.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

from calibrant.studies.program import parser_for, run_study
from calibrant.studies.second_stages.results import PAGE, keep, kept
from calibrant.studies.second_stages.runs import finished, read_run
from calibrant.studies.second_stages.study import METHODS, study
from calibrant.studies.second_stages.tables import refresh

LOSSES = ("cross-entropy", "label-smoothing", "focal", "mixup")


def main(words: Sequence[str] | None = None) -> None:
    """Study all runs and write the results."""
    parser = parser_for("second_stages", __doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--losses", nargs="+", default=list(LOSSES))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=PAGE.parent / "results/second-stages.json")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args(words)
    warnings.simplefilter("ignore")
    before = kept(arguments.out, "runs")
    results = {name: run for name, run in before.items() if set(METHODS) <= set(run["methods"])}
    folders = finished(arguments.runs, arguments.losses)
    if not folders:
        parser.error(f"{arguments.runs}: holds no finished run named LOSS-SEED")
    for folder in folders:
        mark = f"{zlib.crc32((folder / 'test.npz').read_bytes()):08x}, {arguments.epochs} epochs"
        if results.get(folder.name, {}).get("mark") == mark:
            continue
        started = time.process_time()
        results[folder.name] = {"mark": mark} | study(read_run(folder), arguments.epochs)
        print(f"{folder.name}: {time.process_time() - started:.0f} s of processor time", flush=True)
        keep(arguments.out, {"epochs": arguments.epochs, "runs": results})
    tables = refresh(PAGE, results, write=arguments.docs)
    print("\n\n".join(tables.values()))


if __name__ == "__main__":
    run_study(main)
