"""Fit several calibrators on one set and measure all on another, on the same resamples."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.comparison.comparison import Comparison, Network
from calibrant.comparison.verdict import (
    DECIDING,
    DECIDING_OF_TOP,
    MARGIN,
    UNCALIBRATED,
    ComparedMethod,
    decide,
)
from calibrant.core.arrays import namespace, to_numpy
from calibrant.core.errors import (
    CalibrantError,
    CalibrationWarning,
    InputError,
    NotApplicableError,
    SharedRowsWarning,
    hear,
    heard_warnings,
    warn_caller,
)
from calibrant.core.progress import Progress, Watcher
from calibrant.core.text import counted
from calibrant.core.threads import each_at_once, worker_count
from calibrant.core.weights import mean
from calibrant.evaluation.bootstrap import drawn_once
from calibrant.evaluation.evaluate import evaluate, sharing
from calibrant.evaluation.results import Evaluation
from calibrant.evaluation.sample import RowSample, losses_of
from calibrant.evaluation.uncertainty import DEFAULT_LEVEL
from calibrant.metrics.metric_types import Facts
from calibrant.metrics.proper import ROUNDED_TO_ONE, TOP_NLL, rounded_rows
from calibrant.metrics.registry import metrics_named
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.needs import holds_zeros
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.state import learns_each_class
from calibrant.posthoc.temperature.scaling import RowTemperature, margin_temperature
from calibrant.predictions.implausible import shared_rows
from calibrant.predictions.names import listed
from calibrant.predictions.plausibility import looked_at
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_rows
from calibrant.scale.engines import Engine
from calibrant.scale.sampling import in_memory
from calibrant.scale.shards import Shards

# Rows of a sample of many files that methods are compared on.
COMPARED_ROWS = 100_000
# Scores of classes in both sets, times methods that are worked on at a time: some 2 GB in all.
MOST_NUMBERS = 1 << 26
# Why methods with a number a class don't take part unless they are named.
POSITIONS = (
    "learns a number for each class, which here is the position of a choice; name it to try it"
)


# Parameters: two sets, what is compared on them, and how `evaluate` draws.
def compare(
    methods: Sequence[str | Calibrator] | str = "all",
    *,
    fit: Predictions | Shards,
    test: Predictions | Shards,
    metrics: Sequence[str] | str | None = None,
    rank_by: str = "ece",
    margin: float = MARGIN,
    resamples: int | None = None,
    level: float = DEFAULT_LEVEL,
    seed: int = 0,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> Comparison:
    """Fit each method on `fit`, apply it to `test` and measure it there.

    From `Shards` it draws uniform samples of 100 000 rows, and says so, because paired differences
    need every row under every method.

    All methods are measured on the same bootstrap resamples, so their differences are paired. With
    several cores, as many methods run at a time as memory allows. The results are the same as one
    after the other; the times of a method are then processor seconds.

    Args:
        methods: names or unfitted calibrators, or ``"all"``. In a log whose classes are positions
            of choices, "all" leaves out methods that learn a number for each class.
        fit: rows to fit on, in memory or in many files. They should share no row with `test`.
        test: rows to measure on.
        metrics: as `evaluate` takes them; the metric that the verdict needs is always measured.
        rank_by: the metric to rank by; the verdict doesn't depend on it.
        margin: difference in NLL that doesn't matter: the verdict names the simplest method within
            it.
        resamples: bootstrap resamples; None for as many as `evaluate` takes.
        level: nominal coverage of all intervals.
        seed: for the resamples, and for the samples of many files.
        engine, skip_broken: as `evaluate` takes them; a warning names the files left out.
        watch: called with a `Progress` as files are done, and before each method, in their order,
            with its name.

    Raises:
        InputError: no method, rows that are bare arrays, or sets that don't fit together.
        UnknownMethodError: no such method or metric.
        PredictionsError: no labels.

    Examples:
        >>> import calibrant as cb
        >>> val, test = cb.load_sample("validation"), cb.load_sample("test")
        >>> found = cb.compare(["none", "smart"], fit=val, test=test, metrics=["ece"], resamples=99)
        >>> found.recommended, found.best, found.tied_with_best  # nothing else is as good
        ('smart', 'smart', [])
    """
    for name, rows in (("fit", fit), ("test", test)):
        _check_kind(name, rows)
    if not margin >= 0:
        raise InputError(f"margin must be at least 0, not {margin:g}")
    fit, test = (
        in_memory(rows, COMPARED_ROWS, seed, engine=engine, skip_broken=skip_broken, watch=watch)
        for rows in (fit, test)
    )
    if None in (fit.n_classes, test.n_classes) and fit.n_classes != test.n_classes:
        top, other = (fit, test) if fit.n_classes is None else (test, fit)
        raise InputError(
            f"{other.source} holds scores of classes and {top.source} doesn't; compare sets of "
            "one kind"
        )
    if fit.n_classes != test.n_classes:
        raise InputError(
            f"{fit.source} has {fit.n_classes} classes, but {test.source} {test.n_classes}"
        )
    if fit.binary != test.binary:
        binary, other = (fit, test) if fit.binary else (test, fit)
        raise InputError(
            f"{binary.source} holds binary predictions, and {other.source} scores of two classes; "
            "read both with kind='binary' (--kind binary)"
        )
    names = (fit.class_names, test.class_names)
    if fit.kind != "toplabel" and None not in names and names[0] != names[1]:
        raise InputError(
            f"{fit.source} has the classes {listed(names[0] or ())}, and {test.source} "
            f"{listed(names[1] or ())}; compare sets of the same classes in the same order"
        )
    fit, test = looked_at(fit), looked_at(test.counted)
    if _same_rows(fit, test):
        message = "the rows to fit on and to measure on are the same: the results are too good"
        warnings.warn(SharedRowsWarning(message), stacklevel=2)
    else:
        _warn_of_shared(fit, test)
    wanted = list(METHODS) if methods == "all" else methods
    positions: dict[str, str] = {}
    every = methods == "all" or [*methods] == [*METHODS]
    if every and fit.origin is not None and fit.origin.positions:
        positions = {m: POSITIONS for m in METHODS if learns_each_class(METHODS[m])}
        wanted = [m for m in wanted if m not in positions]
    if isinstance(wanted, str):
        wanted = [wanted]
    calibrators = [METHODS.named(m)() if isinstance(m, str) else m for m in wanted]
    if not calibrators:
        raise InputError("compare needs at least one method")
    measured = _with_the_ranking(metrics, rank_by, test)
    top_only = fit.kind == "toplabel"
    # The logarithm of probabilities is taken once, unless every method has zeros of its own.
    as_they_are = top_only or holds_zeros(fit)
    fit_rows, test_rows = (rows if as_they_are else rows.as_logits() for rows in (fit, test))
    margins = None if top_only else test_rows.margins
    narrow = None if margins is None else margins.astype(np.float32)
    workers = _workers(len(calibrators), fit_rows, test_rows)
    clock = time.perf_counter if workers < 2 else time.thread_time

    def compared(named: tuple[str, Calibrator]) -> ComparedMethod | str:
        name, calibrator = named
        lacking = _lacking(calibrator, fit, test)
        if lacking is not None:
            return lacking
        with heard_warnings() as heard:
            started = clock()
            try:
                # A copy: the time of a method holds the summary that others have made before.
                calibrator.fit_predictions(replace(fit_rows))
            except NotApplicableError as reason:
                return str(reason)
            fitted = clock()
        after = calibrator.apply_predictions(test_rows)
        applied = clock()
        # All pictures group rows by the margin that they had before any recalibration.
        sample = replace(RowSample.of(after), margins=narrow)
        evaluation = evaluate(sample, metrics=measured, resamples=resamples, level=level, seed=seed)
        by_margin = None
        if margins is not None and isinstance(calibrator, RowTemperature):
            by_margin = margin_temperature(calibrator, test_rows.logits, margins)
        return ComparedMethod(
            name,
            calibrator,
            evaluation,
            fitted - started,
            applied - fitted,
            top_only or _keeps_classes(evaluation, test_rows.scores),
            (*(str(warning) for warning in heard), *_rounded(sample, top_only=top_only)),
            by_margin,
            losses_of(sample, [each.metric for each in evaluation.results.values()]),
        )

    names, began = _names(calibrators), time.monotonic()

    def begin(named: tuple[str, Calibrator]) -> None:
        if watch is not None:
            name, passed = named[0], time.monotonic() - began
            watch(Progress(names.index(name), len(names), 0, 0, passed, name))

    with drawn_once(), _warnings_are_heard():
        found = each_at_once(
            list(zip(names, calibrators, strict=True)),
            compared,
            workers,
            begin,
        )
    entries = [each for each in found if isinstance(each, ComparedMethod)]
    skipped = {name: each for name, each in zip(names, found, strict=True) if isinstance(each, str)}
    skipped |= positions
    if not entries:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise CalibrantError(f"no method could be fitted: {reasons}")
    entries.sort(key=lambda entry: entry.place(rank_by))
    network = None
    if not any(entry.name == UNCALIBRATED for entry in entries):
        network = replace(RowSample.of(test), margins=narrow).for_pictures(losses=True)
    before_fit = _mean_scores(fit)
    verdict = decide(entries, level, margin)
    evaluations = sharing(entry.evaluation for entry in entries)
    return Comparison(
        fit.source,
        test.source,
        fit.n,
        test.n,
        rank_by,
        # Only the verdict reads each row's losses, and they are most of the memory.
        [
            replace(entry, evaluation=evaluation, losses={})
            for entry, evaluation in zip(entries, evaluations, strict=True)
        ],
        skipped,
        Network(network, resamples, seed, *before_fit),
        verdict,
    )


def _check_kind(name: str, rows: object) -> None:
    """Raise `InputError` unless rows say what they are: bare arrays may be logits or not."""
    if not isinstance(rows, Predictions | Shards):
        raise InputError(
            f"compare needs Predictions or Shards for {name}, not {type(rows).__name__}: wrap "
            "arrays with Predictions.from_logits(logits, labels) or "
            "Predictions.from_probs(probs, labels)"
        )


def _workers(methods: int, fit: Predictions, test: Predictions) -> int:
    """Return how many of the methods to work on at a time: one a core, as far as memory allows.

    Where that is one at a time, its rows are shared among the cores instead.
    """
    numbers = sum(rows.n * (rows.n_classes or 1) for rows in (fit, test))
    return max(1, min(worker_count(), methods, MOST_NUMBERS // numbers))


@contextmanager
def _warnings_are_heard() -> Generator[None]:
    """Keep warnings that a method of a plug-in issues by itself apart for each method as well."""

    def hear_it(message: Warning | str, *_: Any, **__: Any) -> None:
        if isinstance(message, CalibrationWarning):
            hear(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always", CalibrationWarning)
        warnings.showwarning = hear_it
        yield


def _with_the_ranking(
    metrics: Sequence[str] | str | None, rank_by: str, test: Predictions
) -> list[str]:
    """Return the names of all metrics to measure, those that rank and decide among them.

    Raises `UnknownMethodError` or `InputError` before anything is fitted.
    """
    if rank_by == "all":
        raise InputError("one metric ranks the methods; name it instead of 'all'")
    (ranking,) = metrics_named([rank_by])
    if test.n < ranking.fewest_rows:
        raise InputError(
            f"{test.source}: ranking by {rank_by} needs at least {ranking.fewest_rows} rows, "
            f"not {test.n}"
        )
    refusal = ranking.refusal(Facts.of(test))
    if refusal is not None:
        raise InputError(
            f"{test.source}: ranking by {rank_by} isn't possible: {refusal}; rank by "
            "another metric (rank_by=, --rank-by), or measure each file (measure --each)"
        )
    names = [metric.name for metric in metrics_named(metrics, binary=test.binary)]
    deciding = DECIDING_OF_TOP if test.kind == "toplabel" else DECIDING
    return list(dict.fromkeys([*names, rank_by, *deciding]))


def _lacking(calibrator: Calibrator, fit: Predictions, test: Predictions) -> str | None:
    """Return what the rows lack of what a method needs, as a clause, or None."""
    lacking = calibrator.lacks(fit) or calibrator.lacks(test, to_apply=True)
    if lacking is None and "features" in calibrator.needs:
        width, found = (int(rows.features.shape[1]) for rows in (fit, test))  # type: ignore[union-attr]
        if width != found:
            return f"{fit.source} has {width} features, but {test.source} {found}"
    return lacking


def _names(calibrators: Sequence[Calibrator]) -> list[str]:
    """Return a name for each: its method, numbered where one method comes more than once."""
    methods = [calibrator.method for calibrator in calibrators]
    names: list[str] = []
    for i, method in enumerate(methods):
        repeats = methods.count(method) > 1
        names.append(f"{method}-{methods[: i + 1].count(method)}" if repeats else method)
    return names


def _mean_scores(rows: Predictions) -> tuple[float, float]:
    """Return the share of right rows, and the mean confidence."""
    scores = score_rows(rows)
    return mean(scores.correct.astype(np.float64), scores.weights), mean(
        scores.confidence, scores.weights
    )


def _rounded(sample: RowSample, *, top_only: bool) -> tuple[str, ...]:
    """Return a note on rows whose loss depends on how a confidence was rounded."""
    rows = rounded_rows(sample.scores) if top_only else 0
    if not rows:
        return ()
    return (
        f"{counted(rows, 'row')} turned out otherwise at a confidence of 1 or 0 (rounded); "
        f"{TOP_NLL.title} counts each as {-math.log(ROUNDED_TO_ONE):.1f}",
    )


def _keeps_classes(evaluation: Evaluation, logits: Any) -> bool:
    original = to_numpy(namespace(logits).argmax(logits, axis=1))
    return bool((evaluation.scores.predicted == original).all())


def _warn_of_shared(fit: Predictions, test: Predictions) -> None:
    shared, compared = shared_rows(fit, test)
    if shared:
        sure = test.n - compared
        of = f"of the {counted(test.n, 'row')} to measure on ({shared / test.n:.1%}) are"
        beside = f" ({sure} more are too sure to be told apart)" if sure else ""
        message = (
            f"{test.source}: {shared} {of} among those to fit on, of {fit.source}{beside}: the "
            "results are too good; measure on rows that nothing is fitted to"
        )
        warn_caller(SharedRowsWarning(message))


def _same_rows(fit: Predictions, test: Predictions) -> bool:
    if fit.n != test.n or not np.array_equal(fit.labels, test.labels):
        return False
    return np.array_equal(to_numpy(fit.scores), to_numpy(test.scores))
