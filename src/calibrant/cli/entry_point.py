"""How the command line begins and ends: one sentence for whatever stops it, and an exit code.

Little is imported here, so that an interrupt while the rest is being imported ends as any other.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from calibrant.cli.output import finish_output, painted_sentence, take_any_text
from calibrant.core.errors import PROPOSED, CalibrantError
from calibrant.core.outputs import removed_when_killed
from calibrant.core.text import on_one_line

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
    """Run the command line, of which `words` are the words, and return its exit code.

    0, also if whoever reads the output has had enough of it; 2 with one sentence for bad input; 130
    after an interrupt. A signal that kills still does.
    """
    with removed_when_killed():
        try:
            take_any_text()
            code = _called(words)
            finish_output()
        except KeyboardInterrupt:
            code = _said(_interrupted(words), INTERRUPTED)
            # Python remembers an interrupt that ended an `exec` of text, as dataclasses have them,
            # and would die of it in the end; the next `exec` makes it forget.
            exec("")
        except CalibrantError as error:
            said, _, line = str(error).partition(PROPOSED)
            # The command stands where the eye is: after the reason, before the details.
            # A name of a file, which comes first, may hold what parts them.
            where, colon, told = said.partition(": ")
            reason, _, details = told.partition("; ") if line else (told, "", "")
            code = _said(f"error: {where}{colon}{reason}", BAD_INPUT)
            if line:
                _said(f"to read it so: {_proposed(words, line)}", BAD_INPUT)
            if details:
                _said(f"details: {details}", BAD_INPUT)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            code = _said(f"error: {where}{error.strerror or error}", BAD_INPUT)
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


def _called(words: Sequence[str]) -> int:
    import typer

    from calibrant.cli.app import app
    from calibrant.cli.output import warnings_to_stderr

    try:
        with warnings_to_stderr():
            code = app(words[1:], prog_name="calibrant", standalone_mode=False) or 0
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as ended:
        # The library's code for a closed pipe; a command that has more to do than talk did fail.
        unread = isinstance(ended.__context__, BrokenPipeError)
        if unread and (len(words) == 1 or not HELP.isdisjoint(words)):
            return 0
        raise
    except Exception as error:
        # A wrong use of the command line; its class has moved between versions of the library.
        sentence = getattr(error, "format_message", None)
        if sentence is None:
            raise
        return _said(f"error: {_usage_error(error, sentence())}", BAD_INPUT)
    if code == INTERRUPTED:  # some versions of the library turn the exception into the code
        raise KeyboardInterrupt
    return code


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
