"""How often top-rest scaling's interval for a row holds the row's true confidence.

    python -m calibrant.studies.row_intervals [--sizes 300,1000,5000] [--knots 8,16] [--seeds 10]

Rows are synthetic, so the probability that the predicted class is right is known (`data.synthetic`,
without the bias by class, which a map of the margin can't see). All fits are judged on the same
2 000 rows. Coverage is averaged over rows and draws. "bias" is the root mean square over rows of
the confidence averaged over draws less the truth; "spread" that of its deviation over draws; both
in %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.arrays import FloatArray
from calibrant.core.text import format_table
from calibrant.posthoc.confidence.top_rest import TopRestScaling
from calibrant.studies.data import synthetic
from calibrant.studies.measuring import quietly, with_error
from calibrant.studies.program import parser_for, run_study


def main(words: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = parser_for("row_intervals", __doc__)
    parser.add_argument("--sizes", default="300,1000,5000")
    parser.add_argument("--knots", default="8,16")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--level", type=float, default=0.95)
    arguments = parser.parse_args(words)
    judged = synthetic(1, 1_000_000, bias=0.0)
    assert judged.truth is not None
    logits = judged.test.logits[:2000]
    truth = judged.truth[np.arange(2000), logits.argmax(axis=1)]
    rows: list[list[str]] = []
    for size in map(int, arguments.sizes.split(",")):
        fits = [synthetic(size, seed, bias=0.0).fit for seed in range(arguments.seeds)]
        for knots in map(int, arguments.knots.split(",")):
            covered: list[float] = []
            width: list[float] = []
            confidence: list[FloatArray] = []
            for fit in fits:
                with quietly():
                    calibrator = TopRestScaling(knots=knots).fit(fit.logits, fit.labels)
                low, high = calibrator.confidence_interval(logits, arguments.level)
                covered.append(float(np.mean((low <= truth) & (truth <= high))))
                width.append(float(np.mean(high - low)))
                confidence.append(calibrator.predict_confidence(logits)[1])
            drawn: FloatArray = np.stack(confidence)
            away: FloatArray = drawn.mean(axis=0) - truth
            variance: FloatArray = drawn.var(axis=0, ddof=1)
            bias = float(np.sqrt(np.mean(away**2)))
            spread = float(np.sqrt(variance.mean()))
            rows.append(
                [
                    str(size),
                    str(knots),
                    with_error(np.array(covered), 3),
                    *(f"{100 * number:.2f}" for number in (np.mean(width), bias, spread)),
                ]
            )
    print(format_table(["rows", "knots", "coverage", "width %", "bias %", "spread %"], rows))


if __name__ == "__main__":
    run_study(main)
