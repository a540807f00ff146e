"""Numbers that were kept of networks whose files are gone: ``docs/results/losses.json``.

The study of losses trained them on CIFAR-10.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from calibrant.core.errors import InputError
from calibrant.core.text import counted, shortened
from calibrant_studies.inputs import Inputs, StudyInput
from calibrant_studies.kinds.base import Need
from calibrant_studies.networks.plans import SELDOM, SYNTHETIC, Plan

DATA = "cifar10"


@dataclass(frozen=True)
class Recorded:
    """What was kept of one network.

    Attributes:
        values: by metric, as results of cells have them.
        epochs: what was kept of each epoch of the training; empty if nothing was.
        line: what it is called there.
        smart_fit: how SMART was fitted to it.
        document: all that was kept, of other networks, too.
    """

    values: dict[str, dict[str, Any]]
    epochs: list[dict[str, Any]]
    line: str
    smart_fit: str
    document: dict[str, Any]


def recorded_of(given: StudyInput, plan: Plan) -> Recorded | None:
    """Return what a file of results holds of the network of a plan, or None."""
    if plan.input != DATA or plan.stage or given.path.suffix != ".json":
        return None
    document = (
        _read_record(given.path, given.path.stat().st_mtime_ns) if given.path.is_file() else None
    )
    if document is None:
        return None
    told: dict[str, Any] = {**dict.fromkeys(SELDOM), **document["settings"]}
    if any(plan.run.get(name) != value for name, value in told.items()):
        return None
    for name, line in document["lines"].items():
        settings: dict[str, Any] = line["settings"]
        asked = {key: plan.run[key] for key in settings if key in plan.run}
        if asked != settings:
            continue
        run = _of(document, "runs", name, plan.seed)
        values = run.get("after", {}).get(plan.after)
        epochs = _of(document, "gate_by_epoch", name, plan.seed).get("epochs", [])
        if values is None:
            return None
        return Recorded(values, epochs, name, run["smart_fit"], document)
    return None


def _of(document: dict[str, Any], key: str, line: str, seed: int) -> dict[str, Any]:
    for row in cast("list[dict[str, Any]]", document.get(key, [])):
        if (row["line"], row["seed"]) == (line, seed):
            return row
    return {}


@lru_cache(maxsize=8)
def _read_record(path: Path, state: int) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or not {"lines", "settings", "runs"} <= set(
        cast("dict[str, Any]", document)
    ):
        return None
    return cast("dict[str, Any]", document)


# Where the network of a cell comes from: predictions, a finished run, or images to train on.

SourceKind = Literal["predictions", "run", "recorded", "images", "synthetic"]


@dataclass(frozen=True)
class Source:
    """Where a network comes from.

    Attributes:
        kind: ``predictions`` that were given by the name of the plan, a finished ``run``, numbers
            that were ``recorded`` of one, ``images`` to train on, or ``synthetic`` ones.
        given: the input; None for synthetic images.
        recorded: where the numbers stand.
    """

    kind: SourceKind
    given: StudyInput | None = None
    recorded: Recorded | None = None

    @property
    def digest(self) -> str:
        """The digest of what the outcome depends on."""
        if self.given is None:
            return SYNTHETIC
        if self.kind in ("images", "recorded"):
            return self.given.digest
        return _outputs(self.given).digest


def _outputs(given: StudyInput) -> StudyInput:
    """Return the predictions of a run, which stay as they are when more is put beside them."""
    if not given.is_run:
        return given
    return StudyInput(given.name, (given.path / "val.npz", given.path / "test.npz"))


def source_of(plan: Plan, inputs: Inputs, *, recorded: bool = False) -> Source | None:
    """Return where the network of a plan comes from, or None if nothing that is given will do.

    Args:
        plan: which network.
        inputs: what is given.
        recorded: whether numbers that were kept of it will do.

    Raises:
        InputError: what goes by its name is a run with other settings, or two runs have its own.
    """
    named = inputs.get(plan.name)
    if named is not None:
        if is_trained(named):
            _check(named, plan)
            return Source("run", named)
        return Source("predictions", named)
    images = inputs.get(plan.input)
    made = [given for given in inputs.values() if given.is_run and made_by(given, plan, images)]
    if made:
        return Source("run", _the_one(made, plan))
    for given in inputs.values() if recorded else ():
        kept = recorded_of(given, plan)
        if kept is not None:
            return Source("recorded", given, kept)
    if plan.input == SYNTHETIC:
        return Source("synthetic")
    if images is not None and plan.trains:
        return Source("images", images)
    return None


def is_trained(given: StudyInput) -> bool:
    """Return whether an input is a finished run; a data set may be three files called like one."""
    return given.is_run and configuration_of(given) is not None


def configuration_of(given: StudyInput) -> dict[str, object] | None:
    """Return what the ``config.json`` of a run says, or None where there is none to be read."""
    try:
        return given.configuration
    except InputError:
        return None


def made_by(given: StudyInput, plan: Plan, images: StudyInput | None) -> bool:
    """Return whether a run trained the network of a plan on its data set."""
    configuration = configuration_of(given)
    if configuration is None or not plan.is_of(configuration):
        return False
    data = str(configuration.get("data"))
    if images is not None:
        return Path(data).resolve() == images.path.resolve()
    return given.name.startswith(f"{plan.input}-") or _is_called(Path(data).name, plan.input)


def _is_called(file: str, name: str) -> bool:
    """Return whether a file or folder goes by a name, with an ending or not: CIFAR-100 isn't 10."""
    return file.startswith(name) and not file[len(name) :][:1].isalnum()


