"""What the losses of this package ask of a training loop, for the Trainer of Hugging Face."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from calibrant.core.errors import InputError, MissingDependencyError
from calibrant.training.adapters import HeldOutRows, Pool, for_trainer, mixtures_for
from calibrant.training.features import logits_of, tap_for
from calibrant.training.losses.base import CalibrationLoss

if TYPE_CHECKING:

    class TrainerCallback:
        """What the Trainer tells of its steps and epochs."""

    class ExportableState:
        """Something that the Trainer writes into its checkpoints."""
else:
    try:
        from transformers import TrainerCallback
        from transformers.trainer_callback import ExportableState
    except ImportError as error:
        raise MissingDependencyError(
            "TrainerCalibration needs transformers: pip install transformers accelerate"
        ) from error

LOSS = "calibration_loss"
STATE = "loss_state"


class TrainerCalibration(TrainerCallback, ExportableState):
    """Serves the loss `calibration_loss` of a Hugging Face model.

        model.calibration_loss = make_loss("adafocal", n_classes)
        calibration = TrainerCalibration(model)
        Trainer(model, ..., compute_loss_func=calibration.compute_loss, callbacks=[calibration])

    - Features (FeDLaS) are the latest input of `layer`; `accumulation_steps`, if left at 1, follows
      `gradient_accumulation_steps`.
    - Validation rows (AdaFocal) are those of each evaluation within training; set `eval_strategy`.
    - Schedules and CRL learn when epochs begin and end.
    - Positions (CRL) are the column "index" of the training rows, taken out before the model sees
      it; set `remove_unused_columns=False`.
    - Mixtures (RankMixup) are made of the only input that holds floating-point numbers, or of the
      embeddings of `input_ids`.

    Being a part of the model, the loss is in its optimiser, checkpoints and train and eval modes.
    That also holds for a wrapper that trains and saves only a few weights of the model, such as
    PEFT, whether it wraps the model before or after the loss was set: the loss's parameters learn,
    and its state is in the ``trainer_state.json`` of each checkpoint, from which a run continues.

    Args:
        model: with a loss of this package as `calibration_loss`.
        layer: name of its last layer, as in `named_modules()`; None takes the last that was
            registered. Needed only for losses that need features.
        features: if that layer gets a row for each token, as in a language model, "first", "last"
            or "mean" of them, or a function; see `NetworkWithLoss`.

    Raises:
        InputError: the model holds no such loss, or one that `for_trainer` refuses.

    Examples:
        >>> import torch
        >>> from calibrant.training import make_loss
        >>> from calibrant.training.trainer_callback import TrainerCalibration
        >>> model = torch.nn.Linear(2, 4)
        >>> model.calibration_loss = make_loss("adafocal", n_classes=4)
        >>> calibration = TrainerCalibration(model)
        >>> outputs = {"logits": torch.zeros(2, 4)}
        >>> calibration.compute_loss(outputs, torch.tensor([0, 3])).item() < 1.39  # a focal loss
        True
    """

    def __init__(
        self, model: nn.Module, layer: str | None = None, *, features: Pool = None
    ) -> None:
        super().__init__()
        loss = getattr(model, LOSS, None)
        if not isinstance(loss, CalibrationLoss):
            raise InputError(
                f"{type(model).__name__} has no loss of calibrant; set model.{LOSS} = "
                "make_loss(...) first"
            )
        self.loss, self._model = loss, model
        loss.let_learn()
        self._tap = tap_for(model, layer, features) if "features" in loss.needs else None
        self._plain = for_trainer(
            loss,
            self._tap,
            served=[need for need in ("epochs", "validation") if need in loss.needs],
            given=self._given,
        )
        # What the model was last called with, and the rows' positions that were taken out of it.
        self._inputs: dict[str, Any] = {}
        self._index: Tensor | None = None
        self._fitting = self._mixing = self._following = False
        # Step and batch within it: mixtures follow from them, in a run that goes on as well.
        self._place = (0, 0)
        self._seen = HeldOutRows()
        model.register_forward_pre_hook(self._take, with_kwargs=True)

    def compute_loss(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of a batch; the `compute_loss_func` of the Trainer.

        Raises:
            InputError: the Trainer trains, but this isn't among its callbacks.
        """
        logits = logits_of(outputs)
        if not self._fitting and self.loss.training and logits.requires_grad:
            raise InputError(
                "the Trainer doesn't call the callback of the loss: pass "
                "callbacks=[calibration], the TrainerCalibration whose compute_loss it uses"
            )
        if self._fitting and not self.loss.training and "validation" in self.loss.needs:
            tokens = labels.shape == logits.shape[:-1]  # whose classes come last
            self._seen.add((logits.movedim(-1, 1) if tokens else logits).float(), labels)
        return self._plain(outputs, labels, num_items_in_batch)

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let gates learn that a wrapper has frozen since, before there is an optimiser.

        Raises:
            InputError: the Trainer is asked to create this callback again, which it can't.
        """
        if args.restore_callback_states_from_checkpoint:
            raise InputError(
                "leave out restore_callback_states_from_checkpoint: TrainerCalibration takes up "
                "its state without"
            )
        self.loss.let_learn()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that evaluations come, follow the accumulation of gradients, take up the state.

        Raises:
            InputError: the loss learns from validation rows, and there are none; or the checkpoint
                holds the state of another loss.
        """
        if "validation" in self.loss.needs and str(args.eval_strategy.value) == "no":
            raise InputError(
                f"{type(self.loss).__name__} learns from validation rows: give the Trainer an "
                "eval_dataset, and TrainingArguments eval_strategy='epoch'"
            )
        self._fitting = True
        if state.global_step:
            self._take_up(state.stateful_callbacks)
        if self.loss.accumulation_steps == 1:
            self._following = True
            self.loss.accumulation_steps = args.gradient_accumulation_steps

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop learning from evaluations, and start counting again for the next Trainer."""
        if self._following:
            self.loss.accumulation_steps = 1
        self._fitting = self._following = False

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the loss which epoch begins."""
        # A run that goes on within an epoch begins at a fraction of it.
        self.loss.start_epoch(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take note of the step, which the mixtures follow from."""
        self._place = (state.global_step, 0)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the loss that an epoch is over."""
        self.loss.end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the loss learn from the rows of the evaluation."""
        if self._fitting and "validation" in self.loss.needs:
            otherwise = ", but those of the Trainer's eval_dataset have no labels"
            self._seen.teach(self.loss, otherwise)

    def state(self) -> dict[str, Any]:
        """Return the loss's state as JSON takes it; the Trainer writes it into each checkpoint."""
        values = {name: part.cpu().contiguous() for name, part in self.loss.state_dict().items()}
        return {"args": {}, "attributes": {STATE: b64encode(save(values)).decode("ascii")}}

    def _take_up(self, kept: Any) -> None:
        """Give the loss the state that it had at the checkpoint that training goes on from."""
        try:
            text = kept[type(self).__name__]["attributes"][STATE]
            self.loss.load_state_dict(load(b64decode(text)))
        # Whatever a file holds that was damaged, or is of a run with another loss.
        except Exception as error:
            raise InputError(
                f"the checkpoint holds no state of {type(self.loss).__name__} that training could "
                "go on with"
            ) from error

    def _take(self, model: nn.Module, given: Any, named: dict[str, Any]) -> Any:
        if self._mixing:
            return None
        if "index" in self.loss.needs:
            named = dict(named)
            self._index = named.pop("index", None)
        if "mixed" in self.loss.needs:
            self._inputs = {name: value for name, value in named.items() if name != "labels"}
        return given, named

    def _given(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return what else the loss is called with, besides logits, labels and features."""
        if "index" in self.loss.needs:
            # Held-out rows have positions of their own, where nothing is counted.
            return {"index": self._index if self.loss.training else None}
        if "mixed" not in self.loss.needs or not self.loss.training:
            return {}
        name, inputs = self._mixable()

        def answer(mixed: Tensor) -> Tensor:
            return logits_of(self._model(**self._with(name, mixed)))

        self._mixing = True
        try:
            found = mixtures_for(self.loss, inputs, labels, logits.shape[1], self._place, answer)
        finally:
            self._mixing = False
        self._place = (self._place[0], self._place[1] + 1)
        return found

    def _mixable(self) -> tuple[str, Tensor]:
        """Return the name and the values of the input that can be mixed."""
        if "input_ids" in self._inputs:
            embed: Any = cast(Any, self._model).get_input_embeddings()
            words = embed(self._inputs["input_ids"])
            mask = self._inputs.get("attention_mask")
            # The mask goes along as one more number of each word: where either has one, it counts.
            column = torch.ones_like(words[..., :1]) if mask is None else mask[..., None].to(words)
            return "inputs_embeds", torch.cat((words, column), -1)
        floats = {
            name: value
            for name, value in cast(Mapping[str, Any], self._inputs).items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        if len(floats) != 1:
            raise InputError(
                f"{type(self.loss).__name__} mixes the one input of floating-point numbers, or "
                f"input_ids, but the model was given: {', '.join(self._inputs) or 'none by name'}"
            )
        return next(iter(floats.items()))

    def _with(self, name: str, values: Tensor) -> dict[str, Any]:
        others = dict(self._inputs)
        if name != "inputs_embeds" or "input_ids" not in others:
            return others | {name: values}
        del others["input_ids"]
        others["attention_mask"] = (values[..., -1] > 0).long()
        return others | {name: values[..., :-1]}
