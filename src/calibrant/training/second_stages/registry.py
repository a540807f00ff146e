"""Second stages by name, as the command line and studies ask for them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from calibrant.core.arguments import named
from calibrant.core.errors import InputError, UnknownMethodError
from calibrant.training.second_stages.balcal import BalCAL
from calibrant.training.second_stages.maccal import MaCCal
from calibrant.training.second_stages.masked import HeadRetraining
from calibrant.training.second_stages.stage import SecondStage
from calibrant.training.second_stages.two_stage import TwoStageTraining, VariationalTwoStageTraining

SECOND_STAGES: dict[str, type[SecondStage]] = {
    stage.method: stage
    for stage in (
        MaCCal,
        HeadRetraining,
        TwoStageTraining,
        VariationalTwoStageTraining,
        BalCAL,
    )
}


def make_second_stage(method: str, **arguments: Any) -> SecondStage:
    """Return the second stage of that name, not yet fitted.

    Raises:
        UnknownMethodError: no such name.
        InputError: an argument that it doesn't have.
    """
    if method == "plp":
        raise UnknownMethodError(
            "PLP trains the whole network, not a head on its features; use "
            "calibrant.training.second_stages.ProgressiveLayerPeeling"
        )
    kind = named(SECOND_STAGES, method, "second stage")
    known = {item.name: item.default for item in fields(kind) if item.init}
    for name, value in arguments.items():
        if name not in known:
            raise InputError(
                f"{method} has no argument '{name}'; it has: {', '.join(sorted(known))}"
            )
        if isinstance(known[name], bool) and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {value!r}")
    return kind(**arguments)
