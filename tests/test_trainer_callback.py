"""The callback for the Trainer of Hugging Face, with the real one and a tiny model."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch
from torch import nn

from calibrant.core.errors import InputError
from calibrant.training import make_loss

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES = 3


def a_model(loss: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=50, hidden_size=8, num_labels=CLASSES, **sizes)
    model = transformers.BertForSequenceClassification(config)
    model.calibration_loss = loss
    return model


def rows(count: int = 24) -> list[dict[str, Any]]:
    words = torch.randint(50, (count, 5), generator=torch.Generator().manual_seed(2))
    return [
        {"input_ids": row, "labels": row[0] % CLASSES, "index": number}
        for number, row in enumerate(words)
    ]


def loss_named(name: str) -> Any:
    torch.manual_seed(1)
    extra: dict[str, Any] = {"crl": {"samples": 24}, "scheduled-focal": {"gamma": {0: 5.0, 1: 2.0}}}
    return make_loss(name, CLASSES, **extra.get(name, {}))


def a_trainer(loss: Any, folder: Any, data: Any = None, **arguments: Any) -> Any:
    from calibrant.training import TrainerCalibration

    model = a_model(loss)
    calibration = TrainerCalibration(model)
    data = rows() if data is None else data
    if "index" not in loss.needs:
        data = [{key: row[key] for key in ("input_ids", "labels")} for row in data]
    settings = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **arguments,
    }
    return transformers.Trainer(
        model,
        transformers.TrainingArguments(str(folder), **settings),
        train_dataset=data,
        eval_dataset=data[:16],
        compute_loss_func=calibration.compute_loss,
        callbacks=[calibration],
    )


NAMES = ["adafocal", "scheduled-focal", "crl", "rankmixup", "fedlas-ls"]


def state(trainer: Any) -> dict[str, torch.Tensor]:
    return {
        name: value.clone() for name, value in trainer.model.calibration_loss.state_dict().items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_serves_every_loss_with_state(name, tmp_path):
    loss = loss_named(name)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    trainer = a_trainer(loss, tmp_path, gradient_accumulation_steps=3)
    steps: list[int] = []
    hook = loss.register_forward_hook(lambda *_: steps.append(loss.accumulation_steps))
    trainer.train()
    hook.remove()
    after = state(trainer)
    if name == "scheduled-focal":
        assert loss.gamma == 2.0
    elif name != "rankmixup":  # it has none
        assert all((after[key] != value).any() for key, value in before.items())
    if name == "crl":
        assert loss.epochs == 2
        assert loss.times_right.sum() > 0
    assert set(steps) == {3}
    # The next Trainer may take another number.
    assert loss.accumulation_steps == 1
    # What comes after training teaches nothing.
    trainer.evaluate()
    assert all(torch.equal(value, after[key]) for key, value in state(trainer).items())


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_state(name, tmp_path):
    whole = a_trainer(loss_named(name), tmp_path / "whole", save_strategy="epoch")
    whole.train()
    resumed = a_trainer(loss_named(name), tmp_path / "again", save_strategy="epoch")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value, rtol=0, atol=0)


def test_adafocal_learns_from_what_the_evaluation_saw(tmp_path):
    loss = loss_named("adafocal")
    trainer = a_trainer(loss, tmp_path, num_train_epochs=1)
    trainer.train()
    expected = loss_named("adafocal")
    data = rows()[:16]
    words = torch.stack([row["input_ids"] for row in data])
    with torch.no_grad():
        logits = trainer.model.eval()(words)["logits"]
    expected.update_from_validation(logits, words[:, 0] % CLASSES)
    torch.testing.assert_close(loss.gammas, expected.gammas)


def test_what_is_missing_is_named(tmp_path):
    from calibrant.training import TrainerCalibration

    with pytest.raises(InputError, match=r"set model\.calibration_loss = make_loss"):
        TrainerCalibration(nn.Linear(2, 3))
    with pytest.raises(InputError, match="eval_strategy='epoch'"):
        a_trainer(loss_named("adafocal"), tmp_path, eval_strategy="no").train()
    trainer = a_trainer(loss_named("adafocal"), tmp_path, num_train_epochs=1)
    trainer.eval_dataset = [{"input_ids": row["input_ids"]} for row in rows()]
    with pytest.raises(InputError, match="eval_dataset have no labels"):
        trainer.train()
    data = [{key: row[key] for key in ("input_ids", "labels")} for row in rows()]
    trainer = a_trainer(loss_named("rankmixup"), tmp_path, data)
    trainer.model.calibration_loss = loss_named("crl")
    with pytest.raises(InputError, match="CRL needs index="):
        TrainerCalibration(trainer.model).compute_loss(
            {"logits": torch.zeros(2, 3)}, torch.tensor([0, 1])
        )


@pytest.mark.parametrize("name", ["adafocal", "fedlas-ls"])
def test_a_callback_that_the_trainer_was_not_given_is_missed(name, tmp_path):
    from calibrant.training import TrainerCalibration

    trainer = a_trainer(loss_named(name), tmp_path)
    trainer.remove_callback(TrainerCalibration)
    with pytest.raises(InputError, match=r"pass callbacks=\[calibration\]"):
        trainer.train()


def test_labels_that_the_collator_leaves_out_are_missed(tmp_path):
    text = [row | {"labels": "a"} for row in rows()]
    with pytest.raises(InputError, match="the batch has no labels: rows must have class numbers"):
        a_trainer(loss_named("fedlas-ls"), tmp_path, text).train()


class OnlyAdapters(nn.Module):
    """A wrapper that trains and saves a few weights of a model, in the manner of PEFT."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("classifier"))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        return self.base_model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    def save_pretrained(self, folder: Any, **_: Any) -> None:
        weights = self.base_model.classifier.state_dict()
        torch.save(weights, os.path.join(folder, "adapter.bin"))


