"""Run a page from top to bottom in an empty folder, and compare what it prints with what it shows.

    python -m scripts.documentation.running docs/start.md             # compare
    python -m scripts.documentation.running --write docs/tours/*.md   # put the outputs in

Three kinds of fenced blocks are run, in their order and in one folder:

- ``python``: all blocks share their names. A ``text`` block right behind one is what it prints.
- ``console``: lines that begin with ``$ `` are commands, what follows each is what it prints. After
  ``# exit code N`` at the end of a command it has to end with N; ``2> FILE`` works as in a shell.
- ``python`` with the first line ``# NAME.py`` is only written to that file.

Every other block is shown and not run. Where numbers have decimals, the last printed digit may
differ by one: processors round sums differently. A line ``...`` in an output stands for any lines,
and ``...`` within a line for any characters, such as a time. Pictures that a page shows from
``made/`` are files of these names in the folder of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^```(?P<kind>python|console)\n(?P<body>.*?)^```$(?:\n+^```text\n(?P<out>.*?)^```$)?",
    flags=re.MULTILINE | re.DOTALL,
)
SAVED = re.compile(r"# (?P<name>\w+\.py)\n")
EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
MADE = re.compile(r"\]\((?:\.\./)?made/([\w.-]+)\)")
TIME = re.compile(r"\d+(?:\.\d+)? (?:m?s|seconds)\b")
NUMBER = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Difference:
    """What a block printed that the page doesn't show.

    Attributes:
        where: page and line.
        shown: by the page.
        printed: by the run.
    """

    where: str
    shown: str
    printed: str

    def __str__(self) -> str:
        """Return both texts, one below the other."""
        return f"{self.where}: the page shows\n{self.shown}\nbut the run prints\n{self.printed}"


class PageError(Exception):
    """A block of a page failed."""


@dataclass(frozen=True)
class RanPage:
    """What the run of a page found.

    Attributes:
        text: the page with the outputs of the run in it.
        differences: between the outputs of the page and those of the run.
    """

    text: str
    differences: list[Difference]


def run_page(page: Path, folder: Path, made: Path | None = None) -> RanPage:
    """Run a page in an empty folder.

    Args:
        page: the Markdown file.
        folder: an empty folder, where its files are written.
        made: where the pictures that the page shows are copied to; None: nowhere.

    Raises:
        PageError: a block failed, or a picture wasn't made.
    """
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    differences: list[Difference] = []

    def ran(block: re.Match[str]) -> str:
        where = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
        run = _python if block["kind"] == "python" else _console
        try:
            printed = run(block, names)
        except (Exception, SystemExit) as error:
            raise PageError(f"{where}: {type(error).__name__}: {error}") from error
        shown = block["out"] if block["kind"] == "python" else block["body"]
        if same(shown or "", printed):
            return block[0]
        differences.append(Difference(where, shown or "", printed))
        printed = abridged(shown or "", printed)
        if block["kind"] == "console":
            return f"```console\n{printed}```"
        return f"```python\n{block['body']}```\n\n```text\n{printed}```"

    with contextlib.chdir(folder), _terminal(), _warnings_are_shown():
        new = BLOCK.sub(ran, text)
    for picture in MADE.findall(text):
        if not (folder / picture).is_file():
            raise PageError(f"{page.name} shows the picture {picture}, and its run doesn't make it")
        if made is not None:
            made.mkdir(exist_ok=True, parents=True)
            shutil.copy(folder / picture, made / picture)
    return RanPage(new, differences)


def _python(block: re.Match[str], names: dict[str, Any]) -> str:
    body = block["body"]
    if saved := SAVED.match(body):
        Path(saved["name"]).write_text(body, encoding="utf-8")
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(body, f"<{body.splitlines()[0]}>", "exec"), names)
    return _trimmed(out.getvalue())


def _console(block: re.Match[str], names: dict[str, Any]) -> str:
    lines = list[str]()
    for line in _commands(block["body"]):
        lines += [f"$ {line}\n", _printed_by(line)]
    return "".join(lines)


def _commands(body: str) -> Iterator[str]:
    """Yield the commands of a block; one that ends with a backslash goes on in the next line."""
    lines = iter(body.splitlines())
    for line in lines:
        if line.startswith("$ "):
            while line.endswith("\\"):
                line += "\n" + next(lines)
            yield line[2:]


def _printed_by(command: str) -> str:
    wanted = EXIT_CODE.search(command)
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    log = Path(words.pop()) if words[-2:-1] == ["2>"] else None
    if log is not None:
        words.pop()
    code, printed, complaints = _calibrant(words)
    if log is None:
        printed += complaints
    else:
        log.write_text(complaints, encoding="utf-8")
    if code != (int(wanted[1]) if wanted else 0):
        raise PageError(f"'{command}' ended with exit code {code}:\n{printed}")
    return _trimmed(printed)


def _calibrant(words: list[str]) -> tuple[int, str, str]:
    """Run the command line in this process: to start one for each command takes longer."""
    from calibrant.cli import main

    if words[0] != "calibrant":
        raise PageError(f"only commands of calibrant are run, not '{words[0]}'")
    code = 0
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as complaints,
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), complaints.getvalue()


def _trimmed(printed: str) -> str:
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def same(shown: str, printed: str) -> bool:
    """Whether a run printed what a page shows, but for roundings and what ``...`` stands for.

    Examples:
        >>> same("ECE 6.12 %", "ECE 6.13 %"), same("ECE 6.12 %", "ECE 6.14 %")
        (True, False)
        >>> same("took ... s", "took 0.3 s"), same("T 1.5", "T 1.50")
        (True, False)
    """
    shown, printed = _without_times(shown.strip()), _without_times(printed.strip())
    pattern = re.escape(NUMBER.sub("\0", shown)).replace(re.escape("..."), ".*?")
    found = re.fullmatch(pattern.replace(re.escape("\0"), r"(\d+\.\d+)"), printed, flags=re.DOTALL)
    return found is not None and all(map(_near, NUMBER.findall(shown), found.groups()))


def abridged(shown: str, printed: str) -> str:
    """Return what a run printed, where the page leaves lines out by ``...`` with as many left out.

    Examples:
        >>> abridged("$ a\\n1\\n...\\n4\\n", "$ a\\n5\\n6\\n7\\n8\\n")
        '$ a\\n5\\n...\\n8\\n'
    """
    parts = [re.split(r"^(?=\$ )", text, flags=re.MULTILINE) for text in (shown, printed)]
    found = list[str]()
    for old, new in zip(*parts, strict=False):
        lines, kept = new.splitlines(), old.splitlines()
        if kept.count("...") == 1:
            first = kept.index("...")
            last = len(kept) - first - 1
            lines = [*lines[:first], "...", *lines[len(lines) - last :]]
        found += [f"{line}\n" for line in lines]
    return "".join(found)


def _without_times(text: str) -> str:
    """Leave out how long something took: seconds in a sentence, and the column ``fit s``."""
    lines = list[str]()
    timed = False
    for line in text.splitlines():
        timed = bool(line) and (timed or line.endswith("fit s"))
        if timed:
            line = " ".join(re.sub("-{8,}", "---", line).split()[:-1])
        lines.append(TIME.sub("... s", line))
    return "\n".join(lines)


def _near(shown: str, printed: str) -> bool:
    decimals = len(shown.partition(".")[2])
    if len(printed.partition(".")[2]) != decimals:
        return False
    return abs(float(shown) - float(printed)) < 1.5 * 10**-decimals


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Let everything print as in a terminal of 80 columns without colours."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1", "MPLBACKEND": "agg"}):
        yield


@contextlib.contextmanager
def _warnings_are_shown() -> Iterator[None]:
    """Let warnings be printed, also where tests make them errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def pages_that_run() -> list[Path]:
    """Return the pages that are run from top to bottom."""
    docs = ROOT / "docs"
    tours = sorted((docs / "tours").glob("*.md"))
    return [
        ROOT / "README.md",
        docs / "start.md",
        *tours,
        docs / "gallery.md",
        docs / "guides/features.md",
    ]


