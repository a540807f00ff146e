"""Training runs: `calibrant train`, and the same from Python.

Examples:
    >>> import calibrant as cb
    >>> from calibrant.training.run import RunSettings
    >>> RunSettings("cifar10/", loss="fedlas-ls").total_epochs
    18
    >>> RunSettings("cifar10/", loss="fedlas-ls", epochs=2).total_epochs
    2
"""

from calibrant.training.run.folder import Announcer, Observer, write_outputs
from calibrant.training.run.outputs import Outputs, predict
from calibrant.training.run.rows import Examples, held_out, own_data
from calibrant.training.run.settings import PROTOCOLS, Protocol, RunSettings
from calibrant.training.run.train import train
from calibrant.training.run.trained import RunOutcome, Trained, evaluate_run, load_network

__all__ = [
    "PROTOCOLS",
    "Announcer",
    "Examples",
    "Observer",
    "Outputs",
    "Protocol",
    "RunOutcome",
    "RunSettings",
    "Trained",
    "evaluate_run",
    "held_out",
    "load_network",
    "own_data",
    "predict",
    "train",
    "write_outputs",
]
