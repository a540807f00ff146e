"""What people get wrong with networks and data of their own: one sentence, and nothing silent."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

pytest.importorskip("lightning")

from calibrant.core.errors import InputError, TrainingWarning
from calibrant.files import read_predictions
from calibrant.training import Mixup
from calibrant.training.run import (
    Examples,
    RunSettings,
    held_out,
    load_network,
    own_data,
    predict,
    train,
    write_outputs,
)

CLASSES = 3


def tensors(rows: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.arange(rows) % CLASSES


def table(rows: int = 60, seed: int = 0) -> TensorDataset:
    return TensorDataset(*tensors(rows, seed))


def mlp(outputs: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, outputs))


def settings(loss: str = "cross-entropy", **arguments) -> RunSettings:
    return RunSettings("mine", net="mine", loss=loss, epochs=1, batch_size=12, **arguments)


def run(folder, rows=None, network=None, validation=None, **arguments):
    rows, network = rows or table(), mlp() if network is None else network
    data = own_data(rows, table(12, 1), validation or table(12, 2), n_classes=CLASSES)
    return train(settings(**arguments), folder / "run", data=data, network=network)


def changed(**columns) -> list[dict[str, Any]]:
    """Return rows as mappings, with columns put in the place of others."""
    rows: list[dict[str, Any]] = [
        {"input": x, "labels": y} for x, y in zip(*tensors(), strict=True)
    ]
    return [row | {name: make(row) for name, make in columns.items()} for row in rows]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (tensors(), r"row 0 of tuple must be .*, not Tensor; TensorDataset\(inputs, labels\)"),
        ([(x, y, 0) for x, y in zip(*tensors(), strict=True)], "not a tuple of 3$"),
        ([(x.tolist(), y) for x, y in zip(*tensors(), strict=True)], r"with_format\('torch'\)"),
        (changed(input=lambda row: row["input"].tolist()), "'input' of row 0 of list is a list of"),
        (changed(labels=lambda row: "a"), "must be whole numbers from 0, one for each row, not"),
        (changed(labels=lambda row: None), "can't be put into one batch .*; give a DataLoader"),
        (changed(labels=lambda row: torch.eye(3)[row["labels"]]), r"one-hot .* argmax\(-1\)"),
        (changed(labels=lambda row: row["labels"] + 1), "3 classes, numbered from 0 to 2"),
        (changed(input=lambda row: row["input"].double()), "float64 of .* weights are float32, so"),
        (changed(input=lambda row: row["input"].byte()), "uint8 of .* weights are float32, so"),
        (changed(input=lambda row: row["input"][:4]), r"fails on input=float32 of \(12, 4\) "),
        (changed(number=lambda row: 1), "number=int64 .*unexpected keyword argument 'number'"),
    ],
)
def test_rows_that_no_network_could_learn_from_are_refused_in_one_sentence(
    tmp_path, rows, sentence
):
    with pytest.raises(InputError, match=sentence) as caught:
        run(tmp_path, rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (mlp(4), r"must give \(B, 3\) logits, one for each class, not \(12, 4\)$"),
        (mlp(1), r"not \(12, 1\); of a single logit z"),
        (mlp().requires_grad_(False), "no parameter of the network can learn"),
        (nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), "lazy layers"),
        (nn.Sequential, "not the class Sequential; call it"),
    ],
)
def test_a_network_that_cannot_learn_these_classes_is_refused(tmp_path, network, sentence):
    with pytest.raises(InputError, match=sentence):
        run(tmp_path, network=network)


def test_a_name_spelt_wrong_brings_the_right_one():
    network = mlp()
    network.add_module("classifier", nn.Linear(3, 3))
    network.add_module("loss", make_gate())
    with pytest.raises(InputError, match=r"did you mean 'classifier'\? .*: 0, 1, 2, classifier$"):
        predict(network, table(), layer="clasifier")


def make_gate() -> nn.Module:
    from calibrant.training import make_loss

    return make_loss("fedlas-ls", CLASSES)


@pytest.mark.parametrize("split", ["training", "validation"])
def test_a_row_that_is_not_finite_is_named(tmp_path, split):
    inputs, labels = tensors()
    inputs[7, 2] = float("nan")
    bad = TensorDataset(inputs, labels)
    given = {"rows": bad} if split == "training" else {"validation": bad}
    with pytest.raises(InputError, match=f"row 7 of the data set of the {split} rows holds NaN"):
        run(tmp_path, **given)


def test_a_held_out_row_is_named_by_its_place_in_the_data_set(tmp_path):
    inputs, labels = tensors()
    data = own_data(table(), table(12), n_classes=CLASSES)
    held = held_out(data, settings())[1]
    place = next(
        row for row in range(60) if torch.equal(held.batch(torch.arange(1))[0], inputs[row])
    )
    inputs[place] = float("inf")
    data = own_data(TensorDataset(inputs, labels), table(12), n_classes=CLASSES)
    with pytest.raises(InputError, match=f"row {place} of the data set of the validation rows"):
        train(settings(), tmp_path / "run", data=data, network=mlp())


def test_classes_without_training_rows_are_told_of(tmp_path):
    inputs, labels = tensors()
    with pytest.warns(TrainingWarning, match="no training row is of class 1, 2, among 3 classes"):
        run(tmp_path, TensorDataset(inputs, 0 * labels))


def test_data_that_own_data_has_not_seen_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"what own_data\(.*\) makes .*, not TensorDataset"):
        train(settings(), tmp_path / "run", data=cast(Any, table()), network=mlp())


def test_too_few_rows_say_what_helps(tmp_path):
    with pytest.raises(InputError, match="don't fill one batch of 12; lower the batch size"):
        run(tmp_path, table(10))
    data = own_data(table(9), table(9), n_classes=CLASSES)
    with pytest.raises(InputError, match=r"too few .* validation images of their own"):
        train(settings(), tmp_path / "run", data=data, network=mlp())


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_class_weights_may_be_arrays(tmp_path, kind):
    weights = {"class_weights": kind([1.0, 2.0, 0.5])}
    assert run(tmp_path, loss_arguments=weights) is not None
    kept = json.loads((tmp_path / "run/config.json").read_text())["loss_arguments"]
    assert kept == {"class_weights": [1.0, 2.0, 0.5]}
    data = own_data(table(), table(12, 1), table(12, 2), n_classes=CLASSES)
    again = settings(loss_arguments=weights)
    assert train(again, tmp_path / "run", data=data, network=mlp(), resume=True) is not None
    with pytest.raises(InputError, match=r"'base' must be numbers, text, .* not CrossEntropyLoss"):
        settings(loss_arguments={"base": nn.CrossEntropyLoss()})


def test_half_precision_on_a_cpu_is_said_to_be_another(tmp_path):
    data = own_data(table(), table(12, 1), n_classes=CLASSES)
    with pytest.warns(TrainingWarning, match="on a CPU precision '16' is that of bfloat16"):
        train(
            settings(precision="16"),
            tmp_path / "run",
            data=data,
            network=mlp(),
            accelerator="cpu",
        )


def test_what_cannot_be_mixed_is_refused():
    target = torch.tensor([0, 1])
    words: list[Any] = [{"x": torch.zeros(2, 3)}, torch.zeros(2, 3, dtype=torch.long)]
    for inputs in words:
        with pytest.raises(InputError, match="must be one tensor of floating-point numbers, not"):
            Mixup()(inputs, target)


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = mlp()

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"logits": self.stages(inputs)}


def test_mixtures_between_the_stages_of_a_network_of_your_own(tmp_path):
    assert run(tmp_path, network=Staged(), mixing="mit-a") is not None
    with pytest.raises(InputError, match="`stages`, which Sequential lacks"):
        run(tmp_path / "other", mixing="mit-a")


def test_a_run_goes_on_with_the_rows_that_it_began_with(tmp_path):
    inputs, labels = tensors(60)
    # The first ones, fewer of them, and as many in another order.
    for rows in (table(60), table(48), TensorDataset(inputs.flip(0), labels.flip(0))):
        data = own_data(rows, table(12, 1), table(12, 2), n_classes=CLASSES)
        if not (tmp_path / "run").exists():
            train(settings(), tmp_path / "run", data=data, network=mlp())
            continue
        with pytest.raises(InputError, match="of a run on other training rows, 60 rows, "):
            train(settings(), tmp_path / "run", data=data, network=mlp(), resume=True)


def test_what_own_data_is_given_is_checked_at_once():
    with pytest.raises(InputError, match="NoneType has no rows by number"):
        own_data(table(), None, n_classes=CLASSES)
    with pytest.raises(InputError, match="n_classes must be a whole number of at least 2, not '3'"):
        own_data(table(), table(), n_classes=cast(Any, "3"))
    labels = tensors()[1]
    for known in (labels.tolist(), labels.numpy()):
        assert torch.equal(Examples(table(), labels=known).labels, labels)
    with pytest.raises(InputError, match=r"labels must be \(60,\), one for each row, not \(59,\)"):
        Examples(table(), labels=labels[1:])


# --- predictions -------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.fc, self.rotation = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(inputs).relu()
        return self.fc(features), self.rotation(2 * features)


def arrays_in(file) -> set[str]:
    with np.load(file) as content:
        return set(content)


@pytest.mark.filterwarnings("ignore:the network has several layers")
def test_a_layer_that_does_not_make_the_logits_is_left_out_of_the_file(tmp_path):
    network, file = TwoHeads(), tmp_path / "out.npz"
    with pytest.warns(
        TrainingWarning, match="layer 'rotation' doesn't turn these features into these logits"
    ):
        write_outputs(file, predict(network, table()), network)
    assert arrays_in(file) == {"logits", "labels", "features"}
    assert read_predictions(file).n == 60  # a wrong head would be refused here
    named = predict(network, table(), layer="fc")
    write_outputs(file, named, network)  # the layer that the outputs are of
    assert "head_weight" in arrays_in(file)
    assert read_predictions(file).head is not None


def test_a_weight_that_is_computed_is_written_as_it_was_used(tmp_path):
    network = mlp()
    nn.utils.parametrizations.spectral_norm(network[2])
    write_outputs(tmp_path / "out.npz", predict(network, table()), network)
    with np.load(tmp_path / "out.npz") as file:
        again = file["features"] @ file["head_weight"].T + file["head_bias"]
        np.testing.assert_allclose(again, file["logits"], rtol=1e-5, atol=1e-6)
    assert network.training


def test_predictions_go_into_npz_files(tmp_path):
    with pytest.raises(InputError, match=r"out\.csv: predictions are written as \.npz"):
        write_outputs(tmp_path / "out.csv", predict(mlp(), table()))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self):
        yield from zip(*tensors(), strict=True)


class Hub:
    """Rows as `datasets.Dataset` has them, which also has a method called batch."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        inputs, labels = tensors()
        return {"input": inputs[number], "labels": labels[number]}

    def batch(self, batch_size: int) -> None:
        raise AssertionError("this batch is another")


def test_rows_and_batches_of_any_kind_give_the_same_predictions():
    network = mlp()
    expected = predict(network, DataLoader(table(), batch_size=7)).logits
    batches = (tuple(part) for part in DataLoader(table(), batch_size=9))
    for rows in (Stream(), batches, Hub()):
        assert torch.allclose(predict(network, rows).logits, expected, atol=1e-6)
    with pytest.raises(InputError, match="int is neither a data set nor a loader"):
        predict(network, 3)


def test_features_as_wide_as_the_text_is_long_are_refused():
    network = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, CLASSES), Pooled())
    batches = iter([(torch.zeros(2, 3).long(), [0, 1]), (torch.zeros(2, 5).long(), [0, 1])])
    with pytest.raises(InputError, match=r"inputs of layer '1', .* are 12 a row .* and 20 in"):
        predict(network, batches)


class Pooled(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)


def test_a_run_of_a_network_of_yours_asks_for_it(tmp_path):
    run(tmp_path)
    with pytest.raises(InputError, match=r"holds a network of yours.*load_network wants one made"):
        load_network(tmp_path / "run")
    with pytest.raises(InputError, match="not the class Sequential; call it"):
        load_network(tmp_path / "run", cast(Any, nn.Sequential))
