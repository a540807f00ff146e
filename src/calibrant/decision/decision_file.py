"""A decision as a file: calibrator, rule, numbers and promise in one file of safetensors.

The header holds the header of the calibrator, as a file of its own would have it, and the numbers
of the decision as JSON; arrays of either have its name before theirs. A decision by groups holds
those of its groups in the same way, numbered, behind the one calibrator. Nothing is unpickled, and
a file is proved before it is used: the calibrator as `calibrant.load` does, each number by the type
and the limits of its field.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from os import fspath
from typing import Any, cast, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import CalibratorFileError, InputError
from calibrant.core.outputs import StrPath
from calibrant.core.typed import typed
from calibrant.decision.base import Decision, Share
from calibrant.decision.cost import CostDecision
from calibrant.decision.grouped import GroupedDecision
from calibrant.decision.risk import RiskDecision
from calibrant.decision.sets import SetDecision
from calibrant.files.parameters import ParameterFormat
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.loading import calibrator_in
from calibrant.posthoc.state import all_state, described

FORMAT = ParameterFormat("calibrant-decision", 1, "a decision", "numpy")
RULES: dict[str, type[Decision]] = {
    each.rule: each for each in (RiskDecision, CostDecision, SetDecision, GroupedDecision)
}
GROUPS, TOO_SMALL = "groups", "too_small"
WITHIN = "calibrator/"
# Value and interval of a share, of which those of no rows are None.
ENDS = tuple[float | None, float | None, float | None]
SHARES: dict[Any, Any] = {Share: ENDS, Share | None: ENDS | None}


def save_decision(decision: Decision, path: StrPath) -> None:
    """Write a decision to `path`, which must end in ``.safetensors``.

    Raises:
        InputError: another extension, a folder that doesn't exist, or nothing was decided.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.decision import load_decision, save_decision
        >>> found = cb.decide("temperature", cb.load_sample("test"), risk=0.05)
        >>> save_decision(found, "decision.safetensors")
        >>> load_decision("decision.safetensors").threshold == found.threshold
        True
    """
    FORMAT.check_extension(path)
    if not decision.decides:
        raise InputError(f"{fspath(path)}: there is no decision to save. {decision.headline()}")
    arrays = {WITHIN + name: array for name, array in all_state(decision.calibrator).items()}
    plain = _stored(decision, "", arrays)
    header = {
        "rule": decision.rule,
        "decision": json.dumps(plain),
        "calibrator": json.dumps(described(decision.calibrator)),
        "promise": decision.promise(),
    }
    FORMAT.write(path, header, arrays)


def _stored(decision: Decision, within: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the fields of a decision as JSON takes them, and put its arrays to the others.

    Args:
        decision: whose calibrator is left out.
        within: what the names of its arrays begin with; arrays: of the whole file.
    """
    plain: dict[str, Any] = {}
    for each in fields(decision):
        value: Any = getattr(decision, each.name)
        if each.name == "calibrator":
            continue
        if isinstance(value, np.ndarray):
            arrays[within + each.name] = np.ascontiguousarray(cast(NDArray[Any], value))
        elif each.name == GROUPS:
            parts = cast(dict[str, Decision], value).items()
            plain[GROUPS] = [
                [name, part.rule, _stored(part, f"{within}{GROUPS}/{number}/", arrays)]
                for number, (name, part) in enumerate(parts)
            ]
        elif isinstance(value, dict) and each.name != TOO_SMALL:
            items = cast(dict[str, NDArray[Any]], value).items()
            arrays |= {f"{within}{each.name}/{n}": np.ascontiguousarray(a) for n, a in items}
        elif isinstance(value, Share):
            numbers = cast(list[float], list(vars(value).values()))
            # Of no rows there is no share.
            plain[each.name] = [None if math.isnan(number) else number for number in numbers]
        else:
            plain[each.name] = value
    return plain


