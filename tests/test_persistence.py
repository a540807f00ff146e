"""Saved calibrators: what is saved comes back, and files that can't be trusted are refused."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import safetensors.numpy
from feature_rows import fitted, pairs_of, probs_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibrant.core.errors import (
    CalibratorFileError,
    InputError,
    NotApplicableError,
    NotFittedError,
)
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.posthoc.state import save
from calibrant.posthoc.temperature.smart.calibrator import INDICATORS
from calibrant.posthoc.temperature.smart.fitting import objective_names

INPUTS = st.sampled_from(["log-probabilities", "centred"])
ARGUMENTS = {
    "ets": st.fixed_dictionaries({"loss": st.sampled_from(["mse", "nll", "mixed"])}),
    "vector": st.fixed_dictionaries({"ridge": st.floats(1e-3, 1e3)}),
    "svs": st.fixed_dictionaries({"ridge": st.floats(1e-3, 1e3), "inputs": INPUTS}),
    "sms": st.fixed_dictionaries({"ridge": st.floats(1e-3, 1e3)}),
    "ridge": st.fixed_dictionaries({"ridge": st.sampled_from([0.0, 1.0, 100.0]), "inputs": INPUTS}),
    "matrix": st.fixed_dictionaries({"penalty": st.sampled_from([0.0, 0.1, 10.0])}),
    "dirichlet": st.fixed_dictionaries({"bias_penalty": st.sampled_from([0.0, 0.1, 10.0])}),
    "cts": st.fixed_dictionaries(
        {"criterion": st.sampled_from(["nll", "ece"]), "candidates": st.integers(2, 9)}
    ),
    "cts-gradient": st.fixed_dictionaries({"shrinkage": st.floats(1e-2, 1e2)}),
    "pts": st.fixed_dictionaries({"inputs": st.integers(1, 12), "seed": st.integers(0, 99)}),
    "logit-clipping": st.fixed_dictionaries({"criterion": st.sampled_from(["ece", "nll"])}),
    "probit-top-rest": st.fixed_dictionaries({"knots": st.integers(2, 20)}),
    "consistency": st.fixed_dictionaries({"criterion": st.sampled_from(["ece", "nll"])}),
    "histogram": st.fixed_dictionaries(
        {"n_bins": st.integers(1, 20), "strategy": st.sampled_from(["quantile", "uniform"])}
    ),
    "bbq": st.fixed_dictionaries(
        {"prior_strength": st.floats(0.1, 10), "elbow": st.sampled_from([0.0, 0.001, 1.0])}
    ),
    "scaling-binning": st.fixed_dictionaries(
        {"n_bins": st.integers(1, 20), "split": st.sampled_from(["none", "thirds"])}
    ),
    "isotonic": st.fixed_dictionaries({"centred": st.booleans()}),
    "spline": st.fixed_dictionaries({"knots": st.integers(2, 12)}),
    "h-calibration": st.fixed_dictionaries(
        {"segments": st.integers(1, 12), "epsilon": st.sampled_from([0.0, 0.01])}
    ),
    "tva": st.fixed_dictionaries({"scaling": st.sampled_from(["temperature", "vector"])}),
    "mcct": st.fixed_dictionaries({"ranks": st.integers(2, 12), "ridge": st.floats(1e-3, 1e3)}),
    "natural-spline": st.fixed_dictionaries({"knots": st.integers(2, 20)}),
    "predicted-class": st.fixed_dictionaries({"shrinkage": st.floats(0.1, 100)}),
    "top-rest": st.fixed_dictionaries(
        {"knots": st.integers(1, 12), "penalty": st.sampled_from([0.0, 1.0, 1e3])}
    ),
    "group": st.fixed_dictionaries(
        {"partitions": st.integers(1, 4), "groups": st.integers(2, 3), "penalty": st.floats(0, 1)}
    ),
    "procal-dr": st.fixed_dictionaries(
        {"neighbours": st.integers(1, 50), "convention": st.sampled_from(["paper", "released"])}
    ),
    "procal-bms": st.fixed_dictionaries(
        {"reference_rows": st.integers(2, 30), "strength": st.floats(0, 1)}
    ),
    "feature-clipping": st.fixed_dictionaries(
        {"scaling": st.sampled_from(["none", "temperature"]), "accuracy": st.floats(0, 1)}
    ),
    "dac": st.fixed_dictionaries({"loss": st.sampled_from(["mse", "nll"])}),
    "svs-top-rest": st.fixed_dictionaries({"folds": st.integers(1, 6), "svs__inputs": INPUTS}),
    "auto": st.fixed_dictionaries(
        {
            "candidates": st.sampled_from(["temperature", "svs-top-rest, ets", "svs+smart"]),
            "rule": st.sampled_from(["average", "lowest", "simplest"]),
            "loss": st.sampled_from(["nll", "brier"]),
            "same_prediction": st.booleans(),
            "folds": st.integers(2, 3),
        }
    ),
    "smart": st.fixed_dictionaries(
        {
            "objective": st.sampled_from(objective_names()),
            "indicator": st.sampled_from(list(INDICATORS)),
            "hidden": st.integers(1, 20),
            "seed": st.integers(0, 99),
        }
    ),
}


def assert_same(back: Calibrator, original: Calibrator) -> None:
    assert type(back) is type(original)
    assert back.get_params() == original.get_params()
    assert back.n_classes_ == original.n_classes_
    assert back.n_parameters == original.n_parameters
    # `repr`, because an undefined value is equal to itself there.
    assert repr(back.fit_report_) == repr(original.fit_report_)
    for name in original.state_names():
        ours, theirs = getattr(original, name), getattr(back, name)
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=60)
@given(st.sampled_from(list(METHODS)), st.integers(1, 40), st.integers(2, 6), st.data())
def test_what_is_saved_comes_back(method, rows, classes, data: st.DataObject):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logits, labels = rng.normal(size=(rows, classes)), rng.integers(classes, size=rows)
    arguments = data.draw(ARGUMENTS.get(method, st.just({})))
    try:
        original = fitted(method, logits, labels, **arguments)
    except NotApplicableError:
        assume(False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.safetensors"
        original.save(path)
        back = load(path)
        # Saved again it is the same file.
        back.save(Path(folder) / "again.safetensors")
        assert load(Path(folder) / "again.safetensors").get_params() == original.get_params()
    assert_same(back, original)
    new = rng.normal(size=(20, classes)).astype(np.float32)
    np.testing.assert_array_equal(probs_of(back, new), probs_of(original, new))
    for theirs, ours in zip(pairs_of(back, new), pairs_of(original, new), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_numpy_numbers_as_arguments(tmp_path, overconfident):
    original = fitted("histogram", *overconfident, n_bins=np.int64(7))
    original.save(tmp_path / "a.safetensors")
    assert load(str(tmp_path / "a.safetensors")).get_params()["n_bins"] == 7


def test_the_header_says_what_it_is(tmp_path, overconfident):
    path = tmp_path / "smart.safetensors"
    fitted("smart", *overconfident).save(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        header = file.metadata()
    assert header["method"] == "smart"
    assert header["format"] == "calibrant"
    assert header["n_classes"] == "5"
    assert json.loads(header["arguments"])["objective"] == "charbonnier"
    assert json.loads(header["fit_report"])["n"] == 2000
    assert path.stat().st_size < 10_000


# --- refusals

Content = tuple[dict[str, np.ndarray], dict[str, str]]


@pytest.fixture
def saved(tmp_path, overconfident) -> Path:
    path = tmp_path / "saved.safetensors"
    fitted("ets", *overconfident).save(path)
    return path


def content(path: Path) -> Content:
    with safetensors.safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def refused(path: Path, message: str):
    """Expect one line that begins with the path."""
    return pytest.raises(
        CalibratorFileError, match=rf"\A{re.escape(str(path))}: [^\n]*{message}[^\n]*\Z"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'.*knows: none"),
        ({"method": None}, "unknown method"),
        ({"format": "other"}, "not a calibrator that Calibrant saved"),
        ({"format": None}, "not a calibrator"),
        ({"format_version": "2"}, "format version '2'.*update Calibrant"),
        ({"format_version": "-1"}, "format version"),
        ({"format_version": None}, "format version"),
        ({"n_classes": None}, "header is damaged"),
        ({"n_classes": "five"}, "header is damaged"),
        ({"arguments": None}, "header is damaged"),
        ({"arguments": "{"}, "header is damaged"),
        ({"arguments": "[1]"}, "header is damaged"),
        ({"arguments": '{"depth": 3}'}, "header is damaged.*has no argument 'depth'"),
        ({"arguments": '{"loss": "hinge"}'}, "header is damaged.*loss must be"),
        ({"fit_report": "{}"}, "header is damaged"),
        ({"fit_report": '"text"'}, "header is damaged"),
        ({"fit_report": None}, "header is damaged"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(saved, change, message):
    state, header = content(saved)
    header = {k: v for k, v in (header | change).items() if v is not None}
    safetensors.numpy.save_file(state, saved, metadata=header)
    with refused(saved, message):
        load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights_": None}, "holds beta_, weights_, but the file beta_"),
        ({"beta_": None, "weights_": None}, "but the file nothing"),
        ({"extra": np.zeros(2)}, "but the file beta_, extra, weights_"),
        ({"beta_": np.array(np.nan)}, "'beta_' is not made of finite numbers"),
        ({"weights_": np.array([0.5, np.inf, 0])}, "'weights_' is not made of finite numbers"),
        ({"beta_": np.array(True)}, "'beta_' is not made of finite numbers"),
        ({"weights_": np.array([0.5, 0.5])}, "parameters don't fit a 'ets' calibrator"),
        ({"weights_": np.array([0.5, 0.5, 1.0])}, "parameters don't fit a 'ets' calibrator"),
        ({"beta_": np.array([1.0, 2.0])}, "parameters don't fit a 'ets' calibrator"),
        ({"beta_": np.array(-1.0)}, "parameters don't fit a 'ets' calibrator"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(saved, change, message):
    state, header = content(saved)
    state = {k: v for k, v in (state | change).items() if v is not None}
    safetensors.numpy.save_file(state, saved, metadata=header)
    with refused(saved, message):
        load(saved)


def test_parameters_for_another_number_of_classes_are_refused(tmp_path, overconfident):
    path = tmp_path / "vector.safetensors"
    fitted("vector", *overconfident).save(path)
    state, header = content(path)
    safetensors.numpy.save_file(state, path, metadata=header | {"n_classes": "4"})
    with refused(path, "parameters don't fit a 'vector' calibrator for 4 classes"):
        load(path)


def test_files_that_are_no_calibrators_are_refused(tmp_path, saved):
    whole = saved.read_bytes()
    predictions = tmp_path / "predictions.safetensors"
    safetensors.numpy.save_file({"logits": np.zeros((2, 2))}, predictions)
    pickled = tmp_path / "pickle.safetensors"
    pickled.write_bytes(pickle.dumps({"beta_": 1.0}))
    with refused(predictions, "not a calibrator"):
        load(predictions)
    with refused(pickled, "not a readable safetensors file"):
        load(pickled)
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with refused(saved, "not a readable safetensors file"):
            load(saved)
    for missing in (tmp_path / "missing.safetensors", tmp_path):
        with refused(missing, "no such file"):
            load(missing)


def test_loading_runs_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    for name in ("trap.safetensors", "trap.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(CalibratorFileError):
            load(tmp_path / name)
    assert not (tmp_path / "ran").exists()


# --- writing


def test_a_failure_leaves_the_old_file(saved, overconfident, monkeypatch):
    before = saved.read_bytes()
    genuine = safetensors.numpy.save_file

    def fails(state, path, metadata):
        genuine(state, path, metadata=metadata)
        raise OSError("the disk is full")

    monkeypatch.setattr(safetensors.numpy, "save_file", fails)
    with pytest.raises(OSError, match="disk is full"):
        fitted("temperature", *overconfident).save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_saving_over_a_file_replaces_it(saved, overconfident):
    fitted("temperature", *overconfident).save(saved)
    assert load(saved).method == "temperature"
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_what_can_not_be_saved(tmp_path, overconfident):
    calibrator = fitted("temperature", *overconfident)
    with pytest.raises(InputError, match=r"saved as .safetensors"):
        calibrator.save(tmp_path / "a.pkl")
    with pytest.raises(InputError, match=r"the folder .* doesn't exist"):
        calibrator.save(tmp_path / "missing" / "a.safetensors")
    with pytest.raises(NotFittedError):
        save(make_calibrator("temperature"), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


SAVES = """
import sys
import calibrant as cb

rows = cb.load_sample("validation").take(slice(400))
cb.make_calibrator("svs-top-rest").fit_predictions(rows).save(sys.argv[1])
"""


def test_the_same_fit_is_the_same_file_to_the_byte(tmp_path):
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for file in files:
        subprocess.run([sys.executable, "-c", SAVES, str(file)], check=True)
    first, *others = [file.read_bytes() for file in files]
    assert all(other == first for other in others)
    assert load(files[0]).method == "svs-top-rest"
