"""The commands by name. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from calibrant._version import __version__
from calibrant.cli.help import Command, Group
from calibrant.core.arguments import unknown
from calibrant.core.errors import InputError
from calibrant.core.plug_ins import plugged_in

# The panels of the help text: commands, each with the module of this room that has it.
COMMANDS = {
    "Measure and recalibrate": {
        "measure": "measure",
        "fit": "fit",
        "apply": "fit",
        "compare": "compare",
        "inspect": "measure",
    },
    "Decide": {"decide": "decide"},
    "Deploy and watch": {"export": "export", "monitor": "monitor"},
    "Train": {"train": "train", "head": "head"},
    "Look up and try": {"methods": "catalogue", "metrics": "catalogue", "demo": "compare"},
}
MODULES = {name: module for panel in COMMANDS.values() for name, module in panel.items()}
# Entry points of this group are commands of other packages: a function, or a `typer.Typer` with
# commands of its own.
PLUG_INS = "calibrant.commands"
# Commands that packages of this project add.
ELSEWHERE = {"study": "calibrant-studies"}
OTHERS = "Other packages"


class Commands(Group):
    """The commands of this package, and those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*MODULES, *_plug_ins()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None where no package has one of that name."""
        if cmd_name not in MODULES:
            found = _plug_ins().get(cmd_name)
            if found is None and cmd_name in ELSEWHERE:
                package = ELSEWHERE[cmd_name]
                raise InputError(
                    f"'{cmd_name}' is a command of the package {package}: pip install {package}"
                )
            return found
        return _built(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, and the other words."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown(self.list_commands(ctx), args[0], "command")
        return super().resolve_command(ctx, args)

    def panels(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the commands of each panel of the help text."""
        others = [name for name in names if name not in MODULES]
        return {title: list(panel) for title, panel in COMMANDS.items()} | (
            {OTHERS: others} if others else {}
        )


def command_of(name: str, found: Any) -> Any:
    """Return what the command line calls.

    Args:
        name: of the command.
        found: a function, whose dataclasses become options, or a `typer.Typer`.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(found, typer.Typer):
        if not callable(found):
            raise TypeError("it is neither a function nor a typer.Typer")
        from calibrant.cli.options import flattened

        function: Any = found
        found = typer.Typer(add_completion=False)
        found.command(name, cls=Command, context_settings=SETTINGS)(flattened(function))
    command = get_command(found)
    command.name = name
    return command


@cache
def _built(name: str) -> Any:
    """Return a command of this package; a process builds it once, however often it is called."""
    return command_of(name, getattr(import_module(f"calibrant.cli.{MODULES[name]}"), name))


def _plug_ins() -> Mapping[str, Any]:
    return plugged_in(PLUG_INS, "command", command_of, tuple(MODULES))


SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="calibrant",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"calibrant {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Measure and correct the confidence of classifiers, compare methods, deploy, watch, train."""
    if context.invoked_subcommand is None:
        print(context.get_help())
