"""The command line; `calibrant` alone lists its verbs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; see `calibrant.cli.app`."""
    # Importing takes longer than some commands do, and can be interrupted like any of them.
    try:
        from calibrant.cli.app import run
    except KeyboardInterrupt:
        print("interrupted: run the same command again", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(sys.argv))


__all__ = ["main"]
