"""One map, every engine: NumPy, torch as it comes, exported, compiled, and without any data."""

from __future__ import annotations

import warnings
from functools import cache

import array_api_compat.numpy as xnp
import numpy as np
import pytest

from calibrant.core.errors import CalibrationWarning
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.predictions.predictions import Predictions

torch = pytest.importorskip("torch")
xt = pytest.importorskip("array_api_compat.torch")

CLASSES, WIDTH = 6, 5
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ALL = list(METHODS)


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
        return make_calibrator(method).fit_predictions(rows(500, 0))


def skeleton(calibrator: Calibrator) -> Calibrator:
    """Return a calibrator of the same arguments and parts that has learnt nothing."""
    bare = type(calibrator)(**calibrator.get_params())
    bare.restore_parts({name: skeleton(part) for name, part in calibrator.parts().items()})
    return bare


class AsModule(torch.nn.Module):
    """The map of a calibrator with what it has learnt as buffers."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.bare = skeleton(calibrator)
        self.names = {}
        for place, (name, array) in enumerate(calibrator.map_arrays().items()):
            self.names[name] = f"learnt_{place}"
            self.register_buffer(f"learnt_{place}", torch.as_tensor(array))

    def forward(self, logits, features=None):
        learnt = {name: getattr(self, place) for name, place in self.names.items()}
        return self.bare.transform(xt, logits, features, learnt)


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
        return skeleton(fitted(method)).transform(xnp, given[0], features, learnt)


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
    got = AsModule(fitted(method))(*tensors(method, dtype))
    assert got.dtype == DTYPES[dtype]
    np.testing.assert_allclose(got.numpy(), expected(method, dtype), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ALL)
def test_the_exported_map_takes_any_number_of_rows(method, dtype):
    given = tensors(method, dtype)
    free = torch.export.Dim("rows", min=2, max=1 << 20)
    shapes = tuple({0: free} for _ in given)
    module = AsModule(fitted(method))
    exported = torch.export.export(
        module,
        given,
        dynamic_shapes={"logits": shapes[0]} | ({"features": shapes[1]} if len(given) > 1 else {}),
    ).module()
    for n in (64, 17):
        got = exported(*tensors(method, dtype, n))
        np.testing.assert_allclose(got.numpy(), expected(method, dtype, n), atol=1e-6)


@pytest.mark.parametrize("method", ALL)
def test_the_map_needs_no_values_to_be_followed(method):
    # Tensors of the meta device have no values: whatever looked at one would fail.
    module = AsModule(fitted(method)).to("meta")
    got = module(*(tensor.to("meta") for tensor in tensors(method, "float32")))
    assert got.device.type == "meta"
    assert tuple(got.shape) == (64, CLASSES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ALL)
def test_the_compiled_map_is_one_graph(method, dtype):
    torch._dynamo.reset()
    compiled = torch.compile(AsModule(fitted(method)), fullgraph=True, backend="aot_eager")
    got = compiled(*tensors(method, dtype))
    np.testing.assert_allclose(got.numpy(), expected(method, dtype), atol=1e-6)
