"""Commands of other packages, found by the entry point group ``calibrant.commands``.

An entry point names a function, or a `typer.Typer` with commands of its own. They are looked for
when a command isn't built in, and when all commands are listed.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from calibrant.core.errors import InputError
from calibrant.core.plug_ins import plugged_in

GROUP = "calibrant.commands"
# Commands that packages of this project add.
ELSEWHERE = {"study": "calibrant-studies"}


class CommandsWithPlugIns(TyperGroup):
    """The built-in commands, and behind them those of other packages."""

    def _plugged_in(self) -> Any:
        return plugged_in(GROUP, "command", _command, tuple(self.commands))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *self._plugged_in()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None where no package has one of that name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = self._plugged_in().get(cmd_name)
        if found is None and cmd_name in ELSEWHERE:
            package = ELSEWHERE[cmd_name]
            raise InputError(
                f"'{cmd_name}' is a command of the package {package}: pip install {package}"
            )
        return found


def _command(name: str, found: Any) -> Any:
    """Return what the command line calls, or raise for the reason why there is nothing."""
    if not isinstance(found, typer.Typer):
        if not callable(found):
            raise TypeError("it is neither a function nor a typer.Typer")
        function, found = found, typer.Typer()
        found.command()(function)
    command = get_command(found)
    command.name = name
    return command
