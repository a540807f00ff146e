"""The architecture, proved from the code: which module imports which.

Every import counts, also one inside a function; for circles even one that only type checkers see.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from house import House, circles, of_many_parameters

PACKAGE = "calibrant"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
ARCHITECTURE = SOURCE.parent.parent / "docs/appendix/architecture.md"

# A room imports only from those above it. docs/appendix/architecture.md shows the same list.
ROOMS = (
    "_version",
    "core",
    "predictions",
    "files",
    "sample",
    "metrics",
    "synthetic",
    "scale",
    "evaluation",
    "export",
    "posthoc",
    "comparison",
    "decision",
    "training",
    "report",
    "sklearn",
    "monitor",
    "cli",
    "__main__",
)
MOST_LOOSE_MODULES = 6
# A module has one subject; one that is longer has two.
MOST_LINES = 600
# A smaller one that only one other imports belongs into that one.
FEWEST_LINES = 80
MOST_PARAMETERS = 7
# Rooms that need neither of these; whoever wants a number waits for none of them.
LIGHT_ROOMS = ("core", "predictions", "metrics")
HEAVY = {"torch", "matplotlib", "scipy"}


HOUSE = House(SOURCE)


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert [" -> ".join(circle) for circle in circles(HOUSE.typed_arrows)] == []


def test_a_circle_would_be_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_module_imports_upwards() -> None:
    assert HOUSE.upwards(ROOMS) == []


def test_training_needs_no_calibrator() -> None:
    wanted = [
        f"{name} -> {target}"
        for name, targets in HOUSE.arrows.items()
        for target in targets
        if (HOUSE.room_of(name), HOUSE.room_of(target)) == ("training", "posthoc")
    ]
    assert wanted == []


def test_every_room_stands_in_the_list_and_every_name_in_it_is_a_room() -> None:
    assert {HOUSE.room_of(name) for name in HOUSE.files} - {PACKAGE} == set(ROOMS)


def test_the_map_for_contributors_shows_the_rooms_in_their_order() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    house = text.partition("\n## ")[0]
    shown = re.findall(r"^\| `([\w/.]+)` \|", house, flags=re.M)
    assert [name.removesuffix("/").removesuffix(".py") for name in shown] == list(ROOMS)
    for name in shown:
        assert (SOURCE / name).exists()


def test_few_modules_lie_loose_at_the_top() -> None:
    loose = [file.name for file in SOURCE.glob("*.py") if file.name != "__init__.py"]
    assert len(loose) <= MOST_LOOSE_MODULES, loose


def test_modules_are_short_enough_to_read_at_once() -> None:
    long = {name for name, length in HOUSE.lengths().items() if length > MOST_LINES}
    assert long == set()


def test_no_small_module_stands_beside_the_only_one_that_needs_it() -> None:
    # The sample's data are a room of their own: they are public, whoever asks for them.
    small = [
        line for line in HOUSE.too_small(FEWEST_LINES) if not line.startswith("calibrant.sample,")
    ]
    assert small == []


def test_functions_of_many_parameters_say_why() -> None:
    assert HOUSE.of_many_parameters(MOST_PARAMETERS) == []


def test_a_function_of_many_parameters_would_be_found() -> None:
    plain = "def many(a, b, c): ..."
    said = "# Parameters: each is a choice of the user's.\n" + plain
    found = [[*of_many_parameters(ast.parse(text), text, 2)] for text in (plain, said)]
    assert [len(each) for each in found] == [1, 0]


@pytest.mark.parametrize("room", LIGHT_ROOMS)
def test_rooms_that_others_stand_on_load_no_heavy_library(room: str) -> None:
    heavy = [
        f"{name} -> {target}"
        for name, tree in HOUSE.trees.items()
        if HOUSE.room_of(name) == room
        for target in HOUSE.imported(tree, inside_functions=False)
        if target.partition(".")[0] in HEAVY
    ]
    assert heavy == []


def test_training_loops_know_no_loss_by_name() -> None:
    losses = {
        node.name
        for name, tree in HOUSE.trees.items()
        if name.startswith(f"{PACKAGE}.training.losses.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("Loss" in ast.unparse(base) for base in node.bases)
    }
    assert {"FeDLaS", "AdaFocal", "RankMixup", "CRL"} <= losses
    places = ("training.run", "training.adapters", "training.callback")
    named = [
        f"{name}: {node.id}"
        for name, tree in HOUSE.trees.items()
        if name.startswith(tuple(f"{PACKAGE}.{place}" for place in places))
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in losses
    ]
    assert named == []
