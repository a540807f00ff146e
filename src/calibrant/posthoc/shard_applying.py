"""Apply a calibrator to predictions in many files, shard to shard; what is done is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.text import counted
from calibrant.files.assembly import to_columns
from calibrant.files.formats import open_writer
from calibrant.files.opening import (
    entries,
    is_file,
    is_folder,
    make_folder,
    name_of,
    open_binary,
    replacing_anywhere,
    within,
)
from calibrant.files.options import ReadOptions
from calibrant.files.reading import PredictionFile
from calibrant.files.writing import written_as
from calibrant.posthoc.base import Calibrator
from calibrant.scale.engines import Engine
from calibrant.scale.file_discovery import RECORD
from calibrant.scale.map_reduce import Task, Watcher, left_out, through
from calibrant.scale.shards import Shard, Shards


@dataclass(frozen=True)
class AppliedShards:
    """What `apply_shards` did.

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


def apply_shards(
    calibrator: Calibrator,
    shards: Shards,
    out: str,
    *,
    engine: Engine | None = None,
    skip_broken: bool = False,
    watch: Watcher | None = None,
) -> AppliedShards:
    """Write the calibrated probabilities of each file to a file of its name in a folder.

    Formats stay what they are, and so do folders below the one that all files share. Each file is
    there whole or not at all; called again, whatever ended it, it goes on with what is missing.
    Labels, where there are any, and features are kept.

    Args:
        calibrator: a fitted one.
        shards: the files; they need no labels (``Shards(..., labelled=False)``).
        out: the folder, a path or URL.
        engine: who does the work; processes on all cores for None.
        skip_broken: leave out files that turn out broken.
        watch: called with a `Progress` as shards are done.

    Raises:
        PredictionsError: a row can't be used, or something is missing that the method needs.
        InputError: other classes, or a folder that holds something else.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> for i in range(2):
        ...     np.savez(f"part-{i}.npz", logits=np.eye(3) * 4, labels=[0, 1, 2 - i])
        >>> shards, one = cb.Shards("part-*.npz"), cb.Engine(workers=1)
        >>> scaling = cb.fit_shards(cb.TemperatureScaling(), shards, engine=one)
        >>> print(cb.apply_shards(scaling, shards, "calibrated", engine=one))
        6 rows in calibrated: 2 files written
        >>> print(cb.apply_shards(scaling, shards, "calibrated", engine=one))
        6 rows in calibrated: 0 files written, 2 there before
        >>> cb.Shards("calibrated")
        <Shards: 2 files, 6 rows x 3 classes, probs>
    """
    if shards.n_classes not in (None, calibrator.n_classes_):
        raise InputError(
            f"{shards.source}: has {shards.n_classes} classes, but the calibrator was fitted for "
            f"{calibrator.n_classes_}"
        )
    names = _names(shards.shards, _scores_key(shards))
    targets = [within(out, name) for name in names]
    sources = {shard.where for shard in shards}
    for target in targets:
        if target in sources:
            raise InputError(f"{target}: is read by this command; write to another folder")
    _begin(out, calibrator, names)
    missing = [i for i, shard in enumerate(shards) if not _is_done(targets[i], shard)]
    broken: dict[str, str] | None = dict(shards.broken) if skip_broken else None
    work = [Task(shards.shards[i], targets[i]) for i in missing]
    written: dict[int, str] = {}

    def take(i: int, _: int) -> None:
        written[missing[i]] = targets[missing[i]]

    function = partial(apply_to, calibrator=calibrator)
    if work:
        through(engine or Engine(), function, work, take, watch, broken)
    rows = sum(s.rows for i, s in enumerate(shards) if i in written or i not in missing)
    done = tuple(written[i] for i in sorted(written))
    return AppliedShards(out, done, len(shards) - len(missing), rows, broken or {})


def apply_to(work: Task[str], calibrator: Calibrator) -> int:
    """Write what a calibrator makes of a shard where the task says; return its number of rows."""
    shard = work.shard
    scores = _key_of(shard)
    with open_writer(work.about, shard.rows, scores) as writer:
        for batch in shard.batches(features=True):
            after = calibrator.apply_predictions(batch.predictions)
            writer.write(to_columns(after))
    return shard.rows


def _key_of(shard: Shard) -> str:
    """Return the key of a shard's calibrated scores."""
    if shard.kind == "toplabel":
        return "confidence"
    return "prob" if shard.kind in ("binary", "prob", "logit") else "probs"


def _scores_key(shards: Shards) -> str:
    return _key_of(shards.shards[0])


def _names(shards: Sequence[Shard], scores: str) -> list[str]:
    """Return the name of each output below the folder, all different."""
    parts = [shard.where.split("/") for shard in shards]
    common = 0
    while all(len(p) > common + 1 for p in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    names = [written_as("/".join(p[common:]), scores) for p in parts]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two files would be written as '{twice}'; name them apart")
    return names


def _begin(out: str, calibrator: Calibrator, names: Sequence[str]) -> None:
    """Note in the folder what calibrates its files, or make sure that it is the same.

    Raises:
        InputError: it was begun with another calibrator, or holds other files of these names.
    """
    record = within(out, RECORD)
    own = {"method": calibrator.method, "digest": digest(calibrator)}
    if is_file(record):
        with open_binary(record) as file:
            try:
                known: Any = json.loads(file.read())
            except ValueError:
                known = None
        if known != own:
            raise InputError(
                f"{out}: was begun with another calibrator; choose another folder, or remove it"
            )
        return
    if is_folder(out):
        there = {name_of(place) for place in entries(out)}
        taken = next((name for name in names if name.split("/")[0] in there), None)
        if taken is not None:
            raise InputError(f"{within(out, taken)}: is there already; choose another folder")
    make_folder(out)
    with replacing_anywhere(record) as file:
        file.write(json.dumps(own).encode())


def digest(calibrator: Calibrator) -> str:
    """Return a text that tells a fitted calibrator from any other."""
    found = hashlib.sha256(repr((calibrator.method, calibrator.get_params())).encode())
    for name, array in sorted(calibrator.map_arrays().items()):
        found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _is_done(target: str, shard: Shard) -> bool:
    """Return whether the output of a shard is there, with as many rows."""
    if not is_file(target):
        return False
    try:
        with PredictionFile(target, ReadOptions(labelled=False)) as file:
            return file.rows == shard.rows
    except PredictionsError:
        return False
