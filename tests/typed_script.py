"""A user's script, which the strict modes of pyright (`make types`) and mypy are content with."""

# pyright: strict, reportUnknownMemberType=true, reportMissingTypeStubs=true

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import calibrant as cb

rows = cb.read_predictions("rows.npz")
val, test = rows.split(0.5, seed=0)

found = cb.evaluate(test, metrics=["ece"], resamples=100)
assert_type(found, cb.Evaluation)
assert_type(found["ece"].value, float)
assert_type(found.plot(), Axes)
found.to_html(Path("page.html"))
print(len(found.to_frame()))

logits: NDArray[np.float32] = np.zeros((3, 10), np.float32)
smart = cb.SMART().fit(val.logits, val.labels)
assert_type(smart, cb.SMART)
probs = smart.predict_proba(logits)
assert_type(probs, NDArray[np.floating])
print(probs.max(axis=1), smart.predict_proba(test.logits)[:, 0] * 2)
labels, confidence = smart.predict_confidence(logits)
print(labels + 1, confidence * 2)
assert_type(smart.apply_predictions(test, "calibrated.npz"), cb.Predictions)

shards = cb.Shards("parts")
scaling = cb.TemperatureScaling().fit_predictions(shards, engine=cb.Engine(workers=1))
assert_type(scaling.temperature_, float)
print(scaling.apply_predictions(shards, "calibrated", skip_broken=True).written)

comparison = cb.compare(["none", "smart"], fit=shards, test=test)
assert_type(comparison.tied_with_best, list[str])
assert_type(comparison["smart"].evaluation, cb.Evaluation)

monitor = cb.Monitor(window=300)
monitor.update(0.9, True)
assert_type(monitor.as_dict(), dict[str, Any])

size = cb.rows_needed(test, 0.01)
assert_type(size, cb.SampleSize)
