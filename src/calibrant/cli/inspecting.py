"""The verb `inspect`: what is in a file, and how it would be read."""

from __future__ import annotations

from calibrant.cli.options import File, Json, Kind, Labels, Positive, reading
from calibrant.cli.output import check_outputs, emit
from calibrant.cli.telling import told


def inspect(
    file: File,
    kind: Kind = None,
    positive: Positive = None,
    labels: Labels = None,
    json: Json = None,
) -> None:
    """Say what is in FILE, and how it would be read; try names of keys out here."""
    from calibrant.files.inspecting import inspect_file

    check_outputs([file, labels], [json])
    found = inspect_file(file, reading(kind, positive=positive, labels=labels, **told()))
    emit(str(found), found.as_dict(), json)
