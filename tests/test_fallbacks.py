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


def test_maps_that_are_the_same_temperature_tie_and_the_simplest_is_named() -> None:
    few = cb.synthetic.tempered(150, 20, temperature=2.0, seed=4).predictions
    test = cb.synthetic.tempered(400, 20, temperature=2.0, seed=5).predictions
    methods = ["matrix", "dirichlet", "none", "temperature", "cts"]
    found = cb.compare(methods, fit=few, test=test, metrics=["ece", "nll"], resamples=100)
    fell_back = {"matrix", "dirichlet", "cts"}
    assert found.recommended == found.best == "temperature"
    for metric in ("ece", "nll"):
        assert found.best_by(metric) == "temperature"
        assert fell_back <= set(found.tied_by(metric))
    for name in fell_back:
        assert found.differences[name].ends == (0.0, 0.0, 0.0)
    assert "matrix, dirichlet: took one temperature" in " ".join(str(found).split())


def test_methods_that_differ_by_rounding_share_a_rank() -> None:
    sets = {
        str(seed): tuple(
            cb.synthetic.tempered(n, 20, temperature=2.0, seed=seed + n).predictions
            for n in (150, 200)
        )
        for seed in range(3)
    }
    found = cb.compare_over(sets, methods=["temperature", "matrix"], metrics=["ece", "nll"])
    assert found.ranks == {"temperature": 1.5, "matrix": 1.5}
