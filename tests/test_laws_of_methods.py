"""Laws that every registered method obeys: one suite, which a new method joins by being registered.

What a method can't obey stands in `EXCEPTIONS`, with the reason.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from feature_rows import QUICK
from numpy.typing import NDArray

from calibrant.core.errors import CalibrationWarning, NotApplicableError, PredictionsError
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.confidence.base import ConfidenceMap
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.posthoc.temperature.scaling import SummaryTemperature
from calibrant.predictions.rows import summarize

# (law, method): why it doesn't hold. Other laws still do.
EXCEPTIONS: dict[tuple[str, str], str] = {}
# How far a map may move where the law holds up to what a penalty or a prior says of K classes.
COUNTS_CLASSES = {"svs": 5e-2, "svs-top-rest": 5e-2, "sms": 5e-2, "vector": 5e-2, "auto": 5e-3}

# Enough for the maps of long rows (64 classes and more); fits of matrices take the square of it.
MANY = 70
# What `auto` averages of long rows: a method of every family.
FEW = "temperature, ets, smart, svs+top-rest, mcct+top-rest"

every_method = pytest.mark.parametrize("method", METHODS)
every_library = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["np", "torch"])
KEEPING = [name for name, kind in METHODS.items() if kind.keeps_prediction]
# Those whose predicted class stands alone on top, however close others come.
STRICTLY_ON_TOP = [name for name, kind in METHODS.items() if issubclass(kind, ConfidenceMap)]


@dataclass(frozen=True)
class Rows:
    """Rows with all that a method may ask for; the last layer makes the logits of the features."""

    logits: Any
    labels: Any
    features: Any
    head: tuple[NDArray[np.float64], NDArray[np.float64]]

    def take(self, index: Any) -> Rows:
        return replace(
            self,
            logits=self.logits[index],
            labels=self.labels[index],
            features=self.features[index],
        )

    def with_classes(self, order: NDArray[np.int64]) -> Rows:
        weight, bias = self.head
        labels, head = np.argsort(order)[self.labels], (weight[order], bias[order])
        return replace(self, logits=self.logits[:, order], labels=labels, head=head)

    def cast(self, function: Any) -> Rows:
        return replace(self, logits=function(self.logits), features=function(self.features))


@pytest.fixture(scope="session")
def draw(labelled_logits):
    """A function that draws rows; `temperature` is what the logits were multiplied by."""

    def make(rows: int, classes: int, seed: int, temperature: float = 2.0) -> Rows:
        logits, labels = labelled_logits(rows, classes, temperature=temperature, seed=seed)
        return Rows(logits, labels, logits.copy(), (np.eye(classes), np.zeros(classes)))

    return make


@dataclass(frozen=True)
class Fitted:
    """A fitted method, fed what it needs."""

    calibrator: Calibrator

    def probs(self, rows: Rows) -> Any:
        return self.calibrator.predict_proba(rows.logits, *self._more(rows))

    def confidence(self, rows: Rows) -> Any:
        return self.calibrator.predict_confidence(rows.logits, *self._more(rows))

    def _more(self, rows: Rows) -> list[Any]:
        return [rows.features] if "features" in needs(type(self.calibrator)) else []


def needs(kind: type[Calibrator]) -> tuple[str, ...]:
    return getattr(kind, "needs", ())


def fitted(method: str, rows: Rows) -> Fitted:
    kind = METHODS[method]
    few = method == "auto" and rows.logits.shape[1] == MANY
    arguments = QUICK.get(method, {}) | ({"candidates": FEW} if few else {})
    more = {name: getattr(rows, name) for name in needs(kind)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        try:
            return Fitted(
                make_calibrator(method, **arguments).fit(rows.logits, rows.labels, **more)
            )
        except NotApplicableError as reason:
            pytest.skip(str(reason))


@pytest.fixture(scope="session")
def plain(draw):
    """A function that draws rows and fits a method to them; what was fitted is kept.

    Rows of float32 hold the numbers that float16 can hold, and so many ties; those of float64 none.
    None can be written to, so that no fit and no map changes what it is given.
    """

    @cache
    def make(
        method: str, classes: int, dtype: str = "float64", seed: int = 3
    ) -> tuple[Rows, Fitted]:
        narrow = dtype if dtype == "float64" else "float16"
        rows = draw(400, classes, seed).cast(lambda a: a.astype(narrow).astype(dtype))
        for array in (rows.logits, rows.labels, rows.features):
            array.flags.writeable = False
        return rows, fitted(method, rows)

    return make


def skip_exceptions(law: str, method: str) -> None:
    if (law, method) in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[law, method])


# --- what comes out


@every_method
@pytest.mark.parametrize(
    ("dtype", "classes"),
    [(d, 5) for d in ("float16", "float32", "float64", "int16")]
    + [("float32", 2), ("float32", MANY)],
)
def test_rows_are_distributions_of_the_right_kind(method, classes, dtype, plain):
    rows, calibrator = plain(method, classes, dtype)
    wanted = "float64" if dtype in ("float64", "int16") else "float32"
    for kind in (np.asarray, torch.tensor):
        given = rows.cast(kind)
        probs = calibrator.probs(given)
        assert type(probs) is type(given.logits)
        assert str(probs.dtype).removeprefix("torch.") == wanted
        assert str(getattr(probs, "device", "cpu")) == "cpu"
        values = np.asarray(probs)
        assert values.shape == rows.logits.shape
        assert (values >= 0).all()
        np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-6)


@every_method
def test_no_rows_are_no_rows(method, plain):
    rows, calibrator = plain(method, 5)
    none = rows.take(slice(0))
    assert calibrator.probs(none).shape == (0, 5)
    label, confidence = calibrator.confidence(none)
    assert label.shape == confidence.shape == (0,)
    with pytest.raises(PredictionsError, match="N >= 1"):
        fitted(method, none)


@every_method
@every_library
def test_a_single_row_gives_a_row(method, library, plain):
    rows, calibrator = plain(method, 5)
    given = rows.cast(library)
    row = calibrator.probs(given.take(7))
    assert type(row) is type(given.logits)
    assert row.shape == (5,)
    np.testing.assert_allclose(np.asarray(row), np.asarray(calibrator.probs(given))[7], atol=1e-12)


@pytest.mark.parametrize("method", KEEPING)
@pytest.mark.parametrize("classes", [2, 5, MANY])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_predicted_class_is_kept(method, classes, dtype, plain):
    rows, calibrator = plain(method, classes, dtype)
    # New rows: near ties, exact ties, certain ones, flat ones.
    rng = np.random.default_rng(1)
    new = (rng.normal(size=(2000, classes)) * 10 ** rng.uniform(-6, 2, size=(2000, 1))).astype(
        dtype
    )
    new[:300, 1] = new[:300, 0] = np.abs(new[:300]).max(axis=1)
    new[300:400] = 0
    for given in (rows, replace(rows, logits=new, features=new)):
        best = given.logits.argmax(axis=1)
        label, confidence = calibrator.confidence(given)
        np.testing.assert_array_equal(label, best)
        probs = calibrator.probs(given)
        # Where float32 can't tell two classes apart, they may tie, but none overtakes.
        np.testing.assert_array_equal(probs[np.arange(len(best)), best], probs.max(axis=1))
        if method in (*STRICTLY_ON_TOP, "top-rest"):
            np.testing.assert_array_equal(label, probs.argmax(axis=1))
        assert ((confidence >= 0) & (confidence <= 1 + 1e-6)).all()


# --- what must make no difference


@every_method
@pytest.mark.parametrize("classes", [2, 5, MANY])
def test_order_of_classes_and_rows_and_their_origin_do_not_matter(method, classes, plain):
    rows, calibrator = plain(method, classes)
    rng = np.random.default_rng(0)
    order, shift = rng.permutation(classes), rng.normal(scale=30, size=(400, 1))
    moved = replace(rows, logits=rows.logits + shift).with_classes(order)
    # All at once: a method that minds any of them fits something else.
    other = fitted(method, moved.take(rng.permutation(400)))
    np.testing.assert_allclose(other.probs(moved), calibrator.probs(rows)[:, order], atol=1e-4)


@every_method
@pytest.mark.parametrize("classes", [2, 5, MANY])
def test_company_of_rows_does_not_matter(method, classes, plain):
    rows, calibrator = plain(method, classes)
    # Rows are mapped one by one: alone, in halves and all together.
    whole = calibrator.probs(rows)
    alone = np.concatenate([calibrator.probs(rows.take(slice(i, i + 1))) for i in range(20)])
    np.testing.assert_allclose(alone, whole[:20], rtol=1e-12, atol=1e-15)
    halves = [calibrator.probs(rows.take(half)) for half in (slice(0, 157), slice(157, 400))]
    np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-12, atol=1e-15)


@every_method
@pytest.mark.parametrize(
    ("classes", "seed"), [(2, 3), (2, 4), (5, 3), (5, 10), (MANY, 3), (10, None)]
)
def test_rounding_of_the_logits_does_not_matter(method, classes, seed, draw, plain):
    """What a fit makes of the last digits, another processor makes of its sums."""
    skip_exceptions("rounding", method)
    if seed is None:
        rows = draw(2000, classes, 20)
        first = fitted(method, rows)
    else:
        rows, first = plain(method, classes, seed=seed)
    noise = np.random.default_rng(seed).uniform(-1e-12, 1e-12, size=rows.logits.shape)
    moved = replace(rows, logits=rows.logits * (1 + noise))
    before, other = first.probs(rows), fitted(method, moved)
    np.testing.assert_allclose(other.probs(rows), before, rtol=0, atol=1e-6)
    # A row that lies on the edge of a bin may fall to either side, others may not.
    apart = np.abs(other.probs(moved) - before).max(axis=1)
    assert (apart > 1e-6).mean() < 0.01


@every_method
def test_the_same_rows_give_the_same_fit(method, draw, plain):
    rows, first = plain(method, 5)
    # A calibrator that was fitted before starts afresh.
    used = fitted(method, draw(300, 3, 9, temperature=0.5)).calibrator
    more = {name: getattr(rows, name) for name in needs(type(used))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        assert used.fit(rows.logits, rows.labels, **more) is used
    np.testing.assert_array_equal(Fitted(used).probs(rows), first.probs(rows))


@every_method
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saving_and_loading_changes_nothing(method, dtype, plain, tmp_path):
    rows, saved = plain(method, 5, dtype)
    saved.calibrator.save(tmp_path / "saved.safetensors")
    back = Fitted(load(tmp_path / "saved.safetensors"))
    np.testing.assert_array_equal(back.probs(rows), saved.probs(rows))
    for ours, theirs in zip(back.confidence(rows), saved.confidence(rows), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert back.calibrator.n_parameters == saved.calibrator.n_parameters


@every_method
@pytest.mark.parametrize(
    ("dtype", "classes"), [("float16", 5), ("float32", 5), ("float64", 5), ("float32", MANY)]
)
def test_numpy_and_torch_agree(method, classes, dtype, plain):
    ours, numpy_fit = plain(method, classes, dtype)
    theirs = ours.cast(lambda a: torch.tensor(a, requires_grad=True))
    torch_fit = fitted(method, replace(theirs, labels=torch.tensor(ours.labels)))
    # Sums of float32 rows are rounded in another order, which the table of many classes inherits.
    tolerance = 1e-3 if classes >= 65 else 1e-6
    if method == "irm" and dtype != "float64":
        # Probabilities of other rows that tie but for the last bit change places, and a step moves.
        tolerance = max(tolerance, 1e-4)
    probs = torch_fit.probs(theirs)
    assert not probs.requires_grad
    # Tensors can't be locked as the arrays of `plain` are.
    for there, here in ((theirs.logits, ours.logits), (theirs.features, ours.features)):
        np.testing.assert_array_equal(there.detach().numpy(), here)
    np.testing.assert_allclose(probs.numpy(), numpy_fit.probs(ours), atol=tolerance)
    # The same fit says the same of both.
    np.testing.assert_allclose(numpy_fit.probs(theirs).numpy(), numpy_fit.probs(ours), atol=1e-3)
    for there, here in zip(numpy_fit.confidence(theirs), numpy_fit.confidence(ours), strict=True):
        assert isinstance(there, np.ndarray)
        assert there.dtype == here.dtype
        np.testing.assert_allclose(there, here, atol=1e-3)


@every_method
@pytest.mark.parametrize("classes", [5, MANY])
def test_narrow_floats_agree_with_float64(method, classes, plain):
    rows = plain(method, classes, "float16")[0].cast(lambda a: a.astype(np.float64))
    wide = fitted(method, rows).probs(rows)
    for dtype in ("float32", "float16"):
        narrow, calibrator = plain(method, classes, dtype)
        np.testing.assert_allclose(calibrator.probs(narrow), wide, atol=2e-3)


# --- masked classes, and rows that can't be used


@every_method
@every_library
def test_a_column_of_minus_infinity_is_as_if_it_were_not_there(method, library, plain):
    rows, calibrator = plain(method, 5, seed=10)
    masked = np.insert(rows.logits, 2, -np.inf, axis=1)
    weight, bias = rows.head
    wider = Rows(
        library(masked),
        rows.labels + (rows.labels >= 2),
        library(rows.features),
        (np.insert(weight, 2, 0, axis=0), np.insert(bias, 2, 0)),
    )
    if not METHODS[method].fits_masked:
        more = {name: getattr(wider, name) for name in needs(METHODS[method])}
        with pytest.raises((NotApplicableError, PredictionsError)):
            make_calibrator(method).fit(wider.logits, wider.labels, **more)
        return
    probs = np.asarray(fitted(method, wider).probs(wider))
    np.testing.assert_array_equal(probs[:, 2], 0)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    kept = [0, 1, 3, 4, 5]
    # Values that rest on N rows are mixed with 1 / K at weight 1 / (N + 1); penalties grow with K.
    pooled = issubclass(METHODS[method], ConfidenceMap) or method == "irm"
    tolerance = COUNTS_CLASSES.get(method, 2e-4 if pooled else 1e-6)
    np.testing.assert_allclose(probs[:, kept], calibrator.probs(rows), atol=tolerance)


@every_method
@every_library
def test_a_masked_class_gets_nothing_from_a_fit_without_masks(method, library, plain):
    rows, calibrator = plain(method, 5)
    first = rows.take(slice(50))
    masked = first.logits.copy()
    masked[np.arange(50), masked.argmin(axis=1)] = -np.inf
    given = replace(first, logits=library(masked), features=library(first.features))
    probs = np.asarray(calibrator.probs(given))
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    np.testing.assert_array_equal(probs[masked == -np.inf], 0)
    label, confidence = calibrator.confidence(given)
    assert np.isfinite(confidence).all()
    if METHODS[method].keeps_prediction:
        np.testing.assert_array_equal(label, first.logits.argmax(axis=1))


@every_method
@every_library
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(method, library, bad, plain):
    rows, calibrator = plain(method, 5)
    # Beyond the first of the parts that maps take.
    logits = np.zeros((10_000, 5))
    features = logits.copy()
    logits[9_123, 2] = bad
    wrong = replace(rows, logits=library(logits), features=library(features))
    for predict in (calibrator.probs, calibrator.confidence):
        with pytest.raises(PredictionsError, match="row 9123 "):
            predict(wrong)
    train = rows.logits.copy()
    train[234, 4] = bad
    with pytest.raises(PredictionsError, match=r"row 234, column 4 holds"):
        fitted(method, replace(rows, logits=library(train)))


@every_method
@pytest.mark.parametrize(
    "case", ["one row", "two rows", "constant", "all right", "all wrong", "absent classes", "ties"]
)
def test_difficult_sets_are_survived(method, case, draw):
    rows = draw(60, 6, 7)
    if case == "one row":
        rows = rows.take(slice(1))
    elif case == "two rows":
        rows = rows.take(slice(2))
    elif case == "constant":
        rows = rows.cast(np.zeros_like)
    elif case == "all right":
        rows = replace(rows, labels=rows.logits.argmax(axis=1))
    elif case == "all wrong":
        rows = replace(rows, labels=rows.logits.argmin(axis=1))
    elif case == "absent classes":
        rows = replace(rows, labels=rows.labels % 2)
    else:
        rows = rows.cast(np.sign)
    probs = fitted(method, rows).probs(rows)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    if method != "none":
        # No certainty can come out of sixty rows.
        assert probs.max() < 1 - 1e-9 or case == "all right"


@every_method
@pytest.mark.parametrize("case", ["all right", "all wrong"])
def test_warnings_name_the_line_that_called(method, case, draw):
    rows = draw(200, 4, 11)
    extreme = rows.logits.argmax(axis=1) if case == "all right" else rows.logits.argmin(axis=1)
    more = {name: getattr(rows, name) for name in needs(METHODS[method])}
    calibrator = make_calibrator(method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            calibrator.fit(rows.logits, extreme, **more)
        except NotApplicableError as reason:
            pytest.skip(str(reason))
        if isinstance(calibrator, SummaryTemperature) and not more:
            make_calibrator(method).fit_rows(summarize(rows.logits, extreme))
    assert {warning.filename for warning in caught} <= {__file__}
    if isinstance(calibrator, SummaryTemperature) and not more:
        assert len(caught) >= 2
