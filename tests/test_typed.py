"""Values of JSON as fields of known types have them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from calibrant.core.typed import typed


class Ends(NamedTuple):
    low: float
    high: float | None


@dataclass(frozen=True)
class Inner:
    name: Literal["level", "change"]
    rows: int


@dataclass(frozen=True)
class Outer:
    inner: Inner
    parts: list[Inner]
    ends: dict[str, Ends]
    pairs: tuple[tuple[int, str], ...] | None
    sure: bool | None = None
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


WHOLE = {
    "inner": {"name": "level", "rows": 3},
    "parts": [{"name": "change", "rows": 0}],
    "ends": {"a": [1, None], "b": [0.5, 2.0]},
    "pairs": [[1, "x"]],
    "notes": {"anything": [1, {"at": None}]},
}


def test_what_json_holds_becomes_fields_of_their_types():
    found = typed(Outer, json.loads(json.dumps(WHOLE)), "it")
    ends = {"a": Ends(1.0, None), "b": Ends(0.5, 2.0)}
    inner, part = Inner("level", 3), Inner("change", 0)
    assert found == Outer(inner, [part], ends, ((1, "x"),), None, WHOLE["notes"])


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *[(int, value) for value in (1.0, True, "1", None, [])],
        *[(float, value) for value in (True, "1", None, float("nan"), -float("inf"), 10**400)],
        *[(str, 1), (bool, 1), (bool | None, 0), (list[int], [True]), (list[int], {})],
        *[(dict[str, int], {"a": 1.5}), (dict[str, int], []), (tuple[int, int], [1])],
        *[(tuple[int, ...], "12"), (Ends, [1.0]), (Ends, {"low": 1.0, "high": 2.0})],
        *[(Literal["a"], "b"), (Literal["a"], None), (Literal["a"], ["a"])],
        *[(Inner, {"name": "level"}), (Inner, []), (Inner, WHOLE["inner"] | {"more": 1})],
        *[(Outer, WHOLE | {"sure": 1}), (Outer, WHOLE | {"parts": [{"name": "other", "rows": 1}]})],
    ],
)
def test_what_is_of_another_type_is_refused(hint, value):
    with pytest.raises(ValueError, match=r"^it can't be "):
        typed(hint, value, "it")
