"""What a run says of itself while it goes on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightning")

from calibrant.training.run import Announcer
from calibrant.training.run.folder import Progress


def test_the_line_names_loss_and_accuracy_of_the_last_epoch_and_nothing_before_it():
    said: list[Any] = []
    announcer = Announcer(2, lambda *words: said.append(words))
    announcer.on_start(3)
    progress = Progress()
    progress.step = 1
    announcer.on_step(progress)
    progress.epoch, progress.step = 1, 2
    progress.history.append({"epoch": 1, "train_loss": 1.23456, "validation_accuracy": 0.4567})
    announcer.on_step(progress)
    assert said == [
        ("epoch 1 of 2", 1, 6),
        (
            "epoch 2 of 2\nepoch 1: training loss 1.235, validation accuracy 45.7%",
            5,
            6,
        ),
    ]
