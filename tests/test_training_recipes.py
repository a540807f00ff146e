"""AdamW with a cosine, averages of weights, ensembles, and networks of a function of one's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from torch import nn  # noqa: E402

from calibrant.core.errors import InputError, UnknownMethodError  # noqa: E402
from calibrant.files import read_predictions  # noqa: E402
from calibrant.training.data import CIFAR10_STATISTICS, DataSet, ImageSet  # noqa: E402
from calibrant.training.nets import make_network, own_network  # noqa: E402
from calibrant.training.run import (  # noqa: E402
    PROTOCOLS,
    Observer,
    RunSettings,
    evaluate_run,
    load_network,
    predict,
    train,
)
from calibrant.training.run.averaging import WeightAverage, renew_statistics  # noqa: E402
from calibrant.training.run.folder import Progress, read_checkpoint  # noqa: E402
from calibrant.training.run.rows import TrainingBatches  # noqa: E402
from calibrant.training.run.settings import protocol_named, rate_at  # noqa: E402

CLASSES = 3
EPOCHS, BATCH, STEPS = 4, 16, 3


def images(count: int, seed: int) -> ImageSet:
    """Return noise with a hue for each class, which a network can learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    pixels = rng.integers(0, 200, (count, 8, 8, CLASSES))
    pixels[np.arange(count), :, :, labels] += 20
    return ImageSet.from_rows(pixels.astype(np.uint8), labels)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return DataSet(images(60, 0), images(21, 1), images(20, 2), CLASSES)


def settings(**changes: Any) -> RunSettings:
    defaults: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "seed": 5}
    return RunSettings("made here", **(defaults | changes))


class Weights(Observer):
    """Keeps the weights of the network after each step, and breaks the run off if asked."""

    def __init__(self, folder: Path, stop: int = 0) -> None:
        self.folder, self.stop = folder, stop
        self.steps, self.epochs = 0, list[dict[str, Any]]()

    def on_step(self, progress: Progress) -> None:
        self.steps += 1
        if self.steps == self.stop:
            raise KeyboardInterrupt

    def on_epoch(self, progress: Progress) -> None:
        state = read_checkpoint(self.folder / "last.ckpt")["objective"]
        below = "network."
        self.epochs.append({k.removeprefix(below): v for k, v in state.items() if below in k})


