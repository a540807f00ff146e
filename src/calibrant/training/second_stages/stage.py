"""What all second stages share: their arguments, the two ways in, and what a fitted one does."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.arrays import Array, as_array, is_numpy, to_numpy
from calibrant.core.checks import check_features
from calibrant.core.errors import InputError, NotFittedError
from calibrant.core.outputs import StrPath
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.training.second_stages.heads import FORMAT, write_head
from calibrant.training.second_stages.learning import check_finite
from calibrant.training.second_stages.measured import (
    BesideTemperature,
    EpochRecord,
    Progress,
    beside_temperature,
    silent,
)
from calibrant.training.second_stages.sources import (
    READ_ROWS,
    FeatureRows,
    FeatureScaling,
    FeatureSource,
    NetworkFeatures,
    head_logits,
    row_parts,
    tensor_of,
    width_of,
)

# For an interval beside a fit; `calibrant head` draws more, on test rows.
BESIDE_RESAMPLES = 200
# Of the training rows, held out where there are no others.
HELD_OUT_SHARE = 0.1
Schedule = Literal["constant", "cosine"]


class Given(NamedTuple):
    """What a second stage is fitted to: training rows, rows held out, and whom to tell.

    `reference` are the logits of the network's own head for the rows held out.
    """

    source: FeatureSource
    validation: FeatureRows | None
    reference: Tensor | None
    progress: Progress


@dataclass(eq=False)
class SecondStage(ABC):
    """A classifier head trained on features of a network that stays as it is.

    The constructor only stores its arguments. After `fit`, `head_` takes features as the network
    gives them and returns logits; `history_` describes the epochs.

    Attributes:
        n_classes_: number of classes, K.
        head_: the trained head, a module in evaluation mode.
        history_: one record for each epoch.
        notes_: warnings of the fit.
        beside_temperature_: the new head beside the network's own head with one temperature, on the
            validation rows; None without `reference_logits`. Both were chosen on these rows, so
            measure on other rows as well.
    """

    # Its name on the command line, and its entry in the list of methods.
    method: ClassVar[str]
    words: ClassVar[str] = ""

    epochs: int = argument(40, at_least=1)
    learning_rate: float = argument(0.1, above=0)
    batch_size: int = argument(128, at_least=1)
    seed: int = argument(0, at_least=0)
    standardise: bool = True

    n_classes_: int = field(init=False, repr=False)
    head_: nn.Module = field(init=False, repr=False)
    history_: list[EpochRecord] = field(init=False, repr=False)
    notes_: list[str] = field(init=False, repr=False)
    beside_temperature_: BesideTemperature | None = field(init=False, repr=False)

    def fit(
        self,
        features: Array,
        labels: Array,
        validation: tuple[Array, Array] | None = None,
        *,
        n_classes: int | None = None,
        reference_logits: Array | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train a head on an array of features.

        Args:
            features: (N, D) penultimate features of the rows that the network was trained on, NumPy
                or torch; the fit runs on their device.
            labels: (N,) classes.
            validation: features and labels of held-out rows, for methods that choose by them.
            n_classes: number of classes; None if every class occurs among the labels.
            reference_logits: (M, K) logits of the network's own head for the M validation rows. The
                new head is compared with it, row by row, and with one temperature on it; None if
                they are unknown.
            progress: called with a line of text as each epoch begins.

        Raises:
            InputError: unusable arrays or arguments, or a method that needs the network.
        """
        check_arguments(self)
        rows = FeatureRows.checked(features, labels, n_classes, seed=self.seed)
        held_out = None
        if validation is not None:
            held_out = FeatureRows.checked(
                *validation, rows.n_classes, seed=self.seed, source="validation rows"
            )
            if held_out.width != rows.width:
                raise InputError(
                    f"validation rows: have {held_out.width} features, but the training rows "
                    f"{rows.width}"
                )
        reference = None
        if reference_logits is not None:
            reference = _checked_reference(reference_logits, held_out)
        return self._learn(Given(rows, held_out, reference, progress or silent))

    def fit_network(
        self,
        network: nn.Module,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        layer: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train a head on the features that a frozen network computes for a loader's batches.

        The loader may augment: features are computed anew in every epoch. `network` keeps its
        parameters, its buffers and its old head; `replace_head(network, stage.head_)` exchanges it.

        Args:
            network: a classifier whose last linear layer is its head.
            loader: yields batches of inputs and labels, in any form that
                `calibrant.training.run.predict` takes; their size is the loader's.
            validation: the same for held-out rows, not augmented.
            layer: name of the linear layer that is the head; None takes the last one, and warns
                where several could be meant.
            progress: called with a line of text as each epoch begins.

        Raises:
            InputError: unusable arguments or batches, or no such layer.
        """
        check_arguments(self)
        for given in (loader, validation):
            if isinstance(given, Dataset) and not isinstance(given, IterableDataset):
                raise InputError(
                    f"give a DataLoader of the data set ({type(cast(Any, given)).__name__}), whose "
                    "batch size is that of the head's training"
                )
        source = NetworkFeatures(network, loader, layer)
        held_out, reference = None, None
        if validation is not None:
            validating = NetworkFeatures(network, validation, source.name)
            held_out, reference = validating.cached(self.seed)
        return self._learn(Given(source, held_out, reference, progress or silent))

    def _learn(self, given: Given) -> Self:
        self._begin(given.source.n_classes)
        with torch.enable_grad():  # whoever computes features may have turned it off
            self._fit(given)
        self._set_beside(given.validation, given.reference)
        return self

    def _begin(self, n_classes: int) -> None:
        self.n_classes_ = n_classes
        self.notes_ = []

    def _set_beside(self, validation: FeatureRows | None, reference: Tensor | None) -> None:
        """Say what one temperature would have done on the validation rows."""
        self.beside_temperature_ = None
        if validation is None or reference is None:
            return
        new = self.logits(validation.features)
        old, rows = (
            Predictions.from_logits(to_numpy(logits), to_numpy(validation.labels))
            for logits in (reference, new)
        )
        self.beside_temperature_ = beside_temperature(
            old, old, rows, resamples=BESIDE_RESAMPLES, seed=self.seed
        )

    @abstractmethod
    def _fit(self, given: Given) -> None:
        """Set `head_` and `history_`."""

    def _keep(self, head: nn.Module, history: list[EpochRecord]) -> None:
        """Keep a head, unless training drove it to infinity, and how it came about."""
        check_finite(head)
        self.head_, self.history_ = head, history

    def _scaling(self, source: FeatureSource, length: float) -> FeatureScaling:
        """Return a scaling to rows of this length, or to rows as they are if so asked."""
        if not self.standardise:
            return FeatureScaling.identity(source.width)
        return FeatureScaling.of(source).longer(length)

    def logits(self, features: Array) -> Array:
        """Return (N, K) logits of (N, D) features, as an array of their kind.

        Raises:
            NotFittedError: before `fit`.
            PredictionsError: unusable features.
        """
        self._check_fitted()
        features = as_array(features)
        check_features(features, int(features.shape[0]), "features")
        width = width_of(self.head_)
        if width not in (None, features.shape[1]):
            raise InputError(
                f"features: have {features.shape[1]} columns, but the head takes {width}"
            )
        given = tensor_of(features) if is_numpy(features) else features
        parts = [head_logits(self.head_, part) for part in row_parts(given, READ_ROWS)]
        result = torch.cat(parts)
        return to_numpy(result) if is_numpy(features) else result

    def _check_fitted(self) -> None:
        if not hasattr(self, "head_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted")

    def predict_proba(self, features: Array) -> Array:
        """Return (N, K) probabilities of (N, D) features, as an array of their kind."""
        return softmax(self.logits(features))

    def save(self, path: StrPath) -> None:
        """Write the head to a ``.safetensors`` file, which `load_head` reads.

        Raises:
            NotFittedError: before `fit`.
            InputError: another extension, or a folder that doesn't exist.
        """
        FORMAT.check_extension(path)
        self._check_fitted()
        about = {
            "method": self.method,
            # NumPy's numbers are fine as arguments, and JSON doesn't know them.
            "arguments": json.dumps(self.get_params(), default=lambda number: number.item()),
            "chosen": json.dumps(self.summary()),
            "history": json.dumps([record.as_dict() for record in self.history_]),
            "notes": json.dumps(self.notes_),
        }
        write_head(path, self.head_, about)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def summary(self) -> Mapping[str, Any]:
        """Return what the fit chose, as JSON takes it."""
        return {}


def _checked_reference(logits: Array, validation: FeatureRows | None) -> Tensor:
    """Return the logits of the network's head for the validation rows, on their device."""
    if validation is None:
        raise InputError("reference_logits belong to the validation rows: give these too")
    labels = to_numpy(validation.labels)
    checked = Predictions.from_logits(logits, labels, source="reference_logits")
    if checked.n_classes != validation.n_classes:
        raise InputError(
            f"reference_logits: have {checked.n_classes} classes, but the training rows "
            f"{validation.n_classes}"
        )
    return tensor_of(to_numpy(checked.logits)).to(validation.labels.device)


def rate_at(learning_rate: float, schedule: Schedule, epoch: int, epochs: int) -> float:
    """Return the learning rate of an epoch, counted from 0."""
    if schedule == "constant":
        return learning_rate
    return learning_rate * (1 + float(np.cos(np.pi * epoch / epochs))) / 2