def is_decision(path: StrPath) -> bool:
    """Return whether a file of safetensors says that it holds a decision."""
    return FORMAT.holds(path)


def load_decision(path: StrPath) -> Decision:
    """Return the decision that `save_decision` wrote.

    Raises:
        CalibratorFileError: the file is missing, damaged, no decision, of a newer format, or its
            numbers make no decision of its rule.

    Examples:
        >>> import calibrant as cb
        >>> from calibrant.decision import load_decision, save_decision
        >>> test = cb.load_sample("test")
        >>> save_decision(cb.decide("temperature", test, risk=0.05), "decision.safetensors")
        >>> load_decision("decision.safetensors").of_rows(test)["answer"][:3].tolist()
        [True, True, True]
    """
    source = fspath(path)
    header, state = FORMAT.read(path)
    kind = _known(header.get("rule", ""), source)
    try:
        inner = cast(dict[str, Any], json.loads(header["calibrator"]))
        plain = cast(dict[str, Any], json.loads(header["decision"]))
        of_calibrator = {name: str(value) for name, value in inner.items()}
        arrays = {n.removeprefix(WITHIN): a for n, a in state.items() if n.startswith(WITHIN)}
        fitted = calibrator_in(of_calibrator, arrays, source)
        found = _made(kind, plain, state, fitted, source)
    except CalibratorFileError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CalibratorFileError(f"{source}: the header is damaged ({error})") from error
    fault = found.fault()
    if fault is not None:
        raise CalibratorFileError(
            f"{source}: its numbers make no decision by {found.rule}: {fault}"
        )
    return found


def _known(rule: Any, source: str) -> type[Decision]:
    kind = RULES.get(str(rule))
    if kind is None:
        raise CalibratorFileError(
            f"{source}: decides by the unknown rule '{str(rule)[:40]}'; this version knows: "
            f"{', '.join(RULES)}"
        )
    return kind


def _made(
    kind: type[Decision],
    plain: dict[str, Any],
    state: dict[str, NDArray[Any]],
    calibrator: Calibrator,
    source: str,
) -> Decision:
    """Return the decision of some fields; `ValueError` for what doesn't fit."""
    if kind is not GroupedDecision:
        return kind(calibrator=calibrator, **_values(kind, plain, state))
    groups: dict[str, Any] = {}
    for number, (name, rule, own) in enumerate(cast(list[list[Any]], plain[GROUPS])):
        within = f"{GROUPS}/{number}/"
        arrays = {n.removeprefix(within): a for n, a in state.items() if n.startswith(within)}
        part = _known(rule, source)
        if not issubclass(part, RiskDecision | SetDecision):
            raise ValueError(f"groups can't be decided by {part.rule}")
        groups[typed(str, name, GROUPS)] = _made(part, own, arrays, calibrator, source)
    values = _values(kind, plain, state)
    return kind(calibrator=calibrator, **values, groups=groups)


def _values(
    kind: type[Decision], plain: dict[str, Any], state: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the fields of a decision but its calibrator and groups."""
    hints, found = get_type_hints(kind), dict[str, Any]()
    for each in fields(kind):
        hint, name = hints[each.name], each.name
        if name in ("calibrator", GROUPS):
            continue
        if get_origin(hint) is dict and name != TOO_SMALL:
            inner = {n.removeprefix(f"{name}/"): a for n, a in state.items()}
            found[name] = {n: _array(a, name) for n, a in inner.items() if f"{name}/{n}" in state}
        elif get_origin(hint) in (np.ndarray, NDArray):  # since NumPy 2.5 an alias
            found[name] = _array(state[name], name)
        elif name in plain or each.default is MISSING:
            own = typed(SHARES.get(hint, hint), plain[name], name)
            if hint in SHARES and own is not None:
                own = Share(*(math.nan if end is None else end for end in own))
            found[name] = own
    return found


def _array(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError(f"{name} isn't made of finite float64 numbers")
    return array
