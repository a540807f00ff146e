"""Which network a cell is about: the settings of its training run, and what comes behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant_studies.cells import Cell
from calibrant_studies.declaration import METHOD

# Made here, so that a study runs in seconds without any data.
SYNTHETIC = "synthetic-images"
NONE = "none"
PLAIN_LOSS = "cross-entropy"
# Behind the name of a protocol: layers are frozen from the top.
PEELED = "+plp"
# Settings of the training run, as `calibrant train` has them; 0 and "" stand for its defaults, and
# -1 where 0 says something.
RUN: Mapping[str, Any] = {
    "net": "",
    "loss": "",
    "loss_arguments": {},
    "loss_settings_for": "",
    "mixing": NONE,
    "mixing_arguments": {},
    "protocol": "acls",
    "epochs": 0,
    "batch_size": 0,
    "rate": 0.0,
    "plain_share": -1.0,
    "n_classes": 0,
    "image_size": 0,
    "precision": "32",
}
# Settings that came later. They are in a plan only where they are set, so that networks from before
# keep the digests by which they are found.
LATER: Mapping[str, Any] = {
    "training_rows": 0,  # images to train on, drawn at random by the seed; 0 takes all
    "weight_decay": 0.0,
    "members": 0,  # of an ensemble; each is a network of its own, that others may share
}
# What records of networks say only where it is set.
SELDOM = ("plain_share", *LATER)
DEFAULTS: Mapping[str, Any] = {
    **RUN,
    **LATER,
    "variant": "",  # what the name of the network ends in for a data set, such as -tiny
    "trains": True,  # whether the network can be trained here; otherwise its predictions are needed
    "peels": False,  # whether layers are frozen from the top while it trains: PLP
    "averages": "",  # of the weights count: ema or swa
    "accelerator": "auto",
    "second_stage": "",
    "stage_arguments": {},
    "stage_epochs": 40,
    "after": NONE,  # a calibrator, fitted to the validation rows
}
_MAY_BE_LEFT_OPEN = (
    "loss_settings_for",
    "epochs",
    "batch_size",
    "rate",
    "n_classes",
    "image_size",
)
# What tells one training run from another; the images and where they lie are told apart elsewhere,
# and the size that they are stretched to only where a study says one.
STRETCHED = "image_size"
TELLING = tuple(name for name in RUN if name not in ("n_classes", STRETCHED))


@dataclass(frozen=True)
class Plan:
    """One network, its head, and what rescales it.

    Attributes:
        input: name of the data set.
        network: what tables call the network.
        line: its loss, or its mixing, in words.
        seed: of everything random.
        run: settings of the training run, without the data set, as `RunSettings` takes them.
        stage: name of a second stage that trains a new head; "" for none.
        stage_arguments: of the second stage.
        after: name of a calibrator.
        trains: whether the network can be trained here.
        accelerator: where it is trained.
    """

    input: str
    network: str
    line: str
    seed: int
    run: Mapping[str, Any]
    stage: str
    stage_arguments: Mapping[str, Any]
    after: str
    trains: bool
    accelerator: str

    @property
    def members(self) -> list[Plan]:
        """The networks of an ensemble, with the seeds that `RunSettings.of_members` gives them."""
        count = self.run.get("members", 1)
        alone = {name: value for name, value in self.run.items() if name != "members"}
        line = self.line.removesuffix(f" x{count}")
        seeds = [count * self.seed + number for number in range(count)]
        return [replace(self, run={**alone, "seed": s}, seed=s, line=line) for s in seeds]

    @property
    def name(self) -> str:
        """What a run, or predictions, of this network are called if they are given by name."""
        return f"{self.input}-{self.network}-{self.line}-{self.seed}".replace(" ", "-")

    def configuration(self) -> dict[str, Any]:
        """Return all that the outcome depends on besides the images."""
        return {
            "run": dict(self.run),
            "stage": self.stage,
            "stage_arguments": dict(self.stage_arguments),
            "after": self.after,
        }

    def digest(self, data: str) -> str:
        """Return the digest of the training run on images with the given digest."""
        text = json.dumps([dict(self.run), data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def is_of(self, configuration: Mapping[str, Any]) -> bool:
        """Return whether the ``config.json`` of a run says that it trained this network."""
        return configuration.get("seed") == self.seed and not self.apart(configuration)

    def apart(self, configuration: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the settings in which a run differs: what its ``config.json`` says, and the plan.

        The seed isn't among them: runs of several go together.
        """
        said = _without_idle(configuration)
        names = [*TELLING, *LATER, *([STRETCHED] if self.run.get(STRETCHED) else [])]
        pairs = {name: (said.get(name), self.run.get(name)) for name in names}
        return {
            name: (own, wanted)
            for name, (own, wanted) in pairs.items()
            if _plain(own) != _plain(wanted) or (name not in said and name in TELLING)
        }


def plan_of(cell: Cell) -> Plan:
    """Return what the settings of a cell ask for."""
    settings = {**DEFAULTS, **cell.settings}
    stage, mixing = settings["second_stage"], settings["mixing"]
    loss = settings["loss"]
    if not loss:
        # A method is the name of a loss, unless it brings a mixture or a second stage along.
        other = {"mixing", "second_stage"} & cell.of_method.keys()
        loss = PLAIN_LOSS if other or METHOD not in cell.at else cell.method
    network = cell.at.get("network", settings["net"])
    run: dict[str, Any] = {name: settings[name] for name in RUN}
    run |= {"net": f"{settings['net'] or network}{settings['variant']}", "loss": loss}
    run |= {name: run[name] or None for name in _MAY_BE_LEFT_OPEN}
    run |= {name: settings[name] for name in LATER if settings[name]}
    if settings["plain_share"] < 0:
        run["plain_share"] = None
    run = {**_without_idle(run), "seed": cell.seed}
    line = line_of(loss, settings["loss_arguments"], mixing, settings["mixing_arguments"])
    if settings["peels"]:
        if run["protocol"] != "plp":  # which does so by itself
            run["protocol"] += PEELED
        line = "plp" if line == PLAIN_LOSS else f"{line} + plp"
    if settings["averages"]:
        run["protocol"] += f"+{settings['averages']}"
        line = f"{line} + {settings['averages']}"
    if "members" in run:
        line = f"{line} x{run['members']}"
    arguments = dict(settings["stage_arguments"])
    if stage:
        arguments.setdefault("epochs", settings["stage_epochs"])
    return Plan(
        cell.input,
        network,
        line,
        cell.seed,
        run,
        stage,
        arguments,
        settings["after"],
        bool(settings["trains"]) or cell.input == SYNTHETIC,
        settings["accelerator"],
    )


def line_of(
    loss: str, arguments: Mapping[str, Any], mixing: str, mixing_arguments: Mapping[str, Any]
) -> str:
    """Return a loss with its mixing in words: ``mixup alpha=0.2``, ``focal gamma=3``."""
    name = " ".join([loss, *_words(arguments)])
    if mixing == NONE:
        return name
    mixed = " ".join([mixing, *_words(mixing_arguments)])
    return mixed if loss == PLAIN_LOSS else f"{name} + {mixed}"


def _words(arguments: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in arguments.items()]


def _without_idle(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings of a run without those that do nothing: an ensemble of one network, and the
    settings of a loss for plain cross-entropy, which has none."""
    idle = {"loss_settings_for": None} if run.get("loss") == PLAIN_LOSS else {}
    idle |= {"members": None} if run.get("members") == 1 else {}
    return {**run, **idle}


def _plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return value