def make_pictures(pages: Iterable[Path], made: Path) -> None:
    """Run the pages whose pictures are missing, or older than the page or the package.

    Raises:
        PageError: a page can't be run.
    """
    for page in pages:
        shown = MADE.findall(page.read_text(encoding="utf-8"))
        if not are_new([made / name for name in shown], page):
            with tempfile.TemporaryDirectory() as folder:
                run_page(page, Path(folder), made)


def are_new(files: Iterable[Path], *sources: Path) -> bool:
    """Whether files are there, and newer than the package and what else they are made of."""
    package = (ROOT / "src").rglob("*.py")
    changed = max(source.stat().st_mtime for source in (*package, *sources))
    return all(file.is_file() and file.stat().st_mtime > changed for file in files)


def main() -> int:
    """Run pages, and return how many differ from their runs."""
    parser = argparse.ArgumentParser(description="Run pages of the documentation.")
    parser.add_argument("pages", type=Path, nargs="*", default=pages_that_run())
    parser.add_argument("--write", action="store_true", help="put the outputs into the pages")
    options = parser.parse_args()
    wrong = 0
    for page in options.pages:
        with tempfile.TemporaryDirectory() as folder:
            found = run_page(page.resolve(), Path(folder))
        if options.write:
            page.write_text(found.text, encoding="utf-8")
        else:
            print(*found.differences, sep="\n\n", end="\n" if found.differences else "")
            wrong += bool(found.differences)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
