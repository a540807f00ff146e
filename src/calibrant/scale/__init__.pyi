"""The public names of `calibrant.scale` and where they live; `__init__.py` reads this list."""

from calibrant.evaluation.cell_sample import in_cells as in_cells
from calibrant.evaluation.cell_sample import merge as merge
from calibrant.evaluation.sample_sources import sample_of as sample_of
from calibrant.scale.engines import Engine as Engine
from calibrant.scale.shards import Shards as Shards
