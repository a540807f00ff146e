"""Training runs: against a plain loop, broken off and taken up again, and from the command line."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
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
from calibrant.training.losses import make_loss  # noqa: E402
from calibrant.training.mixing import Mixup  # noqa: E402
from calibrant.training.nets import make_network  # noqa: E402
from calibrant.training.run import (  # noqa: E402
    PROTOCOLS,
    Observer,
    RunSettings,
    load_network,
    predict,
    train,
)
from calibrant.training.run.folder import Progress, read_checkpoint  # noqa: E402
from calibrant.training.run.objective import Objective  # noqa: E402
from calibrant.training.run.rows import TrainingBatches  # noqa: E402
from calibrant.training.run.settings import Protocol, protocol_named, rate_at  # noqa: E402
from calibrant.training.second_stages import ProgressiveFreezing  # noqa: E402

CLASSES = 3


def images(count: int, seed: int) -> ImageSet:
    """Return noise with a hue for each class, which a network can learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    pixels = rng.integers(0, 200, (count, 8, 8, CLASSES))
    pixels[np.arange(count), :, :, labels] += 20
    return ImageSet.from_rows(pixels.astype(np.uint8), labels)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return DataSet(images(70, 0), images(21, 1), None, CLASSES)


def settings(**changes: Any) -> RunSettings:
    defaults: dict[str, Any] = {"epochs": 3, "batch_size": 16, "protocol": "acls", "seed": 5}
    return RunSettings("made here", **(defaults | changes))


class Broken(Exception):
    pass