def test_adamw_with_a_cosine_is_torchs_own(data: DataSet, tmp_path: Path) -> None:
    chosen = settings(net="small-vit", protocol="adamw", rate=0.002, weight_decay=0.3)
    trained = train(chosen, tmp_path / "run", data=data)
    torch.manual_seed(5)
    network = make_network("small-vit", CLASSES)
    decayed = [each for each in network.parameters() if each.ndim > 1]
    plain = [each for each in network.parameters() if each.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": plain, "weight_decay": 0.0}], lr=1.0
    )
    batches = TrainingBatches(data.train, CIFAR10_STATISTICS, BATCH, 5, 4, True)
    for step in range(EPOCHS * STEPS):
        # A twentieth of twelve steps is less than one: there is no step below the peak.
        rate = 0.002 * (1 - np.cos(np.pi * min((12 - step) / (0.95 * 12), 1))) / 2
        batch = batches.get(batches.order(step // STEPS), step // STEPS, step % STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.images), batch.target).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    # Not weight by weight: biases of keys change nothing, and Adam makes steps of their noise.
    said = predict(network, data.test, CIFAR10_STATISTICS).logits
    np.testing.assert_allclose(trained.test.logits, said, atol=1e-4)
    untrained = predict(make_network("small-vit", CLASSES), data.test, CIFAR10_STATISTICS).logits
    assert np.abs(trained.test.logits - untrained.numpy()).max() > 0.1


def test_a_cosine_rises_to_its_peak_and_comes_down_slowly_at_both_ends() -> None:
    rates = [rate_at(PROTOCOLS["adamw"], step, 10, 20, 0.4) for step in range(200)]
    assert rates[:10] == pytest.approx([0.04 * (step + 1) for step in range(10)])
    assert rates[105] == pytest.approx(0.2)  # half way between step 10 and the end
    falls = -np.diff(rates[10:])
    assert (falls > 0).all()
    assert falls[95] > 10 * falls[1]
    assert falls[95] > 10 * falls[-1]


@pytest.mark.parametrize("net", ["resnet8", "small-vit"])
def test_swa_is_the_mean_of_the_last_epochs_with_statistics_made_anew(
    net: str, data: DataSet, tmp_path: Path
) -> None:
    kept = Weights(tmp_path / "run")
    trained = train(
        settings(net=net, protocol="quick+swa"), tmp_path / "run", data=data, observers=[kept]
    )
    counted = kept.epochs[3:]  # of four epochs the last quarter
    for name, value in trained.network.named_parameters():
        mean = torch.stack([state[name] for state in counted]).mean(0)
        torch.testing.assert_close(value.detach(), mean)
    norms = [part for part in trained.network.modules() if isinstance(part, nn.BatchNorm2d)]
    assert bool(norms) == (net == "resnet8")
    if norms:
        batches = TrainingBatches(data.train, CIFAR10_STATISTICS, BATCH, 5, 2, True, plain_from=0)
        order = batches.order(0)
        seen = [batches.get(order, 0, step).images for step in range(STEPS)]
        first = [trained.network.body[0][0][0](part) for part in seen]
        means = torch.stack([part.mean((0, 2, 3)) for part in first]).mean(0)
        torch.testing.assert_close(norms[0].running_mean, means, rtol=1e-4, atol=1e-5)
        assert norms[0].momentum == 0.1


def test_swa_goes_on_at_the_rate_at_which_it_begins() -> None:
    swa = protocol_named("quick+swa")
    rates = [rate_at(swa, step, 10, 20, 0.2) for step in range(200)]
    plain = [rate_at(PROTOCOLS["quick"], step, 10, 20, 0.2) for step in range(200)]
    assert rates[:151] == plain[:151]
    assert set(rates[150:]) == {plain[150]}


def test_ema_is_the_recursion_by_hand() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(network, "ema")
    expected = copy.deepcopy(network.state_dict())
    for step in range(12):
        for parameter in network.parameters():
            parameter.data += torch.randn_like(parameter)
        network(torch.randn(4, 3))  # moves the statistics of batch norm
        average.after_step(network)
        decay = min(0.999, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
            else:
                expected[name] = value.clone()
    average.after_epoch(network)  # of which EMA takes no notice
    average.give_to(network)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_without_batch_norm_no_batch_is_read() -> None:
    network = nn.Linear(2, 2)
    renew_statistics(network, lambda: pytest.fail("read"))


@pytest.mark.parametrize("protocol", ["quick+ema", "adamw+swa", "acls+plp+ema"])
def test_averages_and_adamw_go_on_exactly_where_they_were_broken_off(
    protocol: str, data: DataSet, tmp_path: Path
) -> None:
    chosen = settings(protocol=protocol, loss="fedlas-ls", epochs=8)  # of which two count for SWA
    whole = train(chosen, tmp_path / "whole", data=data)
    part = tmp_path / "part"
    breaking = Weights(part, stop=10)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, part, data=data, checkpoint_every=2, observers=[breaking])
    torch.rand(3)
    again = train(chosen, part, data=data, resume=True)
    np.testing.assert_array_equal(again.test.logits, whole.test.logits)
    network, normalise = load_network(part)
    said = predict(network, data.test, normalise)
    np.testing.assert_allclose(said.logits.numpy(), whole.test.logits, atol=1e-5)
    last = read_checkpoint(part / "last.ckpt")["objective"]
    stem = "body.0.0.0.weight"  # the head may be frozen
    assert not torch.equal(last[f"network.{stem}"], dict(network.named_parameters())[stem])


@pytest.mark.filterwarnings("ignore:the logits don't predict")  # of twenty rows
def test_an_ensemble_is_the_mean_of_runs_by_themselves(data: DataSet, tmp_path: Path) -> None:
    chosen = settings(epochs=1, members=2, seed=3)
    together = train(chosen, tmp_path / "both", data=data)
    alone = [
        train(settings(epochs=1, seed=seed), tmp_path / str(seed), data=data) for seed in (6, 7)
    ]
    for name, file in (("validation", "val.npz"), ("test", "test.npz")):
        mean = np.mean([getattr(each, name).probs for each in alone], axis=0)
        np.testing.assert_allclose(getattr(together, name).probs, mean, rtol=1e-6)
        written = read_predictions(tmp_path / "both" / file)
        np.testing.assert_allclose(written.probs, mean, rtol=1e-6)
    network, normalise = load_network(tmp_path / "both")
    with torch.no_grad():
        said = network(normalise(data.test.images)).softmax(1)
    np.testing.assert_allclose(said, together.test.probs, atol=1e-5)
    outcome = evaluate_run(chosen, together)
    assert "2 networks (resnet8), whose probabilities are averaged, trained with" in str(outcome)
    with pytest.raises(InputError, match="holds a run already"):
        train(chosen, tmp_path / "both", data=data)
    again = train(chosen, tmp_path / "both", data=data, resume=True)
    np.testing.assert_array_equal(again.test.probs, together.test.probs)
    with pytest.raises(InputError, match="holds an ensemble"):
        load_network(tmp_path / "both", make_network("resnet8", CLASSES))
    with pytest.raises(InputError, match="made by the name of their network"):
        train(chosen, tmp_path / "c", data=data, network=make_network("resnet8", CLASSES))


def test_seeds_of_ensembles_share_no_member() -> None:
    seeds = [each.seed for seed in range(4) for each in settings(members=3, seed=seed).of_members()]
    assert seeds == list(range(12))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("quick+ema+swa", InputError, "averaged in one way"),
        ("quick+sma", UnknownMethodError, "no change of a protocol is called 'sma'"),
        ("adam", UnknownMethodError, "no protocol is called 'adam'"),
    ],
)
def test_a_protocol_that_is_none_is_refused(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        settings(protocol=name)


OWN = """
import torch
from torch import nn

def small(n_classes):
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.constant_(body[0].weight, 0.1)  # as if it were pretrained
    return nn.Sequential(body, nn.Linear(4, n_classes))

def broken(n_classes):
    raise ValueError("no weights here")

answer = 42
text = str
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"nets_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_network_of_a_function_of_ones_own_is_trained_by_name(
    own_module: str, data: DataSet, tmp_path: Path
) -> None:
    chosen = settings(net=f"{own_module}:small", protocol="adamw+ema", epochs=1)
    trained = train(chosen, tmp_path / "run", data=data, layer="1")
    assert trained.test.features.shape == (21, 4)
    weight = trained.network[0][0].weight
    assert (weight - 0.1).abs().max() < 0.02  # begins where the function says
    # What a folder says is not run: only who asks for a network names the code that makes it.
    with pytest.raises(InputError, match="holds a network of yours"):
        load_network(tmp_path / "run")
    network, normalise = load_network(tmp_path / "run", own_network(chosen.net, CLASSES))
    with torch.no_grad():
        said = network(normalise(data.test.images))
    np.testing.assert_allclose(said, trained.test.logits, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("missing", "can't make a network by this function .AttributeError"),
        ("broken", "ValueError: no weights here"),
        ("answer", "TypeError"),
        ("text", "must return a torch.nn.Module, not str"),
    ],
)
def test_a_function_that_makes_no_network_is_named(
    function: str, words: str, own_module: str
) -> None:
    with pytest.raises(InputError, match=words):
        own_network(f"{own_module}:{function}", 3)
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        own_network("no_such_module_anywhere:make", 3)


def test_the_command_takes_all_of_it(
    own_module: str, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrant.cli import main

    for name, part in (("train", data.train), ("test", data.test)):
        pixels = part.images.permute(0, 2, 3, 1).numpy()
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=part.labels.numpy())
    words = f"calibrant train --data {tmp_path} --out {tmp_path / 'run'} --n-classes 3 --epochs 1"
    words += f" --batch-size 16 --net {own_module}:small --layer 1 --protocol adamw+swa"
    words += " --weight-decay 0.1 --members 2"
    monkeypatch.setattr("sys.argv", words.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert read_predictions(tmp_path / "run/test.npz").n == 21
    assert (tmp_path / "run/member-1/average.ckpt").is_file()
