"""Predictions in many files: what a calibrator is fitted to, and what it is applied to.

A fit reads sums over all rows or a uniform sample of them, in bounded memory; none of it depends on
how the rows are split into files. Files that are written stay when a run is interrupted.

What a calibrator writes of a file: people's rows, and beside them what it makes of each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from os import fspath
from typing import Any, TypeVar

import numpy as np

from calibrant.core.arrays import Array, to_numpy
from calibrant.core.errors import (
    AppliedTwiceWarning,
    InputError,
    NotApplicableError,
    PredictionsError,
    warn_caller,
)
from calibrant.core.outputs import StrPath
from calibrant.core.progress import Watcher
from calibrant.core.text import counted
from calibrant.evaluation.formatting import left_out
from calibrant.files.formats import open_rows, open_writer
from calibrant.files.formats.base import Columns, RowWriter
from calibrant.files.opening import (
    changed_at,
    entries,
    is_file,
    is_folder,
    is_url,
    make_folder,
    name_of,
    open_binary,
    remove,
    replacing_anywhere,
    within,
)
from calibrant.files.options import ReadOptions
from calibrant.files.reading import PredictionFile
from calibrant.files.rewriting import RowsAgain, plain, scores_key, written_as
from calibrant.files.schema import TOP_ONLY
from calibrant.posthoc.applying import row_intervals
from calibrant.posthoc.needs import rows_of_event
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top
from calibrant.scale.engines import Engine, Task, gathered, through
from calibrant.scale.sampling import affordable, sample
from calibrant.scale.shards import HEADER_THREADS, RECORD, Shard, Shards

# The confidences that calibrated ones took the place of: they show that a map was applied.
UNCALIBRATED = "confidence_before"


@dataclass(frozen=True)
class Wanted:
    """What is written of each row besides its fields, its predicted class and its confidence.

    Attributes:
        probs: the probabilities of all classes, in place of the scores.
        interval: probability of an interval for the confidence, where the method has one; None for
            no interval.
        columns: what else is written, of rows with calibrated probabilities and, where there is
            one, of a column beside them.
        beside: the name of that column.
    """

    probs: bool = True
    interval: float | None = None
    columns: Callable[[Predictions, Array | None], Columns] | None = None
    beside: str | None = None

    def check(self, calibrator: Any) -> None:
        """Raise `InputError` for an interval that the method can't give."""
        if self.interval is None:
            return
        if not 0 < self.interval < 1:
            raise InputError(f"the level of the interval must lie in (0, 1), not {self.interval:g}")
        if not calibrator.interval_arrays(self.interval):
            raise NotApplicableError(
                f"method '{calibrator.method}' has no interval for the confidence of a row; leave "
                "out --interval"
            )


# Parameters: the file, what is read of it, and where it goes; the command line gives them apart.
def write_rows(
    calibrator: Any,
    where: str,
    options: ReadOptions,
    rows: int,
    batches: Iterable[tuple[slice, Predictions, Array | None]],
    out: str,
    wanted: Wanted,
) -> Predictions:
    """Write what a calibrator makes of the rows of a file, beside their fields; return the last.

    Args:
        calibrator: the fitted one.
        where: the file; options: how it is read; rows: how many there are.
        batches: its rows, at least one batch, by their ascending spans, with the column that is
            wanted beside them.
        out: where they are written.
        wanted: what is written of each.
    """
    wanted.check(calibrator)
    after: Predictions | None = None
    with ExitStack() as held:
        file = held.enter_context(PredictionFile(where, options))
        again = RowsAgain(file, out, probs=wanted.probs)
        given = list[slice]()
        kept, writer = again.kept(_coming(given)), None
        for span, before, beside in batches:
            given.append(span)
            given_back: Predictions = calibrator.apply_predictions(before)
            more = _more(calibrator, again, before, given_back, wanted, beside)
            stays = next(kept)
            columns = again.columns(stays, given_back, more)
            if writer is None:
                _warn_of_second(where, before, stays)
                writer = held.enter_context(_opened(out, rows, columns, again, given_back))
            writer.write(columns)
            after = given_back
    assert after is not None
    return after


