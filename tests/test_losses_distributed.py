"""Two processes with half of the batch each learn what one with all of it learns."""

from __future__ import annotations

import warnings
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from calibrant.training.losses import CalibrationLoss, FeDLaS, GateRecorder, make_loss

CLASSES, ROWS, WIDTH = 5, 12, 7
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cross-entropy": ("cross-entropy", {}),
    "mmce": ("mmce", {}),
    "mmce unweighted": ("mmce", {"form": "unweighted"}),
    "mdca": ("mdca", {}),
    "soft-ece": ("soft-ece", {"temperature": 0.1}),
    "soft-ece label-binned": ("soft-ece", {"temperature": 0.1, "form": "label-binned"}),
    "soft-avuc": ("soft-avuc", {}),
    "fedlas-ls": ("fedlas-ls", {}),
    "fedlas-mbls": ("fedlas-mbls", {"margin": 1.0}),
}


class Learner(nn.Module):
    """A network and its loss as one module, as a training framework holds them."""

    def __init__(self, loss: CalibrationLoss) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head, self.loss = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES), loss
        self.double()

    def logits(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(inputs).relu()
        return 3 * self.head(hidden), hidden

    def forward(self, inputs: Tensor, target: Tensor, **extra: Tensor) -> Tensor:
        logits, hidden = self.logits(inputs)
        return self.loss(logits, target, hidden, **extra)


def data() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    inputs = 2 * torch.randn(ROWS, 4, generator=draw, dtype=torch.float64)
    target = torch.randint(CLASSES, (ROWS,), generator=draw)
    # Some rows are right, so that no statistic is empty.
    target[::3] = learner("cross-entropy").logits(inputs)[0].argmax(1)[::3]
    # One ignored row on each side: means over rows weigh both sides alike.
    target[[1, 8]] = -100
    return inputs, target, torch.randperm(20, generator=draw)[:ROWS]


def learner(case: str) -> Learner:
    torch.manual_seed(8)
    name, arguments = CASES[case]
    return Learner(make_loss(name, CLASSES, **arguments))


def outcome(module: nn.Module, plain: Learner, part: slice) -> dict[str, Tensor]:
    inputs, target, _ = (values[part] for values in data())
    for _ in range(2):
        plain.zero_grad()
        module(inputs, target).backward()
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    return gradients | dict(plain.loss.named_buffers())


def ranking(part: slice) -> dict[str, Tensor]:
    """Two epochs of CRL; the pairs differ between one and two processes, the counts don't."""
    plain = Learner(make_loss("crl", CLASSES, samples=20))
    inputs, target, index = (values[part] for values in data())
    for _ in range(2):
        plain(inputs, target, index=index)
        plain.loss.end_epoch()
    return dict(plain.loss.named_buffers())


def record(part: slice) -> list[Any]:
    inputs, target, index = (values[part] for values in data())
    plain = learner("fedlas-ls").eval()
    recorder = GateRecorder(20)
    for scale in (1.0, -1.0):
        logits, hidden = plain.logits(scale * inputs)
        plain.loss(logits, target, hidden)
        recorder.record(plain.loss, index, logits, target)
        if scale == 1.0:  # as before a checkpoint
            recorder.join_ranks()
        recorder.end_epoch()
    return recorder.history


def focal_bins(rows: int) -> dict[str, Tensor]:
    loss = make_loss("adafocal", CLASSES)
    draw = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(200, CLASSES, generator=draw)
    loss.update_from_validation(logits[:rows], torch.zeros(rows, dtype=torch.long))
    return dict(loss.named_buffers())


def gates(rank: int, wrapped: bool) -> list[str]:
    """Train for some steps, wrapped or not, and return the warnings."""
    plain = learner("fedlas-ls")
    part = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    inputs, target, _ = (values[part] for values in data())
    body: nn.Module = DistributedDataParallel(plain) if wrapped else plain
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            optimiser.zero_grad()
            body(inputs, target).backward()
            optimiser.step()
    return [str(warning.message) for warning in said]


def work(rank: int, folder: str) -> None:
    meeting, patience = f"file://{folder}/meeting", timedelta(minutes=2)
    dist.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    try:
        torch.save(everything(rank), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def everything(rank: int) -> dict[str, Any]:
    part = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    found: dict[str, Any] = {}
    for case in CASES:
        plain = learner(case)
        found[case] = outcome(DistributedDataParallel(plain), plain, part)
    found["crl"], found["record"] = ranking(part), record(part)
    found["gates"] = [gates(rank, wrapped) for wrapped in (True, False)]
    found["adafocal"] = focal_bins(200 if rank == 0 else 50)
    if rank == 1:
        # One process alone may evaluate: nothing waits for the other.
        inputs, target, _ = data()
        for case in CASES:
            learner(case).eval()(inputs, target)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    # The first process is this one: importing torch in another costs more than all tests here.
    second = get_context("spawn").Process(target=work, args=(1, str(folder)))
    second.start()
    work(0, str(folder))
    second.join(120)
    assert second.exitcode == 0
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_state_are_those_of_one_process(case, ranks):
    plain = learner(case)
    expected = outcome(plain, plain, slice(None))
    for found in ranks:
        assert found[case].keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[case][name], value, rtol=1e-9, atol=1e-12)
    if case != "cross-entropy":
        entropy = learner("cross-entropy")
        bare = outcome(entropy, entropy, slice(None))["head.weight"]
        assert not torch.allclose(expected["head.weight"], bare, rtol=1e-3)
    if isinstance(plain.loss, FeDLaS):
        gate = [expected[name] for name in expected if name.startswith("loss.gate")]
        assert len(gate) == 4
        assert all((gradient != 0).any() for gradient in gate)


def test_gates_that_drift_apart_are_named(ranks):
    for found in ranks:
        together, apart = found["gates"]
        assert together == []
        (said,) = apart
        assert said.startswith("the gate of FeDLaS differs between the processes of this run: wrap")


def test_ranking_counts_the_samples_of_all_processes(ranks):
    expected = ranking(slice(None))
    assert expected["times_right"].sum() > 0
    for found in ranks:
        assert torch.equal(found["crl"]["times_right"], expected["times_right"])
        assert found["crl"]["epochs"] == 2


def test_recorders_join_what_they_saw(ranks):
    expected = record(slice(None))
    assert expected[0].seen == ROWS - 2
    assert 0 < expected[0].positive < 1
    for found in ranks:
        for left, right in zip(found["record"], expected, strict=True):
            assert vars(left) == pytest.approx(vars(right), nan_ok=True)


def test_adafocal_takes_the_bins_of_the_first_process(ranks):
    expected = focal_bins(200)
    for found in ranks:
        for name, value in expected.items():
            assert torch.equal(found["adafocal"][name], value)
