"""What a run is: all that its result follows from, kept as config.json; and protocols by name.

A protocol is what papers hold fixed while they compare losses:

================  ==========================================================================
``mukhoti``       Mukhoti et al., NeurIPS 2020, CIFAR: sum of the losses of a batch
``mukhoti-tiny``  the same for Tiny-ImageNet
``acls``          Liu et al. CVPR 2022 (MbLS), Park et al. ICCV 2023 (ACLS), FeDLaS; CIFAR
``acls-tiny``     the same for Tiny-ImageNet
``plp``           Wang and Zhang, ICML 2024: layers are frozen from the top, nothing is clipped
``quick``         one learning-rate cycle, for a small network on a CPU
================  ==========================================================================

``quick+plp``, and any other with ``+plp``, freezes layers from the top, else as it is.

SGD with momentum 0.9 and weight decay on every parameter; each step clips the gradient of the
network (not of the loss's own parameters) to a norm, but for ``plp``. With a sum, that norm is
exceeded during most of the training, so that steps have nearly one length: results differ from
those with a mean.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.core.arguments import named
from calibrant.core.errors import InputError
from calibrant.files.folders import read_configuration

MOMENTUM = 0.9
WARM_UP = 0.2  # of a cycle
PEELED = "+plp"


@dataclass(frozen=True)
class Protocol:
    """A recipe of training.

    Attributes:
        epochs: how many; `milestones` are stretched with it.
        batch_size: images a step, over all devices together.
        rate: learning rate; the peak of a cycle.
        milestones: epochs at which the rate falls to a tenth; none: one cycle, linear up and down.
        early: the rate falls one epoch early, as it did in the reference code, which moved its
            schedule on at the start of each epoch.
        summed: the objective is the sum of the losses of a batch, not their mean.
        weight_decay: of every parameter.
        nesterov: SGD's form of momentum.
        clip: largest norm of the gradient.
        drop_last: leave out a last batch that isn't full.
        padding: of the random crop.
        plain_share: of the epochs, at the end, that see images as they are, neither cropped nor
            mirrored.
        split_seed: of the validation rows; None: the seed of the run.
        split_by_class: hold out a tenth of each class rather than of all rows.
        test_for_validation: where there are no official test images, validate on the images that
            stand in for them. What is then chosen or fitted on validation data has seen the test.
        select: which weights count: those of the last epoch, or of the best validation accuracy.
        peels: layers are frozen from the top, stage by stage: PLP.
    """

    epochs: int
    batch_size: int
    rate: float
    milestones: tuple[int, ...] = ()
    early: bool = False
    summed: bool = False
    weight_decay: float = 5e-4
    nesterov: bool = False
    clip: float = 2.0
    drop_last: bool = False
    padding: int = 4
    plain_share: float = 0.0
    split_seed: int | None = 1
    split_by_class: bool = False
    test_for_validation: bool = False
    select: Literal["last", "best"] = "last"
    peels: bool = False


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
}


def protocol_named(name: str) -> Protocol:
    """Return a protocol, with ``+plp`` behind its name one that freezes layers from the top.

    Raises:
        UnknownMethodError: there is none of this name.
    """
    if name.endswith(PEELED):
        return replace(protocol_named(name.removesuffix(PEELED)), peels=True)
    return named(PROTOCOLS, name, "protocol")


def rate_at(protocol: Protocol, step: int, steps_per_epoch: int, epochs: int, peak: float) -> float:
    """Return the learning rate of a step, counted from 0 over all epochs."""
    if not protocol.milestones:
        total = epochs * steps_per_epoch
        return peak * min((step + 1) / (WARM_UP * total), (total - step) / ((1 - WARM_UP) * total))
    epoch = step // steps_per_epoch + protocol.early
    passed = sum(epoch >= milestone * epochs / protocol.epochs for milestone in protocol.milestones)
    return peak * 0.1**passed


PRECISIONS = ("32", "bf16", "16")
MIXINGS = ("none", "mixup", "regmixup", "mit", "mit-a")

_OF_PROTOCOL = ("epochs", "batch_size", "rate", "plain_share")
_TEXT, _WHOLE = ((str,), "text"), ((Integral,), "a whole number")
_NUMBER, _NAMED = ((Real,), "a number"), ((dict,), "arguments by their names")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("data", "net", "loss", "loss_settings_for", "mixing", "protocol"), _TEXT),
    **dict.fromkeys(("loss_arguments", "mixing_arguments"), _NAMED),
    **dict.fromkeys(("epochs", "batch_size", "seed", "n_classes", "image_size"), _WHOLE),
    "training_rows": _WHOLE,
    **dict.fromkeys(("rate", "plain_share"), _NUMBER),
    "precision": _TEXT,
}
# Of these, the ones that may be left to protocol or data.
_OPTIONAL = ("loss_settings_for", *_OF_PROTOCOL, "n_classes", "image_size", "training_rows")


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run.

    Attributes:
        data: folder or archive of the data set.
        net: one of `calibrant.training.nets.NETS`.
        loss: one of `calibrant.training.losses.LOSSES`.
        loss_arguments: of the loss.
        loss_settings_for: data set whose published settings of the loss to begin with.
        mixing: one of `MIXINGS`: mixtures of inputs to train on.
        mixing_arguments: of the mixing, such as alpha.
        protocol: one of `PROTOCOLS`.
        epochs: None for those of the protocol; also batch_size, rate and plain_share.
        batch_size: images a step, over all devices together.
        rate: (peak) learning rate.
        plain_share: of the epochs, at the end, that see images as they are.
        seed: of weights, batches, augmentation and, if the protocol says so, the split.
        n_classes: needed where the data don't name their classes.
        image_size: side of the square that images in folders are stretched to; None leaves them.
        precision: "32"; "bf16" or "16" for mixed precision in training. What is measured in the end
            is computed in float32.
        training_rows: how many images to train on, drawn at random by the seed from those that
            aren't held out; None for all of them.
    """

    data: str
    net: str = "resnet8"
    loss: str = "cross-entropy"
    loss_arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    loss_settings_for: str | None = None
    mixing: str = "none"
    mixing_arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    protocol: str = "quick"
    epochs: int | None = None
    batch_size: int | None = None
    rate: float | None = None
    plain_share: float | None = None
    seed: int = 0
    n_classes: int | None = None
    image_size: int | None = None
    precision: str = "32"
    training_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("loss_arguments", "mixing_arguments"):
            if isinstance(getattr(self, name), dict):
                object.__setattr__(self, name, _plain(name, getattr(self, name)))
        for name, (kinds, words) in _KINDS.items():
            value = getattr(self, name)
            empty = value is None and name in _OPTIONAL
            if not empty and (not isinstance(value, kinds) or isinstance(value, bool)):
                raise InputError(f"{name} must be {words}, not {value!r}")
            if isinstance(value, np.generic):  # config.json can't hold NumPy's numbers
                object.__setattr__(self, name, value.item())
        protocol_named(self.protocol)
        for name in ("epochs", "batch_size", "rate", "image_size", "training_rows"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise InputError(f"{name} must be a finite number above 0, not {value}")
        if self.plain_share is not None and not 0 <= self.plain_share <= 1:
            raise InputError(f"plain_share must lie between 0 and 1, not {self.plain_share}")
        if "reduction" in self.loss_arguments:
            raise InputError("reduction is no argument here: the protocol sums or averages")
        if self.seed < 0:
            raise InputError(f"seed must not be negative, but is {self.seed}")
        for name, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("mixing", self.mixing, MIXINGS),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not '{value}'")

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
    def plain_epochs(self) -> int:
        """How many epochs at the end see images as they are."""
        share = self.recipe.plain_share if self.plain_share is None else self.plain_share
        return round(share * self.total_epochs)

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
