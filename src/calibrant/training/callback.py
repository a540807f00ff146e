"""What the losses of this package ask of a training loop, done by a callback of Lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from calibrant.core.errors import InputError, MissingDependencyError
from calibrant.training.adapters import HeldOutRows, NetworkWithLoss, Pool
from calibrant.training.features import PenultimateFeatures, tap_for
from calibrant.training.losses.base import CalibrationLoss

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        # The same library under its older name.
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise MissingDependencyError(
                "CalibrationCallback needs Lightning: pip install 'calibrant[train]'"
            ) from error


class CalibrationCallback(Callback):
    """Serves every `CalibrationLoss` that is an attribute of a `LightningModule`.

        self.loss = make_loss("fedlas-ls", n_classes=10)  # in the module's __init__
        trainer = Trainer(callbacks=[CalibrationCallback(layer="network.fc")])

    The module then calls ``self.loss(logits, target)`` as it would any other loss, right after the
    forward pass that gives the logits, and the callback does the rest:

    - Losses that need features (FeDLaS) get the latest input of `layer`, in training, validation
      and test. `accumulation_steps`, if left at 1, follows the trainer's `accumulate_grad_batches`.
    - Losses that learn from validation (AdaFocal) are updated after each validation epoch of a fit,
      from the logits and targets that `validation_step` calls them with, gathered from all
      processes.
    - Schedules and counters learn of each epoch (`start_epoch`, `end_epoch`).

    The module passes what belongs to a single batch: CRL's ``index=`` and RankMixup's mixtures. A
    `NetworkWithLoss` in the module passes both. The trainer's `gradient_clip_val` clips the gate of
    FeDLaS along with the network, which the paper doesn't; to clip the network alone, override the
    module's `configure_gradient_clipping`.

    Args:
        layer: name of the network's last layer within the module, as in `named_modules()`; None
            takes the last linear or convolutional one that was registered. Needed only for
            losses that need features.
        features: if that layer gets a row for each token, "first", "last" or "mean" of them, or a
            function; see `NetworkWithLoss`.

    Examples:
        >>> import torch
        >>> from lightning.pytorch import LightningModule
        >>> from calibrant.training import CalibrationCallback, make_loss
        >>> module = LightningModule()
        >>> module.fc, module.loss = torch.nn.Linear(2, 3), make_loss("fedlas-ls", n_classes=3)
        >>> CalibrationCallback(layer="fc").on_test_start(None, module)  # what a Trainer calls
        >>> value = module.loss(module.fc(torch.eye(2)), torch.tensor([0, 1]))  # no features
        >>> value.isfinite()
        tensor(True)
    """

    def __init__(self, layer: str | None = None, *, features: Pool = None) -> None:
        super().__init__()
        self.layer, self.features = layer, features
        self._tap: PenultimateFeatures | None = None
        self._undo: list[Callable[[], None]] = []
        # Those whose accumulation_steps the trainer decides.
        self._following: list[CalibrationLoss] = []
        # What each loss that learns from validation was called with in the current validation
        # epoch; None outside of one.
        self._seen: dict[CalibrationLoss, HeldOutRows] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let gates learn that were frozen along with the network, before optimisers are made."""
        for loss in _losses_of(pl_module):
            loss.let_learn()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to listen, and check that what the losses need will be there.

        Raises:
            InputError: the module has no loss of this package, or one that learns from validation
                gets none.
        """
        self._attach(pl_module)
        losses = _losses_of(pl_module)
        if not losses:
            raise InputError(
                f"{type(pl_module).__name__} has no loss of calibrant as an attribute; set "
                "self.loss = make_loss(...) in its __init__"
            )
        for loss in losses:
            if "validation" in loss.needs and not trainer.enable_validation:
                raise InputError(
                    f"{type(loss).__name__} learns from validation rows: give the trainer "
                    "validation data and the module a validation_step that calls the loss"
                )
        self._following = [loss for loss in losses if loss.accumulation_steps == 1]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that all parameters of the losses are learnt.

        Raises:
            InputError: no optimiser has them.
        """
        groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
        learnt = {id(parameter) for group in groups for parameter in group["params"]}
        if not any(id(parameter) in learnt for parameter in pl_module.parameters()):
            # A strategy that learns with copies of its own, such as DeepSpeed's, tells nothing.
            return
        for loss in _losses_of(pl_module):
            wanted = [parameter for parameter in loss.parameters() if parameter.requires_grad]
            if any(id(parameter) not in learnt for parameter in wanted):
                raise InputError(
                    f"no optimizer has the parameters of {type(loss).__name__}; let "
                    "configure_optimizers take self.parameters()"
                )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell the losses which epoch begins."""
        for loss in self._following:
            # Each epoch anew, since the trainer's number may follow a schedule.
            loss.accumulation_steps = trainer.accumulate_grad_batches
        models = (part for part in pl_module.modules() if isinstance(part, NetworkWithLoss))
        for part in (*_losses_of(pl_module), *models):
            part.start_epoch(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Tell the losses that an epoch is over."""
        for loss in _losses_of(pl_module):
            loss.end_epoch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Listen also where validation is all there is; begin to collect within a fit."""
        self._attach(pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            losses = _losses_of(pl_module)
            self._seen = {loss: HeldOutRows() for loss in losses if "validation" in loss.needs}

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let losses learn from validation.

        Raises:
            InputError: `validation_step` didn't call the loss.
        """
        seen, self._seen = self._seen, None
        for loss, rows in (seen or {}).items():
            rows.teach(loss, ": call it in validation_step")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Listen in a test, too."""
        self._attach(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop listening."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop listening."""
        self._detach()

    def _attach(self, module: nn.Module) -> None:
        if self._undo:
            return
        losses = _losses_of(module)
        if any("features" in loss.needs for loss in losses):
            self._tap = tap_for(module, self.layer, self.features)
            self._undo.append(self._tap.close)
        for loss in losses:
            if "features" in loss.needs:
                hook: Any = loss.register_forward_pre_hook(self._give_features, with_kwargs=True)
                self._undo.append(hook.remove)
            if "validation" in loss.needs:
                hook = loss.register_forward_hook(self._collect, with_kwargs=True)
                self._undo.append(hook.remove)

    def _detach(self) -> None:
        for undo in self._undo:
            undo()
        for loss in self._following:
            loss.accumulation_steps = 1
        self._undo, self._following, self._tap, self._seen = [], [], None, None

    def _give_features(self, loss: nn.Module, given: Any, named: Any) -> Any:
        if len(given) > 2 or named.get("features") is not None or self._tap is None:
            return None
        return given, named | {"features": self._tap.features}

    def _collect(self, loss: nn.Module, given: Any, named: Any, value: Tensor) -> None:
        if self._seen is None:
            return
        call = dict(zip(("logits", "target"), given, strict=False)) | named
        self._seen[cast(CalibrationLoss, loss)].add(call["logits"], call["target"])


def _losses_of(module: nn.Module) -> list[CalibrationLoss]:
    """Return the losses within a module, each once, but for those that are a part of another."""
    found: list[CalibrationLoss] = []
    for child in module.children():
        found += [child] if isinstance(child, CalibrationLoss) else _losses_of(child)
    # One may be an attribute of the module and of a `NetworkWithLoss` in it.
    return list(dict.fromkeys(found))