def _the_one(made: list[StudyInput], plan: Plan) -> StudyInput:
    """Return the run of a plan; the same run under several names is one."""
    first, *others = made
    for other in others:
        if _outputs(other).digest != _outputs(first).digest:
            raise InputError(
                f"{first.path} and {other.path}: both are runs of {plan.name}, with different "
                f"predictions; leave one of them out, or say which with --data {plan.name}=PATH"
            )
    return first


def _check(given: StudyInput, plan: Plan) -> None:
    configuration = given.configuration
    apart = {"seed": (configuration.get("seed"), plan.seed)} | plan.apart(configuration)
    for name, (own, wanted) in apart.items():
        if name in configuration and own != wanted:
            raise InputError(
                f"{given.path}: is a run with {name} {own!r}, not {wanted!r}; what is called "
                f"{plan.name} must be one (files of predictions by that name are taken as they are)"
            )


def check_names(plans: Iterable[Plan], inputs: Inputs) -> None:
    """Refuse predictions whose name is that of two networks, which would be one under two names.

    Raises:
        InputError: there are such.
    """
    known: dict[str, Plan] = {}
    for plan in plans:
        named = inputs.get(plan.name)
        if named is None or is_trained(named):
            continue
        other = known.setdefault(plan.name, plan)
        if other.run != plan.run:
            (name, *_) = (key for key in plan.run if plan.run[key] != other.run.get(key))
            raise InputError(
                f"{named.path}: are the predictions of one network, and the study asks for two "
                f"that are called {plan.name}: {name} is {other.run.get(name)!r} or "
                f"{plan.run[name]!r}; give runs, whose settings say which they are, or ask for "
                "one with --only"
            )


@dataclass(frozen=True)
class NetworkNeed(Need):
    """The network of a plan. Needs of one data set are one, whatever their plans are."""

    plan: Plan | None = field(default=None, compare=False)
    recorded: bool = field(default=False, compare=False)

    def _source(self, inputs: Inputs) -> Source | None:
        if self.plan is None:
            return None
        return source_of(self.plan, inputs, recorded=self.recorded)

    def lacking(self, inputs: Inputs) -> bool:
        """Return whether it can neither be found nor trained."""
        return self._source(inputs) is None

    def digest(self, inputs: Inputs) -> str:
        """Return the digest of where it comes from."""
        source = self._source(inputs)
        return "" if source is None else source.digest


TRAINABLE = (
    "a data set in a form that `calibrant train` reads (--data NAME=PATH), or finished runs of it, "
    "found by their settings or by the name DATA-NETWORK-LOSS-SEED"
)
GIVEN = "predictions or runs named {}: such networks aren't trained here"


def need_of(plan: Plan, *, recorded: bool = False) -> NetworkNeed:
    """Return what a cell with that plan needs; see `source_of`."""
    what = (
        TRAINABLE if plan.trains else GIVEN.format(plan.name.removesuffix(str(plan.seed)) + "SEED")
    )
    return NetworkNeed(plan.input, what, plan=plan, recorded=recorded)


# Runs that were given to a study and that none of its cells is about: how many, and why.
# So many runs are named for a reason.
_NAMED = 3


def left_out(plans: Iterable[Plan], inputs: Inputs) -> list[str]:
    """Return a sentence for each reason why runs are left out, with their number.

    Args:
        plans: of all cells.
        inputs: what is given.
    """
    asked = list({plan.digest(plan.input): plan for plan in plans}.values())
    names = {plan.name for plan in asked}
    reasons: dict[str, list[str]] = {}
    for given in inputs.values():
        configuration = configuration_of(given) if given.is_run else None
        if configuration is None or given.name in names:
            continue
        if not any(made_by(given, plan, inputs.get(plan.input)) for plan in asked):
            reasons.setdefault(_reason(configuration, asked), []).append(given.name)
    return [
        f"{counted(len(runs), 'run')} ({shortened(runs, _NAMED)}): {why}"
        for why, runs in reasons.items()
    ]


def _reason(configuration: Mapping[str, Any], asked: Iterable[Plan]) -> str:
    """Return by what a run differs from the plan that it comes closest to."""
    differences = (plan.apart(configuration) for plan in asked)
    apart = min(differences, key=len, default=dict[str, tuple[Any, Any]]())
    if apart:
        said = ((name, _shown(own), _shown(wanted)) for name, (own, wanted) in apart.items())
        return "; ".join(f"{name} is {own}, not {wanted}" for name, own, wanted in said)
    if all(configuration.get("seed") != plan.seed for plan in asked):
        return f"seed {configuration.get('seed')} isn't asked for"
    return "trained on other images"


def _shown(value: Any) -> str:
    return "that of the protocol" if value is None else str(value) or "none"
