"""The public names of the package and where they live, once: `__init__.py` reads this list.

Type checkers and editors read it as a stub.
"""

from calibrant import sklearn as sklearn
from calibrant import synthetic as synthetic
from calibrant import training as training
from calibrant._version import __version__ as __version__
from calibrant.comparison.compare import compare as compare
from calibrant.comparison.comparison import Comparison as Comparison
from calibrant.comparison.multi_dataset import ManyComparisons as ManyComparisons
from calibrant.comparison.multi_dataset import compare_over as compare_over
from calibrant.core.errors import CalibrantError as CalibrantError
from calibrant.core.errors import CalibrationWarning as CalibrationWarning
from calibrant.core.errors import InputError as InputError
from calibrant.core.errors import NotApplicableError as NotApplicableError
from calibrant.core.errors import NotFittedError as NotFittedError
from calibrant.core.errors import PredictionsError as PredictionsError
from calibrant.core.fit_report import FitReport as FitReport
from calibrant.evaluation.cell_sample import in_cells as in_cells
from calibrant.evaluation.cell_sample import merge as merge
from calibrant.evaluation.evaluate import evaluate as evaluate
from calibrant.evaluation.groups import GroupedEvaluation as GroupedEvaluation
from calibrant.evaluation.groups import evaluate_by as evaluate_by
from calibrant.evaluation.groups import evaluate_labels as evaluate_labels
from calibrant.evaluation.power import SampleSize as SampleSize
from calibrant.evaluation.power import rows_needed as rows_needed
from calibrant.evaluation.results import Evaluation as Evaluation
from calibrant.evaluation.results import MetricResult as MetricResult
from calibrant.evaluation.sample_sources import sample_of as sample_of
from calibrant.export.torch_module import CalibratedModule as CalibratedModule
from calibrant.files import read_predictions as read_predictions
from calibrant.files import write_predictions as write_predictions
from calibrant.metrics.binned import adaptive_calibration_error as adaptive_calibration_error
from calibrant.metrics.binned import expected_calibration_error as expected_calibration_error
from calibrant.metrics.canonical import canonical_calibration_error as canonical_calibration_error
from calibrant.metrics.canonical import skce as skce
from calibrant.metrics.classwise import (
    classwise_adaptive_calibration_error as classwise_adaptive_calibration_error,
)
from calibrant.metrics.classwise import (
    classwise_expected_calibration_error as classwise_expected_calibration_error,
)
from calibrant.metrics.cox import calibration_in_the_large as calibration_in_the_large
from calibrant.metrics.cox import calibration_slope_intercept as calibration_slope_intercept
from calibrant.metrics.debiased import (
    debiased_expected_calibration_error as debiased_expected_calibration_error,
)
from calibrant.metrics.debiased import (
    debiased_rms_calibration_error as debiased_rms_calibration_error,
)
from calibrant.metrics.decomposition import ScoreDecomposition as ScoreDecomposition
from calibrant.metrics.decomposition import corp_decomposition as corp_decomposition
from calibrant.metrics.decomposition import murphy_decomposition as murphy_decomposition
from calibrant.metrics.density import kde_ece as kde_ece
from calibrant.metrics.detection import aupr as aupr
from calibrant.metrics.detection import auroc as auroc
from calibrant.metrics.detection import fpr_at_tpr as fpr_at_tpr
from calibrant.metrics.detection import ood_scores as ood_scores
from calibrant.metrics.gaps import average_calibration_error as average_calibration_error
from calibrant.metrics.gaps import ks_error as ks_error
from calibrant.metrics.gaps import maximum_calibration_error as maximum_calibration_error
from calibrant.metrics.gaps import overconfidence_error as overconfidence_error
from calibrant.metrics.gaps import rms_calibration_error as rms_calibration_error
from calibrant.metrics.gaps import underconfidence_error as underconfidence_error
from calibrant.metrics.kernel import smooth_ece as smooth_ece
from calibrant.metrics.mmce import mmce as mmce
from calibrant.metrics.proper import accuracy as accuracy
from calibrant.metrics.proper import brier_score as brier_score
from calibrant.metrics.proper import negative_log_likelihood as negative_log_likelihood
from calibrant.metrics.refit import RefinementSplit as RefinementSplit
from calibrant.metrics.refit import refinement_split as refinement_split
from calibrant.metrics.registry import CORE_METRICS as CORE_METRICS
from calibrant.metrics.registry import METRICS as METRICS
from calibrant.metrics.selective import RiskCoverage as RiskCoverage
from calibrant.metrics.selective import aurc as aurc
from calibrant.metrics.selective import coverage_at_risk as coverage_at_risk
from calibrant.metrics.selective import eaurc as eaurc
from calibrant.metrics.selective import risk_at_coverage as risk_at_coverage
from calibrant.metrics.selective import risk_coverage as risk_coverage
from calibrant.metrics.smooth import smooth_calibration_error as smooth_calibration_error
from calibrant.metrics.sweep import ece_sweep as ece_sweep
from calibrant.monitor.monitor import Monitor as Monitor
from calibrant.posthoc.auto import AutoCalibrator as AutoCalibrator
from calibrant.posthoc.base import Calibrator as Calibrator
from calibrant.posthoc.chain import Chain as Chain
from calibrant.posthoc.chain import chain_of as chain_of
from calibrant.posthoc.confidence.binning import BayesianBinning as BayesianBinning
from calibrant.posthoc.confidence.binning import HistogramBinning as HistogramBinning
from calibrant.posthoc.confidence.binning import ScalingBinning as ScalingBinning
from calibrant.posthoc.confidence.isotonic import IsotonicRegression as IsotonicRegression
from calibrant.posthoc.confidence.isotonic import (
    MulticlassIsotonic as MulticlassIsotonic,
)
from calibrant.posthoc.confidence.spline import SplineCalibration as SplineCalibration
from calibrant.posthoc.confidence.top_rest import TopRestScaling as TopRestScaling
from calibrant.posthoc.confidence.venn_abers import VennAbers as VennAbers
from calibrant.posthoc.features.density_aware import (
    DensityAwareCalibration as DensityAwareCalibration,
)
from calibrant.posthoc.features.feature_clipping import FeatureClipping as FeatureClipping
from calibrant.posthoc.features.group import GroupCalibration as GroupCalibration
from calibrant.posthoc.features.proximity import BinMeanShift as BinMeanShift
from calibrant.posthoc.features.proximity import ProximityDensityRatio as ProximityDensityRatio
from calibrant.posthoc.linear.class_temperatures import (
    ClassTemperatureScaling as ClassTemperatureScaling,
)
from calibrant.posthoc.linear.class_temperatures import (
    GradientClassTemperatureScaling as GradientClassTemperatureScaling,
)
from calibrant.posthoc.linear.matrix import DirichletCalibration as DirichletCalibration
from calibrant.posthoc.linear.matrix import MatrixScaling as MatrixScaling
from calibrant.posthoc.linear.vector import StructuredMatrixScaling as StructuredMatrixScaling
from calibrant.posthoc.linear.vector import StructuredVectorScaling as StructuredVectorScaling
from calibrant.posthoc.linear.vector import VectorScaling as VectorScaling
from calibrant.posthoc.loading import load as load
from calibrant.posthoc.log_odds import AffineScaling as AffineScaling
from calibrant.posthoc.log_odds import BetaCalibration as BetaCalibration
from calibrant.posthoc.log_odds import PlattScaling as PlattScaling
from calibrant.posthoc.log_odds import QuadraticScaling as QuadraticScaling
from calibrant.posthoc.named_chains import ProbitTopRestScaling as ProbitTopRestScaling
from calibrant.posthoc.noise import ConsistencyCalibration as ConsistencyCalibration
from calibrant.posthoc.noise import ProbitScaling as ProbitScaling
from calibrant.posthoc.per_label import PerLabel as PerLabel
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
from calibrant.predictions.last_layer import Head as Head
from calibrant.predictions.predictions import Predictions as Predictions
from calibrant.predictions.rows import RowSummary as RowSummary
from calibrant.predictions.rows import softmax as softmax
from calibrant.predictions.rows import summarize as summarize
from calibrant.sample import load_sample as load_sample
from calibrant.scale.engines import Engine as Engine
from calibrant.scale.shards import Shards as Shards
