"""Hooks by which a loss that nobody has heard of takes part in a training run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from calibrant.training.losses import CrossEntropy  # noqa: E402
from calibrant.training.losses.recorder import Recorder  # noqa: E402
from calibrant.training.nets import make_network  # noqa: E402
from calibrant.training.run.objective import Objective  # noqa: E402

BATCH = (torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]), torch.arange(4), 0)


class Counter(Recorder):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples, self.rows = samples, 0

    def record(self, loss, index, logits, target) -> None:
        assert isinstance(loss, Counted)
        self.rows += len(index)

    def columns(self) -> dict[str, float]:
        return {"seen_share": self.rows / self.samples}


class Counted(CrossEntropy):
    def make_recorder(self, samples: int) -> Counter:
        return Counter(samples)


class Compared(CrossEntropy):
    needs = frozenset({"mixed"})
    mixtures = 2
    mixture_arguments = {"alpha": 0.5}  # noqa: RUF012

    def forward(self, logits, target, features=None, *, mixed_logits, mixed_target):
        self.shapes = mixed_logits.shape, mixed_target.shape
        return super().forward(logits, target)


def test_what_a_loss_records_is_in_the_history() -> None:
    objective = Objective(make_network("resnet8", 3), Counted(), samples=8)
    objective(*BATCH)
    assert objective.recorded_columns() == {"seen_share": 0.5}
    mixed = Objective(make_network("resnet8", 3), Counted(), "mixup", samples=8)
    assert mixed.recorded_columns() == {}
    assert Objective(make_network("resnet8", 3), CrossEntropy(), samples=8).recorded_columns() == {}


def test_a_loss_gets_as_many_mixtures_as_it_asks_for() -> None:
    loss = Compared()
    Objective(make_network("resnet8", 3), loss, samples=8)(*BATCH)
    assert loss.shapes == ((2, 4, 3), (2, 4, 3))
