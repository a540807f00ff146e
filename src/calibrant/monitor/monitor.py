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
    """Notice when the confidences of a deployed model become wrong.

    Give it confidences and outcomes as they come. Two tests run on them. Both test the hypothesis
    that a row of confidence p is right with a probability within `tolerance` of p, given all rows
    before:

    - **level**: has the model been wrong at any time? If not, an alarm ever rises with probability
      at most `alpha`.
    - **change**: has the model become wrong? A false alarm rises after `average_run_length` rows on
      average, or later; within n rows with probability at most n / `average_run_length`.

    You may look at both after every row. Formulas: `calibrant.monitor.sequential_tests`.

    Rows that depend on one another, such as the rows of a document or a user, violate the
    hypothesis even if the model is calibrated. With `clusters` each row only needs such a
    probability given the clusters before its own. The tests then count clusters (see
    `calibrant.monitor.clusters`), and `average_run_length` is a number of clusters.

    Args:
        tolerance: how far a probability may be from the confidence, a fraction; 0 is allowed, but
            no calibrator is that exact.
        alpha: probability of a false alarm of the level test.
        average_run_length: mean number of rows before a false alarm of the change test, c.
        window: rows of the shortest windows.
        latest: number of latest rows kept, to describe the error and to fit again.
        n_groups: how many groups there will be, if known; then all groups have the same weight.
            Otherwise groups that appear later have less weight.
        most_waiting: number of predictions that may wait for their outcome, and of ids and clusters
            that are remembered.
        open_clusters: how many clusters may be unfinished at once. When one more begins, the
            cluster whose last row is the oldest is counted; its later rows are in the reports but
            not in the tests.
        promise: the promise of a decision (`calibrant.monitor.promise.promise_of`), for a third
            test, ``"promise"``: has it been broken? The probability of a false alarm is at most
            `alpha`.

    Attributes:
        rows: how many rows with outcomes were counted.
        alarms: the alarms that rose, by test: ``"level"``, ``"change"``, ``"promise"``.
        unlabelled: the rows without outcome.
        notes: whatever the caller wants to keep with the state, as JSON.

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
        """The rows without outcome: their number and their expected accuracy."""
        return self._state.unlabelled

    @property
    def waiting(self) -> Waiting:
        """How many predictions and outcomes wait for each other, and what happened to others."""
        return self._state.waiting.counts()

    @property
    def notes(self) -> dict[str, Any]:
        """Whatever the caller wants to keep with the state, such as how far a file was read."""
        return self._state.notes

    @property
    def unreadable(self) -> Unreadable:
        """Lines that were left out because they hold no usable row."""
        return Unreadable.of_notes(self.notes)

    def leave_out(self, why: PredictionsError) -> None:
        """Count one more line that was left out."""
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
        """The evidence at which each test raises an alarm, in nats."""
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
            correct: (n,) whether the prediction was right, or whether class 1 was true; with (n, K)
                probabilities the true classes. None if it isn't known.
            groups: (n,) names of groups, or one for all rows; always or never.
            clusters: (n,) names of clusters, or one for all rows; always or never.
            times: (n,) when rows were predicted, or one for all, for reports by hour: seconds since
                1970, or text of ISO 8601.
            scores: the same n rows with the network's scores of all classes and labels; `refit`
                learns from the latest. Not needed with (n, K) probabilities, which are kept.

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
            ids: (n,) names or numbers; scores: the same n rows with the network's scores of all
                classes.
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
        """Add predictions whose outcomes come later, or came before; see `learn`.

        Args:
            ids: (n,) names or numbers of the rows, or a single one; a row whose id was there before
                is left out.
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
        """Add outcomes, in any order, and count each row that has its prediction, once.

        A row is counted when both are there. So the promises need a delay that doesn't depend on
        the outcome: if errors are known sooner than successes, the counted rows aren't a fair
        sample.

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
        """Return confidence and class (-1: unknown) of a waiting prediction, or None."""
        said = self._state.waiting.predictions.get(name_of(key))
        if said is None:
            return None
        return said.confidence, -1 if said.predicted is None else said.predicted

    def close_clusters(self) -> tuple[Alarm, ...]:
        """Count the unfinished clusters, which get no more rows, and return the alarms."""
        return self._state.close_clusters()

    def begin_anew(self) -> None:
        """Start the tests again with the next row, once an alarm was dealt with.

        Windows, hours, gaps of groups and waiting rows stay, and so do past alarms, in
        `findings().past`. Each start has an `alpha` of its own. The tests leave out later rows of
        clusters that began before.
        """
        self._state.begin_anew(self.alarms.values())
        self.notes.pop("announced", None)

    def windows(self) -> list[Window]:
        """Return the calibration in each window of the stream; the last window may still grow."""
        effect = self._state.clusters.dependence.effect
        stretches = self._state.windows.stretches()
        return [Window.of_sums(first, sums, effect=effect) for first, sums in stretches]

    def latest_window(self) -> Window | None:
        """Return the latest full window, or else the growing one; None without rows."""
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

        It is fitted to the scores of all classes if rows came with them (about a megabyte of the
        latest is kept), or else to the confidence of the predicted class. `fit_report_.worth` has
        its gain on held-out rows, as `calibrant.posthoc.cross_validated` computes it. The result is
        None if the rows are too few or all alike.

        Args:
            method: as `calibrant methods` lists them; with few rows ``"auto"`` fits one
                temperature.

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
        """Return how much neighbouring rows depend on each other; the promises assume they don't.

        None where rows have clusters, or too few have come.
        """
        return None if self._state.clustered else self._state.latest.neighbours()

    def as_dict(self, details: bool = False) -> dict[str, Any]:
        """Return the findings as plain values for JSON; fractions, rows counted from 0.

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
        """Return all findings so far, as a value that later rows don't change."""
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
            refresh: seconds after which an open page reloads itself if it was written again; None
                for never.

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

        Log payments and R add up over replicas, and the sums are those of one monitor of all rows,
        in any order of the rows. So the merged tests keep their promises, with alpha and c for all
        replicas together. The merged monitor doesn't take over alarms of the parts, because each
        part has an alpha of its own. Rows are numbered part after part.

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
