"""Mixtures of the row at two temperatures with the uniform distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from calibrant.core.arrays import Array
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.pieces import as_type, below_top, softmax_of_gaps, uniform


@dataclass(eq=False)
class Mixture(Calibrator):
    """Family: w1 softmax(z / T) + w2 softmax(z) + w3 / K, with w >= 0 that sum to 1.

    Keeps the predicted class: all three parts rank the classes alike. K counts the classes that a
    row leaves unmasked.
    """

    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True

    beta_: float = learnt(above=0)

    @property
    def temperature_(self) -> float:
        """The fitted temperature T of the first part."""
        return 1.0 / self.beta_

    @abstractmethod
    def mixture_weights(self, learnt: Mapping[str, Array]) -> tuple[Array, Array | None, Array]:
        """Return w1, w2 (None where there is no such part) and w3 from what is learnt."""

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return the mixture."""
        gaps = below_top(xp, logits)
        sharp, plain, even = self.mixture_weights(learnt)
        beta = as_type(xp, learnt["beta_"], logits)
        mixture = softmax_of_gaps(xp, gaps * beta) * as_type(xp, sharp, logits)
        if plain is not None:
            mixture = mixture + softmax_of_gaps(xp, gaps) * as_type(xp, plain, logits)
        return mixture + as_type(xp, even, logits) * uniform(xp, logits, masks)
