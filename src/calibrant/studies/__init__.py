"""Studies: what the numbers in the documentation, and some defaults, rest on.

Each is a program, ``python -m calibrant.studies.NAME``, and says with ``--help`` what it takes.
Nothing else in Calibrant imports this room.
"""