class BreakAt(Observer):
    """Raise when so many steps are done, as if the process had died there."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise Broken


def assert_equal_trees(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_trees(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal_trees(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


# 63 training images: with acls, which drops the rest, 3 steps an epoch; with mukhoti 4.
@pytest.mark.parametrize(
    ("changes", "broken_at", "every"),
    [
        ({"loss": "fedlas-ls"}, 5, 2),  # one step after a checkpoint
        ({"loss": "fedlas-mbls", "protocol": "mukhoti"}, 6, 2),  # right at one
        ({"loss": "adafocal", "protocol": "mukhoti"}, 7, 1),
        ({"loss": "adafocal"}, 8, None),  # only the checkpoints between epochs
        ({"loss": "crl"}, 4, 1),
        ({"loss": "focal", "loss_arguments": {"gamma": {0: 5.0, 2: 1.0}}}, 4, 1),
        ({"loss": "flsd", "loss_arguments": {"gammas": (5.0, 3.0, 2.0)}}, 4, 1),
        ({"mixing": "mixup", "protocol": "quick"}, 5, 2),
        ({"mixing": "mit-a", "protocol": "quick"}, 7, 3),
        ({"mixing": "regmixup", "loss": "fedlas-ls"}, 5, 2),
        ({"loss": "rankmixup", "loss_arguments": {"form": "m-ndcg"}}, 5, 1),
        ({"precision": "bf16"}, 2, None),  # before the first checkpoint
        ({"protocol": "acls+plp", "epochs": 4}, 8, 1),  # in an epoch that freezes layers
    ],
)
def test_a_run_that_was_broken_off_ends_with_the_same_weights(
    changes: dict[str, Any], broken_at: int, every: int | None, data: DataSet, tmp_path: Path
) -> None:
    chosen = settings(**changes)
    whole = train(chosen, tmp_path / "whole", data=data)
    with pytest.raises(Broken):
        train(
            chosen,
            tmp_path / "broken",
            data=data,
            checkpoint_every=every,
            observers=[BreakAt(broken_at)],
        )
    # What happens between the two must not matter.
    torch.rand(3)
    resumed = train(chosen, tmp_path / "broken", data=data, checkpoint_every=every, resume=True)
    np.testing.assert_equal(resumed.history, whole.history)  # the first flip rate is NaN in both
    ends = [read_checkpoint(tmp_path / name / "last.ckpt") for name in ("whole", "broken")]
    for part in ("objective", "optimizer", "normalisation"):
        assert_equal_trees(ends[0][part], ends[1][part])
    np.testing.assert_array_equal(resumed.test.logits, whole.test.logits)


def plain_loop(
    chosen: RunSettings, recipe: Protocol, data: DataSet, validation: list[int]
) -> tuple[nn.Module, nn.Module, list[dict[int, list[float]]]]:
    """Train as the papers say, in the fewest words, on the same batches.

    The last of what it returns is, for each epoch, what FeDLaS decided for each image: psi, alpha,
    indicator, and whether the network was right.
    """
    torch.manual_seed(chosen.seed)
    network = make_network(chosen.net, CLASSES)
    loss = make_loss(chosen.loss, CLASSES, reduction="sum" if recipe.summed else "mean")
    kept = [row for row in range(len(data.train)) if row not in validation]
    optimizer = torch.optim.SGD(
        [*network.parameters(), *loss.parameters()],
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
    )
    epochs, drops = chosen.epochs, [m * chosen.epochs // recipe.epochs for m in recipe.milestones]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops)
    shuffled = np.arange(len(data.train))
    np.random.RandomState(chosen.seed if recipe.split_seed is None else 1).shuffle(shuffled)
    rows = torch.from_numpy(shuffled[len(validation) :])
    assert sorted(rows.tolist()) == kept
    batches = TrainingBatches(
        data.train.take(rows), CIFAR10_STATISTICS, 16, chosen.seed, 4, recipe.drop_last
    )
    decided: list[dict[int, list[float]]] = []
    for epoch in range(epochs):
        decided.append({})
        if recipe.early:
            optimizer.step()  # without gradients it does nothing but keep torch from warning
            schedule.step()
        order = batches.order(epoch)
        for step in range(3 if recipe.drop_last else 4):
            batch = batches.get(order, epoch, step)
            logits, features = network(batch.images, return_features=True)
            optimizer.zero_grad()
            loss(logits, batch.target, features).backward()
            right = logits.argmax(1) == batch.target
            columns = (loss.last.psi, loss.last.alpha, loss.last.indicator, right.double())
            rows_of_batch = torch.stack([column.double() for column in columns], dim=1).tolist()
            decided[-1] |= dict(zip(batch.index.tolist(), rows_of_batch, strict=True))
            nn.utils.clip_grad_norm_(network.parameters(), 2)
            optimizer.step()
        optimizer.zero_grad()
        if not recipe.early:
            schedule.step()
    return network, loss, decided


@pytest.mark.parametrize("name", ["mukhoti", "acls"])
def test_a_run_is_the_plain_loop_of_the_papers(name: str, data: DataSet, tmp_path: Path) -> None:
    chosen = settings(protocol=name, loss="fedlas-ls", epochs=7)
    trained = train(chosen, tmp_path / "run", data=data)
    shuffled = np.arange(70)
    np.random.RandomState(1 if name == "mukhoti" else 5).shuffle(shuffled)
    held_out = shuffled[:7].tolist()
    assert trained.validation.labels.tolist() == data.train.labels[held_out].tolist()
    network, loss, decided = plain_loop(chosen, PROTOCOLS[name], data, held_out)
    last = read_checkpoint(tmp_path / "run/last.ckpt")["objective"]
    for part, module in (("network", network), ("loss", loss)):
        for key, value in module.state_dict().items():
            torch.testing.assert_close(last[f"{part}.{key}"], value, rtol=1e-3, atol=1e-5)
    rates = [row["rate"] for row in trained.history]
    early = {"mukhoti": [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.001]}
    late = [0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert rates == pytest.approx(early.get(name, late))
    before: dict[int, list[float]] = {}
    for row, now in zip(trained.history, decided, strict=True):
        psi, alpha, indicator, right = np.array(list(now.values())).T
        assert row["gate_positive"] == pytest.approx(np.mean(psi == 1))
        assert row["gate_negative"] == pytest.approx(np.mean(psi == -1))
        assert row["gate_alpha"] == pytest.approx(alpha.mean(), rel=1e-4)
        correlation = np.corrcoef(indicator, right)[0, 1]
        assert row["gate_correlation"] == pytest.approx(correlation, abs=1e-4, nan_ok=True)
        flips = [before[image][0] != now[image][0] for image in before.keys() & now.keys()]
        expected = np.mean(flips) if flips else float("nan")
        assert row["gate_flip_rate"] == pytest.approx(expected, nan_ok=True)
        before = now


def test_only_fedlas_on_plain_images_adds_to_the_history(data: DataSet, tmp_path: Path) -> None:
    mixed = train(settings(loss="fedlas-ls", mixing="mixup", epochs=1), tmp_path / "a", data=data)
    other = train(settings(loss="label-smoothing", epochs=1), tmp_path / "b", data=data)
    recorded = train(settings(loss="fedlas-mbls", epochs=1), tmp_path / "c", data=data)
    assert mixed.history[0].keys() == other.history[0].keys()
    added = recorded.history[0].keys() - other.history[0].keys()
    gate = ("positive", "negative", "flip_rate", "alpha", "correlation")
    assert added == {f"gate_{name}" for name in gate}
    # Strict JSON knows no NaN.
    row = json.loads((tmp_path / "c/history.json").read_text(), parse_constant=pytest.fail)[0]
    assert row["gate_flip_rate"] is None
    with (tmp_path / "c/history.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["gate_flip_rate"] == "nan"


@pytest.mark.parametrize("mixing", ["mit", "mit-a"])
def test_a_training_accuracy_that_means_nothing_is_left_blank(
    mixing: str, data: DataSet, tmp_path: Path
) -> None:
    train(settings(mixing=mixing, epochs=1), tmp_path / "run", data=data)
    row = json.loads((tmp_path / "run/history.json").read_text())[0]
    assert row["train_accuracy"] is None
    assert row["validation_accuracy"] >= 0


def test_the_training_accuracy_of_regmixup_is_that_of_the_images_as_they_are(
    data: DataSet, tmp_path: Path
) -> None:
    # Without the mixed half's weight only batch norm can tell the two from one another.
    changes = {"epochs": 3, "mixing": "regmixup", "mixing_arguments": {"weight": 0.0}}
    mixed = train(settings(**changes), tmp_path / "mixed", data=data).history
    assert mixed[-1]["train_accuracy"] > 1 / CLASSES
    network, loss = make_network("resnet8", CLASSES), make_loss("cross-entropy", CLASSES)
    objective = Objective(network, loss, "regmixup", samples=70)
    inputs = CIFAR10_STATISTICS(data.train.images)
    _, right = objective(inputs, data.train.labels, torch.arange(70), 3)
    mixture = Mixup(20.0, seed=3)(inputs, data.train.labels)
    logits = objective.network(torch.cat([inputs, mixture.inputs]))[:70]
    assert 0 < right == (logits.argmax(1) == data.train.labels).sum()


def test_rates_of_the_long_protocols_fall_where_the_papers_code_lets_them() -> None:
    for name, drops in {
        "mukhoti": (149, 249),
        "acls": (150, 250),
        "mukhoti-tiny": (39, 59),
        "acls-tiny": (40, 60),
        "plp": (150, 250),
    }.items():
        recipe = PROTOCOLS[name]
        rates = [rate_at(recipe, 10 * e, 10, recipe.epochs, 0.1) for e in range(recipe.epochs)]
        assert rates == pytest.approx(
            [0.1 * 0.1 ** sum(e >= d for d in drops) for e in range(len(rates))]
        )


def test_one_cycle_rises_to_its_peak_and_falls_to_almost_nothing() -> None:
    rates = [rate_at(PROTOCOLS["quick"], step, 10, 10, 0.4) for step in range(100)]
    assert max(rates) == pytest.approx(0.4)
    assert rates.index(max(rates)) in (19, 20)
    assert rates[0] == pytest.approx(0.4 / 20)
    assert rates[-1] == pytest.approx(0.4 / 80)
    falls = np.diff(rates[20:])
    np.testing.assert_allclose(falls, falls[0])


class Weights(Observer):
    """Keeps the network's weights and their momentum after each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epochs = folder, []

    def on_epoch(self, progress: Progress) -> None:
        content = read_checkpoint(self.folder / "last.ckpt")
        network = make_network("resnet8", CLASSES)
        weights = {k.removeprefix("network."): v for k, v in content["objective"].items()}
        network.load_state_dict(weights)
        states = content["optimizer"]["state"]
        parameters = list(network.parameters())
        momentum = [
            states.get(index, {}).get("momentum_buffer") for index in range(len(parameters))
        ]
        self.epochs.append((parameters, momentum))


