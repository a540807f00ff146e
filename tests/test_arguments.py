"""Arguments outside their limits are refused by name, whichever method they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.posthoc.registry import make_calibrator


@pytest.mark.parametrize(
    ("method", "arguments", "sentence"),
    [
        ("histogram", {"n_bins": 0}, "n_bins must be a whole number of at least 1, not 0"),
        ("histogram", {"n_bins": 2.5}, "n_bins must be a whole number of at least 1, not 2.5"),
        ("histogram", {"n_bins": True}, "n_bins must be a whole number"),
        ("histogram", {"strategy": "best"}, "one of uniform, quantile, not 'best'"),
        ("vector", {"ridge": float("nan")}, "ridge must be a finite number of at least 0, not nan"),
        ("vector", {"ridge": "1"}, "ridge must be a finite number of at least 0, not '1'"),
        ("bbq", {"prior_strength": 0}, "prior_strength must be a finite number above 0, not 0"),
        ("smart", {"smoothing": 1.5}, "of at least 0 and of at most 1, not 1.5"),
        ("auto", {"same_prediction": 1}, "same_prediction must be True or False, not 1"),
        ("smart", {"seed": None}, "seed must be a whole number of at least 0, not None"),
    ],
)
def test_refused_before_anything_is_fitted(
    method: str, arguments: dict[str, Any], sentence: str, overconfident: Any
) -> None:
    calibrator = make_calibrator(method, **arguments)
    with pytest.raises(InputError, match=sentence):
        calibrator.fit(*overconfident)
    assert not hasattr(calibrator, "fit_report_")


def test_numbers_of_numpy_are_numbers(overconfident: Any) -> None:
    make_calibrator("histogram", n_bins=np.int64(10)).fit(*overconfident)
    make_calibrator("vector", ridge=np.float32(0.5)).fit(*overconfident)
