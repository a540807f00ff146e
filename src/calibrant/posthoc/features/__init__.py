"""Calibrators that see the features of a row: what the network knew before its last layer."""

from calibrant.posthoc.features.bin_mean_shift import BinMeanShift
from calibrant.posthoc.features.density_aware import DensityAwareCalibration
from calibrant.posthoc.features.density_ratio import ProximityDensityRatio
from calibrant.posthoc.features.feature_clipping import FeatureClipping
from calibrant.posthoc.features.group import GroupCalibration

__all__ = [
    "BinMeanShift",
    "DensityAwareCalibration",
    "FeatureClipping",
    "GroupCalibration",
    "ProximityDensityRatio",
]