def test_layers_are_frozen_from_the_top_in_whichever_protocol(
    data: DataSet, tmp_path: Path
) -> None:
    assert replace(protocol_named("quick+plp"), peels=False) == PROTOCOLS["quick"]
    assert PROTOCOLS["plp"].peels
    with pytest.raises(UnknownMethodError, match="no protocol is called 'slow'"):
        protocol_named("slow+plp")
    kept = Weights(tmp_path / "run")
    chosen = settings(protocol="quick+plp", epochs=4)
    trained = train(chosen, tmp_path / "run", data=data, observers=[kept])
    schedule = ProgressiveFreezing(make_network("resnet8", CLASSES), 4)
    counts = [schedule.trained(epoch) for epoch in range(4)]
    total = len(kept.epochs[0][0])
    assert total > counts[0] > counts[1] > counts[2] > counts[3] > 0
    for count, before, after in zip(counts[1:], kept.epochs, kept.epochs[1:], strict=False):
        for index in range(total):
            same = torch.equal(before[0][index], after[0][index])
            assert same == (index >= count)
            if same and before[1][index] is not None:
                assert torch.equal(before[1][index], after[1][index])
    assert all(parameter.requires_grad for parameter in trained.network.parameters())


def test_batches_cover_an_epoch_once_whatever_the_number_of_devices() -> None:
    def rows(rank: int, world: int, drop: bool) -> list[list[int]]:
        batches = TrainingBatches(
            images(45, 0), CIFAR10_STATISTICS, 10, 1, 4, drop, rank=rank, world=world
        )
        order = batches.order(3)
        return [batches.get(order, 3, step).index.tolist() for step in range(len(batches))]

    one = rows(0, 1, drop=False)
    assert sorted(chain.from_iterable(one)) == list(range(45))
    assert [len(batch) for batch in one] == [10, 10, 10, 10, 5]
    assert rows(0, 1, drop=True) == one[:4]
    halves = rows(0, 2, drop=False), rows(1, 2, drop=False)
    for left, right, both in zip(*halves, one, strict=True):
        assert len(left) == len(right)
        assert sorted(left + right) == sorted(both[: 2 * len(left)])
    with pytest.raises(InputError, match="can't be shared evenly by 3"):
        rows(0, 3, drop=False)


