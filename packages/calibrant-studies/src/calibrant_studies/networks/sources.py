"""Where the network of a cell comes from: predictions, a finished run, or images to train on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from calibrant.core.errors import InputError
from calibrant_studies.inputs import Given, Inputs
from calibrant_studies.kinds.base import Need
from calibrant_studies.networks.plans import SYNTHETIC, Plan
from calibrant_studies.networks.recorded import Recorded, recorded_of

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
    given: Given | None = None
    recorded: Recorded | None = None

    @property
    def digest(self) -> str:
        """The digest of what the outcome depends on."""
        if self.given is None:
            return SYNTHETIC
        if self.kind in ("images", "recorded"):
            return self.given.digest
        return _outputs(self.given).digest


def _outputs(given: Given) -> Given:
    """Return the predictions of a run, which stay as they are when more is put beside them."""
    if not given.is_run:
        return given
    return Given(given.name, (given.path / "val.npz", given.path / "test.npz"))


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


def is_trained(given: Given) -> bool:
    """Return whether an input is a finished run; a data set may be three files called like one."""
    return given.is_run and configuration_of(given) is not None


def configuration_of(given: Given) -> dict[str, object] | None:
    """Return what the ``config.json`` of a run says, or None where there is none to be read."""
    try:
        return given.configuration
    except InputError:
        return None


def made_by(given: Given, plan: Plan, images: Given | None) -> bool:
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


def _the_one(made: list[Given], plan: Plan) -> Given:
    """Return the run of a plan; the same run under several names is one."""
    first, *others = made
    for other in others:
        if _outputs(other).digest != _outputs(first).digest:
            raise InputError(
                f"{first.path} and {other.path}: both are runs of {plan.name}, with different "
                f"predictions; leave one of them out, or say which with --data {plan.name}=PATH"
            )
    return first


def _check(given: Given, plan: Plan) -> None:
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
