"""Maps of many numbers that fell back to one temperature say so, and count one."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cb


@pytest.mark.parametrize("method", ["vector", "matrix", "dirichlet", "cts", "pts"])
def test_a_fallback_to_one_temperature_has_one_parameter_and_a_note(method: str) -> None:
    few = cb.synthetic.tempered(150, 20, temperature=2.0, seed=4).predictions
    fitted = cb.make_calibrator(method).fit_predictions(few)
    single = cb.TemperatureScaling().fit_predictions(few)
    np.testing.assert_allclose(
        fitted.predict_proba(few.logits), single.predict_proba(few.logits), atol=1e-6
    )
    assert fitted.n_parameters == 1
    assert any("no clear gain" in note for note in fitted.fit_report_.notes)
    assert not any("can't determine" in note for note in fitted.fit_report_.notes)


@pytest.mark.parametrize(
    ("method", "numbers"), [("vector", 2 * 3), ("matrix", 9 + 3), ("cts", 3), ("pts", 5 * 3 + 41)]
)
def test_a_map_that_gains_counts_its_numbers(method: str, numbers: int) -> None:
    honest = cb.synthetic.tempered(6_000, 3, temperature=1.0, seed=1).predictions
    biased = np.asarray(honest.logits) * [1.0, 2.5, 1.0] + [0.0, 0.0, 1.5]
    fitted = cb.make_calibrator(method).fit(biased, honest.labels)
    assert fitted.n_parameters == numbers
