"""Help texts: plain text of 80 columns, options in panels, a command to a line.

``--help`` fits a screen: it explains the options of the command itself and its outputs, and names
the others. ``--help-all`` explains all.

Commands of other packages look the same if they are made with these classes:
``typer.Typer(cls=Group)`` and ``app.command(cls=Command)``.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant.cli.output import BOLD, coloured, has_colours
from calibrant.core.text import TERMINAL_WIDTH, wrap

# Panels of a help text, in their order; the rare ones come last.
OWN, INTERVALS, OUTPUT = "Options", "Intervals", "Output"
READING, ROWS, MANY = "Reading the file", "Kinds of predictions", "Many files"
LOGS = "Language models"
FIRST, RARE = (OWN, INTERVALS, OUTPUT), (READING, LOGS, ROWS, MANY)
# What the short help explains.
EXPLAINED = (OWN, OUTPUT)
# The parameter of the option that explains the rest.
HELP_ALL = "help_all"
FURTHER = "Further options, explained by --help-all"
# Where the second of two columns begins: beside options, and beside commands.
INDENT, OF_COMMANDS = 24, 12


# What a declaration may ask of a value beside its type; those of the second line are so by default.
_ASKED = ("parser", "min", "max", "exists", "writable", "resolve_path", "allow_dash", "path_type")
_FILES = ("file_okay", "dir_okay", "readable")
_NUMBERS = {int: r"-?[0-9]{1,15}", float: r"-?[0-9]{1,15}(\.[0-9]{1,15})?"}


class _PlainWords:
    """Takes the words that an option is given as what they plainly are.

    Newer versions of the library check every word by pydantic, which takes longer to import than
    most commands take. Whatever isn't plain goes its way, so that wrong words fail as ever.
    """

    def __init__(self, parameter: Any, checked: Callable[[], Any]) -> None:
        self._type = parameter.type_descriptor.annotation
        about = parameter.type_descriptor.parameter_info
        self._asked = any(getattr(about, name, None) not in (None, False) for name in _ASKED)
        self._asked |= not all(getattr(about, name, True) for name in _FILES)
        self._checked = checked

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of an option; None if it wasn't given."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if not self._asked:
            if many and get_origin(self._type) is list:
                kind, words = get_args(self._type)[0], [*value]
                if all(_is_plain(kind, word) for word in words):
                    return [kind(word) for word in words]
            elif not many and _is_plain(self._type, value):
                return self._type(value)
        return self._checked().coerce(value, param=param, ctx=ctx)


def _is_plain(kind: Any, word: Any) -> bool:
    """Whether a word, or a default, is one of this type beyond doubt."""
    if type(word) is kind:
        return kind in (str, int, float, bool)
    if not isinstance(word, str):
        return False
    if kind is Path:
        return not os.path.exists(word) or os.access(word, os.R_OK)
    return kind in _NUMBERS and re.fullmatch(_NUMBERS[kind], word) is not None


class _TakesPlainWords:
    """A command whose options and arguments are taken so."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, also those that the library adds."""
        base: Any = super()
        found: list[Any] = base.get_params(ctx)
        for each in found:
            if hasattr(each, "get_runtime_param") and "get_runtime_param" not in vars(each):
                plain = _PlainWords(each, each.get_runtime_param)
                each.get_runtime_param = partial(_itself, plain)
        return found


def _itself(plain: _PlainWords) -> _PlainWords:
    return plain


class Command(_TakesPlainWords, TyperCommand):
    """A command. The `ending` of its function, if it has one, makes the last paragraph."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text that fits a screen; the whole one if the command has no other."""
        short = any(each.name == HELP_ALL for each in self.params)
        formatter.write(self.help_text(ctx, whole=not short))

    def help_text(self, ctx: Any, *, whole: bool = False) -> str:
        """Return the help text.

        Args:
            ctx: of the command.
            whole: whether all options are explained.
        """
        shown: list[Any] = [
            each for each in self.get_params(ctx) if not getattr(each, "hidden", False)
        ]
        arguments = [each for each in shown if each.param_type_name == "argument"]
        usage = " ".join(["[OPTIONS]", *map(_argument, arguments)])
        blocks = [f"Usage: {ctx.command_path} {usage}", paragraphs(self.help or "")]
        if arguments:
            blocks.append(columns((_argument(each), each.help or "") for each in arguments))
        blocks += _panels([each for each in shown if each not in arguments], whole=whole)
        ending = getattr(self.callback, "ending", None)
        if whole and ending is not None:
            blocks.append(wrap(ending()))
        return "\n\n".join(blocks) + "\n"


