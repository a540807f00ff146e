"""What the study of weights and clusters draws, and what intervals make of it."""

from __future__ import annotations

import numpy as np

from calibrant.evaluation.evaluate import evaluate
from calibrant_studies.kinds.simulations import clustered, means_over_effects


def test_intervals_and_floors_of_clusters_hold_where_plain_ones_fail():
    """20 clusters of 50 rows that share an effect on their log odds, 60 honest data sets."""
    means, rng, sets = means_over_effects(), np.random.default_rng(0), 60
    drawn = [clustered((20, 50), 0.0, means, rng) for _ in range(sets)]
    truth = np.mean([rows.scores.mean() for rows in drawn])  # honest, so also the accuracy
    inside, alarms = np.zeros(2), np.zeros(2)
    for i, rows in enumerate(drawn):
        for j, seen in enumerate((rows.with_clusters(None), rows)):
            found = evaluate(seen, metrics=["accuracy", "ks"], resamples=100, seed=i)
            accuracy = found["accuracy"]
            inside[j] += accuracy.low <= truth <= accuracy.high
            alarms[j] += not found["ks"].at_floor
    plain, whole = inside / sets
    assert plain < 0.8 < 0.88 < whole
    plain, whole = alarms / sets
    assert whole < 0.17 < 0.25 < plain