def test_augmentation_differs_by_step_and_epoch_and_follows_from_the_seed() -> None:
    same = ImageSet(images(1, 0).images.repeat(40, 1, 1, 1), torch.zeros(40, dtype=torch.int64))
    batches = TrainingBatches(same, CIFAR10_STATISTICS, 20, 1)
    order = torch.arange(40)
    first = batches.get(order, 0, 0).images
    assert torch.equal(first, batches.get(order, 0, 0).images)
    for other in (
        batches.get(order, 0, 1),
        batches.get(order, 1, 0),
        replace(batches, seed=2).get(order, 0, 0),
    ):
        assert not torch.equal(first, other.images)
    assert batches.order(0).tolist() != batches.order(1).tolist()
    plain = replace(batches, plain_from=1)
    assert torch.equal(first, plain.get(order, 0, 0).images)
    wanted = CIFAR10_STATISTICS(same.images[:20])
    assert torch.equal(plain.get(order, 1, 0).images, wanted)


def test_the_share_of_plain_epochs_can_be_replaced(data: DataSet, tmp_path: Path) -> None:
    assert settings(protocol="quick", epochs=18).plain_epochs == 3
    assert settings(protocol="quick", epochs=18, plain_share=0.5).plain_epochs == 9
    assert settings(protocol="acls").plain_epochs == 0
    losses = [
        train(settings(epochs=1, plain_share=share), tmp_path / name, data=data).history[0]
        for name, share in (("protocol", None), ("none", 0.0), ("all", 1.0))
    ]
    assert losses[0] == losses[1]
    assert losses[0]["train_loss"] != losses[2]["train_loss"]


