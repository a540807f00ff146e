"""What a run is: all that its result follows from, kept as config.json."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calibrant.errors import InputError
from calibrant.training.run.protocols import Protocol, protocol_named

PRECISIONS = ("32", "bf16", "16")
MIXINGS = ("none", "mixup", "regmixup", "mit", "mit-a")


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
        epochs: None for those of the protocol; also batch_size and rate.
        batch_size: images a step, over all devices together.
        rate: (peak) learning rate.
        seed: of weights, batches, augmentation and, if the protocol says so, the split.
        num_classes: needed where the data don't name their classes.
        precision: "32"; "bf16" or "16" for mixed precision in training. What is measured in the end
            is computed in float32.
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
    seed: int = 0
    num_classes: int | None = None
    precision: str = "32"

    def __post_init__(self) -> None:
        protocol_named(self.protocol)
        for name in ("epochs", "batch_size", "rate"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} must be above 0, not {value}")
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

    def as_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def read(cls, file: Path) -> RunSettings:
        """Read what `as_json` wrote.

        Raises:
            InputError: the file holds something else.
        """
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise InputError(f"{file}: holds no settings of a run ({error})") from error


def parse_loss_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Return arguments from ``key=value`` texts; a value is a Python literal, or else text.

    Raises:
        InputError: a text has another form.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"'{text}' is not of the form key=value")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    return arguments
