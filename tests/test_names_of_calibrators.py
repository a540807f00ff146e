"""A calibrator knows what its classes are called: after loading, and against other rows."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import calibrant as cb
from calibrant.core.errors import CalibratorFileError, InputError, PredictionsError
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import make_calibrator

pd = pytest.importorskip("pandas")


def named_rows(names=("cat", "dog", "emu"), source="val"):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(300, 3))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return cb.Predictions.from_logits(logits, labels, class_names=names, source=source)


@pytest.mark.parametrize("method", ["temperature", "auto", "svs+top-rest", "isotonic"])
def test_what_classes_are_called_is_saved(method, tmp_path):
    rows = named_rows()
    words = np.array(rows.class_names)[rows.labels]
    table = pd.DataFrame(rows.logits, columns=list(rows.class_names))
    fitted = make_calibrator(method).fit(table, words)
    fitted.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert again.class_names_ == ("cat", "dog", "emu")
    np.testing.assert_array_equal(again.predict(rows.logits), fitted.predict(rows.logits))
    assert again.predict(rows.logits)[0] in words
    numbered = make_calibrator(method).fit_predictions(rows)
    numbered.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert (again.class_names_, again.called_) == (("cat", "dog", "emu"), None)
    assert again.classes_.tolist() == [0, 1, 2]


def test_other_classes_or_another_order_of_them_are_refused_by_name(tmp_path):
    fitted = cb.posthoc.VectorScaling().fit_predictions(named_rows())
    message = "fitted to the classes 'cat', 'dog', 'emu', and test has 'emu', 'dog', 'cat'"
    other = named_rows(("emu", "dog", "cat"), "test")
    with pytest.raises(PredictionsError, match=message):
        fitted.apply_predictions(other)
    nameless = cb.Predictions.from_logits(other.logits, other.labels)
    fitted.apply_predictions(nameless)
    with pytest.raises(InputError, match=r"val has the classes 'cat'.*and test 'emu'"):
        cb.compare(["none"], fit=named_rows(), test=other)
    with pytest.raises(PredictionsError, match="3 classes, 'cat', 'dog', 'emu', and needs"):
        fitted.predict_proba(np.zeros((2, 4)))
    spam = cb.Predictions.from_binary([0.9, 0.2], ["spam", "ham"], positive="spam")
    ham = cb.Predictions.from_binary([0.9, 0.2], ["spam", "ham"], positive="ham")
    platt = cb.posthoc.PlattScaling().fit_predictions(spam)
    with pytest.raises(PredictionsError, match="fitted to the classes 'ham', 'spam'"):
        platt.apply_predictions(ham)


@pytest.mark.parametrize(
    "names", ['["a", "b"]', '["a", "a", "b"]', "[1, 2, 3]", '"abc"', "{", "[" * 9999]
)
def test_names_that_are_none_are_refused(names, tmp_path):
    path = tmp_path / "c.safetensors"
    cb.TemperatureScaling().fit_predictions(named_rows()).save(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() | {"class_names": names}
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(state, path, metadata=header)
    with pytest.raises(CalibratorFileError, match="the header is damaged"):
        load(path)
