"""Maps of log odds with a few parameters, a method a module; `base` is what they share."""

from calibrant.posthoc.log_odds.base import LogOddsMap
from calibrant.posthoc.log_odds.beta import BetaCalibration
from calibrant.posthoc.log_odds.platt import AffineScaling, PlattScaling, QuadraticScaling

__all__ = [
    "AffineScaling",
    "BetaCalibration",
    "LogOddsMap",
    "PlattScaling",
    "QuadraticScaling",
]
