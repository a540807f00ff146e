"""What a map must have to leave, and what is asked of it before it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

from numpy.typing import NDArray

from calibrant.core.arguments import within
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, NotApplicableError, NotFittedError

Kind = Literal["logits", "probs", "score"]
# A file of ONNX ends at 2 GiB, and the network's weights may lie in the same one.
MOST_BYTES = 1 << 30


# What is decided of (N, K) probabilities and (N,) confidences, by name; the namespace goes first.
Outputs = Callable[[Any, Array, Array], dict[str, Array]]


class Exportable(Protocol):
    """A fitted map from logits to probabilities; `Calibrator` says what the methods do."""

    method: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    keeps_prediction: ClassVar[bool]
    n_classes_: int

    @property
    def form_(self) -> str:
        """Whether it was fitted to rows of scores, or to one score a row."""
        ...

    @property
    def kind_(self) -> str:
        """What it was fitted to, "logits", "probs" or "score"."""
        ...

    @property
    def placing_(self) -> tuple[float, ...] | None:
        """Mean and unit of scores, or what zeros of probabilities are raised to, or None."""
        ...

    @property
    def feature_width(self) -> int | None:
        """Number of features D, None if it needs none."""
        ...

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `transform` reads."""
        ...

    def bare(self) -> Any:
        """Return what `transform` reads of the calibrator itself: its arguments, and its parts."""
        ...

    def interval_arrays(self, level: float) -> dict[str, NDArray[Any]] | None:
        """Return the arrays that `interval` reads; None if there are no intervals."""
        ...

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return (n, K) probabilities."""
        ...

    def interval(
        self, xp: Any, logits: Array, learnt: Mapping[str, Array], *, masks: bool = True
    ) -> tuple[Array, Array]:
        """Return the (n,) ends of the interval for each confidence."""
        ...


def ready(calibrator: Exportable) -> dict[str, NDArray[Any]]:
    """Return the arrays of a map that can leave.

    Raises:
        NotFittedError: it has learnt nothing yet.
        NotApplicableError: it has learnt more than a file can hold.
    """
    if not hasattr(calibrator, "fit_report_"):
        raise NotFittedError(
            f"this {type(calibrator).__name__} has not been fitted; call fit first"
        )
    arrays = calibrator.map_arrays()
    total = sum(array.nbytes for array in arrays.values())
    if total > MOST_BYTES:
        name, largest = max(arrays.items(), key=lambda item: item[1].nbytes)
        raise NotApplicableError(
            f"method '{calibrator.method}' can't be exported: what it learnt takes "
            f"{total / 2**30:.1f} GiB, mostly '{name}' of shape {largest.shape}, and an exported "
            f"map holds {MOST_BYTES / 2**30:g} GiB at most; fit it to fewer reference rows"
        )
    return arrays


def read_kind(calibrator: Exportable, kind: str | None) -> Kind:
    """Return what an exported map is given: what it was fitted to, unless `kind` says otherwise.

    Raises:
        InputError: an unknown word, or scores where it wasn't fitted to some, or the other way
            round.
    """
    own = calibrator.kind_
    said = own if kind is None else within("kind", kind, choices=get_args(Kind))
    if (said == "score") != (own == "score"):
        raise InputError(f"kind is '{kind}', but the calibrator was fitted to {own}")
    return cast(Kind, said)


def needs_features(calibrator: Exportable) -> bool:
    """Return whether a map reads features beside the logits."""
    return "features" in calibrator.needs
