"""Losses inside other people's training loops, and features from any network."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_networks import CLASSES, Reader, images, tiny_cnn
from torch import Tensor, nn

import calibrant.training
from calibrant.core.errors import InputError, TrainingWarning
from calibrant.training import PenultimateFeatures, for_trainer, make_loss
from calibrant.training.losses import CrossEntropy, FeDLaS, Focal, GateRecorder, SoftECE


def test_plain_loop_learns_with_the_gate():
    inputs, target = images()
    network = tiny_cnn()
    loss = FeDLaS(CLASSES, theta=0.9)
    recorder = GateRecorder(len(inputs))
    optimiser = torch.optim.SGD([*network.parameters(), *loss.parameters()], lr=0.3)
    before = [parameter.clone() for parameter in loss.parameters()]
    values = []
    with PenultimateFeatures(network) as tap:
        for _ in range(20):
            logits = network(inputs)
            value = loss(logits, target, tap.features)
            optimiser.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 2.0)
            optimiser.step()
            values.append(value.item())
            recorder.record(loss, torch.arange(len(inputs)), logits, target)
            recorder.end_epoch()
    assert values[-1] < 0.8 * values[0]
    assert all((new != old).any() for new, old in zip(loss.parameters(), before, strict=True))
    assert recorder.history[-1].seen == 64


@pytest.mark.filterwarnings("ignore")  # Those of another library's insides.
def test_lightning():
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = tiny_cnn()
            self.loss = make_loss("fedlas-ls", CLASSES)
            self.tap = PenultimateFeatures(self.network)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            inputs, target = batch
            return self.loss(self.network(inputs), target, self.tap.features)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.3)

    inputs, target = images()
    module = Classifier()
    start = module.loss(module.network(inputs), target, module.tap.features).item()
    data = torch.utils.data.TensorDataset(inputs, target)
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=16))
    module.loss.eval()
    end = module.loss(module.network(inputs), target, module.tap.features).item()
    assert end < start
    names = module.state_dict()
    assert {"loss.running_mean", "loss.gate_network.0.weight"} <= set(names)


def trainer_step(compute_loss, model, batches, **step) -> list[Tensor]:
    """Do what the Trainer does with a `compute_loss_func` over one accumulated step."""
    model.zero_grad()
    items = sum((labels != -100).sum() for _, labels in batches)
    for words, labels in batches:
        compute_loss(model(words), labels, num_items_in_batch=items, **step).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", ["cross-entropy", "mbls", "fedlas-ls"])
def test_trainer_accumulates_to_the_whole_batch(name, tokens):
    model = Reader(tokens)
    torch.manual_seed(2)
    words = torch.randint(20, (9, 5))
    labels = torch.randint(CLASSES, (9, 5) if tokens else (9,))
    labels.flatten()[[0, 3]] = -100
    torch.manual_seed(3)
    loss = make_loss(name, CLASSES).eval()
    features = PenultimateFeatures(model, "classifier") if name.startswith("fedlas") else None
    compute_loss = for_trainer(loss, features=features)
    whole = trainer_step(compute_loss, model, [(words, labels)])
    parts = [(words[:2], labels[:2]), (words[2:6], labels[2:6]), (words[6:], labels[6:])]
    for left, right in zip(trainer_step(compute_loss, model, parts), whole, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    # Without a count, in evaluation, it is the mean.
    logits = model(words)["logits"].flatten(0, -2)
    given = None if features is None else features.features.flatten(0, -2)
    assert compute_loss(model(words), labels) == loss(logits, labels.flatten(), given)


def test_trainer_outputs_of_other_kinds():
    logits, labels = torch.randn(3, CLASSES), torch.arange(3)
    compute_loss, expected = for_trainer(CrossEntropy()), CrossEntropy()(logits, labels)
    for outputs in (logits, (logits, None), {"logits": logits}, SimpleNamespace(logits=logits)):
        assert compute_loss(outputs, labels) == expected
    hidden = torch.randn(3, 7)
    loss = FeDLaS(CLASSES)
    outputs = {"logits": logits, "hidden": hidden}
    for_trainer(loss, features=lambda out: out["hidden"])(outputs, labels, 3)
    assert loss.running_mean != 20


def test_trainer_refusals():
    with pytest.raises(InputError, match="needs index"):
        for_trainer(make_loss("crl", CLASSES, samples=5))
    with pytest.raises(InputError, match="needs mixed, which the Trainer doesn't hand"):
        for_trainer(make_loss("rankmixup", CLASSES))
    with pytest.raises(InputError, match="ignore_index -100, not 0"):
        for_trainer(CrossEntropy(ignore_index=0))
    with pytest.raises(InputError, match="reduction 'mean'"):
        for_trainer(CrossEntropy(reduction="sum"))
    with pytest.raises(InputError, match="needs features="):
        for_trainer(FeDLaS(CLASSES))


@pytest.mark.parametrize(
    ("loss", "need", "call"),
    [
        (make_loss("adafocal", CLASSES), "validation", "update_from_validation"),
        (make_loss("scheduled-focal", CLASSES), "epochs", "start_epoch"),
        (SoftECE(base=Focal({0: 5.0, 3: 1.0})), "epochs", "start_epoch"),
    ],
)
def test_the_trainer_takes_a_loss_with_state_only_if_somebody_moves_it(loss, need, call):
    with pytest.raises(InputError, match=rf"needs {need}, .*TrainerCallback's .*loss\.{call}"):
        for_trainer(loss)
    with pytest.raises(InputError, match="served must be among epochs, validation, not luck"):
        for_trainer(loss, served=["luck"])
    logits, labels = torch.randn(3, CLASSES), torch.arange(3)
    assert for_trainer(loss, served=[need])(logits, labels) == loss(logits, labels)
    for_trainer(Focal(2.0))  # one gamma, nothing to be told


def test_several_layers_that_could_be_the_last_are_named():
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
            self.fc, self.rotation = nn.Linear(6, CLASSES), nn.Linear(6, 2)

    with pytest.warns(TrainingWarning, match=r"last: fc, rotation; .*'rotation'.*with layer="):
        assert PenultimateFeatures(TwoHeads()).layer == "rotation"
    assert PenultimateFeatures(TwoHeads(), "fc").layer == "fc"

    class TwoMaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3))
            self.classifier = nn.Sequential(nn.ReLU(), nn.Conv2d(6, CLASSES, 1))
            self.aux_classifier = nn.Sequential(nn.ReLU(), nn.Conv2d(6, CLASSES, 1))

    with pytest.warns(TrainingWarning, match=r"last: classifier\.1, aux_classifier\.1; "):
        PenultimateFeatures(TwoMaps())
    # A transformer's many layers feed one another, and warnings are errors here.
    assert PenultimateFeatures(Reader()).layer == "classifier"


def test_features_are_the_input_of_the_layer():
    network, (inputs, _) = tiny_cnn(), images(5)
    tap = PenultimateFeatures(network, "4")
    with pytest.raises(InputError, match="no input has passed"):
        _ = tap.features
    logits = network(inputs)
    assert torch.equal(network[4](tap.features), logits)
    assert not tap.features.requires_grad
    attached = PenultimateFeatures(network, detach=False)
    network(inputs)
    assert attached.features.requires_grad
    assert attached.layer == "4"
    tap.close()
    network(inputs[:2])
    with pytest.raises(InputError, match="no input has passed"):
        _ = tap.features
    with pytest.raises(InputError, match="no layer 'fc'"):
        PenultimateFeatures(network, "fc")
    with pytest.raises(InputError, match="no linear layer"):
        PenultimateFeatures(nn.ReLU())


def test_features_of_a_layer_that_is_called_by_name():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(3, 6), nn.Linear(6, CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.fc(input=self.body(inputs))

    network = Named()
    tap = PenultimateFeatures(network)
    logits = network(torch.randn(2, 3))
    assert torch.equal(network.fc(tap.features), logits)
    # The gate of a loss within the network is no layer of the network.
    network.loss = FeDLaS(CLASSES)
    assert PenultimateFeatures(network).layer == "fc"


@pytest.mark.parametrize("detach", [True, False])
def test_a_network_that_is_listened_to_can_be_copied(detach):
    network, (inputs, _) = tiny_cnn(), images(5)
    tap = PenultimateFeatures(network, detach=detach)
    network(inputs)
    features = tap.features
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(inputs[:2]), network(inputs)[:2])
    assert torch.equal(tap.features, features)


def test_features_of_a_network_whose_class_was_compiled_without_them():
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(inputs).relu())

    batch = torch.randn(5, 3)
    torch.compile(Network(), backend="eager")(batch)
    for _ in range(2):
        network = Network()
        with PenultimateFeatures(network) as tap:
            torch.compile(network, backend="eager")(batch)
            torch.testing.assert_close(tap.features, network.body(batch).relu())
        assert "forward" not in vars(network.fc)


def test_features_of_a_compiled_network():
    torch._dynamo.reset()
    network, (inputs, _) = tiny_cnn(), images(5)
    tap = PenultimateFeatures(network)
    compiled = torch.compile(network, backend="aot_eager")
    for batch in (inputs, -inputs):
        logits = compiled(batch)
        torch.testing.assert_close(network[4](tap.features), logits)


def test_without_torch_one_sentence():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from calibrant.core.errors import MissingDependencyError\n"
        "try:\n    import calibrant.training\n"
        "except MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "calibrant.training needs torch: pip install 'calibrant[train]'"


def test_the_real_trainer(tmp_path):
    """The stand-in above is only as good as what the library itself does."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_labels=CLASSES, **sizes)
    model = transformers.BertForSequenceClassification(config)
    words = torch.randint(50, (32, 6))
    rows = [{"input_ids": row, "labels": row[0] % CLASSES} for row in words]
    model.calibration_loss = loss = make_loss("fedlas-ls", CLASSES)
    before = [parameter.clone() for parameter in loss.parameters()]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    features = PenultimateFeatures(model)
    assert features.layer == "classifier"
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        compute_loss_func=for_trainer(loss, features=features),
    )
    trainer.train()
    assert all((new != old).any() for new, old in zip(loss.parameters(), before, strict=True))
    mean = loss.running_mean.clone()
    found = trainer.evaluate()["eval_loss"]
    assert torch.equal(loss.running_mean, mean)
    logits = model(words)["logits"]
    expected = loss(logits, words[:, 0] % CLASSES, features.features).item()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("part", ["data", "second_stages", "losses", "nets", "run"])
def test_parts_need_no_import_of_their_own(part, monkeypatch):
    monkeypatch.delattr(calibrant.training, part, raising=False)
    assert getattr(calibrant.training, part).__name__ == f"calibrant.training.{part}"
