"""The command line: `calibrant measure | fit | apply | compare | train | head | demo`."""

from calibrant.cli.app import main

__all__ = ["main"]
