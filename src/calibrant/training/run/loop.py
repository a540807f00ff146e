"""The training loop, on Lightning's Fabric: devices and precision are its business."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.training.data.images import Images
from calibrant.training.features import moved
from calibrant.training.run.averaging import WeightAverage, renew_statistics
from calibrant.training.run.folder import (
    BEST,
    LAST,
    SELECTED,
    Observer,
    Progress,
    loading,
    read_checkpoint,
    save_checkpoint,
    told_apart,
    write_history,
)
from calibrant.training.run.objective import Objective
from calibrant.training.run.outputs import Outputs, predict_on_all_devices
from calibrant.training.run.rows import Examples, TrainingBatches, seed_everything
from calibrant.training.run.settings import MOMENTUM, RunSettings, averaged_from, rate_at
from calibrant.training.second_stages.progressive_freezing import (
    PAPER_CUTS,
    ProgressiveFreezing,
)


@dataclass(eq=False)
class Loop:
    """Trains an objective from wherever the run is to its end.

    Attributes:
        fabric: a launched `lightning.fabric.Fabric`.
        settings: of the run.
        objective: network and loss.
        batches: of the training images.
        validation: images measured after every epoch.
        folder: for checkpoints.
        checkpoint_every: steps between checkpoints within an epoch; one is always written after an
            epoch.
        observers: told of each step and epoch.
    """

    fabric: Any
    settings: RunSettings
    objective: Objective
    batches: TrainingBatches
    validation: Images
    folder: Path
    checkpoint_every: int | None = None
    observers: Sequence[Observer] = ()

    def __post_init__(self) -> None:
        recipe = self.settings.recipe
        self.progress = Progress()
        if recipe.averages:
            self.objective.average = WeightAverage(self.objective.network, recipe.select)
        optimizer = self._make_optimizer()
        self._freezing = self._peeling() if recipe.peels else None
        self.objective.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._step: Any
        self._optimizer: Any
        self._step, self._optimizer = self.fabric.setup(self.objective, optimizer)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        recipe, rate, decay = self.settings.recipe, self.settings.peak_rate, self.settings.decay
        # The loss's own parameters, such as a gate, learn along with the network.
        parameters = list(self.objective.parameters())
        if not recipe.adamw:
            return torch.optim.SGD(
                parameters, rate, MOMENTUM, weight_decay=decay, nesterov=recipe.nesterov
            )
        groups = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": decay},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], rate)

    def _peeling(self) -> ProgressiveFreezing:
        cuts = PAPER_CUTS.get(self.settings.net.removesuffix("-tiny"))
        return ProgressiveFreezing(self.objective.network, self.settings.total_epochs, cuts)

    def resume(self) -> None:
        """Go back to the last checkpoint in the folder, if there is one."""
        file = self.folder / LAST
        if not file.is_file():
            return
        content = read_checkpoint(file)
        # The settings name the data; that they are others shows in their labels at least.
        if content["data"] != told_apart(self.batches.images.labels):
            raise InputError(
                f"{file}: is of a run on other training rows, {content['data']}; it can only go "
                "on as it began"
            )
        with loading(file):
            self.objective.load_state_dict(content["objective"])
            self._optimizer.load_state_dict(content["optimizer"])
            for parameter, state in self._optimizer.state.items():
                moments = [
                    each for each in state.values() if isinstance(each, Tensor) and each.ndim
                ]
                if any(moment.shape != parameter.shape for moment in moments):
                    raise ValueError("the momentum of a weight has another shape than the weight")
            self.fabric.strategy.precision.load_state_dict(content["precision"])
        self.progress = content["progress"]
        if not self.fabric.is_global_zero:
            # The sums in the checkpoint are those of all devices; the first goes on from them.
            self.progress.loss_sum, self.progress.right, self.progress.rows = 0.0, 0, 0

    def run(self) -> Progress:
        """Train until the last epoch is done; return the history with the progress."""
        self._tell(lambda observer: observer.on_start(len(self.batches)))
        try:
            while self.progress.epoch < self.settings.total_epochs:
                self._finish_epoch()
        finally:
            if self._freezing is not None:
                self._freezing.end()
        return self.progress

    def load_selected(self) -> None:
        """Give the network the weights that the protocol counts: the last, or the best."""
        select, average = self.settings.recipe.select, self.objective.average
        if select == "best":
            content = read_checkpoint(self.folder / BEST)
            with loading(self.folder / BEST):
                self.objective.load_state_dict(content["objective"])
        if average is not None:
            average.give_to(self.objective.network)
            if select == "swa":
                renew_statistics(self.objective.network, self._plain_batches)
            self._save(SELECTED[select])

    def _plain_batches(self) -> Iterator[Any]:
        plain, device = replace(self.batches, plain_from=0), self.fabric.device
        order = plain.order(0)
        for step in range(len(plain)):
            yield moved(plain.get(order, 0, step).images, device)

    def _finish_epoch(self) -> None:
        progress = self.progress
        self.objective.train()
        self.objective.loss.start_epoch(progress.epoch)
        # Several devices wait for the gradient of every tensor that could learn when they began.
        if self._freezing is not None and self.batches.world == 1:
            self._freezing.begin_epoch(progress.epoch)
        order = self.batches.order(progress.epoch)
        sums = _Sums(progress, self.fabric.device)
        while progress.step < len(self.batches):
            sums.add(*self._train_step(order))
            progress.step += 1
            every = self.checkpoint_every
            if every and progress.step % every == 0 and progress.step < len(self.batches):
                sums.settle()
                self._save(LAST)
            self._tell(lambda observer: observer.on_step(progress))
        sums.settle()
        average = self.objective.average
        if average is not None and progress.epoch >= averaged_from(self.settings.total_epochs):
            average.after_epoch(self.objective.network)
        self.objective.loss.end_epoch()
        self._record(self.validate())
        progress.epoch, progress.step = progress.epoch + 1, 0
        progress.loss_sum, progress.right, progress.rows = 0.0, 0, 0
        accuracy = progress.history[-1]["validation_accuracy"]
        if accuracy > progress.best_accuracy:
            progress.best_accuracy = accuracy
            if self.settings.recipe.select == "best":
                self._save(BEST)
        # Last, so that its record of the best weights is already on the disk.
        self._save(LAST)
        if self.fabric.is_global_zero:
            write_history(self.folder, progress)
        self._tell(lambda observer: observer.on_epoch(progress))

    def _train_step(self, order: Tensor) -> tuple[Tensor, Tensor, int]:
        epoch, step = self.progress.epoch, self.progress.step
        batch = self.batches.get(order, epoch, step)
        seed = self.batches.step_seed(epoch, step)
        # Whatever else draws numbers, such as dropout, then follows from the place in the run too.
        seed_everything(seed)
        device = self.fabric.device
        images = moved(batch.images, device)
        target, index = batch.target.to(device), batch.index.to(device)
        loss, right = self._step(images, target, index, seed)
        # Gradients are averaged over devices: the sum over all of the batch is the mean of these.
        scale = len(target) * self.batches.world if self.settings.recipe.summed else 1
        for group in self._optimizer.param_groups:
            group["lr"] = rate_at(
                self.settings.recipe,
                epoch * len(self.batches) + step,
                len(self.batches),
                self.settings.total_epochs,
                self.settings.peak_rate,
            )
        self._optimizer.zero_grad()
        self.fabric.backward(scale * loss)
        if self._freezing is not None:
            self._freezing.drop_gradients(epoch)
        # Only the network's gradient is clipped, as in the reference code.
        self.fabric.strategy.precision.unscale_gradients(self._optimizer.optimizer)
        network = self.objective.network.parameters()
        torch.nn.utils.clip_grad_norm_(network, self.settings.recipe.clip)
        self._optimizer.step()
        if self.objective.average is not None:
            self.objective.average.after_step(self.objective.network)
        return loss.detach(), right, len(target)

    def validate(self) -> Outputs:
        """Return the network's outputs for the validation images, and give them to the loss.

        Raises:
            InputError: the network has diverged.
        """
        with self.fabric.autocast():
            outputs = predict_on_all_devices(
                self.fabric, self.objective.network, self.validation, self.batches.normalise
            )
        if not outputs.logits.isfinite().all():
            raise InputError(
                f"the network diverged in epoch {self.progress.epoch + 1}: its outputs for the "
                f"validation images are no longer finite; {self._remedy()}"
            )
        if "validation" in self.objective.loss.needs:
            device = self.fabric.device
            self.objective.loss.update_from_validation(
                outputs.logits.to(device), outputs.labels.to(device)
            )
        return outputs

    def _remedy(self) -> str:
        for name, images in (("training", self.batches.images), ("validation", self.validation)):
            row = images.not_finite() if isinstance(images, Examples) else None
            if row is not None:
                return f"row {row} of the data set of the {name} rows holds NaN or infinity"
        return "lower the rate, or look at the images"

    def _record(self, outputs: Outputs) -> None:
        progress = self.progress
        loss, right, rows = self._totals()
        progress.history.append(
            {
                "epoch": progress.epoch + 1,
                "rate": self._optimizer.param_groups[0]["lr"],
                "train_loss": loss / rows,
                "train_accuracy": right / rows if self.objective.knows_accuracy else nan,
                "validation_loss": outputs.cross_entropy,
                "validation_accuracy": outputs.accuracy,
                "validation_confidence": outputs.confidence,
                **self.objective.recorded_columns(),
            }
        )

    def _totals(self) -> tuple[float, int, int]:
        """Return loss, right answers and rows of the epoch so far, over all devices."""
        progress = self.progress
        mine = torch.tensor([progress.loss_sum, progress.right, progress.rows], dtype=torch.float64)
        loss, right, rows = self.fabric.all_reduce(mine, reduce_op="sum").tolist()
        return loss, int(right), int(rows)

    def _save(self, name: str) -> None:
        loss, right, rows = self._totals()
        if self.objective.recorder is not None:
            self.objective.recorder.join_ranks()
        if self.fabric.is_global_zero:
            save_checkpoint(
                self.folder / name,
                replace(self.progress, loss_sum=loss, right=right, rows=rows),
                self.objective.state_dict(),
                self._optimizer.state_dict(),
                self.fabric.strategy.precision.state_dict(),
                self.batches.normalise,
                self.batches.images.labels,
            )

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            what(observer)


class _Sums:
    """Adds up an epoch on the device, which to ask at each step would slow it down."""

    def __init__(self, progress: Progress, device: torch.device) -> None:
        self.progress = progress
        # Apple's devices have no float64.
        kind = torch.float32 if device.type == "mps" else torch.float64
        self.loss = torch.tensor(progress.loss_sum, dtype=kind, device=device)
        self.right = torch.tensor(progress.right, device=device)

    def add(self, loss: Tensor, right: Tensor, rows: int) -> None:
        self.loss += rows * loss
        self.right += right
        self.progress.rows += rows

    def settle(self) -> None:
        """Write the sums into the progress."""
        self.progress.loss_sum = self.loss.item()
        self.progress.right = int(self.right.item())
