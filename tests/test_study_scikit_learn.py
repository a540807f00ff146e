"""The study of `Calibrated` against scikit-learn's own wrapper, in small."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.studies import scikit_learn as study

pytest.importorskip("sklearn")


def test_a_better_one_wins_by_an_interval_and_an_equal_one_ties():
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(4):
        base = rng.gamma(1.0, size=(2, 300))
        draws.append(
            {
                "ours": base,
                "sigmoid": base + 0.3 + 0.1 * rng.normal(size=base.shape),
                "isotonic": base + 0.1 * rng.normal(size=base.shape),
                "temperature": base - 0.3,
            }
        )
    for cell in study.cells(draws):
        words = {name: study.verdict(*found[1:]) for name, found in cell.differences.items()}
        assert words == {"sigmoid": "win", "isotonic": "tie", "temperature": "loss"}
        assert cell.differences["temperature"] == pytest.approx((0.3, 0.3, 0.3))


def test_losses_are_those_of_scikit_learn():
    from sklearn.metrics import log_loss

    probs, truth = np.array([[0.7, 0.3], [1.0, 0.0], [0.2, 0.8]]), np.array([0, 1, 1])
    found = study.losses(probs, truth)
    assert found[0].mean() == pytest.approx(log_loss(truth, probs))
    np.testing.assert_allclose(found[1], [0.18, 2.0, 0.08])


@pytest.mark.parametrize("name", ["wine", "hastie", "six classes"])
def test_rows_to_measure_on_are_others_than_those_to_fit_on(name):
    seen, new = study.rows_of(name, 60, 1)
    assert len(seen[1]) == len(seen[0]) == 60
    assert not {row.tobytes() for row in seen[0]} & {row.tobytes() for row in new[0]}
    again, _ = study.rows_of(name, 60, 1)
    np.testing.assert_array_equal(seen[0], again[0])


@pytest.mark.filterwarnings("ignore")
def test_the_study_writes_its_tables(tmp_path, capsys):
    page = tmp_path / "page.md"
    words = ["--data", "moons,wine", "--estimators", "tree", "--draws", "2", "--rows", "120"]
    study.main([*words, "--markdown", str(page)])
    printed, written = capsys.readouterr().out, page.read_text()
    assert "moons, tree" in printed
    assert written.count("| moons, tree |") == written.count("| wine, tree |") == 2
    assert "Brier score against sigmoid:" in written
