"""The one door through which predictions are read: whole, in batches, or a column of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.checks import check_shape, rows_from
from calibrant.core.errors import (
    CalibrationWarning,
    LooksLikeProbabilitiesWarning,
    MisreadWarning,
    NoCommonNamesWarning,
    PredictionsError,
    heard_warnings,
    warn_caller,
)
from calibrant.core.outputs import StrPath
from calibrant.core.text import counted
from calibrant.core.weights import check_each_weight
from calibrant.files.assembly import Assembler, array_of, rules_of
from calibrant.files.formats import format_of, open_rows
from calibrant.files.formats.base import HEAD, REFERENCE, Columns
from calibrant.files.formats.logs.reader import LogReader, is_log
from calibrant.files.formats.text import HeaderlessError
from calibrant.files.gate import PARTLY, UnpackedError, check_regular, readable
from calibrant.files.opening import is_folder, is_url
from calibrant.files.options import ReadFields, ReadOptions
from calibrant.files.proposing import command, of_models, proposals
from calibrant.files.schema import ONE_SCORE, TOP_ONLY, FileKind, choose
from calibrant.files.unpacking import below_a_header, through_a_pipe
from calibrant.predictions.binary import check_one_score
from calibrant.predictions.names import all_alike
from calibrant.predictions.origin import LabelledSlice
from calibrant.predictions.plausibility import FEW, Finding, Look, look
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

# Warnings about what all rows of a file look like.
LOOKS = (LooksLikeProbabilitiesWarning, NoCommonNamesWarning)
# What it may mean if labels don't go with the scores (`Finding.what`).
OF_LABELS = ("labels from", "chance", "sorted", "turned round", "other class", "predictions")
# A row for each class (`Finding.what`).
LONG = "long table"
# Probabilities are written with few digits.
SAME_PROBABILITY = 0.02
# Rows that are looked at before all others, and that a proposed command is tried on.
FIRST_ROWS, ROWS_TRIED = 4096, 100_000
# Roles that hold an entry for each row, of those that make predictions.
OF_ROWS = ("scores", "labels", "predicted", "correct", "features", "weight")
OF_THE_NETWORK = (*HEAD, REFERENCE, "names")


class MisreadError(PredictionsError):
    """Rows can hardly be what they would be taken for.

    Attributes:
        fix: options that read them otherwise.
        what: a word for what they look like.
    """

    def __init__(
        self,
        reason: str,
        details: str = "",
        line: str = "",
        *,
        fix: ReadOptions | None = None,
        what: str = "",
    ) -> None:
        super().__init__(reason, details, line)
        self.fix, self.what = fix, what


def otherwise(
    options: ReadOptions, fix: Mapping[str, Any], scores: Sequence[str], names: Sequence[str]
) -> ReadOptions:
    """Return options that read the same scores otherwise.

    Args:
        options: those that read them so.
        fix: what is to be another.
        scores: names of the fields that hold the scores; names: of all fields.
    """
    if "are" not in fix or options.scores is not None or not scores:
        return options.but(**fix)
    stem = scores[0].removesuffix("0")
    run = tuple(f"{stem}{number}" for number in range(len(scores))) == tuple(scores)
    alone = run and all(n in scores for n in names if n.startswith(stem))
    said: str | tuple[str, ...] = f"{stem}*" if alone else tuple(scores)
    if len(scores) == 1:
        said = scores[0]
    return options.but(scores=said).but(**fix)


def judge(
    findings: Sequence[Finding],
    options: ReadOptions,
    where: str,
    otherwise: Callable[[Mapping[str, Any]], ReadOptions],
    path: str | None = None,
) -> None:
    """Warn of what rows look like that they weren't said to be.

    Args:
        findings: what they look like.
        options: by which they were read.
        where: begins the messages.
        otherwise: returns the options that read them otherwise.
        path: the file, where messages call it otherwise.

    Raises:
        MisreadError: they can hardly be what they would be taken for.
    """
    for finding in findings:
        said = finding.said_by(options)
        if finding.certain and not said:
            keep = command(path or where, otherwise(finding.keep))
            raise MisreadError(
                f"{where}: {finding.sentence}",
                f"if it is right as it is: {keep}",
                fix=otherwise(finding.fix) if finding.fix else None,
                what=finding.what,
            )
        if not said:
            warn_caller(MisreadWarning(f"{where}: {finding.sentence}"))


class PredictionFile:
    """An open file of predictions, of which is known what will be read. Close it, or use it so.

    Args:
        where: path or URL.
        options: how it is read.

    Attributes:
        map: which fields are read, and as what.

    Raises:
        PredictionsError: the file can't be understood, or lacks what was asked for.
        MissingDependencyError: its format needs an optional package.
    """

    def __init__(self, where: str, options: ReadOptions) -> None:
        self.where, self.options = where, options
        self.file = open_rows(where, options)
        try:
            with readable("the header", where):
                self.map = choose(self.file, options)
                words = {
                    field
                    for field in self.map.named(("labels", "predicted", "correct"))
                    if self.map.worded and self.file.type_of(field) in ("text", "bool")
                }
                self._words = words | {*self.map.named(("cluster", "id"))}
                self._check_rival()
        except BaseException:
            self.file.held.close()
            raise
        self._assembler = Assembler(self.map, options, where, lambda: self._first("scores"))

    def _check_rival(self) -> None:
        """Raise `PredictionsError` if the file holds probabilities that its logits don't make."""
        if "rival" not in self.map.fields or not self.rows:
            return
        logits = self._first("scores")
        try:
            probs = self._first("rival")
        except ValueError:
            return  # whatever it is, it is no probabilities
        if not np.isfinite(logits.sum()):
            return  # the row is named when it is read
        same = logits.shape == probs.shape and np.allclose(
            softmax(logits.astype(np.float64)), probs, atol=SAME_PROBABILITY
        )
        if not same:
            raise PredictionsError(
                f"{self.where}: holds logits and probabilities that these logits don't make; say "
                "which of them to read by --are logits or --are probs (are=)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.held.close()

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of the array of a role, from the header."""
        fields = self.map.fields[role]
        own = self.file.shape(fields[0])
        return (*own, len(fields)) if role in self.map.wide else own

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape("scores")[0]

    @property
    def kind(self) -> FileKind:
        """What the scores are."""
        return "binary" if self.options.kind == "binary" else self.map.form

    @property
    def n_classes(self) -> int | None:
        """Number of classes K; None for the top-label form."""
        if self.map.form in TOP_ONLY:
            return None
        return 2 if self.map.form in ONE_SCORE else int(self.shape("scores")[1])

    def check_header(self) -> None:
        """Raise `PredictionsError` unless the shapes of all arrays go together."""
        map, where = self.map, self.where
        shape = self.shape("scores")
        for field in map.named(("scores", "features", "weight")):
            if self.file.type_of(field) == "text" and not self.file.in_quotes(field):
                how = "; number its values first" if field in map.named(("features",)) else ""
                raise PredictionsError(f"{where}: '{field}' must hold real numbers, not text{how}")
        if map.form in ONE_SCORE:
            check_one_score(shape, map.form, where)
        elif not map.grid:
            check_shape(shape, map.form, where)
        for role in OF_ROWS if not map.grid else ():
            if role in map.fields and role != "scores":
                own = self.shape(role)[:1]
                if own != shape[:1]:
                    raise PredictionsError(
                        f"{where}: '{map.fields[role][0]}' has {own[0] if own else 'no'} entries, "
                        f"but there are {shape[0]} rows of scores"
                    )

    def whole(self) -> Predictions:
        """Return all rows.

        Raises:
            PredictionsError: what the file holds isn't usable.
        """
        if not self.file.tabular:
            self.check_header()
        roles = [role for role in (*OF_ROWS, "cluster") if role in self.map.fields]
        fields = list(dict.fromkeys(self.map.named(roles)))
        with self._exactly(), readable(self.file.noun, self.where):
            columns = self.file.everything(fields, self._words)
            network = self._network(OF_THE_NETWORK)
            with heard_warnings() as heard:
                rows = self._assembler.build(columns, network=network)
        cluster = array_of(self.map, "cluster", columns)
        if cluster is not None:
            rows = rows.with_clusters(cluster, self.map.fields["cluster"][0])
        del columns  # of many the scores are a copy
        look = Look(rows.n)
        look.add(rows)
        origin = self.file.origin
        # A log whose own accuracy came out has the labels of its rows, however it looks.
        checked = origin is not None and origin.checked
        self._judge([x for x in look.findings() if not (checked and x.what in OF_LABELS)])
        # Of many files one may well hold one class; of one file nothing else follows.
        one_label = not rows.top_only and rows.label_index is None and rows.n >= FEW
        if one_label and not checked and (alike := all_alike(rows.known_labels)):
            warn_caller(MisreadWarning(f"{self.where}: {alike}"))
        for warning in heard:
            warn_caller(cast(CalibrationWarning, warning))
        others = len(self.options.beside)
        source = f"{self.where} and {counted(others, 'other file')}" if others else rows.source
        return replace(rows, looked_at=True, origin=origin, source=source)

    def _judge(self, findings: Sequence[Finding]) -> None:
        """Warn of what rows look like that they weren't said to be; see `judge`."""

        def instead(fix: Mapping[str, Any]) -> ReadOptions:
            return otherwise(self.options, fix, self.map.fields["scores"], self.file.names())

        judge(findings, self.options, self.where, instead)

    def batches(
        self,
        spans: Iterable[slice],
        column: str | None = None,
        *,
        features: bool = False,
        checked: bool = False,
    ) -> Iterator[tuple[Predictions, NDArray[Any] | None]]:
        """Yield some rows, and a column beside them, for each of the ascending spans in turn.

        Args:
            spans: of rows; none reaches beyond the end.
            column: name of a field to read beside them.
            features: whether to read features, where there are any.
            checked: whether the rows were checked before; logits aren't checked again.

        Raises:
            PredictionsError: a row that can't be used, named by its number in the file.
        """
        if column is not None and column not in self.file.names():
            raise PredictionsError(f"{self.where}: there is no column '{column}'")
        roles = [role for role in OF_ROWS if features or role != "features"]
        fields = [*self.map.named(roles)]
        words = set(self._words)
        if column is not None and column not in fields:
            fields.append(column)
            words.add(column)
        network = self._network(("names",))
        spans = list(spans)
        read = self.file.read(list(dict.fromkeys(fields)), spans, words)
        said: list[CalibrationWarning] | None = None
        told = set[str]()
        # Rows that aren't read again were looked at before.
        whole = not checked and all(a.stop == b.start for a, b in pairwise([slice(0, 0), *spans]))
        look = Look(spans[-1].stop) if whole and spans else None
        for span in spans:
            with (
                proposing(self.where, self.options),
                self._exactly(),
                readable(self.file.noun, self.where),
                heard_warnings() as heard,
            ):
                columns = next(read)
                with rows_from(span.start):
                    rows = self._part(columns, network, checked=checked)
            # A few rows may look like what the file isn't, so that all of them have to.
            looks: list[CalibrationWarning] = [w for w in heard if isinstance(w, LOOKS)]
            here = {type(warning) for warning in looks}
            said = looks if said is None else [w for w in said if type(w) in here]
            for warning in heard:
                if isinstance(warning, CalibrationWarning) and warning not in looks:
                    if str(warning) not in told:
                        warn_caller(warning)
                    told.add(str(warning))
            if look is not None:
                look.add(rows)
            yield replace(rows, looked_at=True), None if column is None else columns[column]
        with proposing(self.where, self.options):
            self._judge([] if look is None else look.findings())
        for warning in said or ():
            warn_caller(warning)

    def _first(self, role: str) -> Any:
        """Return the raw array of a role for the first rows."""
        fields = self.map.fields[role]
        span = slice(0, min(self.rows, FIRST_ROWS))
        return array_of(self.map, role, next(iter(self.file.read(fields, [span]))))

    def _network(self, roles: Sequence[str]) -> Columns:
        """Return what isn't of rows, by role."""
        fields = {role: self.map.fields[role][0] for role in roles if role in self.map.fields}
        if not fields:
            return {}
        found = self.file.everything(list(fields.values()))
        return {role: found[field] for role, field in fields.items()}

    def _part(self, columns: Columns, network: Columns, *, checked: bool) -> Predictions:
        map = self.map
        plain = map.form == "logits" and map.are is None and map.kind is None
        plain = plain and map.class_names is None and "names" not in map.fields
        labels = array_of(map, "labels", columns)
        if checked and plain and labels is not None:
            scores = array_of(map, "scores", columns)
            whole = labels.reshape(-1).astype(np.int64)
            rows = Predictions("logits", scores, whole, source=self.where)
            weight = array_of(map, "weight", columns)
            if weight is None:
                return rows
            return replace(rows, weights=check_each_weight(weight, rows.n, self.where))
        return self._assembler.build(columns, network=network, part=True)

    @contextmanager
    def _exactly(self) -> Generator[None]:
        """Let what is wrong with a file of text name the line and the cell, where one does."""
        try:
            yield
        except UnpackedError:
            raise  # no cell is at fault, and to look at all takes long
        # From a cell that is no number, or (a `PredictionsError`) one that isn't usable.
        except ValueError as error:
            with readable(self.file.noun, self.where):
                fault = self.file.bad_cell(
                    rules_of(
                        self.map,
                        self._words,
                        self._assembler.tolerance,
                        self.options.labels_from or 0,
                    )
                )
            if fault is None:
                if not isinstance(error, PredictionsError):
                    raise
                if str(error).startswith(self.where):
                    raise
                raise PredictionsError(f"{self.where}: {error.reason}", error.details) from error
            raise PredictionsError(f"{self.where}: {fault}") from error


def read_predictions(
    path: StrPath,
    options: ReadOptions | None = None,
    *,
    name: str | None = None,
    **fields: Unpack[ReadFields],
) -> Predictions:
    """Read a file of predictions; its extension says which format it is.

    Args:
        path: the file, a folder of ``.npy`` arrays or of a data set, or a URL.
        options: which columns are read, and as what; by default those with the usual names.
        name: what later messages and tables call these rows; the path by default.
        fields: fields of `ReadOptions`, by name, which override `options`.

    Raises:
        PredictionsError: the file can't be read, or what it holds isn't usable predictions. The
            message begins with the path.
        MissingDependencyError: the format needs an optional package.

    Examples:
        >>> import numpy as np
        >>> import calibrant as cb
        >>> np.savez("val.npz", out=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        >>> cb.read_predictions("val.npz", scores="out", are="logits")
        <Predictions 'val.npz': 2 rows x 2 classes, logits>
    """
    options = (options or ReadOptions()).but(**fields)
    where = fspath(path)
    with _to_read_whole(where, options) as file:
        some = file.file.slice if isinstance(file.file, LogReader) else None
        if some is not None and some.graded:
            raise PredictionsError(
                f"{where}: its outcomes lie between 0 and 1, so rows are neither right nor wrong, "
                "and calibration can't be measured; the accuracy of all its rows: calibrant "
                f"measure {shlex.quote(where)}"
            )
        rows = file.whole()
    return rows if name is None else replace(rows, source=name)


def read_with_slice(
    path: StrPath, options: ReadOptions | None = None
) -> tuple[Predictions | None, LabelledSlice | None]:
    """Read predictions, and of a log of which only some rows have an outcome all scores.

    There are no predictions where outcomes are shares between 0 and 1.

    Raises:
        PredictionsError: as `read_predictions`.
    """
    where, options = fspath(path), options or ReadOptions()
    with _to_read_whole(where, options) as file:
        some = file.file.slice if isinstance(file.file, LogReader) else None
        rows = None if some is not None and some.graded else file.whole()
    return rows, some


@contextmanager
def _to_read_whole(where: str, options: ReadOptions) -> Generator[PredictionFile]:
    """Open a file; every refusal ends with the command that reads it, where one does."""
    with proposing(where, options):
        check_place(where, options)
        with PredictionFile(where, options) as file:
            yield file


def opened(where: str, options: ReadOptions) -> PredictionFile:
    """Return an open file; a refusal ends with the command that reads it, where one does.

    Raises:
        PredictionsError: as `PredictionFile`.
    """
    with proposing(where, options):
        return PredictionFile(where, options)


@contextmanager
def proposing(where: str, options: ReadOptions) -> Generator[None]:
    """Let a refusal end with the command that reads the file, where just one does."""
    try:
        yield
    except PredictionsError as error:
        if error.line or not (found := propose(where, options, error)):
            raise
        details = "; ".join(part for part in (found.note, error.details) if part)
        raise PredictionsError(error.reason, details, found.line) from error


class Proposal(NamedTuple):
    """A command that reads a file, and what has to be said of it."""

    line: str
    note: str = ""


def propose(
    where: str, options: ReadOptions, error: PredictionsError | None = None, *, piped: bool = False
) -> Proposal | None:
    """Return a command that reads a file which can't be read, or None where that leaves doubts.

    Args:
        where: the file.
        options: those that don't read it.
        error: why not, where that is known.
        piped: whether it was written anew already.
    """
    if isinstance(error, UnpackedError):
        partly = PARTLY in str(error) and reads(where, options, options, partly=True)
        return Proposal(f"{command(where, options)} --workers 1") if partly else None
    if isinstance(error, HeaderlessError):
        line = below_a_header(error)
        return None if line is None else Proposal(line)
    if isinstance(error, MisreadError):
        ways = [] if error.fix is None else [[error.fix]]
        if error.fix is not None and error.fix.are == "confidence":  # of which columns?
            ways += [[o for o in way if o.are == "confidence"] for way in proposals(where, options)]
    else:
        ways = list(proposals(where, options))
    for tried in ways:
        found = [o for o in tried if o != options and reads(where, o, options)]
        if found:
            note = of_models(found) if len(found) > 1 else ""
            return Proposal(command(where, found[0]), note) if note or len(found) == 1 else None

    def line_of(place: str, own: ReadOptions) -> str | None:
        if reads(place, own, options):
            return command(place, own)
        own_line = propose(place, own, piped=True)
        return None if own_line is None or own_line.note else own_line.line

    long = isinstance(error, MisreadError) and error.what == LONG
    if piped or (isinstance(error, MisreadError) and not long):  # its cells are read as they should
        return None
    with suppress(Exception):
        line = through_a_pipe(where, options, error, line_of, long=long)
        return None if line is None else Proposal(line)
    return None


def reads(where: str, options: ReadOptions, typed: ReadOptions, *, partly: bool = False) -> bool:
    """Return whether a file is read by some options, as far as its first rows tell.

    What was typed may say that rows are what they hardly can be; what is proposed may not.
    """
    try:
        with heard_warnings(), PredictionFile(where, options) as file:
            if not partly and (file.rows <= ROWS_TRIED or file.map.grid):
                found = look(file.whole())
                return not any(one.certain and not one.said_by(typed) for one in found)
            some = slice(0, min(file.rows, FIRST_ROWS if partly else ROWS_TRIED))
            return bool(list(file.batches([some])))
    # Whatever is wrong with the file was said before.
    except Exception:
        return False


def check_place(where: str, options: ReadOptions) -> None:
    """Raise `PredictionsError` if a path has no known format, or is no regular file or folder."""
    if is_url(where):
        return
    if options.format is None and not is_folder(where) and not is_log(where):
        format_of(where)
    check_regular(Path(where), where, folders=True)
