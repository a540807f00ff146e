"""Which module of a package imports which, read from its code; for the tests of both packages.

Every import counts, also one inside a function; only those for type checkers don't.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class House:
    """The modules of a package, by their dotted names.

    Attributes:
        source: folder of the package, which has its name.
        files: file of each module.
        trees: code of each module.
        arrows: modules of the package that each module imports.
    """

    source: Path
    files: dict[str, Path] = field(init=False)
    trees: dict[str, ast.Module] = field(init=False)
    arrows: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.files = {self._name_of(file): file for file in sorted(self.source.rglob("*.py"))}
        self.trees = {
            name: ast.parse(file.read_text(encoding="utf-8")) for name, file in self.files.items()
        }
        self.arrows = {
            name: sorted({t for t in self.imported(tree) if t in self.files} - {name})
            for name, tree in self.trees.items()
        }

    def _name_of(self, file: Path) -> str:
        parts = file.relative_to(self.source).with_suffix("").parts
        return ".".join([self.source.name, *(part for part in parts if part != "__init__")])

    def imported(self, tree: ast.Module, *, inside_functions: bool = True) -> Iterator[str]:
        """Yield the dotted names that a module imports; names of the package as its modules."""
        for node in import_statements(tree, inside_functions=inside_functions):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, "relative imports are not used here"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in self.files else str(node.module)

    def room_of(self, name: str) -> str:
        """Return the room of a module; the package's own `__init__` stands above all of them."""
        return name.split(".")[1] if "." in name else self.source.name

    def upwards(self, rooms: tuple[str, ...]) -> list[str]:
        """Return the imports from a room that stands later in a list than the importing one."""
        heights = {room: height for height, room in enumerate((*rooms, self.source.name))}
        return [
            f"{name} -> {target}"
            for name, targets in self.arrows.items()
            for target in targets
            if heights[self.room_of(name)] < heights[self.room_of(target)]
        ]

    def lengths(self) -> dict[str, int]:
        """Return the number of lines of each module, by its path within the package."""
        return {
            file.relative_to(self.source).as_posix(): len(file.read_text("utf-8").splitlines())
            for file in self.files.values()
        }


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
