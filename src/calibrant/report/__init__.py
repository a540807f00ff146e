"""Reports: one self-contained HTML page, and static figures for papers.

The page needs no network and no server. `calibrant.report.figures` draws the same numbers with
matplotlib. Both are computed in `calibrant.report.series`. The public
names stand in `__init__.pyi`.
"""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__)
