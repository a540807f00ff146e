"""The programs of the page on own loops: broken off and gone on, they end alike."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_networks import CLASSES, images, tiny_cnn
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

from calibrant.core.errors import InputError
from calibrant.training import NetworkWithLoss, make_loss

PAGE = Path(__file__).parents[1] / "docs/guides/own-loops.md"
NAMES = ["adafocal", "scheduled-focal", "crl", "rankmixup", "fedlas-ls"]
ROWS = 32
# To generate code takes a quarter of a minute for each loss. What is compiled is traced all the
# the same; only the code that a machine runs isn't generated.
COMPILE_ALL = bool(os.environ.get("CALIBRANT_COMPILE_ALL"))
GENERATED = NAMES if COMPILE_ALL else ["fedlas-ls"]
BACKEND = "inductor" if COMPILE_ALL else "eager"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _afresh() -> None:
    """Forget what was compiled: of many networks of one class the last ones aren't any more."""
    torch.compiler.reset()


@contextmanager
def compiling(expected: bool) -> Generator[None]:
    """Check that graphs are compiled within, or that none are."""
    before = counters["stats"]["unique_graphs"]
    yield
    assert (counters["stats"]["unique_graphs"] > before) == expected


def programs(*numbers: int) -> dict[str, Any]:
    """Run blocks of the page and return what they define."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for number in numbers:
        exec(compile(blocks[number], f"{PAGE.name}, block {number}", "exec"), names)
    return names


def loss_named(name: str) -> Any:
    torch.manual_seed(1)
    extra: dict[str, Any] = {"crl": {"samples": ROWS}, "scheduled-focal": {"gamma": {0: 5, 1: 2}}}
    return make_loss(name, CLASSES, **extra.get(name, {}))


def data() -> TensorDataset:
    inputs, target = images(ROWS)
    return TensorDataset(inputs, target, torch.arange(ROWS))


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0, msg=name)


def quick_scaler() -> Any:
    """Return a scaler whose scale grows within a few steps."""
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)


def with_name(name: str, part: Any) -> dict[str, Any]:
    """Return the state of a scaler or of what holds one; none if there is none."""
    return {f"{name}.{key}": value for key, value in part.state_dict().items()} if part else {}


def in_one_go_and_in_two(
    name: str, folder: Path, network: Callable[[], nn.Module] = tiny_cnn, **settings: Any
) -> list[dict[str, Any]]:
    """Return the final states of two epochs of the plain loop, the second time broken off."""
    learn = programs(0)["learn"]
    found: list[dict[str, Any]] = []
    for parts in ((2,), (1, 2)):
        place = folder / f"{name}-{len(parts)}.pt"
        for epochs in parts:
            # Everything is made anew, as by a program that is started again.
            model = learn(network(), loss_named(name), data(), data(), epochs, place, **settings)
        found.append({key: value.clone() for key, value in model.state_dict().items()})
        assert model.loss.accumulation_steps == settings.get("accumulate", 1)
    return found


# What each loop is given for each feature. With all of NAMES, and with two processes below, this is
# the table that the page speaks of. The plain loop is tried with every loss and feature. Runs of a
# framework take far longer: every feature with one loss, and one with each other loss.
PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "float16 with a scaler": {"half": torch.float16},
    "bfloat16": {"half": torch.bfloat16},
}
LIGHTNING: dict[str, dict[str, Any]] = {
    "accumulated": {"accumulate_grad_batches": 2},
    "bfloat16": {"precision": "bf16-mixed"},
    "float16 with a scaler": {"scaled": True},
    "compiled": {"compiled": True},
}
TRAINER: dict[str, dict[str, Any]] = {
    "accumulated": {"gradient_accumulation_steps": 2},
    "bfloat16": {"bf16": True},
    "float16 with a scaler": {"fp16": True, "scaled": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": BACKEND},
}


def tried(ways: dict[str, Any]) -> pytest.MarkDecorator:
    """Return which losses and features a framework is tried with; all of them if asked for."""
    pairs = list(product(NAMES, ways))
    if not COMPILE_ALL:
        pairs = [(NAMES[-1], way) for way in ways] + list(zip(NAMES[:-1], ways, strict=True))
    return pytest.mark.parametrize(("name", "way"), pairs)


@pytest.mark.parametrize("way", PLAIN)
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loop_that_goes_on_ends_as_one_in_one_go(name, way, tmp_path):
    whole, resumed = in_one_go_and_in_two(name, tmp_path, layer="4", **PLAIN[way])
    assert_alike(whole, resumed)
    start = NetworkWithLoss(tiny_cnn(), loss_named(name), layer="4").state_dict()
    assert any((whole[key] != start[key]).any() for key in whole if key.startswith("network"))
    own = [key for key in whole if key.startswith("loss.")]
    assert all((whole[key] != start[key]).any() for key in own)
    assert bool(own) == (name not in ("scheduled-focal", "rankmixup"))


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_loop_learns_what_a_plain_one_does(name, tmp_path):
    wrap = partial(torch.compile, backend="eager")
    with compiling(True):
        whole, resumed = in_one_go_and_in_two(name, tmp_path, layer="4", wrap=wrap)
    assert_alike(whole, resumed)
    learn = programs(0)["learn"]
    plain = learn(tiny_cnn(), loss_named(name), data(), data(), 2, tmp_path / "p.pt", layer="4")
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(whole[key], value, rtol=1e-4, atol=1e-5)


def linear() -> nn.Module:
    """Return a network that is compiled in a moment."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))