class TrainerOfAdapters(transformers.Trainer):
    """Saves and loads what the wrapper does, as the Trainer does with a model of PEFT."""

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        os.makedirs(output_dir, exist_ok=True)
        self.model.save_pretrained(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        file = os.path.join(resume_from_checkpoint, "adapter.bin")
        self.model.base_model.classifier.load_state_dict(torch.load(file))


def a_trainer_of_adapters(name: str, folder: Any, *, before: bool, epochs: int = 2) -> Any:
    from calibrant.training import TrainerCalibration

    loss = loss_named(name)
    model = a_model(loss)
    if not before:
        del model.calibration_loss
    wrapped = OnlyAdapters(model)
    if not before:
        wrapped.calibration_loss = loss
    calibration = TrainerCalibration(wrapped)
    data = [{key: row[key] for key in ("input_ids", "labels")} for row in rows()]
    settings = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainerOfAdapters(
        wrapped,
        transformers.TrainingArguments(str(folder), **settings),
        train_dataset=data,
        eval_dataset=data[:16],
        compute_loss_func=calibration.compute_loss,
        callbacks=[calibration],
    )


@pytest.mark.parametrize(("name", "before"), [("fedlas-ls", True), ("adafocal", False)])
def test_behind_a_wrapper_that_freezes_and_saves_a_part_a_loss_learns_and_goes_on(
    name, before, tmp_path
):
    whole = a_trainer_of_adapters(name, tmp_path / "whole", before=before)
    start = {key: value.clone() for key, value in state(whole).items()}
    whole.train()
    ended = state(whole)
    assert all((ended[key] != value).any() for key, value in start.items())
    resumed = a_trainer_of_adapters(name, tmp_path / "again", before=before)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for key, value in state(resumed).items():
        torch.testing.assert_close(value, ended[key], rtol=0, atol=0)
    kept = json.loads((tmp_path / "whole/checkpoint-3/trainer_state.json").read_text())
    kept["stateful_callbacks"]["TrainerCalibration"]["attributes"]["loss_state"] = "AAAA"
    (tmp_path / "whole/checkpoint-3/trainer_state.json").write_text(json.dumps(kept))
    again = a_trainer_of_adapters(name, tmp_path / "third", before=before)
    with pytest.raises(InputError, match="holds no state of"):
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))


def a_language_model() -> Any:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=8, num_labels=CLASSES, pad_token_id=0, **sizes
    )
    model = transformers.LlamaForSequenceClassification(config)
    model.calibration_loss = loss_named("fedlas-ls")
    return model


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words of three sentences and the mask of those that count."""
    words = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(words)
    for row, missing in enumerate((0, 2, 4)):
        left_out = slice(6 - missing, 6) if side == "right" else slice(0, missing)
        words[row, left_out], mask[row, left_out] = 0, 0
    return words, mask


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", ["last", "first", "mean", "score", "function"])
def test_features_of_tokens_are_pooled_as_asked(how, side):
    from calibrant.training import TrainerCalibration

    model, (words, mask) = a_language_model(), padded(side)
    features = {"function": lambda rows: rows[:, 2]}.get(how, how)
    calibration = TrainerCalibration(model, features=features)
    calibration.loss.eval()
    outputs = model(input_ids=words, attention_mask=mask, output_hidden_states=True)
    if how == "score":
        with pytest.raises(InputError, match=r"rows of tokens: .*pool='last'.* features="):
            calibration.compute_loss(outputs, torch.arange(3))
        return
    hidden = outputs.hidden_states[-1]
    counted = [hidden[row][mask[row] == 1] for row in range(3)]
    expected = {
        "last": torch.stack([part[-1] for part in counted]),
        "first": torch.stack([part[0] for part in counted]),
        "mean": torch.stack([part.mean(0) for part in counted]),
        "function": hidden[:, 2],
    }[how]
    torch.testing.assert_close(calibration._tap.features, expected)
    assert calibration.compute_loss(outputs, torch.arange(3)).isfinite()
    if how == "last":  # what the logits are made of
        torch.testing.assert_close(model.score(expected), outputs.logits)


def test_a_layer_named_twice_and_an_unknown_pooling_are_refused():
    from calibrant.training import NetworkWithLoss, PenultimateFeatures

    model = a_language_model()
    with pytest.raises(InputError, match="name two layers; give one"):
        NetworkWithLoss(model, loss_named("fedlas-ls"), "score", features="model.norm")
    with pytest.raises(InputError, match="pool must be one of first, last, mean or a function"):
        PenultimateFeatures(model, "score", pool="middle")
    words, mask = padded("right")
    batch = {"input_ids": words, "attention_mask": mask}
    together = NetworkWithLoss(model, model.calibration_loss, "score", features="last")
    assert together(batch, torch.arange(3)).isfinite()
    assert together.loss.running_mean != 20
