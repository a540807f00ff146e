"""The public names of `calibrant.training` and where they live; `__init__.py` reads this list."""

from calibrant.training import data as data
from calibrant.training import losses as losses
from calibrant.training import nets as nets
from calibrant.training import run as run
from calibrant.training import second_stages as second_stages
from calibrant.training.adapters import NetworkWithLoss as NetworkWithLoss
from calibrant.training.adapters import for_trainer as for_trainer
from calibrant.training.callback import CalibrationCallback as CalibrationCallback
from calibrant.training.features import PenultimateFeatures as PenultimateFeatures
from calibrant.training.losses.base import CalibrationLoss as CalibrationLoss
from calibrant.training.losses.registry import LOSSES as LOSSES
from calibrant.training.losses.registry import make_loss as make_loss
from calibrant.training.mixing import MIT as MIT
from calibrant.training.mixing import Mixup as Mixup
from calibrant.training.mixing import RegMixup as RegMixup
from calibrant.training.trainer_callback import TrainerCalibration as TrainerCalibration
