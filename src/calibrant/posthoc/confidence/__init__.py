"""Maps of the confidence alone, a method a module; `base` is what they share."""

from calibrant.posthoc.confidence.base import SEPARATION, ConfidenceMap
from calibrant.posthoc.confidence.bbq import BayesianBinning
from calibrant.posthoc.confidence.histogram import HistogramBinning, equal_mass_edges
from calibrant.posthoc.confidence.isotonic import IsotonicRegression
from calibrant.posthoc.confidence.one_vs_rest import MapOfEitherForm
from calibrant.posthoc.confidence.scaling_binning import ScalingBinning
from calibrant.posthoc.confidence.spline import SplineCalibration
from calibrant.posthoc.confidence.venn_abers import VennAbers

__all__ = [
    "SEPARATION",
    "BayesianBinning",
    "ConfidenceMap",
    "HistogramBinning",
    "IsotonicRegression",
    "MapOfEitherForm",
    "ScalingBinning",
    "SplineCalibration",
    "VennAbers",
    "equal_mass_edges",
]
