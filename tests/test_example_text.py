"""The example with text trains, and beats the most frequent topic by far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")


def test_the_text_classifier_learns_topics_and_leaves_its_predictions(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from examples.text.__main__ import main
    from examples.text.passages import read_passages

    names, parts = read_passages()
    assert len(names) == 6
    rows = [len(part.labels) for part in parts]
    assert rows[1] == pytest.approx(rows[2], abs=1)
    assert rows[0] == pytest.approx(3 * rows[1], abs=3)
    main(["--epochs", "2", "--loss", "fedlas-ls", "--out", str(tmp_path / "run")])
    assert "transformer of one layer trained with fedlas-ls for 2 epochs" in capsys.readouterr().out
    said = np.load(tmp_path / "run/test.npz")
    labels = parts[2].labels.numpy()
    np.testing.assert_array_equal(said["labels"], labels)
    most = np.bincount(labels).max() / len(labels)
    assert (said["logits"].argmax(1) == labels).mean() > most + 0.05
    assert said["features"].shape == (len(labels), 32)
