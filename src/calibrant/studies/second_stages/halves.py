"""MaC-Cal where kappa and the temperature see different validation rows.

    python -m calibrant.studies.second_stages.halves RUNS [--loss cross-entropy] [--seeds 3]
        [--epochs 40] [--docs]

RUNS holds run folders of `calibrant train` named LOSS-SEED. For each seed the validation rows of a
network are dealt into halves. One half chooses MaC-Cal's kappa, or the epoch of the plainly
retrained head; to the other one temperature is fitted, behind the network's own head and behind the
new ones. What chose a head has then not also scaled it. All are measured on the test rows.

Results are kept in the file after every network and seed; what is in there isn't repeated. `--docs`
writes the table into docs/second-stages.md of the checkout that the study is started in.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.posthoc.registry import make_calibrator
from calibrant.studies.program import parser_for, run_study
from calibrant.studies.second_stages.measures import fit
from calibrant.studies.second_stages.results import PAGE, keep, kept
from calibrant.studies.second_stages.runs import Run, finished, read_run
from calibrant.studies.second_stages.tables import markdown, spread, write_table

HEADS = ("network's head", "retrain", "maccal")
METRICS = ("accuracy", "ece", "nll")
RESAMPLES = 1000


def measure(run: Run, seed: int, epochs: int) -> dict[str, Any]:
    """Return what each head does on the test rows, as it comes and with one temperature.

    Of those with a temperature, also the paired 95 % interval of the difference to the network's
    own head with one.
    """
    from calibrant.training.second_stages import make_second_stage

    choosing, scaling = run.val.split(run.val.n // 2, seed)
    heads: dict[str, Any] = {}
    replicates: dict[tuple[str, str], Any] = {}
    for name in HEADS:
        stage = None
        if name != HEADS[0]:
            stage = make_second_stage(name, seed=seed, epochs=epochs)
            fit(stage, run._replace(val=choosing))
        scale, test = (
            rows.logits if stage is None else stage.logits(rows.features)
            for rows in (scaling, run.test)
        )
        heads[name] = {}
        for after in ("none", "temperature"):
            probs = make_calibrator(after).fit(scale, scaling.labels).predict_proba(test)
            found = evaluate(probs, run.test.labels, metrics=METRICS, resamples=RESAMPLES)
            heads[name][after] = {metric: found[metric].value for metric in METRICS}
            replicates[name, after] = {metric: found[metric].replicates for metric in METRICS}
        heads[name]["kappa"] = None if stage is None else stage.summary().get("kappa")
        heads[name]["differences"] = {
            metric: vars(
                paired_difference(
                    replicates[name, "temperature"][metric],
                    replicates[HEADS[0], "temperature"][metric],
                    tuple(heads[each]["temperature"][metric] for each in (name, HEADS[0])),
                    0.95,
                )
            )
            for metric in METRICS
        }
    return heads


def table(results: dict[str, Any]) -> str:
    """Return a row for each network and head; ± over seeds of the split and of the head."""
    rows: list[list[str]] = []
    for run in dict.fromkeys(entry["run"] for entry in results.values()):
        of_run = [entry["heads"] for entry in results.values() if entry["run"] == run]
        for number, name in enumerate(HEADS):
            found = [heads[name] for heads in of_run]
            rows.append([run if number == 0 else "", _label(name), str(len(found)), *_cells(found)])
    head = ["network", "", "seeds", "accuracy", "ECE", "ECE + TS", "NLL", "NLL + TS"]
    return markdown([*head, "NLL + TS less the network's", "ECE + TS less it, points"], rows)


def _label(name: str) -> str:
    return name if name == HEADS[0] else f"`{name}`"


def _cells(found: Sequence[dict[str, Any]]) -> list[str]:
    cells = [spread([heads["none"]["accuracy"] for heads in found], 100)]
    for metric, scale in (("ece", 100), ("nll", 1)):
        for after in ("none", "temperature"):
            cells.append(spread([heads[after][metric] for heads in found], scale))
    for metric, scale, digits in (("nll", 1, 4), ("ece", 100, 2)):
        apart = [heads["differences"][metric] for heads in found]
        if all(each["value"] == 0 for each in apart):
            cells.append("-")
            continue
        ends = min(d["low"] for d in apart), max(d["high"] for d in apart)
        middle = float(np.mean([d["value"] for d in apart]))
        value, low, high = (f"{scale * x:+.{digits}f}" for x in (middle, *ends))
        cells.append(f"{value} ({low} to {high})")
    return cells


def main(words: Sequence[str] | None = None) -> None:
    """Measure what isn't measured yet, and print the table."""
    parser = parser_for("second_stages.halves", __doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--loss", default="cross-entropy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--out", type=Path, default=PAGE.parent / "results/second-stage-halves.json"
    )
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args(words)
    warnings.simplefilter("ignore")
    results = kept(arguments.out, "fits")
    for folder in finished(arguments.runs, [arguments.loss]):
        mark = f"{zlib.crc32((folder / 'test.npz').read_bytes()):08x}"
        run: Run | None = None
        for seed in range(arguments.seeds):
            key = f"{folder.name}, {mark}, seed {seed}, {arguments.epochs} epochs"
            if key in results:
                continue
            run = run or read_run(folder)
            results[key] = {"run": folder.name} | {"heads": measure(run, seed, arguments.epochs)}
            print(f"{key}: done", flush=True)
            keep(arguments.out, {"fits": results})
    text = table(results)
    if arguments.docs:
        write_table(PAGE, "halves", text)
    print(text)


if __name__ == "__main__":
    run_study(main)
