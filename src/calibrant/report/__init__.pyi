"""The public names of `calibrant.report` and where they live; `__init__.py` reads this list."""

from calibrant.report.figure_files import save_figures as save_figures
