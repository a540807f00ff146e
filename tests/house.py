"""Which module of a package imports which, read from its code; for the tests of both packages.

Every import counts, also one inside a function. Those that only type checkers see count for
circles: a reader follows them too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass
class House:
    """The modules of a package, by their dotted names; read when they are asked for.

    Attributes:
        source: folder of the package, which has its name.
    """

    source: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """File of each module."""
        return {self._name_of(file): file for file in sorted(self.source.rglob("*.py"))}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Code of each module."""
        return {
            name: ast.parse(file.read_text(encoding="utf-8")) for name, file in self.files.items()
        }

    @cached_property
    def arrows(self) -> dict[str, list[str]]:
        """Modules of the package that each module imports."""
        return self._arrows(types=False)

    @cached_property
    def typed_arrows(self) -> dict[str, list[str]]:
        """The same with the imports that only type checkers see."""
        return self._arrows(types=True)

    def _arrows(self, types: bool) -> dict[str, list[str]]:
        return {
            name: sorted({t for t in self.imported(tree, types=types) if t in self.files} - {name})
            for name, tree in self.trees.items()
        }

    def _name_of(self, file: Path) -> str:
        parts = file.relative_to(self.source).with_suffix("").parts
        return ".".join([self.source.name, *(part for part in parts if part != "__init__")])

    def imported(
        self, tree: ast.Module, *, inside_functions: bool = True, types: bool = False
    ) -> Iterator[str]:
        """Yield the dotted names that a module imports; names of the package as its modules."""
        for node in import_statements(tree, inside_functions=inside_functions, types=types):
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

    def too_small(self, fewest_lines: int) -> list[str]:
        """Return modules below so many lines that only one other module imports."""
        importers = {
            name: [other for other, targets in self.typed_arrows.items() if name in targets]
            for name in self.files
        }
        lengths = self.lengths()
        return [
            f"{name}, only {importers[name][0]} imports it"
            for name, file in self.files.items()
            if len(importers[name]) == 1
            and not file.name.startswith("_")
            and lengths[file.relative_to(self.source).as_posix()] < fewest_lines
        ]

    def of_many_parameters(self, most: int) -> list[str]:
        """Return functions of more parameters than that, without a reason beside them."""
        return [
            f"{name}:{node.lineno} {node.name}"
            for name, tree in self.trees.items()
            for node in of_many_parameters(tree, self.files[name].read_text("utf-8"), most)
        ]


def of_many_parameters(
    tree: ast.Module, text: str, most: int
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions of more than `most` parameters with no comment that says why beside them.

    It begins with ``# Parameters:`` and stands just above the function, or within its signature.
    """
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(each.arg not in ("self", "cls") for each in given)
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            beside = lines[max(first - 2, 0) : node.body[0].lineno]
            if count > most and not any("# Parameters:" in line for line in beside):
                yield node


def import_statements(
    node: ast.AST, *, inside_functions: bool, types: bool = False
) -> Iterator[ast.stmt]:
    """Yield the imports within a piece of code, however deep; of type checkers' if asked for."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
            parts = node.orelse
        for part in parts:
            yield from import_statements(part, inside_functions=inside_functions, types=types)


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
