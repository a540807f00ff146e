"""What a calibrator has learnt, as a file of safetensors keeps it.

Learnt attributes know their own shape and limits, so that no damaged file passes for them: what an
attribute can't be is said where it is declared, and one function checks all of them. A calibrator
that is made of others holds each part's header within its own, and its arrays under the part's
name. A file is data only.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib import import_module
from math import inf
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import check_arguments
from calibrant.core.errors import InputError, NotFittedError
from calibrant.core.fit_report import FitReport
from calibrant.core.outputs import StrPath
from calibrant.core.result import facts_html
from calibrant.core.text import counted, in_order
from calibrant.files.parameters import ParameterFormat
from calibrant.posthoc.facts import Facts

Fitted = TypeVar("Fitted")
FittedForm = Literal["rows", "binary", "toplabel"]
FittedKind = Literal["logits", "probs", "score"]
# Of so many rows SMART's fit costs less than 1e-5 in NLL.
SAMPLE_ROWS = 2_000_000

_LEARNT = "learnt"
# What a fit knows of its rows, apart from what it learns of them.
_OF_FIT = (
    *("n_classes_", "form_", "kind_", "placing_"),
    *("class_names_", "called_", "fitted_to_", "comparison_"),
)
# Attributes without a declaration are judged by their annotation, where that says enough.
_SCALARS = {"float": "fi", "int": "i"}
# Rows are mostly computed in float32, where products with what lies beyond overflow.
LARGEST = 1e35


@dataclass
class Comparison:
    """What fits of a method to folds of the same rows tell each other.

    They needn't end closer to their optimum than a comparison on other rows can tell.

    Attributes:
        fits: those before this one. They know its held-out rows: what begins at them has to end so
            near its optimum that it forgets these.
        start: where the first one may begin, since it doesn't know them.
        strengths: of penalties, which the last had told to be likely.
        is_over: whether the fit, now to all rows, is to be kept.
    """

    fits: list[Any] = field(default_factory=list[Any])
    start: Any = None
    strengths: tuple[tuple[float, float], ...] = ()
    is_over: bool = False

    def last_of(self, kind: type[Fitted]) -> Fitted | None:
        """Return the fit before this one, if it is of a kind."""
        last = self.fits[-1] if self.fits else None
        return last if isinstance(last, kind) else None


@dataclass(frozen=True)
class _Learnt:
    shape: tuple[int | str, ...]
    at_least: float | str
    above: float
    at_most: float


def learnt(
    *shape: int | str,
    at_least: float | str = -LARGEST,
    above: float = -inf,
    at_most: float = LARGEST,
) -> Any:
    """Return a dataclass field for what `fit` learns: an array of a known shape, within limits.

    Args:
        shape: of the array; nothing for a single number. A letter is the same size wherever it
            stands in one calibrator: "K" the number of classes, "D" that of features. "b+1" is one
            more than "b".
        at_least: lowest value; the name of another attribute for one value each.
        above: lower limit that no value reaches.
        at_most: highest value. Whatever the limits, none is larger than `LARGEST` in size, and what
            is above 0 not smaller than its inverse, unless this says otherwise.
    """
    if above == 0:
        above = 1 / LARGEST
    known = _Learnt(shape, at_least, above, at_most)
    return field(init=False, repr=False, metadata={_LEARNT: known})


def learns_each_class(kind: type[Any]) -> bool:
    """Return whether a kind of calibrator, or a step of it, learns a number for each class.

    Where a class is the position of a choice in its question, it then learns a liking of positions.
    """
    steps: tuple[type[Any], ...] = getattr(kind, "kinds", ())
    shapes = [item.metadata[_LEARNT].shape for item in fields(kind) if _LEARNT in item.metadata]
    return any("K" in shape for shape in shapes) or any(map(learns_each_class, steps))


def misfit(calibrator: Estimator, state: Mapping[str, NDArray[Any]], classes: int) -> str | None:
    """Return what is wrong with arrays that a calibrator is to take over, as a clause, or None."""
    sizes = {"K": classes}
    if "width_" in state and state["width_"].ndim == 0:
        sizes["D"] = int(state["width_"])
    for item in fields(calibrator):
        if item.name in state:
            wrong = _misfit(item, state, sizes)
            if wrong is not None:
                return f"'{item.name}' {wrong}"
    return None


def _misfit(
    item: Field[Any], state: Mapping[str, NDArray[Any]], sizes: dict[str, int]
) -> str | None:
    array = state[item.name]
    known: _Learnt | None = item.metadata.get(_LEARNT)
    kinds = _SCALARS.get(str(item.type))
    if kinds is not None and (array.ndim > 0 or array.dtype.kind not in kinds):
        return f"must be a single number, not {array.dtype} of shape {array.shape}"
    if known is None:
        return None
    if not _has_shape(array.shape, known.shape, sizes):
        expected = ", ".join(str(sizes.get(str(size), size)) for size in known.shape)
        return f"must have shape ({expected}), not {array.shape}"
    least = known.at_least
    if isinstance(least, str):
        if state[least].shape != array.shape or (array < state[least]).any():
            return f"must not lie below '{least}'"
    elif (array < least).any():
        return f"must not lie below {least:g}"
    if (array <= known.above).any():
        return f"must lie above {known.above:g}"
    if (array > known.at_most).any():
        return f"must not lie above {known.at_most:g}"
    return None


def _has_shape(
    found: tuple[int, ...], expected: tuple[int | str, ...], sizes: dict[str, int]
) -> bool:
    """Return whether a shape is the expected one, and remember the sizes of new letters."""
    if len(found) != len(expected):
        return False
    for size, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, str):
            letter, _, more = wanted.partition("+")
            wanted = sizes.setdefault(letter, size - int(more or 0)) + int(more or 0)
        if size != wanted:
            return False
    return True


@dataclass(eq=False)
class Estimator(ABC):
    """Arguments and what was learnt: an estimator as scikit-learn means it, which a file can hold.

    Class attributes:
        method: its name on the command line and in files.
        keeps_prediction: whether the predicted class of every row is kept by construction.
        facts: what a person should know before choosing it, in short.
        weighs: whether `_fit` heeds weights; if not, a row is repeated as often as its weight says.
        needs: what `fit` needs besides logits and labels: "features" (N, D), which `predict_proba`
            needs as well, and "head", the last layer.
        begins_at_others: whether a fit to be kept begins where those of a comparison ended.
        sample_rows: of many files, rows of the sample that it is fitted to.
        fits_masked: whether `fit` takes rows that mask classes with minus infinity. A masked class
            keeps probability 0 and changes nothing for the others.
        fits_top_label: whether it can be fitted to the top-label form, which has no scores of the
            other classes: to "is the predicted label right?" by its confidence.
        fits_scores: whether it can be fitted to scores that are no probabilities: not
            if it takes log odds of 0 for an even chance.
        part_names: learnt attributes that are fitted estimators themselves; a file holds them with
            their own method and arguments.

    Attributes:
        n_classes_: number of classes K it was fitted for.
        classes_: (K,) their numbers, from 0, or their names; what `predict` can return.
        class_names_: their names, if the rows of the fit had some; else None.
        called_: the same, which `predict` then returns; None where `fit` was given numbers.
        form_: what it was fitted to: ``"rows"`` of scores of classes, ``"binary"`` ones of the
            positive class, or the confidence in a ``"toplabel"``.
        kind_: whether these were ``"logits"`` (log odds), ``"probs"`` or a ``"score"``; what is
            given to it afterwards is taken for the same.
        placing_: where it puts what isn't a logit: of a score mean m and unit u of those that it
            was fitted to, of which (s - m) / u takes the place of log odds; of probabilities with
            exact zeros the one number that zeros are raised to; else None.
        fit_report_: what the fit did.
        fitted_to_: hashes by which its rows are found again; none where sums were fitted to.
        comparison_: during a fit that is compared with others, what it knows of these.
    """

    method: ClassVar[str]
    keeps_prediction: ClassVar[bool]
    facts: ClassVar[Facts | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    fits_masked: ClassVar[bool] = False
    fits_top_label: ClassVar[bool] = False
    fits_scores: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    begins_at_others: ClassVar[bool] = False
    raises_zeros: ClassVar[bool] = True
    sample_rows: ClassVar[int] = SAMPLE_ROWS
    part_names: ClassVar[tuple[str, ...]] = ()

    n_classes_: int = field(init=False, repr=False)
    class_names_: tuple[str, ...] | None = field(default=None, init=False, repr=False)
    called_: tuple[str, ...] | None = field(default=None, init=False, repr=False)
    form_: FittedForm = field(default="rows", init=False, repr=False)
    kind_: FittedKind = field(default="logits", init=False, repr=False)
    placing_: tuple[float, ...] | None = field(default=None, init=False, repr=False)
    fit_report_: FitReport = field(init=False, repr=False)
    fitted_to_: tuple[int, ...] = field(default=(), init=False, repr=False)
    comparison_: Comparison | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_arguments(self)

    @property
    def feature_width(self) -> int | None:
        """Number of features D that it was fitted for; None if it needs none."""
        return None

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of fitted parameters."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # or each dataclass makes one, of its arguments alone
            cls.__repr__ = Estimator.__repr__

    def __repr__(self) -> str:
        own = {f.name: (getattr(self, f.name), f.default) for f in fields(self) if f.init}
        given = [f"{name}={value!r}" for name, (value, usual) in own.items() if value != usual]
        text = f"{type(self).__name__}({', '.join(given)})"
        if not hasattr(self, "fit_report_"):
            return text
        classes = self.class_names_ and f": {in_order(self.class_names_, self.form_)}"
        return f"{text} fitted to {self.rows_of_fit()}{classes or ''}"

    def rows_of_fit(self) -> str:
        """Return what a fitted calibrator was fitted to."""
        classes = {
            "rows": f"of {self.n_classes_} classes",
            "binary": "of two classes, one score each",
            "toplabel": "with the confidence of the predicted class alone",
        }
        return f"{counted(self.fit_report_.n, 'row')} {classes[self.form_]} ({self.kind_})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the method and, once it is fitted, what was learnt."""
        facts = {"method": self.method}
        if hasattr(self, "fit_report_"):
            report = self.fit_report_
            learnt = {name: a for name, a in self.state().items() if a.ndim == 0}
            facts |= {
                "gain": report.worth["finding"] if report.worth else "",
                "parameters": str(self.n_parameters),
                "keeps predicted classes": "always" if self.keeps_prediction else "not always",
                **{name.rstrip("_"): f"{a.item():.4g}" for name, a in learnt.items()},
                "converged": "" if report.converged else "no",
                "notes": "; ".join(report.notes),
            }
        return facts_html(repr(self), facts)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments (scikit-learn's contract)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and return the calibrator itself."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(
                    f"method '{self.method}' has no argument '{name}'; "
                    f"it has: {', '.join(known) or 'none'}"
                )
            setattr(self, name, value)
        return self

    def take_fit_of(self, other: Estimator) -> None:
        """Take over for what classes and in which form another one was fitted."""
        for name in _OF_FIT:
            setattr(self, name, getattr(other, name))

    def check_fitted(self) -> None:
        """Raise `NotFittedError` if `fit` has not been called."""
        if not hasattr(self, "fit_report_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit first")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_report_")

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn asks, so it is there. `Any`, because it has no types.
        said: Any = import_module("sklearn.utils")
        return said.Tags(
            estimator_type="classifier",
            target_tags=said.TargetTags(required=True),
            classifier_tags=said.ClassifierTags(),
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """(K,) what `predict` can return: numbers of classes, or their names if `fit` saw names."""
        self.check_fitted()
        return np.arange(self.n_classes_) if self.called_ is None else np.array(self.called_)

    @property
    def n_features_in_(self) -> int:
        """Number of columns that `fit` saw: K, one for each class."""
        return len(self.classes_)

    @classmethod
    def state_names(cls) -> tuple[str, ...]:
        """Return the names of the learnt attributes that a file must hold as arrays."""
        return _names_of_state(cls)

    @classmethod
    def older_state(cls) -> dict[str, NDArray[Any]]:
        """Return what files of earlier versions don't hold, as they meant it."""
        return {}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, as arrays by name."""
        return {name: np.asarray(getattr(self, name)) for name in self.state_names()}

    def parts(self) -> dict[str, Any]:
        """Return the fitted calibrators that this one is made of, by name."""
        return {name: getattr(self, name) for name in self.part_names}

    @classmethod
    def wanted_parts(cls, found: Collection[str]) -> str | None:
        """Return what it is made of, if it can't be made of the parts named `found`, or None."""
        return (
            None if set(found) == set(cls.part_names) else ", ".join(cls.part_names) or "no others"
        )

    def restore_parts(self, parts: dict[str, Any]) -> None:
        """Take over fitted parts with names that `wanted_parts` is content with.

        Raises:
            InputError: parts that don't fit each other.
        """
        for name, part in parts.items():
            setattr(self, name, part)

    def restore(self, state: dict[str, NDArray[Any]], n_classes: int, report: FitReport) -> Self:
        """Take over what another calibrator of this kind had learnt, and return self."""
        for name in self.state_names():
            value = state[name]
            setattr(self, name, value.item() if value.ndim == 0 else value)
        self.n_classes_, self.fit_report_ = n_classes, report
        return self


class _ByInstance:
    def __init__(self, usual: bool, own: Callable[[Any], bool]) -> None:
        self.usual, self.own = usual, own

    def __get__(self, instance: Estimator | None, owner: type) -> bool:
        return self.usual if instance is None else self.own(instance)


def by_instance(usual: bool, own: Callable[[Any], bool]) -> Any:
    """Return a class attribute that is `usual` of the class, and of an instance what `own` says."""
    return _ByInstance(usual, own)


FORMAT = ParameterFormat("calibrant", 1, "a calibrator", "numpy")


def save(calibrator: Estimator, path: StrPath) -> None:
    """Write a fitted calibrator to `path`, which must end in ``.safetensors``.

    Raises:
        NotFittedError: it has not been fitted.
        InputError: another extension, or a folder that doesn't exist.
    """
    FORMAT.check_extension(path)
    if not hasattr(calibrator, "fit_report_"):
        raise NotFittedError(f"this {type(calibrator).__name__} has not been fitted")
    FORMAT.write(path, described(calibrator), all_state(calibrator))


def described(calibrator: Estimator) -> dict[str, str]:
    """Return the header of a calibrator's file, with those of its steps in it."""
    header = {
        "method": calibrator.method,
        "n_classes": str(calibrator.n_classes_),
        "form": calibrator.form_,
        "kind": calibrator.kind_,
        # NumPy's numbers are fine as arguments, and no numbers to `json`.
        "arguments": json.dumps(calibrator.get_params(), default=lambda number: number.item()),
        "fit_report": json.dumps(calibrator.fit_report_.as_dict()),
    }
    if calibrator.placing_ is not None:
        header["placing"] = json.dumps(calibrator.placing_)
    if calibrator.class_names_ is not None:
        header["class_names"] = json.dumps(calibrator.class_names_)
        header["predicts"] = "numbers" if calibrator.called_ is None else "names"
    parts = {name: described(part) for name, part in calibrator.parts().items()}
    if calibrator.fitted_to_:
        header["fitted_to"] = json.dumps(calibrator.fitted_to_)
    return header | ({"parts": json.dumps(parts)} if parts else {})


def all_state(calibrator: Estimator) -> dict[str, NDArray[Any]]:
    """Return the arrays of a calibrator by name, those of its parts as ``part/name``."""
    state = {
        # safetensors writes memory as it lies, so it must lie in rows
        name: np.ascontiguousarray(array) if array.ndim else array
        for name, array in calibrator.state().items()
    }
    for part, inner in calibrator.parts().items():
        state |= {f"{part}/{name}": array for name, array in all_state(inner).items()}
    return state


@cache  # a map that is applied to one row would spend a tenth of its time here
def _names_of_state(kind: type[Estimator]) -> tuple[str, ...]:
    apart = {each.name for each in fields(Estimator)} | {*kind.part_names}
    return tuple(each.name for each in fields(kind) if not each.init and each.name not in apart)
