"""Probit scaling: temperature scaling with the tails of normal noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import array_api_compat.numpy as xnp
import numpy as np
from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, IntArray, row_chunks, share_chunks, to_numpy
from calibrant.core.weights import mean, total
from calibrant.posthoc.base import Calibrator, FitReport
from calibrant.posthoc.learnt import learnt
from calibrant.posthoc.noise.votes import (
    step_for,
    vote_share,
    vote_shares,
    vote_tables,
)
from calibrant.posthoc.pieces import uniform
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import summarize
from calibrant.predictions.temperature import fit_temperature

# Gumbel noise of scale T votes as softmax(z / T) does; this is its standard deviation over T.
GUMBEL_DEVIATION = float(np.pi / np.sqrt(6))
# The noise of greatest likelihood is searched within this factor of Gumbel's.
SPAN = 8.0
# Numbers that are in use at once and should stay in the cache: powers for each class, and the
# integrand of a row.
WIDTH_PER_CLASS, LEAST_WIDTH = 4, 100


@dataclass(eq=False)
class ProbitScaling(Calibrator):
    """The share of votes of each class if normal noise is added to the logits; one parameter.

    p_k is the probability that z_k + eps xi_k is the largest score of its row, with xi independent
    and standard normal. With Gumbel noise it would be softmax(z / T), so this is temperature
    scaling with lighter tails: it gives a class far below the top much less, and a row with many
    classes near the top less confidence. The order of the classes within every row is kept.

    eps is that of the greatest likelihood. The result is mixed with the uniform distribution over
    the classes that are not masked, at weight 1 / (N + 1), since shares underflow to 0. Where the
    single temperature isn't identified, the noise that is most like it is taken as it is.

    Networks trained for hundreds of epochs (a ResNet-50 on CIFAR-10, a WideResNet on CIFAR-100)
    are better described by normal noise, networks trained for few or by focal loss by Gumbel's:
    docs/beyond-smart.md has the table. The integrals are computed to 1e-8 by polynomials
    (`calibrant.posthoc.noise.votes`), in float64 whatever the logits are.

    Attributes:
        noise_: eps, in the caller's units; uniform_: weight of the uniform distribution.

    References:
        The multinomial probit of discrete choice: Train, Discrete Choice Methods with Simulation,
        2009, chapter 5.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> for method in (cb.TemperatureScaling(), cb.ProbitScaling()):
        ...     probs = method.fit_predictions(val).predict_proba(test.logits)
        ...     print(f"{cb.negative_log_likelihood(probs, test.labels):.4f}")
        0.4685
        0.4673
    """

    method: ClassVar[str] = "probit"
    weighs: ClassVar[bool] = True
    keeps_prediction: ClassVar[bool] = True
    fits_masked: ClassVar[bool] = True
    # One number is as well known from so many rows as it needs to be; None: take all.
    most_rows: ClassVar[int | None] = 2_000

    noise_: float = learnt(above=0)
    uniform_: float = learnt(at_least=0, at_most=1)

    @property
    def n_parameters(self) -> int:
        """One."""
        return 1

    def _fit(self, predictions: Predictions) -> FitReport:
        weights = predictions.weights
        base = fit_temperature(
            summarize(predictions.scores, predictions.labels, curve="dense", weights=weights)
        )
        report = base.report(predictions.n)
        self.noise_ = GUMBEL_DEVIATION / base.beta
        self.uniform_ = 1 / (total(predictions.n, weights) + 1)
        if base.warning is not None:
            return report
        every = 1 if self.most_rows is None else -(-predictions.n // self.most_rows)
        if every == 1:
            return self._search(predictions, report)
        thinned = self._search(predictions.take(np.arange(0, predictions.n, every)), report)
        logits = to_numpy(predictions.scores).astype(np.float64)
        return replace(thinned, value=self._nll(logits, predictions, self.noise_))

    def _search(self, rows: Predictions, report: FitReport) -> FitReport:
        """Set `noise_`, given the one most like temperature scaling's."""
        from scipy import optimize

        logits = to_numpy(rows.scores).astype(np.float64)
        centre, reach = float(np.log(self.noise_)), float(np.log(SPAN))

        def nll(log_noise: float) -> float:
            return self._nll(logits, rows, float(np.exp(log_noise)))

        found: Any = cast(Any, optimize).minimize_scalar(
            nll,
            bounds=(centre - reach, centre + reach),
            method="bounded",
            options={"xatol": 1e-3},
        )
        self.noise_ = float(np.exp(found.x))
        return FitReport(
            report.n, "nll", float(found.fun), int(found.nfev), bool(found.success), report.notes
        )

    def _nll(self, logits: FloatArray, rows: Predictions, noise: float) -> float:
        return mean(-np.log(self._share_of(logits, rows.labels, noise)), rows.weights)

    def _share_of(self, logits: FloatArray, classes: IntArray, noise: float) -> FloatArray:
        """Return the (N,) mixed probability of one class of each row."""
        shares, tables = np.empty(len(classes)), vote_tables(step_for(logits.shape[1]))

        def work(part: slice) -> None:
            votes = vote_share(xnp, logits[part], classes[part], noise, tables)
            known = np.isfinite(logits[part]).sum(axis=1)
            shares[part] = (1 - self.uniform_) * votes + self.uniform_ / known

        share_chunks(logits, list(row_chunks(logits, self.widest())), work)
        return shares

    def map_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was learnt, and the constants of the integral."""
        return super().map_arrays() | vote_tables(step_for(self.n_classes_))

    def widest(self) -> int:
        """Return the powers of all classes, or else the nodes of the integral."""
        return max(WIDTH_PER_CLASS * self.n_classes_, LEAST_WIDTH)

    def transform(
        self,
        xp: Any,
        logits: Array,
        features: Array | None,
        learnt: Mapping[str, Array],
        *,
        masks: bool = True,
    ) -> Array:
        """Return the shares of votes, mixed with the uniform distribution."""
        weight = learnt["uniform_"]
        shares = vote_shares(xp, logits, learnt["noise_"], learnt)
        mixed = (1 - weight) * shares + weight * uniform(xp, logits, masks)
        return xp.astype(mixed, logits.dtype, copy=False)
