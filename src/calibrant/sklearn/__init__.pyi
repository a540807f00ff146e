"""The public names of `calibrant.sklearn` and where they live; `__init__.py` reads this list."""

from calibrant.sklearn.calibrated import Calibrated as Calibrated
from calibrant.sklearn.display import ReliabilityDisplay as ReliabilityDisplay
