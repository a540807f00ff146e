"""Hooks by which a loss that nobody has heard of takes part in a training run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from calibrant.training.losses import MMCE, CrossEntropy, FeDLaS  # noqa: E402
from calibrant.training.losses.base import Recorder  # noqa: E402
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


class Ending(CrossEntropy):
    needs = frozenset({"epochs"})

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended, self.learnt = [], 0, 0

    def start_epoch(self, epoch: int) -> None:
        self.begun.append(epoch)

    def end_epoch(self) -> None:
        self.ended += 1

    def _row_losses(self, rows):
        self.learnt += self.learning
        return super()._row_losses(rows)


def test_the_base_of_a_penalised_loss_is_told_all_that_the_loss_is_told() -> None:
    loss = MMCE(base=Ending())
    loss.start_epoch(3)
    loss.end_epoch()
    assert (loss.base.begun, loss.base.ended) == ([3], 1)
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with loss.frozen(), loss.frozen():
        loss(logits, target)
    assert loss.base.learnt == 0
    loss(logits, target)
    assert loss.base.learnt == 1


def test_a_checkpoint_stays_readable_where_a_row_overflowed() -> None:
    loss, logits, target = FeDLaS(3), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    recorder = loss.make_recorder(4)
    features, index = torch.rand(4, 5), torch.arange(4)
    loss(logits, target, features)
    recorder.record(loss, index, logits, target)
    before = recorder.indicator.clone()
    recorder.end_epoch()
    features[1] = torch.inf
    loss(logits, target, features)
    recorder.record(loss, index, logits, target)
    assert all(values.isfinite().all() for values in recorder.state_dict().values())
    assert recorder.indicator[1] == before[1]
    epoch = recorder.end_epoch()
    assert epoch.seen == 3
    assert epoch.mean_alpha == pytest.approx(recorder.alpha[[0, 2, 3]].mean())