def explain_all(ctx: typer.Context, wanted: bool) -> None:
    """Print the whole help text of a command, if it is wanted, and end."""
    if wanted:
        command: Any = ctx.command
        print(command.help_text(ctx, whole=True), end="")
        raise typer.Exit


class Group(_TakesPlainWords, TyperGroup):
    """A command that has commands of its own."""

    def panels(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the commands of each panel of the help text."""
        return {"Commands": names}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        blocks = [f"Usage: {ctx.command_path} [OPTIONS] COMMAND ...", paragraphs(self.help or "")]
        for title, names in self.panels(self.list_commands(ctx)).items():
            rows = [(name, _summary(self.get_command(ctx, name))) for name in names]
            blocks.append(_headed(title, rows, OF_COMMANDS))
        blocks += _panels(self.get_params(ctx), whole=True)
        formatter.write("\n\n".join(blocks) + "\n")


def ends_with(ending: Callable[[], str]) -> Callable[[Any], Any]:
    """Return a decorator of commands whose help ends with a paragraph, made when it is shown."""

    def mark(command: Any) -> Any:
        command.ending = ending
        return command

    return mark


def paragraphs(text: str) -> str:
    """Return a docstring with each paragraph broken at 80 columns."""
    return "\n\n".join(
        wrap(" ".join(each.split())) for each in inspect.cleandoc(text).split("\n\n")
    )


def columns(rows: Iterable[tuple[str, str]], indent: int = INDENT) -> str:
    """Return names with their meanings beside them."""
    lines: list[str] = []
    for name, meaning in rows:
        begin = f"  {name}".ljust(indent)
        if len(begin) > indent or begin[-1] != " ":
            lines.append(begin.rstrip())
            begin = " " * indent
        lines.append(
            textwrap.fill(
                meaning,
                TERMINAL_WIDTH,
                initial_indent=begin,
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)


def _summary(command: Any) -> str:
    """Return the first paragraph of a command's help."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _headed(title: str, rows: Iterable[tuple[str, str]], indent: int = INDENT) -> str:
    head = coloured(BOLD, title) if has_colours(sys.stdout) else title
    return f"{head}\n{columns(rows, indent)}"


def _panels(options: Sequence[Any], *, whole: bool) -> list[str]:
    """Return options by panel, those of the command itself first; `whole` to explain them all."""
    titles = [getattr(each, "rich_help_panel", None) or OWN for each in options]
    # Those of a single command come before those that many share.
    order = [*FIRST, *(title for title in titles if title not in RARE), *RARE]
    panels: dict[str, list[tuple[str, str]]] = {title: [] for title in order}
    named: dict[str, str] = {}
    for title, each in zip(titles, options, strict=True):
        if whole or title in EXPLAINED or each.required:
            panels[title].append(_option(each))
        else:
            named[title] = ", ".join([*filter(None, [named.get(title)]), each.opts[0]])
    blocks = [_headed(title, rows) for title, rows in panels.items() if rows]
    further = [(title, named[title]) for title in panels if title in named]
    return [*blocks, _headed(FURTHER, further)] if further else blocks


def _argument(each: Any) -> str:
    name = each.metavar or each.name.upper()
    return name if each.required else f"[{name}]"


def _option(each: Any) -> tuple[str, str]:
    names = ", ".join([*sorted(each.opts, key=len), *each.secondary_opts])
    meaning = each.help or ""
    if each.required:
        meaning += " Required."
    elif each.show_default and each.default is not None and not isinstance(each.default, bool):
        meaning += f" Default: {each.default}."
    return (f"{names} {each.metavar}" if each.metavar else names), meaning
