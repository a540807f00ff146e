"""What a run is: all that its result follows from, kept as config.json; and protocols by name.

A protocol is what papers hold fixed while they compare losses:

================  ==========================================================================
``mukhoti``       Mukhoti et al., NeurIPS 2020, CIFAR: sum of the losses of a batch
``mukhoti-tiny``  the same for Tiny-ImageNet
``acls``          Liu et al. CVPR 2022 (MbLS), Park et al. ICCV 2023 (ACLS), FeDLaS; CIFAR
``acls-tiny``     the same for Tiny-ImageNet
``plp``           Wang and Zhang, ICML 2024: layers are frozen from the top, nothing is clipped
``quick``         one learning-rate cycle, for a small network on a CPU
``adamw``         AdamW, a cosine behind a warm-up: transformers, and fine-tuning
================  ==========================================================================

Behind a name, ``+plp`` freezes layers from the top, ``+ema`` counts a moving average of the
weights, ``+swa`` the mean of those at the ends of the last quarter of the epochs; else the protocol
is as it was: ``quick+swa``, ``adamw+plp+ema``.

All but ``adamw`` are SGD with momentum 0.9 and weight decay on every parameter. Each step clips the
gradient of the network (not of the loss's own parameters) to a norm, but for ``plp``. With a sum,
that norm is exceeded during most of the training, so that steps have nearly one length: results
differ from those with a mean.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from math import cos, inf, pi
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from calibrant.core.arguments import argument, check_arguments, named
from calibrant.core.errors import InputError
from calibrant.files.opening import read_configuration
from calibrant.training.mixing import MIXING
from calibrant.training.run.averaging import SWA_FROM

MOMENTUM = 0.9


@dataclass(frozen=True)
class Protocol:
    """A recipe of training.

    Attributes:
        epochs: how many; `milestones` are stretched with it.
        batch_size: images a step, over all devices together.
        rate: learning rate; the peak of a cycle.
        milestones: epochs at which the rate falls to a tenth; none: one cycle, up in a line.
        warm_up: share of the steps of a cycle in which the rate rises.
        cosine: a cycle comes down as half a cosine, not in a line.
        early: the rate falls one epoch early, as it did in the reference code, which moved its
            schedule on at the start of each epoch.
        summed: the objective is the sum of the losses of a batch, not their mean.
        weight_decay: of every parameter; with AdamW of those that aren't biases or scales.
        nesterov: SGD's form of momentum.
        adamw: AdamW (Loshchilov & Hutter, ICLR 2019) in place of SGD.
        clip: largest norm of the gradient.
        drop_last: leave out a last batch that isn't full.
        padding: of the random crop.
        plain_share: of the epochs, at the end, that see images as they are, neither cropped nor
            mirrored.
        split_seed: of the validation rows; None: the seed of the run.
        split_by_class: hold out a tenth of each class rather than of all rows.
        test_for_validation: where there are no official test images, validate on the images that
            stand in for them. What is then chosen or fitted on validation data has seen the test.
        select: which weights count: those of the last epoch or of the best validation accuracy, or
            an average (`WeightAverage`).
        peels: layers are frozen from the top, stage by stage: PLP.
    """

    epochs: int
    batch_size: int
    rate: float
    milestones: tuple[int, ...] = ()
    warm_up: float = 0.2
    cosine: bool = False
    early: bool = False
    summed: bool = False
    weight_decay: float = 5e-4
    nesterov: bool = False
    adamw: bool = False
    clip: float = 2.0
    drop_last: bool = False
    padding: int = 4
    plain_share: float = 0.0
    split_seed: int | None = 1
    split_by_class: bool = False
    test_for_validation: bool = False
    select: Literal["last", "best", "ema", "swa"] = "last"
    peels: bool = False

    @property
    def averages(self) -> bool:
        """Whether an average of the weights counts."""
        return self.select in ("ema", "swa")


PROTOCOLS = {
    "mukhoti": Protocol(350, 128, 0.1, (150, 250), early=True, summed=True),
    "mukhoti-tiny": Protocol(
        100, 64, 0.1, (40, 60), early=True, summed=True, test_for_validation=True
    ),
    "acls": Protocol(350, 128, 0.1, (150, 250), drop_last=True, split_seed=None, select="best"),
    "acls-tiny": Protocol(
        100, 64, 0.1, (40, 60), split_seed=None, split_by_class=True, select="best"
    ),
    "plp": Protocol(350, 128, 0.1, (150, 250), clip=inf, peels=True),
    "quick": Protocol(18, 128, 0.2, nesterov=True, drop_last=True, padding=2, plain_share=1 / 6),
    "adamw": Protocol(
        20,
        128,
        1e-3,
        warm_up=0.05,
        cosine=True,
        adamw=True,
        weight_decay=0.05,
        clip=1,
        drop_last=True,
    ),
}
# What may follow the name of a protocol.
CHANGES: dict[str, dict[str, Any]] = {
    "plp": {"peels": True},
    "ema": {"select": "ema"},
    "swa": {"select": "swa"},
}


def protocol_named(name: str) -> Protocol:
    """Return a protocol, with the changes that follow its name.

    Raises:
        UnknownMethodError: there is none of this name, or no such change.
        InputError: two kinds of averages.
    """
    first, *changes = name.split("+")
    found = named(PROTOCOLS, first, "protocol")
    for change in changes:
        found = replace(found, **named(CHANGES, change, "change of a protocol"))
    if {"ema", "swa"} <= {*changes}:
        raise InputError(f"{name}: weights are averaged in one way, +ema or +swa")
    return found


def averaged_from(epochs: int) -> int:
    """Return the first epoch, counted from 0, whose weights SWA takes in."""
    return min(round(SWA_FROM * epochs), epochs - 1)


def rate_at(protocol: Protocol, step: int, steps_per_epoch: int, epochs: int, peak: float) -> float:
    """Return the learning rate of a step, counted from 0 over all epochs."""
    if protocol.select == "swa":
        step = min(step, averaged_from(epochs) * steps_per_epoch)
    if not protocol.milestones:
        total = epochs * steps_per_epoch
        up = (step + 1) / max(protocol.warm_up * total, 1)
        down = (total - step) / ((1 - protocol.warm_up) * total)
        if protocol.cosine:
            down = (1 - cos(pi * min(down, 1))) / 2
        return peak * min(up, down)
    epoch = step // steps_per_epoch + protocol.early
    passed = sum(epoch >= milestone * epochs / protocol.epochs for milestone in protocol.milestones)
    return peak * 0.1**passed


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run.

    Attributes:
        data: folder or archive of the data set.
        net: one of `calibrant.training.nets.NETS`; or a function of your own, "module:function",
            which is given the number of classes and returns a module, pretrained or not.
        loss: one of `calibrant.training.losses.LOSSES`.
        loss_arguments: of the loss.
        loss_settings_for: data set whose published settings of the loss to begin with.
        mixing: "none", or one of `MIXING`: mixtures of inputs to train on.
        mixing_arguments: of the mixing, such as alpha.
        protocol: one of `PROTOCOLS`, perhaps with `CHANGES` behind it.
        epochs: None for those of the protocol; also batch_size, rate, weight_decay and plain_share.
        batch_size: images a step, over all devices together.
        rate: (peak) learning rate.
        weight_decay: of the weights.
        plain_share: of the epochs, at the end, that see images as they are.
        seed: for weights, batches, augmentation and, if the protocol says so, the split.
        n_classes: needed where the data don't name their classes.
        image_size: side of the square that images in folders are stretched to; None leaves them.
        precision: "32"; "bf16" or "16" for mixed precision in training. What is measured in the end
            is computed in float32.
        training_rows: how many images to train on, drawn at random by the seed from those that
            aren't held out; None for all of them.
        members: how many networks to train, whose probabilities are averaged: a deep ensemble
            (Lakshminarayanan et al., NeurIPS 2017). Member m has the seed members * seed + m.
    """

    data: str
    net: str = "resnet8"
    loss: str = "cross-entropy"
    loss_arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    loss_settings_for: str | None = None
    mixing: str = argument("none", choices=("none", *MIXING))
    mixing_arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    protocol: str = "quick"
    epochs: int | None = argument(None, whole=True, above=0)
    batch_size: int | None = argument(None, whole=True, above=0)
    rate: float | None = argument(None, above=0)
    plain_share: float | None = argument(None, at_least=0, at_most=1)
    seed: int = argument(0, at_least=0)
    n_classes: int | None = argument(None, whole=True)
    image_size: int | None = argument(None, whole=True, above=0)
    precision: str = argument("32", choices=("32", "bf16", "16"))
    training_rows: int | None = argument(None, whole=True, above=0)
    weight_decay: float | None = argument(None, at_least=0)
    members: int = argument(1, at_least=1)

    def __post_init__(self) -> None:
        for name in ("loss_arguments", "mixing_arguments"):
            given = getattr(self, name)
            if not isinstance(given, dict):
                raise InputError(f"{name} must be arguments by their names, not {given!r}")
            object.__setattr__(self, name, _plain(name, cast(dict[str, Any], given)))
        for name in ("data", "net", "loss", "loss_settings_for", "protocol"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name, value) != ("loss_settings_for", None):
                raise InputError(f"{name} must be text, not {value!r}")
        check_arguments(self)
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # config.json can't hold NumPy's numbers
                object.__setattr__(self, name, value.item())
        protocol_named(self.protocol)
        if "reduction" in self.loss_arguments:
            raise InputError("reduction is no argument here: the protocol sums or averages")

    @property
    def recipe(self) -> Protocol:
        """The protocol by the name that was given."""
        return protocol_named(self.protocol)

    @property
    def stretched(self) -> tuple[int, int] | None:
        """(height, width) to which images in folders are stretched, if they are."""
        return None if self.image_size is None else (self.image_size, self.image_size)

    @property
    def total_epochs(self) -> int:
        """How many epochs this run has."""
        return self.recipe.epochs if self.epochs is None else self.epochs

    @property
    def images_per_step(self) -> int:
        """How many images a step takes, over all devices."""
        return self.recipe.batch_size if self.batch_size is None else self.batch_size

    @property
    def peak_rate(self) -> float:
        """The largest learning rate."""
        return self.recipe.rate if self.rate is None else self.rate

    @property
    def decay(self) -> float:
        """The weight decay."""
        return self.recipe.weight_decay if self.weight_decay is None else self.weight_decay

    @property
    def plain_epochs(self) -> int:
        """How many epochs at the end see images as they are."""
        share = self.recipe.plain_share if self.plain_share is None else self.plain_share
        return round(share * self.total_epochs)

    def of_members(self) -> list[RunSettings]:
        """Return the settings of each member of an ensemble; alone where there is one."""
        count = self.members
        if count == 1:
            return [self]
        return [replace(self, members=1, seed=count * self.seed + m) for m in range(count)]

    def as_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self), indent=2)

    def as_read_again(self) -> RunSettings:
        """Return these settings as `read` gives them, JSON having neither tuples nor whole keys."""
        return RunSettings(**json.loads(self.as_json()))

    @classmethod
    def read(cls, file: Path) -> RunSettings:
        """Read what `as_json` wrote.

        Raises:
            InputError: the file holds something else.
        """
        try:
            return cls(**read_configuration(file))
        # Whatever the file holds, be it JSON nested too deeply or no text at all.
        except (TypeError, ValueError, RecursionError, OSError) as error:
            raise InputError(f"{file}: holds no settings of a run ({error})") from error


def _plain(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with arrays as lists, which config.json can hold."""
    plain = {
        key: value.tolist() if hasattr(value, "tolist") else value
        for key, value in arguments.items()
    }
    for key, value in plain.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise InputError(
                f"{name}: '{key}' must be numbers, text, or lists and dicts of them, which "
                f"config.json can hold, not {type(value).__name__}"
            ) from error
    return plain
