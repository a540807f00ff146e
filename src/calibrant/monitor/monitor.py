"""Watch a stream of confidences and outcomes; see `Monitor`."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.arguments import argument, check_arguments
from calibrant.core.arrays import Array, FloatArray, as_array, to_numpy
from calibrant.core.errors import InputError, PredictionsError, heard_warnings
from calibrant.core.outputs import StrPath
from calibrant.core.typed import typed
from calibrant.metrics.top_label import confidence_and_correct
from calibrant.monitor.delayed_labels import Outcome, Unlabelled, Waiting, name_of
from calibrant.monitor.diagnosis import FEWEST_TO_REFIT, Diagnosis, refittable
from calibrant.monitor.formatting import (
    GroupFound,
    MonitorFindings,
    Unreadable,
    clusters_found,
    groups_found,
)
from calibrant.monitor.latest import Neighbours
from calibrant.monitor.promise import Promise
from calibrant.monitor.sequential_tests import Alarm, TestName
from calibrant.monitor.state import State
from calibrant.monitor.state_file import damaged_is_said, pack, read_state, unpack, write_state
from calibrant.monitor.windows import Window, hour_of
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.worth import cross_validated
from calibrant.predictions.predictions import Predictions

SETTINGS = (
    "tolerance",
    "alpha",
    "average_run_length",
    "window",
    "latest",
    "n_groups",
    "most_waiting",
    "open_clusters",
    "promise",
)


@dataclass(eq=False)
class Monitor:
    """Notice when the confidence of a deployed model stops being honest.

    Feed it confidences and outcomes as they come. Two tests run along, both of the hypothesis that
    a row of confidence p is right with a probability of p +- `tolerance`, whatever came before:

    - **level**: has it ever been off? Alarm with probability at most `alpha`, ever, if not.
    - **change**: has it gone off? A false alarm after `average_run_length` rows on average, or
      later; within n rows with probability at most n / `average_run_length`.

    Both may be looked at after every row. Formulas: `calibrant.monitor.sequential_tests`.

    Rows that depend on one another beyond what was said of them, such as those of a document or a
    user, break the condition. With `clusters` the hypothesis is only that each row is right with
    such a probability whatever came in the clusters before; then the cluster is what is counted:
    see `calibrant.monitor.clusters`. `average_run_length` is a number of clusters.

    Args:
        tolerance: how far a probability may be from what was said, a fraction; 0 is allowed, but
            no calibrator is that exact.
        alpha: probability of a false alarm of the level test.
        average_run_length: rows to a false alarm of the change test, c.
        window: rows of the shortest windows.
        latest: rows kept, to say what is wrong and what a refit would give.
        n_groups: how many groups there will be, if known: their evidence then weighs the same.
            Otherwise those that show up later weigh less.
        most_waiting: predictions that may wait for their outcome; also ids, and clusters, that are
            remembered.
        open_clusters: how many clusters may be unfinished at once. When one more begins, that whose
            last row is the oldest is counted; its later rows are shown in reports, and not bet on.
        promise: of a decision, `calibrant.monitor.promise.promise_of`, watched as a third test,
            ``"promise"``: has it been broken? A false alarm has a probability of `alpha` at most.

    Attributes:
        rows: how many rows with outcomes were counted.
        alarms: the alarms that rose, by test: ``"level"``, ``"change"``, ``"promise"``.
        unlabelled: the rows without outcome.
        notes: what whoever feeds the monitor wants kept with its state, as JSON can hold it.

    Raises:
        InputError: an argument out of its limits.

    References:
        Henzi, Puke, Dimitriadis, Ziegel, arXiv 2203.00426. Shin, Ramdas, Rinaldo, NEJSDS.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> rng = np.random.default_rng(0)
        >>> said = rng.uniform(0.5, 1.0, 6_000)
        >>> right = rng.random(6_000) < said - 0.2 * (np.arange(6_000) >= 4_000)  # goes off
        >>> level, change = cb.Monitor().update(said, right)
        >>> 4_000 < change.row < 4_500, change.since.low <= 4_000 <= change.since.high
        (True, True)
    """

    tolerance: float = argument(0.02, at_least=0, below=0.5)
    alpha: float = argument(0.05, above=0, below=1)
    average_run_length: float = argument(1e5, above=1, at_most=1e100)
    window: int = argument(1000, at_least=50, at_most=1e12)
    latest: int = argument(5000, at_least=200, at_most=1e9)
    n_groups: int | None = argument(None, whole=True, at_least=1, at_most=1e9)
    most_waiting: int = argument(100_000, at_least=1, at_most=1e9)
    open_clusters: int = argument(1, at_least=1, at_most=1e9)
    promise: Promise | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        self._state = State.start(self._settings())

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def rows(self) -> int:
        """How many rows with outcomes were counted."""
        return self._state.windows.rows

    @property
    def alarms(self) -> dict[str, Alarm]:
        """The alarms that rose, by test."""
        watched = self._state.promise
        own = {} if watched is None or watched.alarm is None else {"promise": watched.alarm}
        return self._state.tests.alarms | own

    @property
    def unlabelled(self) -> Unlabelled:
        """The rows without outcome: how many there are, and the accuracy to expect of them."""
        return self._state.unlabelled

    @property
    def waiting(self) -> Waiting:
        """How many predictions and outcomes wait for each other, and what became of others."""
        return self._state.waiting.counts()

    @property
    def notes(self) -> dict[str, Any]:
        """What whoever feeds the monitor wants kept with its state, such as how far they came."""
        return self._state.notes

    @property
    def unreadable(self) -> Unreadable:
        """Lines that were left out for want of a usable row."""
        return Unreadable.of_notes(self.notes)

    def leave_out(self, why: PredictionsError) -> None:
        """Count one more of them."""
        self.notes["unreadable"] = self.unreadable.add(str(why))._asdict()

    @property
    def log_e(self) -> float:
        """Evidence of the level test, log E in nats; an alarm rises at log(1 / alpha)."""
        return self._state.tests.log_level

    @property
    def log_r(self) -> float:
        """Evidence of the change test, log R in nats; an alarm rises at log c."""
        return self._state.tests.log_mass

    @property
    def evidence(self) -> dict[TestName, float]:
        """Evidence of each test, in nats."""
        watched = self._state.promise
        found: dict[TestName, float] = {"level": self.log_e, "change": self.log_r}
        if watched is not None:
            found["promise"] = watched.evidence.log_level
        return found

    @property
    def bounds(self) -> dict[TestName, float]:
        """What the evidence of each test has to reach for an alarm, in nats."""
        watched = self._state.promise
        own: dict[TestName, float] = {} if watched is None else {"promise": watched.bound}
        return self._state.tests.bounds | own

    def update(
        self,
        confidence: Array,
        correct: Array | None = None,
        groups: Any = None,
        clusters: Any = None,
        times: Any = None,
        scores: Predictions | None = None,
    ) -> tuple[Alarm, ...]:
        """Count rows, and return the alarms that rose at one of them.

        Args:
            confidence: (n,) probabilities of the predicted classes, or of class 1; a single one;
                or (n, K) probabilities.
            correct: (n,) whether the prediction was right, or class 1 the true one; with (n, K)
                probabilities the true classes. None where nobody knows.
            groups: (n,) names of groups, or one for all rows; always or never.
            clusters: (n,) names of clusters, or one for all rows; always or never.
            times: (n,) when rows were predicted, or one for all, for reports by hour: seconds since
                1970, or text of ISO 8601.
            scores: the same n rows as the network scored all classes, with labels: from the latest
                of them `refit` learns. Not needed with (n, K) probabilities, which are kept.

        Raises:
            PredictionsError: unusable arrays; nothing is counted then.
            InputError: groups or clusters for some rows only, or more groups than `n_groups`.
        """
        said = as_rows(confidence)
        if correct is None:
            nothing = np.zeros(len(said), dtype=np.int64)
            self.unlabelled.add(np.clip(_pairs(said, nothing)[0], 0.0, 1.0))
            return ()
        values, right = _pairs(said, as_rows(correct))
        names = as_names(groups, len(values)), as_names(clusters, len(values), "clusters")
        hours = as_hours(times, len(values))
        clipped, hits = np.clip(values, 0.0, 1.0), right.astype(np.bool_)
        if scores is None and said.ndim == 2:
            scores = Predictions("probs", said, as_rows(correct).astype(np.int64))
        number = self.rows + np.arange(len(values))
        risen = self._state.add(
            clipped, hits, *names, hours=None if hours is None else np.array(hours)
        )
        if scores is not None and scores.known_labels is not None:
            self._state.keep_scores(scores, scores.known_labels, number, names[1])
        return risen

    def remember(self, ids: Any, scores: Predictions) -> None:
        """Keep the scores of predictions whose labels come by id, for `refit`; see `predict`.

        Args:
            ids: (n,) names or numbers; scores: the same n rows as the network scored all classes.
        """
        keys = [name_of(key) for key in as_ids(ids)]
        check_lengths(keys, scores.scores)
        self._state.scores.wait(keys, scores)

    def predict(
        self,
        ids: Any,
        confidence: Array,
        predicted: Array | None = None,
        groups: Any = None,
        clusters: Any = None,
        times: Any = None,
    ) -> tuple[Alarm, ...]:
        """Take predictions whose outcomes come later, or came before; see `learn`.

        Args:
            ids: (n,) names or numbers, or a single one, that tell rows apart; one that was there
                before is left out.
            confidence: (n,) probabilities of the predicted classes.
            predicted: (n,) predicted classes, if outcomes will be true labels.
            groups: (n,) names of groups, or one for all rows; always or never.
            clusters: (n,) names of clusters, or one for all rows; always or never.
            times: (n,) when rows were predicted, or one for all, for reports by hour: seconds since
                1970, or text of ISO 8601.

        Raises:
            PredictionsError: unusable arrays.
        """
        keys, said = as_ids(ids), as_rows(confidence)
        said = _pairs(said, np.zeros(len(said), dtype=np.int64))[0]
        names = as_names(groups, len(said)), as_names(clusters, len(said), "clusters")
        classes: list[Any] = [None] * len(said)
        if predicted is not None:
            classes = [int(label) for label in as_rows(predicted).tolist()]
        check_lengths(keys, said, classes)
        hours = as_hours(times, len(said))
        return self._state.predict(keys, np.clip(said, 0.0, 1.0), classes, *names, hours)

    def learn(
        self, ids: Any, labels: Array | None = None, *, correct: Array | None = None
    ) -> tuple[Alarm, ...]:
        """Take outcomes, in any order, and count each row that has its prediction, once.

        A row counts when both are there. So the guarantees want a delay that doesn't depend on the
        outcome: if errors are known sooner than successes, the rows counted are no fair sample.

        Args:
            ids: (n,) names or numbers, or a single one.
            labels: (n,) true labels, where predictions came with their classes.
            correct: (n,) or else whether each prediction was right.

        Raises:
            InputError: neither labels nor whether predictions were right, or both.
            PredictionsError: a label of a prediction without its class; nothing is taken then.
        """
        if (labels is None) == (correct is None):
            raise InputError("learn takes either labels or correct")
        keys, is_label = as_ids(ids), labels is not None
        known = as_rows(correct if labels is None else labels).tolist()
        check_lengths(keys, known)
        return self._state.learn(keys, [Outcome(int(value), is_label) for value in known])

    def said_of(self, key: Any) -> tuple[float, int] | None:
        """Return confidence and class (-1: unknown) of a prediction that waits; None without."""
        said = self._state.waiting.predictions.get(name_of(key))
        if said is None:
            return None
        return said.confidence, -1 if said.predicted is None else said.predicted

    def close_clusters(self) -> tuple[Alarm, ...]:
        """Count the unfinished clusters, of which no more rows come, and return the alarms."""
        return self._state.close_clusters()

    def begin_anew(self) -> None:
        """Start the tests again with the next row, once an alarm was dealt with.

        Windows, hours, groups' gaps and what waits stay, and so do the alarms so far, in
        `findings().past`. Each start spends an `alpha` of its own. Later rows of clusters that
        have come up are left out of the tests.
        """
        self._state.begin_anew(self.alarms.values())
        self.notes.pop("announced", None)

    def windows(self) -> list[Window]:
        """Return calibration over the windows of the stream, the last of which may be growing."""
        effect = self._state.clusters.dependence.effect
        stretches = self._state.windows.stretches()
        return [Window.of_sums(first, sums, effect=effect) for first, sums in stretches]

    def latest_window(self) -> Window | None:
        """Return the latest window that is whole, or else the growing one; None without rows."""
        stretches = self._state.windows.stretches()
        if not stretches:
            return None
        whole = len(stretches) > 1 and self.rows - stretches[-1][0] < self.window
        effect = self._state.clusters.dependence.effect
        return Window.of_sums(*stretches[-2 if whole else -1], effect=effect)

    def diagnosis(self) -> Diagnosis | None:
        """Return what is wrong since the change, or over the latest rows; None without rows."""
        since = self._since()
        clustered = bool(self._state.clustered)
        return self._state.latest.diagnosis(self.rows, since, clustered=clustered)

    def _since(self) -> int | None:
        alarm = self.alarms.get("change") or self.alarms.get("level")
        return None if alarm is None else alarm.since.row

    def refit(self, method: str = "auto") -> Calibrator | None:
        """Return a calibrator fitted to the latest rows, those since the change if there was one.

        It takes what rows came as: the scores of all classes, of which about a megabyte of the
        latest is kept, or else the confidence of the predicted class. What it is worth on rows that
        it hasn't seen is `fit_report_.worth`, as `calibrant.posthoc.cross_validated` says it. None
        where rows are too few or all alike.

        Args:
            method: as `calibrant methods` lists them; ``"auto"`` takes one temperature of few rows.

        Raises:
            InputError: no such method, or one that such rows don't fit.
        """
        latest, since, clustered = self._state.latest, self._since(), bool(self._state.clustered)
        first = 0 if since is None else min(since, self.rows - FEWEST_TO_REFIT)
        rows = self._state.scores.since(first, clustered=clustered)
        if rows is None or rows.n < FEWEST_TO_REFIT:
            part = latest.since(self.rows, since)
            rows = Predictions.from_confidence(
                latest.confidence[part],
                correct=latest.correct[part],
                source="the latest rows",
                clusters=latest.origin[part] if clustered else None,
            )
            if not refittable(rows):
                return None
        calibrator = make_calibrator(method)
        with heard_warnings():
            calibrator.fit_predictions(rows)
            worth = cross_validated(calibrator, rows)
        calibrator.fit_report_ = replace(calibrator.fit_report_, worth=worth.as_dict())
        return calibrator

    def neighbours(self) -> Neighbours | None:
        """Return how much the latest rows depend on their neighbours, which the promises exclude.

        None where rows have clusters, or too few have come.
        """
        return None if self._state.clustered else self._state.latest.neighbours()

    def as_dict(self, details: bool = False) -> dict[str, Any]:
        """Return what was found as JSON takes it; fractions, rows counted from 0.

        Args:
            details: whether to add "details": the alarms in full, the diagnosis, groups, and rows
                without outcome.
        """
        return self.findings().as_dict(details=details)

    def __repr__(self) -> str:
        return f"<Monitor: {self.findings().headline()}>"

    def _repr_html_(self) -> str:
        return self.findings()._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def __str__(self) -> str:
        return str(self.findings())

    def groups(self) -> list[GroupFound]:
        """Return what each group shows, in the order in which they came."""
        return groups_found(self._state.tests, self._state.clusters.dependence.effect)

    def findings(self) -> MonitorFindings:
        """Return all that was found so far, as a value that later rows don't change."""
        return MonitorFindings(
            rows=self.rows,
            tolerance=self.tolerance,
            alpha=self.alpha,
            average_run_length=self.average_run_length,
            log_e=self.log_e,
            log_r=self.log_r,
            alarms=self.alarms,
            windows=self.windows(),
            diagnosis=self.diagnosis(),
            groups=self.groups(),
            unlabelled=replace(self.unlabelled),
            waiting=self.waiting,
            hours=self._state.hours.windows(self._state.clusters.dependence.effect),
            clusters=clusters_found(self._state),
            neighbours=self.neighbours(),
            promise=None if self._state.promise is None else self._state.promise.found(),
            past=tuple(self._state.history.alarms),
            begun=self._state.history.begun,
            pending=self._state.waiting.pending(),
            unreadable=self.unreadable,
            late=bool(self._state.waiting.done),
        )

    def to_html(self, path: StrPath, refresh: float | None = None) -> None:
        """Write the page of what was found so far: one file that loads nothing.

        Args:
            path: the HTML file; an old one is replaced.
            refresh: seconds after which an open page looks whether it was written anew; None never.

        Raises:
            InputError: the folder doesn't exist, or `path` is no regular file.
        """
        self.findings().to_html(path, refresh=refresh)

    def save(self, path: StrPath) -> None:
        """Write the state to a file, whole or not at all.

        Raises:
            InputError: the folder doesn't exist, or there is no room.
        """
        header, arrays = pack(self._state)
        settings = self._settings() | {"promise": self.promise and vars(self.promise)}
        write_state(path, header | {"settings": settings}, arrays)

    @classmethod
    def load(cls, path: StrPath) -> Monitor:
        """Return the monitor that `save` wrote.

        Raises:
            CalibratorFileError: the file is missing, damaged or something else.
        """
        saved = read_state(path)
        with damaged_is_said(path):
            monitor = typed(cls, saved.header["settings"], "its settings")
            unpack(saved, monitor._state)
        return monitor

    def merge(self, *others: Monitor) -> Monitor:
        """Return one monitor of the rows of this and others, such as replicas of a server.

        Log payments and R add up over replicas, and the sums are what one monitor of all rows
        would have, in whatever order the rows came. So the merged tests keep their guarantees, with
        alpha and c for all replicas together. Alarms of the parts are not taken over, since each
        part spends an alpha of its own. Rows are numbered part after part.

        Raises:
            InputError: settings differ; there are groups and `n_groups` isn't known; or rows of one
            cluster came to two of them.
        """
        settings = self._settings()
        for other in others:
            apart = [name for name in SETTINGS if getattr(other, name) != settings[name]]
            if apart:
                said = f"--{apart[0].replace('_', '-')} ({apart[0]}=)"
                said = {"promise": "--decision (promise=)"}.get(apart[0], said)
                raise InputError(f"only monitors that were begun with one {said} can be merged")
        merged = type(self)(**settings)
        merged._state = State.merged([part._state for part in (self, *others)])
        return merged


