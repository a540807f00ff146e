"""The public names of `calibrant.studies`, each imported when it is first used."""

from calibrant.studies.catalogue import names as names
from calibrant.studies.catalogue import study_named as study_named
from calibrant.studies.declaration import Study as Study
from calibrant.studies.loading import read_study as read_study
from calibrant.studies.results import StudyResult as StudyResult
from calibrant.studies.running import run as run
