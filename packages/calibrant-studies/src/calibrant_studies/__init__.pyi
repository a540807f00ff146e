"""The public names of `calibrant_studies`, each imported when it is first used."""

from calibrant_studies._version import __version__ as __version__
from calibrant_studies.catalogue import names as names
from calibrant_studies.catalogue import study_named as study_named
from calibrant_studies.declaration import Study as Study
from calibrant_studies.declaration import read_study as read_study
from calibrant_studies.kinds.base import Kind as Kind
from calibrant_studies.kinds.base import Measure as Measure
from calibrant_studies.results import StudyResult as StudyResult
from calibrant_studies.running import run as run
