"""Runs that were given to a study and that none of its cells is about: how many, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.core.text import counted, shortened
from calibrant_studies.inputs import Inputs
from calibrant_studies.networks.plans import Plan
from calibrant_studies.networks.sources import configuration_of, made_by

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
