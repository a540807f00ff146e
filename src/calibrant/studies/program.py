"""What all studies have in common as programs: their help, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from calibrant.core.errors import CalibrantError


def parser_for(study: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser for ``python -m calibrant.studies.STUDY``.

    Args:
        study: the name, from `calibrant.studies` on.
        text: the docstring of the module, which is its help.
    """
    return argparse.ArgumentParser(
        prog=f"python -m calibrant.studies.{study}",
        description=text,
        # Commands in the docstring keep their lines.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_study(main: Callable[[], int | None]) -> None:
    """Run a study and end the process; what is wrong with its input is one sentence and code 2."""
    try:
        sys.exit(main())
    except CalibrantError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