def _warn_of_second(where: str, before: Predictions, beside: Columns) -> None:
    """Warn if what stands beside the scores is what `apply` writes there."""
    if before.form == "toplabel" and UNCALIBRATED in beside:
        warn_caller(
            AppliedTwiceWarning(
                f"{where}: '{UNCALIBRATED}' stands beside the confidences, as calibrant apply "
                "writes it; they are calibrated already, and a second map makes them wrong"
            )
        )
    written = "confidence" in beside and {"predicted", "predicted_calibrated"} & {*beside}
    if not written or before.kind != "probs" or before.n_classes is None:
        return
    try:
        said = plain(beside["confidence"]).astype(np.float64)
    except ValueError:
        return
    if np.allclose(said, said_of_top(before)[0], rtol=0, atol=1e-6):
        warn_caller(
            AppliedTwiceWarning(
                f"{where}: 'predicted' and 'confidence' stand beside the probabilities, as "
                "calibrant apply writes them; if these are calibrated already, a second map makes "
                "them wrong"
            )
        )


def _coming(given: list[slice]) -> Iterable[slice]:
    """Yield spans as they are put into a list."""
    while given:
        yield given.pop(0)


def _opened(
    out: str, rows: int, columns: Columns, again: RowsAgain, after: Predictions
) -> RowWriter:
    if not columns:
        raise InputError(
            f"{out}: this format holds only scores and labels, so nothing is left to write "
            "without probabilities; write .npz or a table"
        )
    scores = scores_key(after.form) + ("s" if after.label_names is not None else "")
    if scores not in columns:  # what is spooled first may be any array
        scores = "confidence" if "confidence" in columns else next(iter(columns))
    # Labels and pixels of an input are rows of the map, and one entry of the file.
    writer = open_writer(out, rows * len(columns[scores]) // after.n, scores)
    writer.as_named, writer.numbered = again.table, again.noted
    return writer


def _called(after: Predictions, again: RowsAgain) -> Predictions:
    """Return rows whose classes are called as the labels beside them are written."""
    if after.class_names is not None or after.n_classes is None:
        return after
    numbers = np.arange(after.n_classes)
    written = again.as_labels(numbers)
    if np.array_equal(written, numbers):
        return after
    return replace(after, class_names=tuple(map(str, written.tolist())))


def _more(
    calibrator: Any,
    again: RowsAgain,
    before: Predictions,
    after: Predictions,
    wanted: Wanted,
    beside: Array | None,
) -> Columns:
    """Return what is written beside people's fields and the new scores."""
    if after.grid is not None:
        return {}
    confidence, predicted = said_of_top(after)
    found: Columns = {}
    if after.n_classes is not None:
        names = after.class_names if again.worded else None
        by_name = None if names is None else np.array(names)[predicted]
        found["predicted"] = again.as_labels(predicted) if by_name is None else by_name
        found["confidence"] = confidence
    elif before.form == "toplabel":
        found[UNCALIBRATED] = to_numpy(before.scores)
    if wanted.interval is not None:
        logits = rows_of_event(calibrator, before).logits
        low, high = row_intervals(calibrator, logits, confidence, wanted.interval)
        found |= {"low": low, "high": high}
    if wanted.columns is not None:
        found |= wanted.columns(_called(after, again), beside)
    return found


# Of an input so many bytes are read at once, to tell it from what it was before.
BYTES_AT_ONCE = 1 << 20

# What Python writes of each row.
USUALLY_WANTED = Wanted()

Sums = TypeVar("Sums")


@dataclass(frozen=True)
class ShardWork:
    """Shards that are gone through for a fit, and who does it.

    Attributes:
        shards: the files.
        engine: who does the work.
        watch: called with a `Progress` as shards are done.
        broken: takes up files that can't be read, with the reason; None to end with them.
    """

    shards: Shards
    engine: Engine
    watch: Watcher | None
    broken: dict[str, str] | None

    @classmethod
    def on(
        cls, shards: Any, engine: Engine | None, watch: Watcher | None, skip_broken: bool
    ) -> ShardWork:
        """Return the work on some shards.

        Raises:
            PredictionsError: they are none.
            InputError: they are read with clusters.
        """
        if not isinstance(shards, Shards):
            raise PredictionsError(
                "rows are given as Predictions, such as Predictions.from_logits(logits, labels) or "
                f"read_predictions(file), or as Shards, not as {type(shards).__name__}"
            )
        shards.refuse_clusters()
        return cls(shards, engine or Engine(), watch, dict(shards.broken) if skip_broken else None)

    @property
    def scores_of_classes(self) -> bool:
        """Whether rows have a score for every class, and aren't about one event."""
        return self.shards.kind not in TOP_ONLY and not self.shards.binary

    @property
    def rows(self) -> int:
        """Number of rows of the files that can be read."""
        return sum(s.rows for s in self.shards if s.where not in (self.broken or {}))

    def gathered(
        self, function: Callable[[Shard], Sums], join: Callable[[Sums, Sums], Sums]
    ) -> Sums:
        """Return what `function` makes of all shards, joined two by two as they are done."""
        shards = self.shards.shards
        return gathered(self.engine, function, shards, join, self.watch, self.broken)

    def sampled(self, most: int, wanted: int | None, seed: int) -> tuple[Predictions, str]:
        """Return a uniform sample of the rows, and what a fit to it notes.

        Args:
            most: rows of it, where nobody says how many; fewer of very wide ones.
            wanted: rows of it, or None.
            seed: for the draw.
        """
        shards = self.shards
        rows = affordable(shards, most) if wanted is None else wanted
        held = sample(shards, rows, seed, self.engine, self.watch, self.broken)
        weighed = ", each with its weight" if shards.weighted else ""
        return held, (
            f"fitted to a uniform sample of {held.n} of {self.rows} rows, drawn by their places "
            f"(seed {seed}){weighed}"
        )


@dataclass(frozen=True)
class AppliedShards:
    """What `Calibrator.apply_predictions` did with many files.

    Attributes:
        out: the folder.
        written: the files that were written, in order; before: how many were there already.
        rows: rows of all of them.
        broken: files that were left out, with the reason.
    """

    out: str
    written: tuple[str, ...]
    before: int
    rows: int
    broken: dict[str, str] = field(default_factory=dict[str, str])

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return {
            "out": self.out,
            "shards": len(self.written) + self.before,
            "written": list(self.written),
            "there_before": self.before,
            "n": self.rows,
            "shards_left_out": left_out(self.broken),
        }

    def __str__(self) -> str:
        done = counted(len(self.written), "file")
        text = f"{counted(self.rows, 'row')} in {self.out}: {done} written"
        if self.before:
            text += f", {self.before} there before"
        lines = [f"left out: {self.broken[name]}" for name in sorted(self.broken)]
        return "\n".join([text, *lines])


def apply_to_shards(
    calibrator: Any, work: ShardWork, out: StrPath | None, wanted: Wanted = USUALLY_WANTED
) -> AppliedShards:
    """Write the calibrated probabilities of each file; see `Calibrator.apply_predictions`."""
    if out is None:
        raise InputError("apply_predictions of many files needs `out`, the folder to write them to")
    shards, out = work.shards, fspath(out)
    names = _names(shards.shards)
    targets = [within(out, name) for name in names]
    sources = {shard.where for shard in shards}
    for target in targets:
        if target in sources:
            raise InputError(f"{target}: is read by this command; write to another folder")
    wanted.check(calibrator)
    same = _begin(out, calibrator, wanted, dict(zip(names, shards, strict=True)))
    missing = [
        i
        for i, shard in enumerate(shards)
        if not (names[i] in same and _is_whole(targets[i], shard))
    ]
    tasks = [Task(shards.shards[i], targets[i]) for i in missing]
    written: dict[int, str] = {}

    def take(i: int, _: int) -> None:
        written[missing[i]] = targets[missing[i]]

    if tasks:
        function = partial(apply_to, calibrator=calibrator, wanted=wanted)
        through(work.engine, function, tasks, take, work.watch, work.broken)
    rows = sum(s.rows for i, s in enumerate(shards) if i in written or i not in missing)
    done = tuple(written[i] for i in sorted(written))
    return AppliedShards(out, done, len(shards) - len(missing), rows, work.broken or {})


def apply_to(task: Task[str], calibrator: Any, wanted: Wanted) -> int:
    """Write what a calibrator makes of a shard where the task says; return its number of rows."""
    shard = task.shard

    def rows() -> Iterator[tuple[slice, Predictions, Array | None]]:
        for batch in shard.batches(wanted.beside, features=True):
            start = batch.place - shard.first
            yield slice(start, start + batch.predictions.n), batch.predictions, batch.column

    where, options = shard.where, shard.options
    write_rows(calibrator, where, options, shard.rows, rows(), task.about, wanted)
    return shard.rows


def _key_of(shard: Shard) -> str:
    """Return the key of a shard's calibrated scores."""
    if shard.kind in TOP_ONLY:
        return "confidence"
    return "prob" if shard.kind in ("binary", "prob", "logit") else "probs"


def _names(shards: Sequence[Shard]) -> list[str]:
    """Return the name of each output below the folder, all different and none above it."""
    parts = [_parts(shard.where) for shard in shards]
    common = 0
    while all(len(p) > common + 1 for p in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    names = [written_as("/".join(p[common:]), _key_of(shards[0])) for p in parts]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two files would be written as '{twice}'; rename one of them")
    return names


def _parts(where: str) -> list[str]:
    """Return the folders down to a file and its name, without a step upwards.

    Raises:
        InputError: a URL with a step upwards, whose folder nobody can tell.
    """
    if not is_url(where):
        return os.path.abspath(where).split(os.sep)
    parts = where.split("/")
    if ".." in parts:
        raise InputError(f"{where}: a URL with '..' in it could be written outside the folder")
    return parts


def _begin(out: str, calibrator: Any, wanted: Wanted, inputs: dict[str, Shard]) -> set[str]:
    """Note in the folder what calibrates which files; return outputs whose inputs are as noted.

    Outputs of inputs that have changed since are removed before the note says so: whatever ends the
    command then, no output is taken for one of another input.

    Args:
        out: the folder.
        calibrator: what is applied.
        wanted: what is written of each row.
        inputs: by name of the output.

    Raises:
        InputError: it was begun with another calibrator, or holds other files of these names.
    """
    record = within(out, RECORD)
    with ThreadPoolExecutor(min(HEADER_THREADS, len(inputs))) as pool:
        found = dict(zip(inputs, pool.map(identity, inputs.values()), strict=True))
    own = {"method": calibrator.method, "digest": digest(calibrator), "writes": repr(wanted)}
    known: dict[str, Any] = {}
    if is_file(record):
        with open_binary(record) as file, suppress(ValueError, AttributeError):
            known = dict(json.loads(file.read()).items())
        if {key: known.get(key) for key in own} != own:
            raise InputError(
                f"{out}: was begun with another calibrator, or to write something else; choose "
                "another folder, or remove it"
            )
    elif is_folder(out):
        there = {name_of(place) for place in entries(out)}
        taken = next((name for name in inputs if name.split("/")[0] in there), None)
        if taken is not None:
            raise InputError(f"{within(out, taken)}: exists already; choose another folder")
    noted = known.get("inputs", {})
    same = {name for name, one in found.items() if noted.get(name) == one}
    for name in found.keys() - same:
        remove(within(out, name))
    make_folder(out)
    with replacing_anywhere(record) as file:
        file.write(json.dumps(own | {"inputs": noted | found}).encode())
    return same


def identity(shard: Shard) -> str:
    """Return a text that tells the file of a shard, and how it is read, from what it was before.

    It changes with every byte of the files that are read, with the time of their last change, and
    with the options.
    """
    labels = shard.options.labels
    found = hashlib.sha256(repr((shard.kind, shard.options)).encode())
    for place in (shard.where, *([fspath(labels)] if labels is not None else [])):
        inside = sorted(entries(place)) if is_folder(place) else [place]
        for one in filter(is_file, inside):
            with open_binary(one) as file:
                content = hashlib.blake2b()
                while some := file.read(BYTES_AT_ONCE):
                    content.update(some)
            found.update(repr((name_of(one), changed_at(one), content.hexdigest())).encode())
    return found.hexdigest()


def digest(calibrator: Any) -> str:
    """Return a text that tells a fitted calibrator from any other."""
    found = hashlib.sha256(repr((calibrator.method, calibrator.get_params())).encode())
    for name, array in sorted(calibrator.map_arrays().items()):
        found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _is_whole(target: str, shard: Shard) -> bool:
    """Return whether the output of a shard is there, with as many rows."""
    if not is_file(target):
        return False
    try:
        with open_rows(target, ReadOptions(labelled=False)) as file:
            return any(file.shape(name)[:1] == (shard.rows,) for name in file.names())
    except PredictionsError:
        return False
