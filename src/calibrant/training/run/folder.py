"""The folder of a run: what it was asked to do, how it went, and what the network says."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from calibrant.cli.output import as_json
from calibrant.errors import InputError
from calibrant.files.atomic import replacing
from calibrant.training.nets import ImageClassifier
from calibrant.training.run.loop import LAST
from calibrant.training.run.outputs import Outputs
from calibrant.training.run.settings import RunSettings

CONFIG = "config.json"
