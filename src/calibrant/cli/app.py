"""The commands by name, each imported when it is asked for, and how the command line ends.

Whatever stops it is one sentence and an exit code.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from calibrant._version import __version__
from calibrant.cli.help import Command, Group
from calibrant.cli.output import (
    finish_output,
    painted_sentence,
    take_any_text,
    warnings_to_stderr,
)
from calibrant.core.arguments import unknown
from calibrant.core.errors import CalibrantError, InputError, PredictionsError
from calibrant.core.outputs import removed_when_killed
from calibrant.core.plug_ins import plugged_in
from calibrant.core.text import on_one_line

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


BAD_INPUT = 2
INTERRUPTED = 130
HELP = {"-h", "--help", "--help-all"}
# What to do after an interrupt; outputs are whole or not there, so there is nothing to tidy.
AFTER_AN_INTERRUPT = {
    "train": "run the same command with --resume to go on from the last checkpoint",
    "monitor": "with --state, the same command continues where it stopped",
    "apply": "no output is half written; run the same command again, and it writes the files that "
    "are missing",
}
START_AGAIN = "no output is half written; run the same command again"


def run(words: Sequence[str]) -> int:
    """Run the command line with these words, and return its exit code.

    The code is 0, also if the reader of the output closes it early; 2 for bad input, after one
    sentence; 130 after an interrupt. A signal that kills the process still does.
    """
    with removed_when_killed():
        try:
            take_any_text()
            with warnings_to_stderr():
                code = app(words[1:], prog_name="calibrant", standalone_mode=False) or 0
            if code == INTERRUPTED:  # some versions of the library turn the exception into the code
                raise KeyboardInterrupt
            finish_output()
        except (KeyboardInterrupt, typer.Abort):
            code = _said(_interrupted(words), INTERRUPTED)
            # Python remembers an interrupt that ended an `exec` of text, as dataclasses have them,
            # and would die of it in the end; the next `exec` makes it forget.
            exec("")
        except CalibrantError as error:
            # A command stands where the eye is: after the reason, before the details.
            if isinstance(error, PredictionsError) and error.line:
                code = _said(f"error: {error.reason}", BAD_INPUT)
                _said(f"to read it so: {_proposed(words, error.line)}", BAD_INPUT)
                if error.details:
                    _said(f"details: {error.details}", BAD_INPUT)
            else:
                code = _said(f"error: {error}", BAD_INPUT)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            code = _said(f"error: {where}{error.strerror or error}", BAD_INPUT)
        except SystemExit as ended:
            # The library's code for a closed pipe; a command with more to do than talk did fail.
            unread = isinstance(ended.__context__, BrokenPipeError)
            if not unread or (len(words) > 1 and HELP.isdisjoint(words)):
                raise
            finish_output()
            code = 0
        except Exception as error:
            # A wrong use of the command line; its class has moved between versions of the library.
            sentence = getattr(error, "format_message", None)
            if sentence is None:
                raise
            code = _said(f"error: {_usage_error(error, sentence())}", BAD_INPUT)
    return code


def _proposed(words: Sequence[str], line: str) -> str:
    """Return the command that was given, with the options of a proposed one in place of its own.

    Args:
        words: of the command line.
        line: ``calibrant measure FILE`` and the options that read the file, which hold those that
            were given; perhaps behind a command that unpacks the file, and a pipe.
    """
    before, pipe, own = line.rpartition(" | ")
    _, _, file, *options = shlex.split(own)
    if pipe:
        packed = [word for word in shlex.split(before) if not word.startswith("-")]
        words = ["-" if word in packed else word for word in words]
    names = set(options[::2])
    if len(words) < 2 or file not in words:
        return line
    given: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in names:
            next(rest, None)
        elif word.partition("=")[0] not in names:
            given.append(word)
    return before + pipe + shlex.join(["calibrant", *given, *options])


def _interrupted(words: Sequence[str]) -> str:
    """Return the sentence after an interrupt, with what to do next."""
    verb = words[1] if len(words) > 1 else ""
    return f"interrupted: {AFTER_AN_INTERRUPT.get(verb, START_AGAIN)}"


def _usage_error(error: Any, sentence: str) -> str:
    """Return one sentence about a wrong use of the command line, and where to look."""
    from calibrant.cli.options import RENAMED

    option = getattr(error, "option_name", None)
    if option in RENAMED:
        sentence = f"{option} is now {RENAMED[option]}"
    context = getattr(error, "ctx", None)
    path = "calibrant" if context is None else context.command_path
    return f"{' '.join(sentence.split()).rstrip('.')}; see {path} --help"


def _said(sentence: str, code: int) -> int:
    # Nobody may be there to read this either.
    with suppress(OSError):
        print(painted_sentence(on_one_line(sentence), sys.stderr), file=sys.stderr)
    return code
