"""The architecture, proved from the code: which module imports which.

Every import counts, also one inside a function; only those for type checkers don't.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "calibrant"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
CONTRIBUTING = SOURCE.parent.parent / "CONTRIBUTING.md"

# A room imports only from those above it. CONTRIBUTING.md shows the same list.
ROOMS = (
    "_version",
    "core",
    "predictions",
    "files",
    "sample",
    "metrics",
    "synthetic",
    "evaluation",
    "export",
    "posthoc",
    "comparison",
    "training",
    "report",
    "sklearn",
    "monitor",
    "scale",
    "studies",
    "cli",
    "__main__",
)
MOST_LOOSE_MODULES = 6
# A module has one subject; one that is longer has two.
MOST_LINES = 600
# Rooms that need neither of these; whoever wants a number waits for none of them.
LIGHT_ROOMS = ("core", "predictions", "metrics")
HEAVY = {"torch", "matplotlib", "scipy"}


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join([PACKAGE, *(part for part in parts if part != "__init__")])


FILES = {name_of(file): file for file in sorted(SOURCE.rglob("*.py"))}


def import_statements(node: ast.AST, *, inside_functions: bool) -> Iterator[ast.stmt]:
    """Yield the imports within a piece of code, however deep, but for those of type checkers."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = node.orelse
        for part in parts:
            yield from import_statements(part, inside_functions=inside_functions)


def imported(tree: ast.Module, *, inside_functions: bool = True) -> Iterator[str]:
    """Yield the dotted names that a module imports; names of the package as its modules."""
    for node in import_statements(tree, inside_functions=inside_functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else str(node.module)


TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}
ARROWS = {
    name: sorted({target for target in imported(tree) if target in FILES} - {name})
    for name, tree in TREES.items()
}


def circles(arrows: dict[str, list[str]]) -> list[list[str]]:
    """Return one circle for each module that can reach itself first, as a path that comes back."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in arrows[name]:
                visit(target, [*path, name])
            done.add(name)

    for name in arrows:
        visit(name, [])
    return found


def room_of(name: str) -> str:
    """Return the room of a module; the package's own `__init__` stands above all of them."""
    return name.split(".")[1] if "." in name else PACKAGE


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert [" -> ".join(circle) for circle in circles(ARROWS)] == []


def test_a_circle_would_be_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_module_imports_upwards() -> None:
    heights = {room: height for height, room in enumerate((*ROOMS, PACKAGE))}
    upwards = [
        f"{name} -> {target}"
        for name, targets in ARROWS.items()
        for target in targets
        if heights[room_of(name)] < heights[room_of(target)]
    ]
    assert upwards == []


def test_training_needs_no_calibrator() -> None:
    wanted = [
        f"{name} -> {target}"
        for name, targets in ARROWS.items()
        for target in targets
        if (room_of(name), room_of(target)) == ("training", "posthoc")
    ]
    assert wanted == []


def test_every_room_stands_in_the_list_and_every_name_in_it_is_a_room() -> None:
    assert {room_of(name) for name in FILES} - {PACKAGE} == set(ROOMS)


def test_the_map_for_contributors_shows_the_rooms_in_their_order() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    house = text.partition("## The house\n")[2].partition("\n### ")[0]
    shown = re.findall(r"^\| `([\w/.]+)` \|", house, flags=re.M)
    assert [name.removesuffix("/").removesuffix(".py") for name in shown] == list(ROOMS)
    for name in shown:
        assert (SOURCE / name).exists()


def test_few_modules_lie_loose_at_the_top() -> None:
    loose = [file.name for file in SOURCE.glob("*.py") if file.name != "__init__.py"]
    assert len(loose) <= MOST_LOOSE_MODULES, loose


def test_modules_are_short_enough_to_read_at_once() -> None:
    lines = {
        file.relative_to(SOURCE).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in FILES.values()
    }
    assert {name for name, length in lines.items() if length > MOST_LINES} == set()


@pytest.mark.parametrize("room", LIGHT_ROOMS)
def test_rooms_that_others_stand_on_load_no_heavy_library(room: str) -> None:
    heavy = [
        f"{name} -> {target}"
        for name, tree in TREES.items()
        if room_of(name) == room
        for target in imported(tree, inside_functions=False)
        if target.partition(".")[0] in HEAVY
    ]
    assert heavy == []


def test_training_loops_know_no_loss_by_name() -> None:
    losses = {
        node.name
        for name, tree in TREES.items()
        if name.startswith(f"{PACKAGE}.training.losses.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("Loss" in ast.unparse(base) for base in node.bases)
    }
    assert {"FeDLaS", "AdaFocal", "RankMixup", "CRL"} <= losses
    places = ("training.run", "training.adapters", "training.callback")
    named = [
        f"{name}: {node.id}"
        for name, tree in TREES.items()
        if name.startswith(tuple(f"{PACKAGE}.{place}" for place in places))
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in losses
    ]
    assert named == []
