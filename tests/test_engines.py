"""One map, every engine: NumPy, torch as it comes, exported, compiled, and without any data."""

from __future__ import annotations

import os
import shutil
import warnings
from functools import cache

import numpy as np
import pytest
from feature_rows import QUICK

from calibrant.core import numpy_namespace as xnp
from calibrant.core.errors import CalibrationWarning, NotApplicableError
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions

torch = pytest.importorskip("torch")
xt = pytest.importorskip("array_api_compat.torch")

from calibrant.export.torch_module import CalibratorModule  # noqa: E402

CLASSES, WIDTH = 6, 5
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ALL = list(METHODS)
# Methods whose maps are the same code make the same graph: the last of them is exported, and the
# first compiled.
ALIKE = {
    name: tuple(getattr(kind, part, None) for part in ("transform", "betas", "map_arrays"))
    for name, kind in METHODS.items()
}
ENDS = [dict(zip(of.values(), of, strict=True)) for of in (ALIKE, dict(reversed(ALIKE.items())))]
LAST, FIRST = ([name for name in ALL if name in end.values()] for end in ENDS)


def rows(n: int, seed: int) -> Predictions:
    """Return overconfident rows with features that say something and a last layer that fits."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, WIDTH))
    weight = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))
    bias = np.linspace(-0.5, 0.5, CLASSES)
    truth = features @ weight.T + bias
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return Predictions.from_logits(2.5 * truth, labels, features, head=(2.5 * weight, 2.5 * bias))


@cache
def fitted(method: str) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make_calibrator(method, **QUICK.get(method, {})).fit_predictions(rows(500, 0))


def arguments(method: str, dtype: str, n: int = 64, masks: bool = True):
    """Return the inputs of a map: some rows tie, some mask classes."""
    predictions = rows(n, 1)
    logits = np.asarray(predictions.scores)
    logits[3] = 1.0
    logits[5, 2] = logits[5].max()
    if masks:
        logits[::7, 1] = -np.inf
    given = (logits.astype(dtype),)
    return (*given, predictions.features) if "features" in fitted(method).needs else given


def expected(method: str, dtype: str, n: int = 64) -> np.ndarray:
    given = arguments(method, dtype, n)
    learnt = fitted(method).map_arrays()
    with np.errstate(all="ignore"):
        features = given[1] if len(given) > 1 else None
        return fitted(method).bare().transform(xnp, given[0], features, learnt)


def tensors(method: str, dtype: str, n: int = 64):
    return tuple(torch.as_tensor(array) for array in arguments(method, dtype, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ALL)
def test_the_map_is_what_predict_proba_gives(method, dtype):
    given = arguments(method, dtype)
    probs = fitted(method).predict_proba(*given)
    assert probs.dtype == np.dtype(dtype)
    np.testing.assert_allclose(expected(method, dtype), probs, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ALL)
def test_torch_gives_what_numpy_gives(method, dtype):
    got = CalibratorModule(fitted(method))(*tensors(method, dtype))
    assert got.dtype == DTYPES[dtype]
    np.testing.assert_allclose(got.numpy(), expected(method, dtype), atol=1e-6)


@pytest.mark.parametrize("method", LAST)
def test_the_exported_map_takes_any_number_of_rows(method):
    dtype = "float64"
    given = tensors(method, dtype)
    free = torch.export.Dim("rows", min=2, max=1 << 20)
    shapes = tuple({0: free} for _ in given)
    module = CalibratorModule(fitted(method))
    exported = torch.export.export(
        module,
        given,
        dynamic_shapes={"scores": shapes[0]} | ({"features": shapes[1]} if len(given) > 1 else {}),
    ).module()
    for n in (64, 17):
        got = exported(*tensors(method, dtype, n))
        np.testing.assert_allclose(got.numpy(), expected(method, dtype, n), atol=1e-6)


@pytest.mark.parametrize("method", ALL)
def test_the_map_needs_no_values_to_be_followed(method):
    # Tensors of the meta device have no values: whatever looked at one would fail.
    module = CalibratorModule(fitted(method)).to("meta")
    got = module(*(tensor.to("meta") for tensor in tensors(method, "float32")))
    assert got.device.type == "meta"
    assert tuple(got.shape) == (64, CLASSES)


@pytest.mark.parametrize("method", FIRST)
def test_the_compiled_map_is_one_graph(method):
    dtype = "float32"  # exported maps have float64, of the same operations
    torch._dynamo.reset()
    # Whether it is one graph is settled before a backend lowers it, which export does above.
    compiled = torch.compile(CalibratorModule(fitted(method)), fullgraph=True, backend="eager")
    got = compiled(*tensors(method, dtype))
    np.testing.assert_allclose(got.numpy(), expected(method, dtype), atol=1e-6)


# A C++ compiler takes its time over each; all of them, if asked for, agree to 1.2e-7.
COMPILED = ALL if os.environ.get("CALIBRANT_COMPILE_ALL") else ["temperature", "smart", "top-rest"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its compiler
@pytest.mark.parametrize("method", COMPILED)
def test_the_default_compiler_takes_it_too(method):
    if shutil.which("c++") is None:
        pytest.skip("torch's default compiler needs a C++ compiler")
    torch._dynamo.reset()
    compiled = torch.compile(CalibratorModule(fitted(method)), fullgraph=True)
    got = compiled(*tensors(method, "float32"))
    np.testing.assert_allclose(got.numpy(), expected(method, "float32"), atol=1e-6)


@pytest.mark.parametrize("method", ALL)
def test_the_gradient_is_the_slope(method):
    # Rows without ties and masks, where every map is smooth but for jumps between rows.
    rng = np.random.default_rng(3)
    predictions = rows(16, 1)
    logits = torch.as_tensor(np.asarray(predictions.scores)).requires_grad_()
    beside = ()
    if "features" in fitted(method).needs:
        beside = (torch.as_tensor(predictions.features),)
    module = CalibratorModule(fitted(method))
    weights, along = (torch.as_tensor(rng.normal(size=logits.shape)) for _ in range(2))
    (slope,) = torch.autograd.grad((module(logits, *beside) * weights).sum(), logits)
    assert bool(torch.isfinite(slope).all())
    step = 1e-6
    with torch.no_grad():
        ends = [module(logits + way * step * along, *beside) for way in (1, -1)]
    numeric = ((ends[0] - ends[1]) * weights / (2 * step)).sum(dim=1)
    np.testing.assert_allclose((slope * along).sum(dim=1), numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch advises against tracing, too
def test_tracing_predict_proba_says_which_way_works():
    calibrator = fitted("temperature")
    logits = tensors("temperature", "float32")[0]
    with pytest.raises(NotApplicableError, match=r"calibrator\.to_torch\(\)"):
        torch.jit.trace(calibrator.predict_proba, logits)


def test_tensors_stay_tensors_of_their_kind():
    for dtype in DTYPES.values():
        logits = tensors("smart", "float64")[0].to(dtype)
        probs = fitted("smart").predict_proba(logits)
        assert isinstance(probs, torch.Tensor)
        assert probs.dtype == dtype
        assert probs.device == logits.device
