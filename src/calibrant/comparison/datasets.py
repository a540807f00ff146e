"""Compare methods over several data sets, each split anew for every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibrant.comparison.compare import compare
from calibrant.comparison.comparison import Comparison
from calibrant.comparison.many import ManyComparisons
from calibrant.core.errors import InputError
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL
from calibrant.posthoc.base import Calibrator
from calibrant.predictions.predictions import Predictions


def compare_over(
    datasets: Mapping[str, Predictions | tuple[Predictions, Predictions]],
    methods: Sequence[str | Calibrator] | str = "all",
    *,
    seeds: Sequence[int] = (0,),
    fit_size: float = 0.5,
    stratify: bool = False,
    rank_by: str = "nll",
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> ManyComparisons:
    """Compare methods on several data sets, each split anew for every seed.

    Args:
        datasets: name to predictions that are split, or to a pair: rows to fit on and rows to
            measure on. A pair is measured once, since no seed changes it.
        methods: as `compare` takes them.
        seeds: of the splits.
        fit_size: rows to fit on, or a fraction below 1.
        stratify: whether splits keep label shares.
        rank_by: the metric that ranks.
        progress: called with what begins, for each data set, seed and method.
        options: others of `compare`, such as ``metrics`` and ``resamples``.

    Raises:
        InputError: no data set or no seed, or what `compare` refuses.

    Examples:
        >>> import calibrant as cb
        >>> halves = cb.load_sample("test").split(0.5, seed=0)
        >>> found = cb.compare_over(
        ...     {"one": halves[0], "two": halves[1]},
        ...     ["none", "temperature"], seeds=[0, 1], resamples=20,
        ... )
        >>> found.best, found.ranks
        ('temperature', {'temperature': 1.0, 'none': 2.0})
    """
    if not datasets:
        raise InputError("compare_over needs at least one data set")
    if not seeds:
        raise InputError("compare_over needs at least one seed")
    level = float(options.get("level", DEFAULT_LEVEL))
    found: dict[str, list[Comparison]] = {}
    for name, rows in datasets.items():
        found[name] = []
        whole = isinstance(rows, Predictions)
        for seed in seeds if whole else seeds[:1]:
            fit, test = rows.split(fit_size, seed, stratify=stratify) if whole else rows

            def step(method: str, where: str = f"{name}, seed {seed}") -> None:
                if progress is not None:
                    progress(f"{where}: {method}")

            found[name].append(
                compare(
                    methods,
                    fit=fit,
                    test=test,
                    rank_by=rank_by,
                    seed=seed,
                    progress=step,
                    **options,
                )
            )
    everywhere, left_out = _taking_part(found)
    unsorted = ManyComparisons(found, everywhere, left_out, rank_by, level)
    order = sorted(everywhere, key=lambda method: unsorted.ranks[method])
    return ManyComparisons(found, order, left_out, rank_by, level)


def _taking_part(
    comparisons: Mapping[str, Sequence[Comparison]],
) -> tuple[list[str], dict[str, str]]:
    """Return the methods that took part in all comparisons, and why others didn't."""
    each = [(name, one) for name, found in comparisons.items() for one in found]
    names = dict.fromkeys(method.name for _, one in each for method in one.methods)
    left_out: dict[str, str] = {}
    for name, one in each:
        for method, reason in one.skipped.items():
            left_out.setdefault(method, f"on {name}, {reason}")
    everywhere = [name for name in names if name not in left_out]
    if not everywhere:
        reasons = "; ".join(f"{method} {why}" for method, why in left_out.items())
        raise InputError(f"no method could be fitted on every data set: {reasons}")
    return everywhere, left_out
