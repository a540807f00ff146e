"""Features of the heads of ViT, BERT and Llama in every adapter, and gates beside PEFT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import Tensor, nn  # noqa: E402

from calibrant.core.errors import InputError, TrainingWarning  # noqa: E402
from calibrant.training import NetworkWithLoss, make_loss  # noqa: E402
from calibrant.training.features import last_layer  # noqa: E402
from calibrant.training.losses import CalibrationLoss  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
CLASSES, ROWS = 3, 6
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


class Head(NamedTuple):
    """A model with a head, how its features are asked for, and which they are.

    `of` picks them out of the last hidden states (N, T, D) and the attention mask, after whatever
    the model does with them before its last layer.
    """

    model: Any
    inputs: dict[str, Tensor]
    layer: str | None
    features: str | None
    of: Callable[[Any, Tensor, Tensor | None], Tensor]


def made(name: str) -> Head:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    if name.startswith("vit"):
        config = transformers.ViTConfig(
            image_size=8, patch_size=4, intermediate_size=16, num_labels=CLASSES, **SIZES
        )
        model = transformers.ViTForImageClassification(config)
        inputs = {"pixel_values": torch.randn(ROWS, 3, 8, 8, generator=draw)}
        if name == "vit":
            # Its class token, behind the norm.
            return Head(model, inputs, None, None, lambda m, rows, _: m.vit.layernorm(rows)[:, 0])
        # All tokens, before the norm.
        return Head(model, inputs, "vit.layernorm", "mean", lambda m, rows, _: rows.mean(1))
    words = torch.randint(1, 50, (ROWS, 5), generator=draw)
    mask = torch.ones_like(words)
    for row in range(ROWS):
        words[row, 5 - row % 3 :], mask[row, 5 - row % 3 :] = 0, 0
    inputs = {"input_ids": words, "attention_mask": mask}
    if name.startswith("bert"):
        config = transformers.BertConfig(
            vocab_size=50, intermediate_size=16, num_labels=CLASSES, **SIZES
        )
        model = transformers.BertForSequenceClassification(config)
        if name == "bert":
            return Head(model, inputs, None, None, lambda m, rows, _: m.bert.pooler(rows))
        return Head(model, inputs, "bert.pooler", "first", lambda m, rows, _: rows[:, 0])
    config = transformers.LlamaConfig(
        vocab_size=50, intermediate_size=16, num_labels=CLASSES, pad_token_id=0, **SIZES
    )
    model = transformers.LlamaForSequenceClassification(config)

    def last(_: Any, rows: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        return rows[torch.arange(len(rows)), mask.sum(1) - 1]

    return Head(model, inputs, "score", "last", last)


HEADS = ("vit", "vit-tokens", "bert", "bert-tokens", "llama")


def through_network_with_loss(head: Head, loss: CalibrationLoss, target: Tensor) -> Tensor:
    both = NetworkWithLoss(head.model, loss, head.layer, features=head.features).train()
    return both(head.inputs, target)


def through_lightning(head: Head, loss: CalibrationLoss, target: Tensor) -> Tensor:
    lightning = pytest.importorskip("lightning.pytorch")
    from calibrant.training import CalibrationCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = head.model, loss

    module = Module()
    layer = None if head.layer is None else f"model.{head.layer}"
    callback = CalibrationCallback(layer, features=head.features)
    callback.on_test_start(None, module)  # listens, as from the start of a fit
    return module.loss(module.model(**head.inputs).logits, target)


def through_the_trainer(head: Head, loss: CalibrationLoss, target: Tensor) -> Tensor:
    pytest.importorskip("accelerate")
    from calibrant.training import TrainerCalibration

    head.model.calibration_loss = loss
    calibration = TrainerCalibration(head.model, head.layer, features=head.features)
    calibration._fitting = True  # as from the start of the Trainer's training
    return calibration.compute_loss(head.model(**head.inputs), target)


ADAPTERS = (through_network_with_loss, through_lightning, through_the_trainer)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("name", HEADS)
def test_a_loss_sees_what_the_head_of_a_transformer_sees(name: str, adapter: Any) -> None:
    head = made(name)
    for part in head.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    with torch.no_grad():
        hidden = head.model(**head.inputs, output_hidden_states=True).hidden_states[-1]
        expected = head.of(head.model, hidden, head.inputs.get("attention_mask"))
    assert expected.shape == (ROWS, 8)
    loss = make_loss("fedlas-ls", CLASSES, theta=1.0).train()
    gate = [parameter.clone() for parameter in loss.parameters()]
    value = adapter(head, loss, torch.arange(ROWS) % CLASSES)
    # With theta 1 the statistics are those of this batch.
    norms = expected.abs().sum(1)
    torch.testing.assert_close(loss.running_mean, norms.mean()[None], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss.running_std, norms.std()[None], rtol=1e-4, atol=1e-5)
    value.backward()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter -= parameter.grad
    assert any((a != b).any() for a, b in zip(gate, loss.parameters(), strict=True))
    assert all(each.grad is not None for each in list(head.model.parameters())[:1])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_tokens_that_nobody_pools_are_refused_with_what_to_pass(adapter: Any) -> None:
    head = made("llama")._replace(features=None)
    with pytest.raises(InputError, match=r"rows of tokens: .*pool='last'.* features="):
        adapter(head, make_loss("fedlas-ls", CLASSES).train(), torch.arange(ROWS) % CLASSES)


# PEFT: a gate learns and its state is kept, whichever was there first.


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft isn't installed: pip install peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize(
    ("arguments", "layer"),
    [
        ({"task_type": "SEQ_CLS", "target_modules": ["q_proj"]}, "score.modules_to_save.default"),
        ({"target_modules": ["q_proj", "score"]}, "score.base_layer"),
        ({"target_modules": ["q_proj"]}, "score"),
    ],
)
def test_the_head_is_found_where_peft_puts_something_beside_it(
    arguments: dict[str, Any], layer: str, recwarn: pytest.WarningsRecorder
) -> None:
    peft = pytest.importorskip("peft", reason="peft isn't installed: pip install peft")
    model = peft.get_peft_model(made("llama").model, peft.LoraConfig(r=2, **arguments))
    assert last_layer(model) == f"base_model.model.{layer}"
    assert not [warning for warning in recwarn if warning.category is TrainingWarning]


def a_trainer_beside_peft(order: str, name: str, folder: Path) -> tuple[Any, CalibrationLoss]:
    from calibrant.training import TrainerCalibration

    head, loss = made("bert-tokens"), make_loss(name, CLASSES)
    if order == "before":
        head.model.calibration_loss = loss
    wrapped = adapted(head.model)
    if order == "after":
        wrapped.calibration_loss = loss
    layer = "base_model.model.bert.pooler" if "features" in loss.needs else None
    calibration = TrainerCalibration(wrapped, layer, features=head.features)
    columns = {**head.inputs, "labels": torch.arange(ROWS) % CLASSES}
    rows = [{key: values[row] for key, values in columns.items()} for row in range(ROWS)]
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        wrapped,
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        compute_loss_func=calibration.compute_loss,
        callbacks=[calibration],
    )
    return trainer, loss


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ["fedlas-ls", "adafocal"])
def test_beside_peft_a_loss_learns_and_a_run_goes_on_exactly(
    name: str, order: str, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    trainer, loss = a_trainer_beside_peft(order, name, tmp_path / "whole")
    start = {key: value.clone() for key, value in loss.state_dict().items()}
    frozen = trainer.model.get_base_model().bert.embeddings.word_embeddings.weight
    assert not frozen.requires_grad
    trainer.train()
    ended = loss.state_dict()
    assert all((ended[key] != value).any() for key, value in start.items())
    again, resumed = a_trainer_beside_peft(order, name, tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    for key, value in resumed.state_dict().items():
        torch.testing.assert_close(value, ended[key], rtol=0, atol=0)
