"""How far intervals from sums over cells are from those from rows.

    python -m calibrant.studies.interval_kinds [--sizes 10000,100000] [--resamples 2000]

Rows are synthetic, ten classes whose logits are 1.5 times too large. The table shows by how much
the lower and the upper end differ, in percent of the width of the interval from rows. Two seeds
of the same kind differ as well: for R resamples an end has a standard error of about 70 / sqrt(R)
percent of the width.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core.text import format_table
from calibrant.evaluation.evaluate import evaluate
from calibrant.predictions.scoring import score_rows
from calibrant.scale.measuring import evaluate_sums
from calibrant.scale.row_sums import RowSums
from calibrant.scale.sums import Plan, ShardSums
from calibrant.studies.program import parser_for, run_study
from calibrant.synthetic import tempered


def main(words: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = parser_for("interval_kinds", __doc__)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--metrics", default="ece,adaece,smce,nll,brier,accuracy")
    parser.add_argument("--resamples", type=int, default=2000)
    arguments = parser.parse_args(words)
    metrics = arguments.metrics.split(",")
    table: list[list[str]] = []
    for size in map(int, arguments.sizes.split(",")):
        rows = tempered(size, 10, temperature=1.5, seed=1).predictions
        sums = ShardSums(Plan(), rows.kind, rows.n_classes, RowSums.of(score_rows(rows)))
        from_cells = evaluate_sums(sums, metrics=metrics, resamples=arguments.resamples, seed=1)
        from_rows = evaluate(rows, metrics=metrics, resamples=arguments.resamples, seed=2)
        cells = [str(size)]
        for metric in metrics:
            ours, theirs = from_cells[metric], from_rows[metric]
            width = theirs.high - theirs.low
            ends = (ours.low - theirs.low, ours.high - theirs.high)
            cells.append(" ".join(f"{100 * end / width:+.1f}" for end in ends))
        table.append(cells)
    print(format_table(["rows", *metrics], table))


if __name__ == "__main__":
    run_study(main)