@pytest.fixture
def compiler(tmp_path_factory, monkeypatch):
    """Machine code is generated, by the compiler that is here, in a folder of the test."""
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("torch.compile's code for a CPU needs a C++ compiler: g++ or clang++")
    # The tests share what is compiled of the network.
    place = tmp_path_factory.getbasetemp() / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place))
    # Plain loops: to try which instructions this processor has takes as long as some kernels.
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    # No processes beside this one, which would import torch.
    with torch._inductor.config.patch(compile_threads=1, cpp_cache_precompile_headers=True):
        yield


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", GENERATED)
def test_a_loop_of_generated_code_goes_on_and_learns_what_a_plain_one_does(name, tmp_path):
    generated = Counter(counters["inductor"])
    whole, resumed = in_one_go_and_in_two(name, tmp_path, linear, layer="1", wrap=torch.compile)
    assert counters["inductor"] != generated
    assert_alike(whole, resumed)
    learn = programs(0)["learn"]
    plain = learn(linear(), loss_named(name), data(), data(), 2, tmp_path / "p.pt", layer="1")
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(whole[key], value, rtol=1e-4, atol=1e-5)


def test_accumulated_batches_make_the_step_of_a_large_one():
    inputs, target = images(ROWS)
    gradients: list[Any] = []
    for parts in (1, 4):
        model = NetworkWithLoss(tiny_cnn(), loss_named("scheduled-focal"))
        model.start_epoch(1)
        for rows in torch.arange(ROWS).chunk(parts):
            (model(inputs[rows], target[rows]) / parts).backward()
        gradients.append(next(model.parameters()).grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_what_a_loss_asks_for_is_handed_over():
    inputs, target = images(8)
    model = NetworkWithLoss(tiny_cnn(), loss_named("crl"))
    with pytest.raises(InputError, match="CRL needs index="):
        model(inputs, target)
    value, logits = model.with_logits(inputs, target, torch.arange(8))
    assert value.requires_grad
    assert logits.shape == (8, CLASSES)
    with pytest.raises(InputError, match="give end_epoch their logits and targets"):
        NetworkWithLoss(tiny_cnn(), loss_named("adafocal")).end_epoch()
    with pytest.raises(InputError, match="must be one tensor of floating-point numbers"):
        NetworkWithLoss(nn.Embedding(9, CLASSES), loss_named("rankmixup"))(target, target)
    model = NetworkWithLoss(tiny_cnn(), loss_named("rankmixup"))
    model.start_epoch(0)
    first, second = (float(model(inputs, target)) for _ in range(2))
    assert first != second  # other mixtures
    model.start_epoch(0)
    assert float(model(inputs, target)) == first


@pytest.mark.parametrize("form", ["mrl", "m-ndcg"])
def test_a_row_that_is_left_out_may_be_mixed_with_others(form):
    inputs, target = images(8)
    target[3] = 255
    loss = make_loss("rankmixup", CLASSES, form=form, ignore_index=255)
    value, logits = NetworkWithLoss(tiny_cnn(), loss).with_logits(inputs, target)
    plain = nn.functional.cross_entropy(logits, target, ignore_index=255)
    assert value.isfinite()
    assert value > plain


def test_positions_of_held_out_rows_are_not_those_of_training_rows():
    inputs, target = images(8)
    model = NetworkWithLoss(tiny_cnn(), loss_named("crl")).eval()
    beyond = torch.arange(8) + ROWS
    torch.testing.assert_close(model(inputs, target, beyond), model(inputs, target))


def test_inputs_of_several_tensors_go_to_the_network_in_turn():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, CLASSES)

        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return self.fc(one + other)

    model = NetworkWithLoss(Sum(), loss_named("fedlas-ls"))
    one, other = torch.ones(2, 3), torch.zeros(2, 3)
    _, logits = model.with_logits((one, other), torch.tensor([0, 1]))
    torch.testing.assert_close(logits, model.network(one, other))


