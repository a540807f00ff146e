"""Runs and predictions of networks and data sets that this package has never heard of."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

pytest.importorskip("lightning")

from calibrant.core.errors import CalibrantError, InputError, TrainingWarning
from calibrant.training.run import (
    Examples,
    RunSettings,
    load_network,
    own_data,
    predict,
    train,
    write_outputs,
)
from calibrant.training.run.folder import is_first_process

CLASSES = 3


def table(rows: int = 60, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % CLASSES
    inputs = torch.randn(rows, 5, generator=generator)
    inputs[:, 0] += 3 * labels
    return TensorDataset(inputs, labels)


class Sentences(Dataset[dict[str, Tensor]]):
    """Rows as tokenisers give them, with something random, and of several lengths."""

    def __init__(self, rows: int = 48) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        words = torch.full((2 + number % 3,), number % CLASSES) + CLASSES * torch.randint(2, ())
        return {"input_ids": words, "labels": torch.tensor(number % CLASSES)}


def padded(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    words = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": words, "labels": torch.stack([row["labels"] for row in rows])}


class Reader(nn.Module):
    """Takes arguments by name, and answers as models of Hugging Face do."""

    def __init__(self, form: type = dict) -> None:
        super().__init__()
        self.embedding, self.classifier = nn.EmbeddingBag(20, 6), nn.Linear(6, CLASSES)
        self.drop, self.form = nn.Dropout(0.3), form

    def forward(self, input_ids: Tensor):
        return self.form(logits=self.classifier(self.drop(self.embedding(input_ids))))


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def settings(**arguments) -> RunSettings:
    return RunSettings("mine", net="mine", epochs=2, batch_size=12, rate=0.05, **arguments)


@pytest.mark.parametrize("loss", ["fedlas-ls", "crl"])
def test_a_network_and_a_table_of_your_own(tmp_path, loss):
    data = own_data(table(), DataLoader(table(21, seed=1)), n_classes=CLASSES)
    network = mlp()
    trained = train(settings(loss=loss), tmp_path / "run", data=data, network=network)
    assert trained is not None
    assert trained.network is network
    assert [len(trained.validation.labels), len(trained.test.labels)] == [6, 21]
    rows = table(21, seed=1).tensors
    with torch.no_grad():
        expected = network(rows[0])
    np.testing.assert_allclose(trained.test.logits, expected.numpy(), rtol=1e-5, atol=1e-6)
    with np.load(tmp_path / "run" / "test.npz") as file:
        again = file["features"] @ file["head_weight"].T + file["head_bias"]
        np.testing.assert_allclose(again, file["logits"], rtol=1e-5, atol=1e-5)
    loaded, normalise = load_network(tmp_path / "run", mlp())
    assert torch.equal(
        predict(loaded, data.test, normalise).logits, predict(network, data.test).logits
    )


def test_the_history_is_what_the_network_says_of_the_rows(tmp_path):
    # At such a rate the network stays what it was, so that it can be asked afterwards.
    train_rows, validation_rows = table(60), table(21, seed=1)
    data = own_data(train_rows, validation_rows, validation_rows, n_classes=CLASSES)
    network, slow = mlp(), RunSettings("mine", net="mine", epochs=1, batch_size=12, rate=1e-9)
    train(slow, tmp_path / "run", data=data, network=network)
    (row,) = json.loads((tmp_path / "run/history.json").read_text())
    for name, rows in (("train", train_rows), ("validation", validation_rows)):
        inputs, labels = (tensor.numpy() for tensor in rows.tensors)
        with torch.no_grad():
            logits = network(torch.from_numpy(inputs)).double().numpy()
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        loss = -np.log(probs[np.arange(len(labels)), labels]).mean()
        right = (logits.argmax(axis=1) == labels).mean()
        assert 0 < right < 1
        assert row[f"{name}_accuracy"] == pytest.approx(right)
        assert row[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)
        confidence = probs.max(axis=1).mean()
    assert row["validation_confidence"] == pytest.approx(confidence, rel=1e-5)


class Broken(Exception):
    pass


def test_a_broken_run_on_random_rows_ends_with_the_same_weights(tmp_path):
    from calibrant.training.run import Observer

    class Breaks(Observer):
        def on_step(self, progress):
            if progress.epoch == 1 and progress.step == 2:
                raise Broken

    def run(name: str, **arguments) -> dict[str, Tensor]:
        torch.manual_seed(5)
        network = Reader()
        loader = DataLoader(Sentences(), collate_fn=padded)
        data = own_data(loader, loader, loader, n_classes=CLASSES)
        train(settings(), tmp_path / name, data=data, network=network, **arguments)
        return network.state_dict()

    whole = run("whole")
    with pytest.raises(Broken):
        run("broken", checkpoint_every=1, observers=[Breaks()])
    resumed = run("broken", resume=True)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


@pytest.mark.parametrize("form", [dict, SimpleNamespace])
def test_predictions_of_any_network_and_loader(tmp_path, form):
    network = Reader(form)
    network.embedding.eval()  # a part that is frozen stays so
    loader = DataLoader(Sentences(10), batch_size=4, collate_fn=padded)
    torch.manual_seed(0)
    outputs = predict(network, loader)
    assert [module.training for module in network.modules()] == [True, False, True, True]
    assert not network.classifier._forward_pre_hooks
    assert torch.equal(outputs.labels, torch.arange(10) % CLASSES)
    torch.testing.assert_close(network.classifier(outputs.features), outputs.logits)
    write_outputs(tmp_path / "own.npz", outputs, network)
    with np.load(tmp_path / "own.npz") as file:
        assert file["head_weight"].shape == (CLASSES, 6)
    write_outputs(tmp_path / "bare.npz", outputs)
    with np.load(tmp_path / "bare.npz") as file:
        assert set(file) == {"logits", "labels", "features"}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.fc, self.rotation = nn.Linear(4, CLASSES), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(inputs).relu()
        return self.fc(features), self.rotation(2 * features)


def test_where_several_heads_could_be_meant_one_is_named():
    network, rows = TwoHeads(), table(9)
    with pytest.warns(TrainingWarning, match=r"fc, rotation; .* with layer="):
        wrong = predict(network, rows)
    right = predict(network, rows, layer="fc")
    torch.testing.assert_close(2 * right.features, wrong.features)
    torch.testing.assert_close(network.fc(right.features), right.logits)
    with pytest.raises(InputError, match="no layer 'head'"):
        predict(network, rows, layer="head")


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self):
        yield torch.zeros(5), 1


def test_what_cannot_be_a_data_set_is_refused():
    with pytest.raises(InputError, match="Stream has no rows by number"):
        Examples(Stream())
    assert len(predict(mlp(), DataLoader(Stream())).labels) == 1  # a run can't, predictions can
    with pytest.raises(InputError, match=r"\(inputs, label\) or a mapping.*has: x"):
        Examples([{"x": torch.zeros(2)}])
    with pytest.raises(InputError, match=r"must be \(inputs, label\)"):
        Examples([(torch.zeros(2), 0, 1)])
    with pytest.raises(InputError, match="labels must be whole numbers"):
        Examples([(torch.zeros(2), 0.5)])
    with pytest.raises(InputError, match="labels go from 0 to 2, but there are 2 classes"):
        own_data(table(), table(), n_classes=2)
    with pytest.raises(InputError, match="no 'logits', only: scores"):
        predict(
            Reader(lambda logits: {"scores": logits}), DataLoader(Sentences(4), collate_fn=padded)
        )
    with pytest.raises(InputError, match="own order; leave out index"):
        predict(mlp(), DataLoader(table()), index=torch.arange(2))


def test_a_network_goes_on_learning_after_predictions_that_failed():
    network = mlp()
    network.train()
    with pytest.raises(InputError, match="a batch must be"):
        predict(network, DataLoader([torch.zeros(4)]))
    assert network.training


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "fedlas"}, "no loss is called 'fedlas'"),
        ({"loss": "crl", "mixing": "mixup"}, "compares the rows of a batch"),
        ({"loss": "fedlas-ls", "mixing": "regmixup"}, "holds a run already"),
        ({}, "holds a run already"),
        ({}, "requires_grad is False"),
        ({}, "lazy layers"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_on_the_network(tmp_path, given, message):
    network = mlp()
    if "lazy" in message:
        network = nn.Sequential(nn.Linear(5, 8), nn.LazyLinear(CLASSES))
    before = [len(part._forward_pre_hooks) for part in network.modules()]
    if "requires_grad" in message:
        network.requires_grad_(False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CalibrantError, match=message):
        train(
            settings(**given),
            tmp_path,
            data=own_data(table(), table(), n_classes=CLASSES),
            network=network,
        )
    assert [len(part._forward_pre_hooks) for part in network.modules()] == before
    assert not any("forward" in vars(part) for part in network.modules())


def test_a_run_leaves_nothing_on_the_network_that_it_trained(tmp_path):
    network, data = mlp(), own_data(table(), table(), n_classes=CLASSES)
    asked = settings(loss="fedlas-ls", mixing="regmixup")
    train(asked, tmp_path / "run", data=data, network=network, accelerator="cpu")
    assert not any(part._forward_pre_hooks for part in network.modules())
    assert not any("forward" in vars(part) for part in network.modules())


def test_a_first_process_that_torchrun_started_makes_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    data = own_data(table(), table(), n_classes=CLASSES)
    train(settings(), tmp_path / "run", data=data, network=mlp(), accelerator="cpu")
    assert (tmp_path / "run" / "config.json").is_file()
    assert is_first_process()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not is_first_process()


def test_settings_may_be_numbers_of_numpys(tmp_path):
    asked = RunSettings("mine", seed=np.int64(3), rate=np.float32(0.25), epochs=np.int16(2))
    assert asked == RunSettings("mine", seed=3, rate=0.25, epochs=2)
    file = tmp_path / "config.json"
    file.write_text(asked.as_json())
    assert RunSettings.read(file) == asked
