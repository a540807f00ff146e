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
    numbered = make_calibrator(method).fit(table, rows.labels)  # as scikit-learn has it
    numbered.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert (again.class_names_, again.called_) == (("cat", "dog", "emu"), None)
    assert again.classes_.tolist() == [0, 1, 2]
    of_a_file = make_calibrator(method).fit_predictions(rows)
    of_a_file.save(tmp_path / "c.safetensors")
    assert load(tmp_path / "c.safetensors").classes_.tolist() == ["cat", "dog", "emu"]


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


def frames(columns, values):
    """Return a table of each library that is installed, and how it takes columns in an order."""
    for library, line in (("pandas", "frame["), ("polars", "frame["), ("pyarrow", "table.select(")):
        module = pytest.importorskip(library)
        if library == "pyarrow":
            yield module.table(dict(zip(columns, values.T, strict=True))), line
        else:
            yield module.DataFrame(dict(zip(columns, values.T, strict=True))), line


@pytest.mark.parametrize("stem", ["", "prob_", "p_"])
def test_a_table_whose_columns_are_in_another_order_is_refused_with_the_line_that_orders_them(stem):
    rows = named_rows()
    fitted = cb.posthoc.VectorScaling().fit_predictions(rows)
    names = [stem + name for name in rows.class_names]
    for (right, line), (wrong, _) in zip(
        frames(names, rows.logits), frames(names[::-1], rows.logits[:, ::-1]), strict=True
    ):
        wanted = fitted.predict_proba(rows.logits)
        np.testing.assert_array_equal(fitted.predict_proba(right), wanted)
        for ask in (fitted.predict_proba, fitted.predict, fitted.predict_confidence):
            with pytest.raises(PredictionsError) as caught:
                ask(wrong)
        assert str(caught.value).partition("give ")[2].startswith(f"{line}['{stem}cat'")
        ordered = eval(str(caught.value).partition("give ")[2], {"frame": wrong, "table": wrong})
        np.testing.assert_array_equal(fitted.predict_proba(ordered), wanted)
    with pytest.raises(PredictionsError, match=r"has 'cat', 'dog', 'owl'.*give an array of them"):
        fitted.predict_proba(pd.DataFrame(rows.logits, columns=["cat", "dog", "owl"]))
    fitted.predict_proba(pd.DataFrame(rows.logits))  # numbers are places


def test_a_table_of_two_classes_is_taken_in_the_order_of_the_fit():
    spam = cb.Predictions.from_binary([0.9, 0.2, 0.6], ["spam", "ham", "ham"], positive="spam")
    platt = cb.posthoc.PlattScaling().fit_predictions(spam)
    wanted = platt.predict_proba(np.array([0.9, 0.2, 0.6]))
    two = pd.DataFrame({"ham": [0.1, 0.8, 0.4], "spam": [0.9, 0.2, 0.6]})
    np.testing.assert_allclose(platt.predict_proba(two), wanted)
    np.testing.assert_allclose(platt.predict_proba(two["spam"]), wanted)
    np.testing.assert_allclose(platt.predict_proba(two[["spam"]]), wanted)
    with pytest.raises(PredictionsError, match=r"give frame\[\['ham', 'spam'\]\]"):
        platt.predict_proba(two[["spam", "ham"]])
    for one in (two["ham"], two[["ham"]]):
        with pytest.raises(PredictionsError, match="'ham' is the negative class"):
            platt.predict_proba(one)


def test_refusals_of_files_say_how_to_read_them_in_the_order_of_the_fit():
    fitted = cb.posthoc.VectorScaling().fit_predictions(named_rows())
    with pytest.raises(PredictionsError, match=r"order of the fit.*--scores"):
        fitted.apply_predictions(named_rows(("emu", "dog", "cat")))
    spam, ham = (
        cb.Predictions.from_binary([0.9, 0.2], ["spam", "ham"], positive=name)
        for name in ("spam", "ham")
    )
    platt = cb.posthoc.PlattScaling().fit_predictions(spam)
    with pytest.raises(PredictionsError, match="the positive class of the fit is 'spam'"):
        platt.apply_predictions(ham)


def test_a_calibrator_shows_what_it_was_fitted_to_and_its_classes_in_order(tmp_path):
    fitted = cb.posthoc.VectorScaling().fit_predictions(named_rows())
    fitted.save(tmp_path / "c.safetensors")
    shown = "VectorScaling() fitted to 300 rows of 3 classes (logits): cat, dog, emu"
    assert repr(load(tmp_path / "c.safetensors")) == shown
    spam = cb.Predictions.from_binary([0.9, 0.2, 0.6], ["spam", "ham", "ham"], positive="spam")
    platt = cb.posthoc.PlattScaling().fit_predictions(spam)
    assert repr(platt).endswith(
        "3 rows of two classes, one score each (probs): ham, spam (positive)"
    )
    sure = cb.Predictions.from_confidence([0.9, 0.2, 0.6], correct=[True, False, True])
    assert "the predicted class alone (probs)" in repr(platt.bare().fit_predictions(sure))
    assert (repr(cb.AutoCalibrator()), repr(cb.AutoCalibrator(seed=3))) == (
        "AutoCalibrator()",
        "AutoCalibrator(seed=3)",
    )