@pytest.mark.parametrize("form", ["mapping", "tuple"])
def test_the_plain_loop_takes_networks_whose_outputs_are_of_any_form(form, tmp_path):
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = tiny_cnn()

        def forward(self, pixels: torch.Tensor) -> Any:
            logits = self.network(pixels)
            return {"logits": logits} if form == "mapping" else (logits, pixels)

    learn, place = programs(0)["learn"], str(tmp_path / "run.pt")
    model = learn(Wrapped(), loss_named("adafocal"), data(), data(), 1, place, layer="network.4")
    start = loss_named("adafocal").state_dict()
    moved = model.loss.state_dict()
    assert any((moved[key] != start[key]).any() for key in start)  # by the held-out rows


def lightning_states(
    name: str, folder: Path, *, compiled: bool = False, scaled: bool = False, **arguments: Any
) -> list[dict[str, Any]]:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.precision import MixedPrecision

    names = programs(0, 1)
    loader = DataLoader(data(), batch_size=8)
    found: list[dict[str, Any]] = []
    for parts in ((2,), (1, 2)):
        place = folder / f"{name}-{len(parts)}"
        for epochs in parts:
            last = place / "last.ckpt"
            if scaled:
                arguments["plugins"] = [MixedPrecision("16-mixed", "cpu", quick_scaler())]
            trainer = lightning.Trainer(
                max_epochs=epochs,
                callbacks=[ModelCheckpoint(place, save_last=True)],
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                **arguments,
            )
            module = names["Module"](tiny_cnn(), loss_named(name), layer="4")
            if compiled:
                module.model.compile(backend=BACKEND)
            names["fit"](trainer, module, loader, loader, last if last.exists() else None)
        state = {key: value.clone() for key, value in module.state_dict().items()}
        found.append(state | with_name("scaler", trainer.precision_plugin))
    return found


def assert_scaled(state: dict[str, Any], scaled: bool) -> None:
    """Check that a run had a scaler that moved, or none."""
    first = quick_scaler().state_dict()["scale"]
    assert (state.get("scaler.scale", first) != first) == scaled


@tried(LIGHTNING)
def test_a_run_of_lightning_that_goes_on_ends_as_one_in_one_go(name, way, tmp_path):
    with compiling(way == "compiled"):
        whole, resumed = lightning_states(name, tmp_path, **LIGHTNING[way])
    assert_alike(whole, resumed)
    assert_scaled(whole, "scaled" in LIGHTNING[way])


