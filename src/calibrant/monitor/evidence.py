"""Two kinds of evidence that confidences are off, from the payments of all bets so far.

**Level**: has it ever been off? E_t = mean over j of prod_{i <= t} L_ij. While the hypothesis
holds, E is a nonnegative supermartingale that starts at 1, so it ever reaches 1 / alpha with
probability at most alpha (Ville): it may be looked at after every row.

**Change**: has it gone off? r_j <- (r_j + 1) L_j is the sum, over all rows at which the bets might
have begun, of what they would have made since; R = mean over j of r_j. R_t - t is a
supermartingale, so R reaches c after c rows on average, or later. J. Shin, A. Ramdas, A. Rinaldo,
*E-detectors*, NEJSDS.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calibrant.core.arrays import BoolArray, FloatArray, IntArray
from calibrant.monitor.betting import COUNT, log_mean_exp, payments
from calibrant.monitor.trail import Trail

# Where the change is looked for: rows between two marks near the present, and how fine the past.
MARK_ROWS, MARKS = 16, 16
# A group's share of the memory is smaller.
MARKS_OF_GROUP = 4
# More than any threshold; what lies beyond says no more.
MOST_MASS = 1e150


@dataclass
class Step:
    """What n more rows would make of the evidence.

    Attributes:
        products: (n + 1, J) log of the products of payments, before the rows and after each.
        masses: (n, J) r after each row.
        row: (n,) the rows' numbers in the whole stream.
    """

    products: FloatArray
    masses: FloatArray
    row: IntArray

    @property
    def log_level(self) -> FloatArray:
        """(n + 1,) log E, before the rows and after each."""
        return log_mean_exp(self.products)

    @property
    def mass(self) -> FloatArray:
        """(n,) R after each row."""
        return self.masses.mean(axis=1)


@dataclass
class Evidence:
    """The evidence of the rows so far, in memory that hardly grows.

    Attributes:
        rows: how many rows it is of.
        products: (J,) log of the products of payments.
        masses: (J,) r.
        trail: `products` as they were, to find a change.
    """

    rows: int = 0
    products: FloatArray = field(default_factory=lambda: np.zeros(COUNT))
    masses: FloatArray = field(default_factory=lambda: np.zeros(COUNT))
    trail: Trail = field(default_factory=lambda: Trail.start(COUNT, MARK_ROWS, MARKS))

    @classmethod
    def of_group(cls) -> Evidence:
        """Return the evidence of a group, with a coarser memory of the past."""
        return cls(trail=Trail.start(COUNT, MARK_ROWS, MARKS_OF_GROUP))

    @property
    def log_level(self) -> float:
        """Log of E."""
        return float(log_mean_exp(self.products))

    @property
    def mass(self) -> float:
        """R."""
        return float(self.masses.mean())

    def look(
        self, confidence: FloatArray, correct: BoolArray, tolerance: float, row: IntArray
    ) -> Step:
        """Return what n rows would make of this evidence, which stays as it is."""
        paid = payments(confidence, correct, tolerance)
        products = np.empty((len(paid) + 1, COUNT))
        products[0] = self.products
        np.log(paid, out=products[1:])
        # In the order of the rows, so that it doesn't matter how many come at once.
        np.cumsum(products, axis=0, out=products)
        masses, mass, more = np.empty_like(paid), self.masses, np.empty(COUNT)
        with np.errstate(over="ignore"):
            for pays, after in zip(paid, masses, strict=True):
                np.add(mass, 1.0, out=more)
                np.multiply(more, pays, out=after)
                mass = after
        return Step(products, masses, row)

    def take(self, step: Step) -> None:
        """Make a step that `look` returned."""
        before, self.rows = self.rows, self.rows + len(step.masses)
        self.products = step.products[-1].copy()
        self.masses = np.minimum(step.masses[-1], MOST_MASS)
        due = self.trail.due(before, self.rows)
        self.trail.extend(due, step.row[due - before - 1] + 1, step.products[due - before])
