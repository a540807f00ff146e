"""Many labels a row, of which any may be true: each measured for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from calibrant.core.errors import PredictionsError
from calibrant.evaluation.groups import MIN_ROWS, GroupedEvaluation, evaluate_by
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL
from calibrant.predictions.predictions import Predictions

# What groups are said to be, and what is measured of each if the caller doesn't say.
MANY_LABELS = "many labels"
LABEL_METRICS = ("ece_positive", "adaece_positive", "slope_positive", "brier_positive", "log_loss")


def evaluate_labels(
    predictions: Predictions,
    *,
    metrics: Sequence[str] | str | None = None,
    min_rows: int = MIN_ROWS,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> GroupedEvaluation:
    """Measure each of many labels by itself; `evaluate` pools them, with rows for clusters.

    Args:
        predictions: from `Predictions.from_many_labels`.
        metrics: as `evaluate` takes them, the first one leads; None for those of the probability
            that a label is true (`LABEL_METRICS`).
        min_rows: labels with fewer rows are left out.
        resamples: see `evaluate`; level and seed too.
        level: see there.
        seed: see there.
        progress: called with the name of each label before it is measured.

    Raises:
        PredictionsError: there are no many labels.
        InputError: what `evaluate` refuses.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> true = rng.random((2_000, 2))
        >>> labels = rng.random((2_000, 2)) < true * [1.0, 0.5]  # the second half as often
        >>> rows = cb.Predictions.from_many_labels(true, labels, label_names=["honest", "not"])
        >>> cb.evaluate_labels(rows, resamples=100).miscalibrated
        ['not']
    """
    names, index = predictions.label_names, predictions.label_index
    if names is None or index is None:
        raise PredictionsError(
            f"{predictions.source}: holds no many labels; make them with "
            "Predictions.from_many_labels, or read them with kind='many-labels'"
        )
    clusters = predictions.clusters
    if clusters is not None and len(np.unique(clusters * len(names) + index)) == len(index):
        clusters = None  # there is one row of each cluster, so rows of one label are independent
    found = evaluate_by(
        replace(predictions, clusters=clusters, grid=None, label_names=None, label_index=None),
        np.array(names)[index],
        metrics=LABEL_METRICS if metrics is None else metrics,
        min_rows=min_rows,
        resamples=resamples,
        level=level,
        seed=seed,
        progress=progress,
    )
    groups = {name: found.groups[name] for name in names if name in found.groups}
    return replace(found, by=MANY_LABELS, groups=groups)