class TinyModel(nn.Module):
    """What the Trainer takes, as small as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_cnn()

    def forward(self, pixels: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        return {"logits": self.network(pixels)}


def trainer_states(
    name: str, folder: Path, *, scaled: bool = False, **arguments: Any
) -> list[dict[str, Any]]:
    """Return the final states of two epochs of the Trainer, the second time broken off."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    make = programs(2)["trainer_for"]
    names = ("pixels", "labels", "index")[: 3 if name == "crl" else 2]
    rows = [dict(zip(names, row, strict=False)) for row in data()]
    found: list[dict[str, Any]] = []
    for part in ("whole", "again"):
        settings = transformers.TrainingArguments(
            str(folder / name / part),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            eval_strategy="epoch",
            save_strategy="epoch",
            remove_unused_columns=False,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **arguments,
        )
        loss = loss_named(name)
        trainer = make(TinyModel(), loss, rows, rows[:16], settings, layer="network.4")
        if scaled:
            # Left alone, it says nothing and goes on in float32.
            trainer.accelerator.native_amp = True
            trainer.accelerator.scaler = quick_scaler()
            with trainer.accelerator.autocast():
                assert torch.get_autocast_dtype("cpu") == torch.float16
        steps = ROWS // (4 * settings.world_size * settings.gradient_accumulation_steps)
        earlier = folder / name / "whole" / f"checkpoint-{steps}"
        trainer.train(resume_from_checkpoint=str(earlier) if found else None)
        assert trainer.state.global_step == 2 * steps
        state = {key: value.clone() for key, value in trainer.model.state_dict().items()}
        found.append(state | with_name("scaler", trainer.accelerator.scaler))
    return found


@tried(TRAINER)
def test_a_run_of_the_trainer_that_goes_on_ends_as_one_in_one_go(name, way, tmp_path):
    with compiling(way == "compiled"):
        whole, resumed = trainer_states(name, tmp_path, **TRAINER[way])
    assert_alike(whole, resumed)
    assert_scaled(whole, "scaled" in TRAINER[way])
    start = loss_named(name).state_dict()
    prefix = "calibration_loss."
    assert {key.removeprefix(prefix) for key in whole if key.startswith(prefix)} == set(start)
    assert all((whole[f"{prefix}{key}"] != value).any() for key, value in start.items())


def in_two_processes(rank: int, folder: str) -> None:
    # As a launcher sets them.
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2)):
        os.environ[name] = str(value)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731", "NODE_RANK": "0"}
    meeting, patience = f"file://{folder}/meeting", timedelta(minutes=10)
    dist.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    try:
        found: dict[str, Any] = {}
        for name in NAMES:
            place = Path(folder) / str(rank)
            place.mkdir(exist_ok=True)
            found[name] = in_one_go_and_in_two(
                name,
                place,
                layer="4",
                wrap=DistributedDataParallel,
                shard=lambda rows: Subset(rows, range(rank, len(rows), 2)),
            )
            shared = Path(folder) / "shared"
            found[f"{name} in Lightning"] = lightning_states(
                name, shared / "lightning", strategy="ddp", devices=2
            )
            found[f"{name} in the Trainer"] = trainer_states(
                name, shared / "trainer", ddp_backend="gloo", ddp_find_unused_parameters=False
            )
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_that_go_on_end_as_in_one_go_and_with_one_state(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    pytest.importorskip("accelerate")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.setenv(name, "")  # to be taken back at the end
    # The first process is this one: importing torch in another costs more than all the rest.
    second = get_context("spawn").Process(target=in_two_processes, args=(1, str(tmp_path)))
    second.start()
    in_two_processes(0, str(tmp_path))
    second.join(600)
    assert second.exitcode == 0
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert len(ranks[0]) == 3 * len(NAMES)
    for name in ranks[0]:
        for whole, resumed in (ranks[0][name], ranks[1][name]):
            assert_alike(whole, resumed)
        assert_alike(ranks[0][name][0], ranks[1][name][0])
