"""The public names of `calibrant.posthoc` and where they live; `__init__.py` reads this list."""

from calibrant.core.errors import NotApplicableError as NotApplicableError
from calibrant.core.fit_report import FitReport as FitReport
from calibrant.export.torch_module import CalibratedModule as CalibratedModule
from calibrant.posthoc.accuracy_estimate import ExpectedAccuracy as ExpectedAccuracy
from calibrant.posthoc.accuracy_estimate import expected_accuracy as expected_accuracy
from calibrant.posthoc.auto import AutoCalibrator as AutoCalibrator
from calibrant.posthoc.base import Calibrator as Calibrator
from calibrant.posthoc.chain import Chain as Chain
from calibrant.posthoc.chain import ProbitTopRestScaling as ProbitTopRestScaling
from calibrant.posthoc.chain import chain_of as chain_of
from calibrant.posthoc.confidence.binning import BayesianBinning as BayesianBinning
from calibrant.posthoc.confidence.binning import HistogramBinning as HistogramBinning
from calibrant.posthoc.confidence.binning import ScalingBinning as ScalingBinning
from calibrant.posthoc.confidence.isotonic import IsotonicRegression as IsotonicRegression
from calibrant.posthoc.confidence.isotonic import MulticlassIsotonic as MulticlassIsotonic
from calibrant.posthoc.confidence.isotonic import VennAbers as VennAbers
from calibrant.posthoc.confidence.spline import SplineCalibration as SplineCalibration
from calibrant.posthoc.confidence.top_rest import TopRestScaling as TopRestScaling
from calibrant.posthoc.features.density_aware import (
    DensityAwareCalibration as DensityAwareCalibration,
)
from calibrant.posthoc.features.feature_clipping import FeatureClipping as FeatureClipping
from calibrant.posthoc.features.given_groups import GivenGroups as GivenGroups
from calibrant.posthoc.features.group import GroupCalibration as GroupCalibration
from calibrant.posthoc.features.proximity import BinMeanShift as BinMeanShift
from calibrant.posthoc.features.proximity import ProximityDensityRatio as ProximityDensityRatio
from calibrant.posthoc.h_calibration import HCalibration as HCalibration
from calibrant.posthoc.linear.by_rank import RankScaling as RankScaling
from calibrant.posthoc.linear.class_temperatures import (
    ClassTemperatureScaling as ClassTemperatureScaling,
)
from calibrant.posthoc.linear.class_temperatures import (
    GradientClassTemperatureScaling as GradientClassTemperatureScaling,
)
from calibrant.posthoc.linear.matrix import DirichletCalibration as DirichletCalibration
from calibrant.posthoc.linear.matrix import MatrixScaling as MatrixScaling
from calibrant.posthoc.linear.top_versus_all import TopVersusAll as TopVersusAll
from calibrant.posthoc.linear.vector import StructuredMatrixScaling as StructuredMatrixScaling
from calibrant.posthoc.linear.vector import StructuredVectorScaling as StructuredVectorScaling
from calibrant.posthoc.linear.vector import VectorScaling as VectorScaling
from calibrant.posthoc.loading import load as load
from calibrant.posthoc.log_odds import AffineScaling as AffineScaling
from calibrant.posthoc.log_odds import BetaCalibration as BetaCalibration
from calibrant.posthoc.log_odds import PlattScaling as PlattScaling
from calibrant.posthoc.log_odds import QuadraticScaling as QuadraticScaling
from calibrant.posthoc.natural_spline import NaturalSpline as NaturalSpline
from calibrant.posthoc.noise import ConsistencyCalibration as ConsistencyCalibration
from calibrant.posthoc.noise import ProbitScaling as ProbitScaling
from calibrant.posthoc.per_label import PerLabel as PerLabel
from calibrant.posthoc.prior_estimate import PriorEstimate as PriorEstimate
from calibrant.posthoc.prior_estimate import estimate_prior as estimate_prior
from calibrant.posthoc.prior_shift import PriorShift as PriorShift
from calibrant.posthoc.prior_shift import with_kept_negatives as with_kept_negatives
from calibrant.posthoc.prior_shift import with_prior as with_prior
from calibrant.posthoc.registry import make_calibrator as make_calibrator
from calibrant.posthoc.temperature.logit_clipping import LogitClipping as LogitClipping
from calibrant.posthoc.temperature.mixtures import (
    EnsembleTemperatureScaling as EnsembleTemperatureScaling,
)
from calibrant.posthoc.temperature.mixtures import (
    LaplaceTemperatureScaling as LaplaceTemperatureScaling,
)
from calibrant.posthoc.temperature.parameterised import (
    ParameterisedTemperature as ParameterisedTemperature,
)
from calibrant.posthoc.temperature.scaling import (
    PredictedClassTemperature as PredictedClassTemperature,
)
from calibrant.posthoc.temperature.scaling import TemperatureScaling as TemperatureScaling
from calibrant.posthoc.temperature.scaling import Uncalibrated as Uncalibrated
from calibrant.posthoc.temperature.smart.calibrator import SMART as SMART
from calibrant.posthoc.worth import CrossValidated as CrossValidated
from calibrant.posthoc.worth import cross_validated as cross_validated
