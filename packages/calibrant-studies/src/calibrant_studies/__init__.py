"""Studies: tables and figures of papers, and of this documentation, each one command.

A study is a short file in ``declared/``; a kind of cell, in ``kinds/``, computes it. The public
names stand in `__init__.pyi`.

Examples:
    >>> import calibrant_studies
    >>> table = calibrant_studies.study_named("smart-table-1")
    >>> table.paper, [value.label for value in table.axes["method"]][:3]
    ('SMART', ['Vanilla', 'TS', 'PTS'])
"""

from calibrant.core.lazy import public_face
from calibrant_studies._version import __version__ as __version__

__getattr__, __dir__ = public_face(__name__, __file__)
