"""A calibrator as a torch module: moved, cast, saved, differentiated, behind a network."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import (
    CalibrationWarning,
    InputError,
    MissingDependencyError,
    NotFittedError,
    PredictionsError,
)

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, load_model, save_file, save_model  # noqa: E402

SAMPLE = cb.load_sample("validation").take(slice(500))
TEST = cb.load_sample("test").take(slice(40))


@pytest.fixture(scope="module")
def fitted():
    found = {}

    def of(method: str) -> cb.Calibrator:
        if method not in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                found[method] = cb.make_calibrator(method).fit_predictions(SAMPLE)
        return found[method]

    return of


def logits(dtype=torch.float32):
    return torch.tensor(np.asarray(TEST.logits)).to(dtype)


def images():
    """Return what a network is given: here the features, which are float16 in the sample."""
    return torch.tensor(np.asarray(TEST.features, dtype=np.float32))


def test_casting_a_module_leaves_what_was_learnt(fitted):
    module = fitted("smart").to_torch()
    before = module(logits())
    learnt = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for narrow in (module.half(), module.bfloat16(), module.to(torch.float16), module.float()):
        for name, tensor in narrow.state_dict().items():
            assert tensor.dtype == learnt[name].dtype
            assert torch.equal(tensor, learnt[name])
        assert torch.equal(narrow(logits()), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_rows_are_computed_and_returned_in_float32(fitted, dtype):
    module = fitted("temperature").to_torch().half()
    probs = module(logits(dtype))
    assert probs.dtype == torch.float32
    wanted = fitted("temperature").predict_proba(logits(dtype))
    torch.testing.assert_close(probs, wanted, atol=1e-6, rtol=0)


def test_under_autocast_probabilities_stay_exact(fitted):
    module = fitted("sms").to_torch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(logits()), fitted("sms").to_torch()(logits()))
    np.testing.assert_allclose(module(logits()), fitted("sms").predict_proba(logits()), atol=1e-6)


def test_a_single_row_gives_a_row(fitted):
    module = fitted("dac").to_torch()
    features = images()
    whole = module(logits(), features)
    torch.testing.assert_close(module(logits()[3], features[3]), whole[3])


def test_the_state_of_network_and_calibrator_is_saved_without_pickling(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    model = cb.posthoc.CalibratedModule(torch.nn.Linear(64, 10), fitted("svs-top-rest"))
    save_model(model, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        few = cb.make_calibrator("svs-top-rest").fit_predictions(SAMPLE.take(slice(400)))
    other = cb.posthoc.CalibratedModule(torch.nn.Linear(64, 10), few)
    given = images()
    assert not torch.equal(other(given), model(given))
    load_model(other, str(path))
    assert torch.equal(other(given), model(given))


def test_a_module_comes_back_from_the_calibrators_own_file(fitted, tmp_path):
    fitted("auto").save(tmp_path / "auto.safetensors")
    module = cb.load(tmp_path / "auto.safetensors").to_torch()
    save_file(module.state_dict(), str(tmp_path / "state.safetensors"))
    again = fitted("auto").to_torch()
    again.load_state_dict(load_file(str(tmp_path / "state.safetensors")))
    assert torch.equal(again(logits()), module(logits()))


@pytest.mark.parametrize("method", ["temperature", "top-rest", "venn-abers", "procal-dr"])
def test_a_program_runs_any_number_of_rows_and_is_read_without_unpickling(
    fitted, method, tmp_path, monkeypatch
):
    fitted(method).to_torch(tmp_path / "calibrator.pt2")
    load = torch.load

    def data_only(*given, **more):
        assert more.get("weights_only"), "would unpickle"
        return load(*given, **more)

    monkeypatch.setattr(torch, "load", data_only)
    program = torch.export.load(tmp_path / "calibrator.pt2").module()
    features = images()
    given = (logits(), features) if "features" in fitted(method).needs else (logits(),)
    for n in (1, 17, 40):
        part = tuple(tensor[:n] for tensor in given)
        wanted = fitted(method).predict_proba(*part)
        torch.testing.assert_close(program(*part), wanted, atol=1e-6, rtol=0)


def test_the_gradient_reaches_the_networks_weights(fitted):
    model = cb.posthoc.CalibratedModule(torch.nn.Linear(64, 10), fitted("smart"))
    model(images())[:, 0].sum().backward()
    assert model.network.weight.grad.abs().sum() > 0
    assert [name for name, _ in model.named_parameters()] == ["network.weight", "network.bias"]


def test_networks_may_give_features_or_an_object_with_logits(fitted):
    given = images()

    class Network(torch.nn.Module):
        def forward(self, images, form):
            scores = images @ torch.ones(64, 10)
            if form == "object":
                return SimpleNamespace(logits=scores, features=images)
            return (scores, images) if form == "pair" else {"scores": scores}

    model = cb.posthoc.CalibratedModule(Network(), fitted("dac"))
    pair, held = model(given, form="pair"), model(given, form="object")
    assert torch.equal(pair, held)
    with pytest.raises(PredictionsError, match="must give logits, logits and features"):
        model(given, form="dict")


def test_what_does_not_fit_is_said_in_a_sentence(fitted, tmp_path):
    with pytest.raises(NotFittedError, match="has not been fitted"):
        cb.TemperatureScaling().to_torch()
    with pytest.raises(PredictionsError, match=r"needs logits of shape \(N, 10\), not \(4, 7\)"):
        fitted("temperature").to_torch()(torch.zeros(4, 7))
    with pytest.raises(PredictionsError, match=r"needs features of shape \(N, 64\) beside"):
        fitted("dac").to_torch()(torch.zeros(4, 10))
    with pytest.raises(PredictionsError, match=r"was fitted for 64 features .* not \(4, 3\)"):
        fitted("dac").to_torch()(torch.zeros(4, 10), torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"a torch program is saved as \.pt2"):
        fitted("temperature").to_torch(tmp_path / "calibrator.pt")
    assert not any(tmp_path.iterdir())


def test_without_torch_the_message_says_what_to_install(fitted, monkeypatch):
    monkeypatch.delitem(sys.modules, "calibrant.export.torch_module")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'calibrant\[torch\]'"):
        fitted("temperature").to_torch()


def test_a_module_says_what_it_is(fitted):
    assert "method='temperature', classes=10" in repr(fitted("temperature").to_torch())


def test_a_network_in_place_of_a_path_is_told_what_takes_it() -> None:
    fitted = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
    with pytest.raises(cb.InputError, match=r"CalibratedModule\(network, calibrator\)"):
        fitted.to_torch(torch.nn.Identity())


@pytest.mark.parametrize("inputs", ["log-probabilities", "centred"])
def test_a_module_reads_the_inputs_that_a_fit_chose(inputs):
    chosen = cb.make_calibrator("sms", inputs=inputs).fit_predictions(SAMPLE)
    expected = chosen.predict_proba(logits(torch.float64))
    # What a fit that chose these inputs by itself leaves.
    chosen.inputs = "likelier"
    np.testing.assert_array_equal(chosen.predict_proba(logits(torch.float64)), expected)
    found = chosen.to_torch(dtype="float64")(logits(torch.float64))
    np.testing.assert_allclose(found, expected, atol=1e-12)
