"""The command line: `calibrant measure | fit | apply | compare | demo | train`."""

from calibrant.cli.app import main

__all__ = ["main"]
