"""Files of calibrators whose numbers were tampered with: refused, or they give probabilities."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from feature_rows import QUICK, fitted, probs_of

from calibrant.core.errors import CalibratorFileError
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import METHODS

ONE_VS_REST = ("histogram", "bbq", "isotonic", "venn-abers")
CASES = [(method, {}) for method in METHODS] + [
    (method, {"form": "one-vs-rest"}) for method in ONE_VS_REST
]
SPREADS = (1e-3, 0.03, 0.2, 0.7, 1.5, 3.0, 6.0, 12.0, 25.0, 60.0)

Content = tuple[dict[str, np.ndarray], dict[str, str]]


def content(path: Path) -> Content:
    with safetensors.safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def some_rows(classes: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    rows = [rng.normal(size=(60, classes)) * spread for spread in SPREADS]
    return np.concatenate([*rows, np.zeros((1, classes)), 1e3 * np.eye(classes)])


def assert_gives_probabilities(calibrator: Calibrator) -> None:
    for dtype in (np.float32, np.float64):
        rows = some_rows(calibrator.n_classes_).astype(dtype)
        with np.errstate(all="ignore"):
            probs = probs_of(calibrator, rows)
        assert probs.shape == rows.shape
        assert probs.dtype == dtype
        assert (probs >= 0).all()
        assert (probs <= 1 + 1e-5).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)


def mutants(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield arrays of other sizes and signs, with what no fit leaves behind."""
    values = [0.0, -1.0, 1e308, -1e308, 1e-308, 1.75, np.nan, np.inf]
    for value in values if array.dtype.kind == "f" else [0, -1, 2**40]:
        yield np.full_like(array, value)
        if array.size > 1:
            one = array.copy()
            one.flat[array.size // 2] = value
            yield one
    yield -array
    yield array * 1000
    yield np.concatenate([array.ravel(), array.ravel()])
    yield array.ravel()[:0]
    yield array[np.newaxis]
    if array.ndim > 0:
        yield array[:1]
        yield array[:-1]
        yield array[0]
    if array.ndim > 1:
        yield array.T
        yield array[:, :1]


@pytest.mark.parametrize(("method", "arguments"), CASES, ids=lambda case: str(case))
def test_a_tampered_file_is_refused_or_gives_probabilities(
    method, arguments, tmp_path, labelled_logits
):
    path = tmp_path / "c.safetensors"
    rows = labelled_logits(150, 4, seed=3)
    fitted(method, *rows, **QUICK.get(method, {}), **arguments).save(path)
    state, header = content(path)
    assert_gives_probabilities(load(path))
    refusals: list[str] = []
    for name, array in state.items():
        with np.errstate(all="ignore"):
            changed = [state | {name: np.ascontiguousarray(mutant)} for mutant in mutants(array)]
        for arrays in changed:
            safetensors.numpy.save_file(arrays, path, metadata=header)
            try:
                calibrator = load(path)
            except CalibratorFileError as error:
                refusals.append(str(error))
            else:
                assert_gives_probabilities(calibrator)
    assert len(refusals) > len(state) or not state
    assert all(text.startswith(f"{path}: ") and "\n" not in text for text in refusals)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("temperature-laplace", {"uniform_": np.array(-1.0)}),
        ("probit", {"uniform_": np.array(-1.0)}),
        ("consistency", {"uniform_": np.array(-1.0)}),
        ("predicted-class", {"class_betas_": np.ones(1)}),
        ("temperature", {"beta_": np.ones(2)}),
        ("top-rest", {"slope_": np.ones(2)}),
        ("dac", {"floor_": np.ones(2)}),
    ],
)
def test_what_used_to_pass_is_refused_by_name(method, change, tmp_path, labelled_logits):
    path = tmp_path / "c.safetensors"
    fitted(method, *labelled_logits(150, 4, seed=3)).save(path)
    state, header = content(path)
    safetensors.numpy.save_file(state | change, path, metadata=header)
    (name,) = change
    with pytest.raises(CalibratorFileError, match=rf"don't fit a '{method}' .*'{name}' must"):
        load(path)


@pytest.mark.parametrize("value", [-1.0, 1e308])
def test_levels_beyond_probabilities_are_refused(value, tmp_path, labelled_logits):
    path = tmp_path / "c.safetensors"
    fitted("irm", *labelled_logits(150, 4, seed=3)).save(path)
    state, header = content(path)
    state["values_"] = state["values_"].copy()
    state["values_"][len(state["values_"]) // 2] = value
    safetensors.numpy.save_file(state, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="'values_' must not lie"):
        load(path)


@pytest.mark.parametrize("classes", ["20000000", "1" * 18])
def test_a_number_of_classes_reserves_no_memory(classes, tmp_path, overconfident):
    path = tmp_path / "c.safetensors"
    fitted("temperature", *overconfident).save(path)
    state, header = content(path)
    safetensors.numpy.save_file(state, path, metadata=header | {"n_classes": classes})
    tracemalloc.start()
    started = time.process_time()
    try:
        assert load(path).n_classes_ == int(classes)
        assert tracemalloc.get_traced_memory()[1] < 5e7
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 10  # it took 23 s


@pytest.mark.parametrize("classes", ["1", "0", "-3", "9" * 5000])
def test_numbers_of_classes_that_are_none_are_refused(classes, tmp_path, overconfident):
    path = tmp_path / "c.safetensors"
    fitted("temperature", *overconfident).save(path)
    state, header = content(path)
    safetensors.numpy.save_file(state, path, metadata=header | {"n_classes": classes})
    with pytest.raises(CalibratorFileError, match="header is damaged"):
        load(path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("classes", "scale"), [(2, 1.0), (30, 1e6), (150, 1e-6)])
def test_whatever_was_fitted_is_loaded(method, classes, scale, tmp_path, labelled_logits):
    path = tmp_path / "c.safetensors"
    logits, labels = labelled_logits(200, classes, seed=4)
    fitted(method, scale * logits, labels, **QUICK.get(method, {})).save(path)
    assert load(path).n_classes_ == classes
