"""MaC-Cal beside one temperature, on networks that nothing was chosen on, with seeds of the head.

    python -m calibrant.studies.second_stages.seeds RUNS [--loss cross-entropy]
        [--seeds 3] [--docs]

RUNS holds run folders of `calibrant train` named LOSS-SEED. On each, every method is trained with
so many seeds on the training rows, chooses on the validation rows, and is measured on the test rows
beside the network's head, as it comes and with one temperature from the same validation rows.

Results are kept in the file after every fit; what is in there isn't repeated. `--docs` writes the
table into docs/second-stages.md. Both files are those of the checkout that the study is started in;
`--out` names another file of results.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.studies.program import parser_for, run_study
from calibrant.studies.second_stages.measures import METRICS, fit, measured
from calibrant.studies.second_stages.results import PAGE, keep, kept
from calibrant.studies.second_stages.runs import Run, finished, read_run
from calibrant.studies.second_stages.tables import markdown, name_of, spread, write_table

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "retrain": ("retrain", {}),
    "maccal": ("maccal", {}),
    "maccal, two layers": ("maccal", {"bottleneck": True}),
}


def measure(run: Run, method: str, seed: int, epochs: int) -> dict[str, Any]:
    """Return what one head does on the test rows, and how far it is from one temperature."""
    from calibrant.training.second_stages import beside_temperature, make_second_stage

    kind, arguments = METHODS[method]
    stage = make_second_stage(kind, seed=seed, epochs=epochs, **arguments)
    seconds = fit(stage, run)
    logits = stage.logits(run.test.features)
    new = Predictions.from_logits(logits, run.test.labels)
    beside = beside_temperature(run.val, run.test, new)
    return {
        "network": measured(softmax(run.test.logits), run.test.labels),
        "head": measured(softmax(logits), run.test.labels),
        "one_temperature": beside.as_dict(),
        "chosen": {key: stage.summary().get(key) for key in ("kappa", "plain_chosen")},
        "notes": stage.notes_,
        "seconds": seconds,
    }


def table(results: dict[str, Any]) -> str:
    """Return one row for each network and method; ± over seeds of the head."""
    rows: list[list[str]] = []
    for run in dict.fromkeys(entry["run"] for entry in results.values()):
        of_run = [entry for entry in results.values() if entry["run"] == run]
        rows.append([run, "network's head", "-", *network_cells(of_run[0]["network"])])
        scaled = of_run[0]["one_temperature"]["metrics"]
        scaled_cells = [f"{100 * scaled['ece']['value']:.2f}", ratio([of_run[0]], scaled=True)]
        nll = f"{scaled['nll']['value']:.4f}"
        rows.append(["", "and one temperature", "-", *scaled_cells, "0", nll, "0"])
        for method in METHODS:
            found = [entry for entry in of_run if entry["method"] == method]
            if found:
                rows.append(["", name_of(method), str(len(found)), *head_cells(found)])
    head = ["network", "", "seeds", "ECE", "of the network's", "accuracy, points", "NLL"]
    return markdown([*head, "NLL less one temperature's"], rows)


def network_cells(values: dict[str, float]) -> list[str]:
    """Return the cells of the head as it comes."""
    return [f"{100 * values['ece']:.2f}", "1", "0", f"{values['nll']:.4f}", "-"]


def head_cells(found: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a method."""
    heads = [entry["head"] for entry in found]
    lost = [entry["head"]["accuracy"] - entry["network"]["accuracy"] for entry in found]
    apart = [entry["one_temperature"]["differences"]["nll"] for entry in found]
    ends = f"({min(d['low'] for d in apart):+.4f} to {max(d['high'] for d in apart):+.4f})"
    return [
        spread([head["ece"] for head in heads], 100),
        ratio(found),
        spread(lost, 100),
        spread([head["nll"] for head in heads]),
        f"{np.mean([d['value'] for d in apart]):+.4f} {ends}",
    ]


def ratio(found: list[dict[str, Any]], *, scaled: bool = False) -> str:
    """Return the ECE as a share of the network's, mean over heads."""
    shares = [
        (entry["one_temperature"]["metrics"]["ece"]["value"] if scaled else entry["head"]["ece"])
        / entry["network"]["ece"]
        for entry in found
    ]
    return f"{np.mean(shares):.2f}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure what isn't measured yet, and print the table."""
    parser = parser_for("second_stages.seeds", __doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--loss", default="cross-entropy")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=PAGE.parent / "results/second-stage-seeds.json")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args(words)
    warnings.simplefilter("ignore")
    results = kept(arguments.out, "fits")
    for folder in finished(arguments.runs, [arguments.loss]):
        run: Run | None = None
        mark = f"{zlib.crc32((folder / 'test.npz').read_bytes()):08x}"
        for method in arguments.methods:
            for seed in range(arguments.seeds):
                key = f"{folder.name}, {mark}, {method}, seed {seed}, {arguments.epochs} epochs"
                if key in results:
                    continue
                started = time.process_time()
                run = run or read_run(folder)
                found = measure(run, method, seed, arguments.epochs)
                results[key] = {"run": folder.name, "method": method, "seed": seed} | found
                print(f"{key}: {time.process_time() - started:.0f} s", flush=True)
                keep(arguments.out, {"metrics": METRICS, "fits": results})
    text = table(results)
    if arguments.docs:
        write_table(PAGE, "seeds", text)
    print(text)


if __name__ == "__main__":
    run_study(main)
