"""How each peer is asked for the same thing. Imports stand inside: a missing peer is left out."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import sys
import types
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.data import Floats, Labels, Rows, softmax

BINS = 15
Measure = Callable[[Floats, Labels], float]
Fit = Callable[[Rows], Any]


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for image libraries that torch-uncertainty imports and doesn't need here."""

    roots = ("torchvision", "timm", "kornia")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.split(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def anything(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = anything  # pyright: ignore[reportAttributeAccessIssue]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _ece_torchmetrics() -> Measure:
    import torch

    error = import_module("torchmetrics.functional.classification").multiclass_calibration_error

    return lambda p, y: float(
        error(torch.from_numpy(p), torch.from_numpy(y), num_classes=p.shape[1], n_bins=BINS)
    )


def _ece_netcal() -> Measure:
    metric = import_module("netcal.metrics").ECE(BINS)
    return lambda p, y: float(metric.measure(p, y))


def _ece_uncertainty_calibration() -> Measure:
    get_ece = import_module("calibration").get_ece
    return lambda p, y: float(get_ece(p, y, num_bins=BINS))


def _probmetrics(name: str) -> Measure:
    import torch

    metrics = import_module("probmetrics.metrics").Metrics.from_names([name])
    return lambda p, y: float(
        metrics.compute_all_from_labels_probs(torch.from_numpy(y), torch.from_numpy(p))[name]
    )


def _relplot(name: str, **options: int) -> Measure:
    relplot = import_module("relplot")
    function = relplot.metrics.binnedECE if name == "binnedECE" else relplot.smECE

    def measure(p: Floats, y: Labels) -> float:
        confidence, hit = relplot.multiclass_logits_to_confidences(p, y, probs=True)
        return float(function(confidence.astype(np.float64), hit, **options))

    return measure


def _torch_uncertainty_metric(name: str) -> Measure:
    import torch

    metrics = import_module("torch_uncertainty.metrics")

    def measure(p: Floats, y: Labels) -> float:
        if name == "ece":
            metric = metrics.CalibrationError(
                task="multiclass", num_classes=p.shape[1], num_bins=BINS
            )
        else:
            metric = metrics.SmoothCalibrationError(kernel_type="reflected")
        return float(metric(torch.from_numpy(p), torch.from_numpy(y)))

    return measure


def _netcal_temperature() -> Fit:
    scaling = import_module("netcal.scaling")

    def fit(rows: Rows) -> float:
        probs = softmax(rows.logits.astype(np.float64))  # in float32 it returns T = 1
        model = scaling.TemperatureScaling().fit(probs, rows.labels)
        return float(1 / np.asarray(model.temperature).ravel()[0])

    return fit


def _probmetrics_fit(name: str) -> Fit:
    import torch

    get_calibrator = import_module("probmetrics.calibrators").get_calibrator
    logits_of = import_module("probmetrics.distributions").CategoricalLogits

    options: dict[str, Any] = {f"{name}_print_init_info": False} if name != "temp-scaling" else {}

    def fit(rows: Rows) -> Any:
        model = get_calibrator(name, **options).fit_torch(
            logits_of(torch.from_numpy(rows.logits)), torch.from_numpy(rows.labels)
        )
        if name == "temp-scaling":
            return float(1 / model.invtemp_)
        return lambda z: (
            model.predict_proba_torch(logits_of(torch.from_numpy(z))).get_probs().numpy()
        )

    return fit


def _sklearn_temperature() -> Fit:
    base, frozen = import_module("sklearn.base"), import_module("sklearn.frozen")
    cross_validated = import_module("sklearn.calibration").CalibratedClassifierCV

    class Given(base.ClassifierMixin, base.BaseEstimator):
        """A classifier whose scores are its inputs."""

        def fit(self, scores: Floats, labels: Labels) -> Given:
            self.classes_ = np.arange(scores.shape[1])
            return self

        def decision_function(self, scores: Floats) -> Floats:
            return scores

        def predict(self, scores: Floats) -> Labels:
            return scores.argmax(axis=1)

    def fit(rows: Rows) -> float:
        given = frozen.FrozenEstimator(Given().fit(rows.logits, rows.labels))
        model = cross_validated(given, method="temperature").fit(rows.logits, rows.labels)
        return float(1 / model.calibrated_classifiers_[0].calibrators[0].beta_)

    return fit


def _torch_uncertainty_fit(name: str) -> Fit:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    post = import_module("torch_uncertainty.post_processing")

    def fit(rows: Rows) -> Any:
        options = {"num_classes": rows.logits.shape[1]} if name == "VectorScaler" else {}
        model = getattr(post, name)(**options)
        pairs = TensorDataset(torch.from_numpy(rows.logits), torch.from_numpy(rows.labels))
        model.fit(DataLoader(pairs, batch_size=1024), progress=False)
        if name == "TemperatureScaler":
            return float(model.temperature[0])
        return lambda z: torch.softmax(model(torch.from_numpy(z)), -1).detach().numpy()

    return fit


def _sklearn_isotonic() -> Fit:
    isotonic = import_module("sklearn.isotonic").IsotonicRegression

    def fit(rows: Rows) -> Any:
        probs = softmax(rows.logits)
        confidence = probs.max(axis=1)
        model = isotonic(out_of_bounds="clip")
        model.fit(confidence, probs.argmax(axis=1) == rows.labels)
        return lambda z: model.predict(softmax(z).max(axis=1))

    return fit


def _uncertainty_calibration_histogram() -> Fit:
    calibration = import_module("calibration")

    def fit(rows: Rows) -> Any:
        model = calibration.HistogramTopCalibrator(len(rows.labels), num_bins=BINS)
        model.train_calibration(softmax(rows.logits), rows.labels)
        return lambda z: model.calibrate(softmax(z))

    return fit


MEASURES: dict[str, dict[str, Callable[[], Measure]]] = {
    "ece": {
        "torchmetrics": _ece_torchmetrics,
        "relplot": lambda: _relplot("binnedECE", nbins=BINS),
        "uncertainty-calibration": _ece_uncertainty_calibration,
        "netcal": _ece_netcal,
        "probmetrics": lambda: _probmetrics(f"ece-{BINS}"),
        "torch-uncertainty": lambda: _torch_uncertainty_metric("ece"),
    },
    "smece": {
        "relplot": lambda: _relplot("smECE"),
        "probmetrics": lambda: _probmetrics("smece"),
        "torch-uncertainty": lambda: _torch_uncertainty_metric("smece"),
    },
}
FITS: dict[str, dict[str, Callable[[], Fit]]] = {
    "temperature": {
        "probmetrics": lambda: _probmetrics_fit("temp-scaling"),
        "scikit-learn": _sklearn_temperature,
        "netcal": _netcal_temperature,
        "torch-uncertainty": lambda: _torch_uncertainty_fit("TemperatureScaler"),
    },
    "vector": {"torch-uncertainty": lambda: _torch_uncertainty_fit("VectorScaler")},
    "svs": {"probmetrics": lambda: _probmetrics_fit("svs")},
    "sms": {"probmetrics": lambda: _probmetrics_fit("sms")},
    "isotonic": {"scikit-learn": _sklearn_isotonic},
    "histogram": {"uncertainty-calibration": _uncertainty_calibration_histogram},
}


def prepare() -> None:
    """Make the peers importable and quiet. Call it before any of them is imported."""
    import logging

    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    if not any(isinstance(finder, _EmptyModules) for finder in sys.meta_path):
        sys.meta_path.append(_EmptyModules())


def available(
    makers: dict[str, Callable[[], Any]],
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """Return the peers that could be imported, and for the others the reason."""
    found: dict[str, Callable[..., Any]] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found[name] = quietly(make())
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return found, missing


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` without what it prints."""

    def silent(*arguments: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return function(*arguments)

    return silent
