"""Decisions beside those of MAPIE and crepes: the same rows, the same promise, one run.

    python -m benchmarks.decisions [--draws 200] [--json decisions.json]

Thresholds at a risk: rows of known truth, drawn as `scripts.promise_of_risk` does; errors of the
answered rows (precision of "the prediction is right"), at most 5 %, 95 % sure. What counts is how
often the true risk keeps the promise, and how many rows are answered. MAPIE's controller is given
its default grid and correction, and its fixed sequence over the same grid.

Sets: the sample's test rows behind one temperature, cut at random into 1 000 rows for the quantile
and the others to count on; coverage and mean size, with the paired difference to ours.

A peer that isn't installed is left out, and the reason printed.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
from scripts.promise_of_risk import RISK, SURE, as_tested, draw, true_risks

import calibrant as cb
from calibrant.decision.base import DecidedRows, wilson
from calibrant.decision.fixed_sequence import last_passed, risk_test, thresholds

Threshold = Callable[[DecidedRows, int], float | None]
# Of probabilities and labels to find a quantile on, and probabilities to make sets of.
Sets = Callable[[Any, Any, Any, float, int], Any]
COVERS, ROWS, SCORES = (0.9, 0.95), 1000, ("lac", "aps", "raps")


def of_calibrant(rows: DecidedRows, seed: int) -> float | None:
    """Return our threshold."""
    seen = as_tested(rows)
    place = last_passed(seen, risk_test(seen, SURE, seed), RISK, SURE)
    return None if place is None else float(seen.grid[place])


def of_mapie(procedure: str) -> Threshold:
    """Return how MAPIE finds a threshold of the same risk."""
    control = import_module("mapie.risk_control")

    def found(rows: DecidedRows, seed: int) -> float | None:
        controller = control.BinaryClassificationController(
            lambda x: np.column_stack([1 - x[:, 0], x[:, 0]]),
            "precision",
            1 - RISK,
            SURE,
            fwer_method=procedure,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            controller.calibrate(rows.confidence[:, None], rows.correct.astype(int))
        valid = np.ravel(np.asarray(controller.valid_predict_params, dtype=float))
        return float(valid.min()) if len(valid) else None

    return found


def peers_of_risk() -> dict[str, Threshold]:
    """Return who finds a threshold."""
    found: dict[str, Threshold] = {"calibrant": of_calibrant}
    if installed("MAPIE"):
        found["MAPIE, default"] = of_mapie("bonferroni_holm")
        found["MAPIE, fixed sequence"] = of_mapie("fixed_sequence")
    return found


def installed(name: str) -> bool:
    """Return whether a peer is there, and print that it isn't."""
    try:
        print(f"{name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        print(f"{name} isn't installed and is left out: pip install {name.lower()}")
        return False
    return True


def at_a_risk(draws: int, sizes: list[int], seed: int) -> list[dict[str, Any]]:
    """Return for each peer and number of rows how often the promise is kept, and coverage."""
    rng, peers = np.random.default_rng(seed), peers_of_risk()
    confidence = np.sort(draw(rng, 1_000_000, 1).confidence)
    fine, truth = thresholds(), true_risks(rng)
    lines: list[dict[str, Any]] = []
    for rows in sizes:
        drawn = [draw(rng, rows, 1) for _ in range(draws)]
        coverages: dict[str, Any] = {}
        for name, threshold in peers.items():
            taken = [threshold(each, i) for i, each in enumerate(drawn)]
            risks = [0.0 if t is None else np.interp(-t, -fine, truth) for t in taken]
            coverages[name] = np.array(
                [0.0 if t is None else 1 - np.searchsorted(confidence, t) / 1e6 for t in taken]
            )
            kept = float(np.mean(np.array(risks) <= RISK))
            apart = coverages["calibrant"] - coverages[name]
            half = 1.96 * apart.std() / np.sqrt(draws)
            low, high = wilson(kept, draws, 0.95)
            lines.append(
                {
                    "rows": rows,
                    "peer": name,
                    "kept": kept,
                    "kept_low": low,
                    "kept_high": high,
                    "coverage": float(coverages[name].mean()),
                    "ours_more": [float(apart.mean() + sign * half) for sign in (-1, 0, 1)],
                }
            )
    return lines


def set_of_calibrant(score: str) -> Sets:
    """Return our sets."""
    from calibrant.decision.sets import conformal_quantile, odd_scores

    def found(probs: Any, labels: Any, new: Any, cover: float, seed: int) -> Any:
        kind: Any = score
        own = odd_scores(probs, kind)[np.arange(len(labels)), labels]
        return odd_scores(new, kind) <= conformal_quantile(own, cover)

    return found


def set_of_crepes(probs: Any, labels: Any, new: Any, cover: float, seed: int) -> Any:
    """Return sets of crepes by 1 - p, not smoothed."""
    classifier = import_module("crepes").ConformalClassifier()
    classifier.fit(alphas=1 - probs[np.arange(len(labels)), labels], seed=seed)
    return np.asarray(classifier.predict_set(1 - new, confidence=cover, smoothing=False)) > 0


def set_of_mapie(score: str) -> Sets:
    """Return sets of MAPIE by one of its scores."""
    split = import_module("mapie.classification").SplitConformalClassifier
    scores = import_module("mapie.conformity_scores")

    class AsGiven:
        """A classifier whose features are its probabilities."""

        classes_ = np.arange(10)
        n_features_in_ = 10

        def fit(self, x: Any, y: Any) -> Any:
            """Do nothing."""
            return self

        def predict_proba(self, x: Any) -> Any:
            """Return what was given."""
            return np.asarray(x)

        def predict(self, x: Any) -> Any:
            """Return the most probable class."""
            return np.asarray(x).argmax(axis=1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    base: Any = import_module("sklearn.base")
    kind = type("AsGiven", (base.ClassifierMixin, base.BaseEstimator), dict(vars(AsGiven)))

    def found(probs: Any, labels: Any, new: Any, cover: float, seed: int) -> Any:
        by: Any = scores.RAPSConformityScore(size_raps=0.2) if score == "raps" else score
        conformal = split(kind(), cover, by, prefit=True, random_state=seed)
        conformal.conformalize(probs, labels)
        more = {} if score == "lac" else {"include_last_label": True}
        return conformal.predict_set(new, conformity_score_params=more)[1][:, :, 0]

    return found


def peers_of_sets() -> dict[str, Sets]:
    """Return who makes sets."""
    found: dict[str, Sets] = {f"calibrant {score}": set_of_calibrant(score) for score in SCORES}
    if installed("crepes"):
        found["crepes 1 - p"] = set_of_crepes
    if installed("MAPIE"):
        found |= {f"MAPIE {score}": set_of_mapie(score) for score in SCORES}
    return found


def as_sets(draws: int, seed: int) -> list[dict[str, Any]]:
    """Return for each peer coverage and size over draws."""
    rng, peers = np.random.default_rng(seed), peers_of_sets()
    scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
    rows = scaling.apply_predictions(cb.load_sample("test"))
    probs, labels = np.asarray(rows.probs, dtype=np.float64), rows.labels
    probs /= probs.sum(axis=1, keepdims=True)
    orders = [rng.permutation(len(labels)) for _ in range(draws)]
    lines: list[dict[str, Any]] = []
    for cover in COVERS:
        found: dict[str, Any] = {}
        for name, sets in peers.items():
            numbers: list[tuple[float, float, float]] = []
            for i, order in enumerate(orders):
                fit, new = order[:ROWS], order[ROWS:]
                inside = sets(probs[fit], labels[fit], probs[new], cover, i)
                held = inside[np.arange(len(new)), labels[new]]
                numbers.append((held.mean(), inside.sum(1).mean(), (inside.sum(1) == 0).mean()))
            found[name] = np.array(numbers)
            ours = found.get(f"calibrant {name.rpartition(' ')[2]}", found["calibrant lac"])
            apart = found[name][:, 1] - ours[:, 1]
            half = 1.96 * apart.std() / np.sqrt(draws)
            mean = found[name].mean(axis=0)
            lines.append(
                {
                    "cover": cover,
                    "peer": name,
                    "coverage": float(mean[0]),
                    "coverage_spread": float(found[name][:, 0].std()),
                    "size": float(mean[1]),
                    "empty": float(mean[2]),
                    "larger": [float(apart.mean() + sign * half) for sign in (-1, 0, 1)],
                }
            )
    return lines


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    risks = at_a_risk(given.draws, given.rows, given.seed)
    print("rows  who                     kept %  interval      coverage %  ours more, points")
    for line in risks:
        low, middle, high = (100 * each for each in line["ours_more"])
        print(
            f"{line['rows']:4d}  {line['peer']:22s}  {100 * line['kept']:6.1f}  "
            f"{100 * line['kept_low']:.1f} to {100 * line['kept_high']:.1f}  "
            f"{100 * line['coverage']:10.1f}  {middle:.1f} ({low:.1f} to {high:.1f})"
        )
    sets = as_sets(given.draws, given.seed)
    print("cover  who              coverage %  spread  size   larger than ours          empty %")
    for line in sets:
        low, middle, high = line["larger"]
        print(
            f"{line['cover']:.2f}   {line['peer']:15s}  {100 * line['coverage']:10.2f}  "
            f"{100 * line['coverage_spread']:6.2f}  {line['size']:5.3f}  "
            f"{middle:+.3f} ({low:+.3f} to {high:+.3f})  {100 * line['empty']:6.2f}"
        )
    if given.json:
        given.json.write_text(json.dumps({"risk": risks, "sets": sets}, indent=1) + "\n")


if __name__ == "__main__":
    main()