@pytest.fixture(scope="module")
def finished(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(settings(epochs=4), folder, data=data)
    return folder


def test_the_folder_of_a_run(finished: Path, data: DataSet) -> None:
    assert RunSettings.read(finished / "config.json") == settings(epochs=4)
    rows = json.loads((finished / "history.json").read_text())
    with (finished / "history.csv").open(newline="") as file:
        table = [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
    assert table == rows
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    for name, truth in (("test", data.test.labels), ("val", None)):
        file = finished / f"{name}.npz"
        predictions = read_predictions(file)
        archive = np.load(file)
        head = archive["features"] @ archive["head_weight"].T + archive["head_bias"]
        np.testing.assert_allclose(head, predictions.logits, rtol=1e-4, atol=1e-5)
        assert {str(archive[key].dtype) for key in archive.files} == {"float32", "int64"}
        if truth is not None:
            np.testing.assert_array_equal(predictions.labels, truth.numpy())
    for name in ("last.ckpt", "best.ckpt"):
        assert torch.load(finished / name, weights_only=True)["format"] == 1


def test_the_network_that_counts_is_that_of_the_best_epoch(finished: Path, data: DataSet) -> None:
    network, normalise = load_network(finished)
    with torch.no_grad():
        logits = network(normalise(data.test.images)).numpy()
    np.testing.assert_allclose(logits, np.load(finished / "test.npz")["logits"], atol=1e-5)
    rows = json.loads((finished / "history.json").read_text())
    accuracies = [row["validation_accuracy"] for row in rows]
    best = read_checkpoint(finished / "best.ckpt")["progress"]
    assert best.epoch == 1 + accuracies.index(max(accuracies))
    assert best.best_accuracy == max(accuracies)


def test_predictions_for_other_images_go_through_the_networks_normalisation(
    finished: Path, data: DataSet
) -> None:
    network, normalise = load_network(finished)
    other = images(1100, 9)  # more than one batch
    outputs = predict(network, other, normalise)
    assert torch.equal(outputs.labels, other.labels)
    some = torch.tensor([1099, 3, 700])
    mean, std = (
        torch.tensor(x)[:, None, None] for x in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    )
    with torch.no_grad():
        wanted = network((other.images[some] / 255 - mean) / std)
    torch.testing.assert_close(outputs.logits[some], wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(predict(network, other, normalise, some).labels, other.labels[some])
    accuracy = np.mean(outputs.logits.numpy().argmax(1) == other.labels.numpy())
    assert outputs.accuracy == pytest.approx(accuracy)


def test_a_folder_with_another_run_is_left_alone(finished: Path, data: DataSet) -> None:
    before = (finished / "last.ckpt").read_bytes()
    with pytest.raises(InputError, match="holds a run already"):
        train(settings(epochs=4), finished, data=data)
    with pytest.raises(InputError, match="has seed 5, not 6"):
        train(settings(epochs=4, seed=6), finished, data=data, resume=True)
    assert (finished / "last.ckpt").read_bytes() == before
    again = train(settings(epochs=4), finished, data=data, resume=True)
    np.testing.assert_array_equal(again.test.logits, np.load(finished / "test.npz")["logits"])


def test_bad_settings_leave_no_folder(data: DataSet, tmp_path: Path) -> None:
    for changes, sentence in (
        ({"net": "resnet9"}, "no network is called 'resnet9'"),
        ({"loss": "focal-point"}, "no loss is called 'focal-point'"),
        ({"loss": "focal", "loss_arguments": {"gama": 1}}, "has no argument 'gama'"),
        ({"loss": "mmce", "mixing": "mixup"}, "compares the rows"),
        ({"mixing": "mit", "mixing_arguments": {"beta": 1}}, "mixing 'mit': .*'beta'"),
        ({"loss": "rankmixup", "mixing": "mixup"}, "compares the rows"),
        ({"loss": "fedlas-ls", "mixing": "mit"}, "needs features, .* Mixup does"),
        ({"loss": "rankmixup", "mixing_arguments": {"beta": 1}}, "RankMixup: .*'beta'"),
        ({"mixing_arguments": {"alpha": 1}}, "mixes nothing"),
        ({"batch_size": 64}, "63 training images don't fill one batch of 64"),
        ({"batch_size": 1}, "a batch of 1 leaves less than two images for each of 1 device"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(settings(**changes), tmp_path / "run", data=data)
    for arguments, sentence in (
        ({"devices": 0}, "devices must be at least 1, not 0"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1, not 0"),
        ({"accelerator": "abacus"}, "can't train on 1 x 'abacus'"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(settings(), tmp_path / "run", data=data, **arguments)
    for changes, sentence in (
        ({"protocol": "slow"}, "no protocol is called 'slow'"),
        ({"epochs": 0}, "epochs must be a whole number above 0, not 0"),
        ({"rate": float("nan")}, "rate must be a finite number above 0, not nan"),
        (
            {"plain_share": 1.5},
            "plain_share must be a finite number of at least 0 and of at most 1, not 1.5",
        ),
        ({"image_size": -8}, "image_size must be a whole number above 0, not -8"),
        ({"loss_arguments": {"reduction": "sum"}}, "the protocol sums or averages"),
        ({"precision": "8"}, "precision must be one of 32, bf16, 16"),
    ):
        with pytest.raises(InputError, match=sentence):
            settings(**changes)
    assert not (tmp_path / "run").exists()


def test_a_network_that_diverges_ends_the_run(data: DataSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"diverged in epoch 1: .* lower the rate"):
        train(settings(rate=1e20, loss="adafocal"), tmp_path / "run", data=data)
    assert not (tmp_path / "run/last.ckpt").exists()


def test_the_history_is_whole_where_a_run_died_after_its_last_checkpoint(
    data: DataSet, tmp_path: Path
) -> None:
    whole = train(settings(), tmp_path / "run", data=data)
    written = (tmp_path / "run/history.csv").read_text()
    # As if a process had ended between its last checkpoint and the table.
    (tmp_path / "run/history.csv").write_text("\n".join(written.splitlines()[:-1]))
    train(settings(), tmp_path / "run", data=data, resume=True)
    assert (tmp_path / "run/history.csv").read_text() == written
    assert not list((tmp_path / "run").glob(".*"))
    assert len(whole.history) == 3


def test_images_of_several_sizes_are_stretched_or_refused(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            for number in range(12):
                place = tmp_path / f"photos/{split}/{label}/{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 255, (9 + number, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place)
    chosen = replace(settings(epochs=1, batch_size=8), data=str(tmp_path / "photos"))
    with pytest.raises(InputError, match=r"differ in size; .*--image-size"):
        train(chosen, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    trained = train(replace(chosen, image_size=16), tmp_path / "run")
    assert trained.test.n == 24


def test_a_damaged_checkpoint_is_named(data: DataSet, tmp_path: Path) -> None:
    train(settings(epochs=1), tmp_path / "run", data=data)
    (tmp_path / "run/last.ckpt").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"last\.ckpt: can't be read as a checkpoint"):
        train(settings(epochs=1), tmp_path / "run", data=data, resume=True)


@pytest.fixture(scope="module")
def idx_folder(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images as grey IDX files, which the command line can read."""
    folder = tmp_path_factory.mktemp("idx")
    for split, part in (("train", data.train), ("t10k", data.test)):
        for kind, values in (
            ("images-idx3", part.images[:, 0].numpy()),
            ("labels-idx1", part.labels.numpy().astype(np.uint8)),
        ):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            content = bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
            (folder / f"{split}-{kind}-ubyte").write_bytes(content)
    return folder


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "calibrant", "train", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300)


def assert_only_warnings(text: str) -> None:
    """Nothing but what the few rows here let a fit complain of: no bar, no word of Lightning's."""
    assert all(line.startswith("warning: ") for line in text.splitlines()), text


def test_the_command_on_two_devices(idx_folder: Path, tmp_path: Path) -> None:
    words = ("--data", idx_folder, "--out", tmp_path / "run", "--n-classes", 3, "--epochs", 2)
    words += ("--batch-size", 16, "--devices", 2, "--accelerator", "cpu", "--loss", "fedlas-ls")
    done = command(*words, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert_only_warnings(done.stderr)
    document = json.loads(done.stdout)
    assert document["test"]["n"] == 21
    first, second = document["history"]
    assert first["gate_flip_rate"] is None
    assert 0 <= second["gate_flip_rate"] <= 1
    assert second["gate_positive"] + second["gate_negative"] == pytest.approx(1)
    # 21 rows don't split in two: order and number must survive the gathering.
    network, normalise = load_network(tmp_path / "run")
    grey = (idx_folder / "t10k-images-idx3-ubyte").read_bytes()[16:]
    pixels = torch.frombuffer(bytearray(grey), dtype=torch.uint8).reshape(21, 1, 8, 8)
    with torch.no_grad():
        logits = network(normalise(pixels.repeat(1, 3, 1, 1))).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "run/test.npz")["logits"], logits, atol=1e-5)


def assert_measured_as_by_hand(run: Path, printed: str) -> None:
    """Hold what the command says of its own logits to plain arithmetic."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    def losses(name: str, beta: float) -> np.ndarray:
        with np.load(run / f"{name}.npz") as file:
            logits, labels = file["logits"].astype(np.float64), file["labels"]
        return -log_softmax(beta * logits, axis=1)[np.arange(len(labels)), labels]

    found = json.loads((run / "evaluation.json").read_text())
    with np.load(run / "test.npz") as file:
        accuracy = (file["logits"].argmax(axis=1) == file["labels"]).mean()
    plain, after = found["test"]["metrics"], found["test_after_temperature"]["metrics"]
    assert plain["accuracy"]["value"] == pytest.approx(accuracy)
    assert plain["nll"]["value"] == pytest.approx(losses("test", 1.0).mean(), rel=1e-6)
    beta = 1 / found["temperature"]
    assert after["nll"]["value"] == pytest.approx(losses("test", beta).mean(), rel=1e-5)
    best = minimize_scalar(lambda u: losses("val", np.exp(u)).mean(), bounds=(-9, 9)).fun
    assert losses("val", beta).mean() == pytest.approx(best, abs=1e-6)
    assert f"best, {found['temperature']:.3f}, " in " ".join(printed.split())


def test_the_command_in_process(
    idx_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: Callable[..., int]
) -> None:
    words = ["train", "--data", idx_folder, "--out", tmp_path / "run", "--n-classes", 3]
    words += ["--epochs", 1, "--batch-size", 16, "--loss", "focal", "--set", "gamma=2"]
    assert call(*words) == 0
    printed = capsys.readouterr()
    assert "resnet8 trained with focal for 1 epochs" in printed.out
    assert "ECE" in printed.out
    assert "With the temperature that fits the validation rows best" in printed.out
    assert_only_warnings(printed.err)
    assert json.loads((tmp_path / "run/config.json").read_text())["loss_arguments"] == {"gamma": 2}
    assert_measured_as_by_hand(tmp_path / "run", printed.out)
    assert call(*words) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert call(*words, "--resume") == 0


# The command line, with a writer of checkpoints that never comes to its end, for each folder in a
# process of its own, which has its modules from this one.
SLOW_TRAIN = """
import os, sys, time
import torch
from calibrant.cli import main
import calibrant.training.run, lightning.fabric.strategies.ddp

def slow(content, path):
    path.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)

torch.save = slow
sys.argv, folders = sys.argv[:-2], sys.argv[-2:]
for folder in folders:
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        sys.argv += ["--out", folder]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_no_temporary_file_of_a_killed_run_survives_the_next(
    idx_folder: Path, tmp_path: Path, call: Callable[..., int]
) -> None:
    words = ["train", "--data", str(idx_folder), "--n-classes", "3"]
    words += ["--epochs", "1", "--batch-size", "16"]
    ends = {tmp_path / "ended": signal.SIGTERM, tmp_path / "killed": signal.SIGKILL}
    line = [sys.executable, "-c", SLOW_TRAIN, *words, *map(str, ends)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number in ends.values():
            child = int(process.stdout.readline())
            assert process.stdout.readline() == "writing\n"
            os.kill(child, number)
            assert int(process.stdout.readline()) == -number
    for folder, number in ends.items():
        left = [item.name for item in folder.iterdir() if item.name != "config.json"]
        assert len(left) == int(number == signal.SIGKILL)
        if left:
            assert call(*words, "--out", folder, "--resume") == 0
            assert not list(folder.glob(".*"))


def test_no_room_for_a_checkpoint_is_one_sentence(
    idx_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: Callable[..., int],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", idx_folder, "--out", "run", "--n-classes", 3]
    # A limit on the size of files fails in the middle of a file, as a full disk does.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        code = call(*words, "--epochs", 1, "--batch-size", 16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sentence = "error: run/last.ckpt: can't be written: File too large\n"
    assert (code, capsys.readouterr().err) == (2, sentence)
    # Nothing that the next run would trip over.
    assert list((tmp_path / "run").iterdir()) == []


def test_missing_extras_give_one_sentence(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for module in list(sys.modules):
        if module.startswith(("calibrant.training", "lightning")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert call("train", "--data", "x", "--out", "y") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "pip install 'calibrant[train]'" in error
    assert error.count("\n") == 1


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A function that runs the command line in this process and returns its exit code."""
    from calibrant.cli import main

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return run