def _pairs(said: NDArray[Any], right: NDArray[Any]) -> tuple[FloatArray, NDArray[Any]]:
    """Return checked confidences and outcomes; (n,) numbers are confidences here."""
    return confidence_and_correct(said, right, None if said.ndim == 2 else "confidence")


def as_rows(values: Array | float) -> NDArray[Any]:
    """Return an array of any library, or a single number, as NumPy with an axis of rows."""
    if isinstance(values, (int, float)):
        return np.array([values])
    return np.atleast_1d(to_numpy(as_array(values)))


def as_ids(ids: Any) -> list[Any]:
    """Return (n,) ids, or a single one, as a list."""
    if isinstance(ids, (str, int)):
        return [ids]
    if isinstance(ids, (list, tuple)):
        return list(cast(Sequence[Any], ids))
    return as_rows(ids).tolist()


def as_names(groups: Any, rows: int, what: str = "groups") -> list[str] | None:
    """Return the name of the group, or of `what`, of each of so many rows; one is for all."""
    if groups is None:
        return None
    names = [name_of(name) for name in as_ids(groups)]
    if len(names) == 1:
        return names * rows
    if len(names) != rows:
        raise PredictionsError(f"{what} has {len(names)} entries, but there are {rows} rows")
    return names


def as_hours(times: Any, rows: int) -> list[int] | None:
    """Return the hour since 1970 of each of so many rows; one time is for all of them."""
    if times is None:
        return None
    single = isinstance(times, (str, int, float, datetime))
    known: list[Any] = [times] if single else as_ids(times)
    if len(known) not in (1, rows):
        raise PredictionsError(f"times has {len(known)} entries, but there are {rows} rows")
    hours = [hour_of(time, f"row {i}") for i, time in enumerate(known)]
    return hours * rows if len(hours) == 1 else hours


def check_lengths(ids: Sized, *columns: Sequence[Any] | NDArray[Any]) -> None:
    """Raise `PredictionsError` unless every column has an entry for each id."""
    for column in columns:
        if len(column) != len(ids):
            raise PredictionsError(f"there are {len(ids)} ids, but {len(column)} entries with them")
