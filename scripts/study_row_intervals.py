"""How often top-rest scaling's interval for a row holds the row's true confidence.

    python scripts/study_row_intervals.py [--sizes 300,1000,5000] [--knots 8,16] [--seeds 10]

Rows are synthetic, so the probability that the predicted class is right is known (`study_data`,
without the bias by class, which a map of the margin can't see). All fits are judged on the same
2 000 rows. Coverage is averaged over rows and draws. "bias" is the root mean square over rows of
the confidence averaged over draws less the truth; "spread" that of its deviation over draws; both
in %.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from study_data import synthetic

from calibrant.core.text import format_table
from calibrant.posthoc.confidence.top_rest import TopRestScaling


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="300,1000,5000")
    parser.add_argument("--knots", default="8,16")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--level", type=float, default=0.95)
    arguments = parser.parse_args()
    judged = synthetic(1, 1_000_000, bias=0.0)
    assert judged.truth is not None
    logits = judged.test.logits[:2000]
    truth = judged.truth[np.arange(2000), logits.argmax(axis=1)]
    rows: list[list[str]] = []
    for size in map(int, arguments.sizes.split(",")):
        fits = [synthetic(size, seed, bias=0.0).fit for seed in range(arguments.seeds)]
        for knots in map(int, arguments.knots.split(",")):
            covered, width, confidence = [], [], []
            for fit in fits:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    calibrator = TopRestScaling(knots=knots).fit(fit.logits, fit.labels)
                low, high = calibrator.confidence_interval(logits, arguments.level)
                covered.append(np.mean((low <= truth) & (truth <= high)))
                width.append(np.mean(high - low))
                confidence.append(calibrator.predict_confidence(logits)[1])
            bias = np.sqrt(np.mean((np.mean(confidence, axis=0) - truth) ** 2))
            spread = np.sqrt(np.mean(np.var(confidence, axis=0, ddof=1)))
            error = np.std(covered, ddof=1) / np.sqrt(len(covered))
            rows.append(
                [
                    str(size),
                    str(knots),
                    f"{np.mean(covered):.3f} +- {error:.3f}",
                    *(f"{100 * number:.2f}" for number in (np.mean(width), bias, spread)),
                ]
            )
    print(format_table(["rows", "knots", "coverage", "width %", "bias %", "spread %"], rows))


if __name__ == "__main__":
    main()
