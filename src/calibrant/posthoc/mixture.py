"""Mixtures of the row at two temperatures with the uniform distribution."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from calibrant.arrays import Array, namespace
from calibrant.masks import uniform
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.learnt import learnt
from calibrant.rows import map_rows, softmax_chunk


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
    def mixture_weights(self) -> tuple[float, float, float]:
        """Return w1, w2 and w3."""

    def _apply(self, logits: Array, features: Array | None) -> Array:
        sharp, plain, even = self.mixture_weights()

        def mix(chunk: Array, part: slice) -> Array:
            shifted = chunk - namespace(chunk).max(chunk, axis=1, keepdims=True)
            mixture = sharp * softmax_chunk(shifted * self.beta_, part)
            if plain > 0:
                mixture += plain * softmax_chunk(shifted, part)
            mixture += even * uniform(chunk)
            return mixture

        return map_rows(logits, mix)
