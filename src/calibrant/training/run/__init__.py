"""Training runs: `calibrant train`, and the same from Python.

Examples:
    >>> import calibrant as cb
    >>> from calibrant.training.run import RunSettings
    >>> RunSettings("cifar10/", loss="fedlas-ls").total_epochs
    18
    >>> RunSettings("cifar10/", loss="fedlas-ls", epochs=2).total_epochs
    2
"""

from calibrant.training.run.folder import Announcer as Announcer
from calibrant.training.run.folder import Observer as Observer
from calibrant.training.run.outputs import Outputs as Outputs
from calibrant.training.run.outputs import predict as predict
from calibrant.training.run.outputs import write_outputs as write_outputs
from calibrant.training.run.rows import Examples as Examples
from calibrant.training.run.rows import held_out as held_out
from calibrant.training.run.rows import own_data as own_data
from calibrant.training.run.settings import PROTOCOLS as PROTOCOLS
from calibrant.training.run.settings import Protocol as Protocol
from calibrant.training.run.settings import RunSettings as RunSettings
from calibrant.training.run.train import train as train
from calibrant.training.run.trained import RunOutcome as RunOutcome
from calibrant.training.run.trained import Trained as Trained
from calibrant.training.run.trained import evaluate_run as evaluate_run
from calibrant.training.run.trained import load_network as load_network
