"""The commands `fit` and `apply`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import typer

from calibrant.cli.help import MANY, OUTPUT, ends_with
from calibrant.cli.options import (
    EngineOptions,
    Files,
    MethodOptions,
    OutputOptions,
    Source,
    all_methods,
    option,
    watching,
)
from calibrant.cli.output import check_outputs, emit
from calibrant.core.errors import InputError
from calibrant.core.text import counted, in_order, wrap
from calibrant.evaluation.formatting import sentence
from calibrant.files import ReadOptions, read_column, read_predictions
from calibrant.files.proposing import command
from calibrant.files.reading import reads
from calibrant.metrics.registry import METRICS
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import score_top

if TYPE_CHECKING:
    from calibrant.posthoc.base import Calibrator
    from calibrant.scale.shards import Shards


NoGain = Literal["keep", "temperature", "none"]
SHARES = "Class shares"


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Other shares of the classes than in the rows of the fit, behind the calibrator."""

    prior: str = option(
        "",
        "Class shares where the calibrator will be used; it corrects for them by Bayes' rule. Give "
        "each share, or a file of rows without labels to estimate them from (with apply, FILE "
        "itself may be it).",
        metavar="'0=0.99,1=0.01'|FILE",
        panel=SHARES,
    )
    kept_negatives: float | None = option(
        None,
        "For two classes: the share of negative rows that were kept for the fit; the "
        "probabilities are corrected to those of all rows.",
        metavar="SHARE",
        panel=SHARES,
    )

    def __post_init__(self) -> None:
        if self.prior and self.kept_negatives is not None:
            raise InputError(
                "--prior and --kept-negatives both set the class shares; give one of them"
            )

    @property
    def unlabelled(self) -> Path | None:
        """The file whose shares are estimated."""
        return Path(self.prior) if self.prior and Path(self.prior).exists() else None


@dataclass(frozen=True, kw_only=True)
class FitOptions(MethodOptions):
    """What is fitted, and to how many rows."""

    per_label: bool = option(False, "For many labels: fit a calibrator for each label.")
    sample: int | None = option(
        None,
        "Rows to draw from many files, for methods that can't be fitted to sums over all rows. "
        "Default: two million; one million for chains and auto.",
        panel=MANY,
    )
    seed: int = option(
        0, "Seed of that sample, and of the folds that measure the gain.", panel=MANY
    )
    no_worth: bool = option(
        False,
        "Don't measure the gain on held-out rows, which takes as long as five more fits (on a "
        "sample, if there are more than 50 000 rows).",
    )
    no_gain: NoGain = option(
        "keep",
        "What to save if held-out rows show no gain: keep (the method that was asked for), "
        "temperature, or none, which changes nothing.",
    )

    def __post_init__(self) -> None:
        if self.no_gain not in get_args(NoGain):
            raise InputError(f"--no-gain is keep, temperature or none, not '{self.no_gain}'")
        if self.no_worth and self.no_gain != "keep":
            raise InputError(
                "--no-gain needs the gain that --no-worth doesn't measure; leave out one of them"
            )


@dataclass(frozen=True, kw_only=True)
class SavedOptions(OutputOptions):
    """Where the calibrator is saved."""

    out: Path = option(..., "Where to save the calibrator (.safetensors).", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class AppliedOptions(OutputOptions):
    """Where the rows are written, and what of each."""

    probs: bool = option(
        True,
        "Write the calibrated probabilities of all classes in place of the scores (the default); "
        "with --no-probs only the predicted class and its confidence.",
        "--probs/--no-probs",
        panel=OUTPUT,
    )
    interval: float | None = option(
        None,
        "Also write low and high, an interval of this level for each confidence, a fraction; for "
        "methods that have one.",
        metavar="LEVEL",
        panel=OUTPUT,
    )
    before: Path | None = option(
        None,
        "With --prior or --expect: the rows that CALIBRATOR was fitted to, with labels.",
        panel=SHARES,
    )
    expect: bool = option(
        False,
        "Also estimate the accuracy on FILE, without its labels; needs --before.",
        panel=SHARES,
    )

    out: Path = option(
        ...,
        "Where to write the rows, in any format; for many files a folder. A second call adds the "
        "files that are missing there.",
        panel=OUTPUT,
    )


@ends_with(all_methods)
def fit(
    files: Files,
    options: FitOptions,
    prior: PriorOptions,
    output: SavedOptions,
    read: ReadOptions,
    engine: EngineOptions,
) -> None:
    """Fit a calibrator on held-out predictions, show what it gains, and save it."""
    from calibrant.posthoc.per_label import PerLabel
    from calibrant.posthoc.registry import make_calibrator, parse_arguments
    from calibrant.posthoc.state import FORMAT

    out, method = output.out, options.method
    FORMAT.check_extension(out)
    calibrator = make_calibrator(method, **parse_arguments(method, options.settings))
    if options.per_label:
        calibrator = PerLabel.like(calibrator)
        method = calibrator.method
    source = Source(files, read, engine, parts=options.sample is not None)
    rows = source.rows([out, output.json])
    with source.working(f"fitting {method}") as how:
        if isinstance(rows, Predictions):
            calibrator.fit_predictions(rows, **how)
        else:
            calibrator.fit_predictions(rows, sample=options.sample, seed=options.seed, **how)
    calibrator, worth = _with_worth(calibrator, rows, options, source)
    calibrator, said, found = _with_prior(calibrator, prior, rows, read)
    calibrator.save(out)
    parts, document = _fitted(calibrator, rows, out)
    parts[1:1] = [each for each in (wrap(worth) if worth else "", said) if each]
    emit("\n\n".join(parts), document | found, output.json)


def on_classes(calibrator: Any, rows: Predictions | Shards | None = None) -> str:
    """Return whether a calibrator keeps predicted classes, or how many of these it changes."""
    if calibrator.keeps_prediction:
        return "keeps every predicted class"
    if not isinstance(rows, Predictions) or rows.n_classes is None:
        return "may change predicted classes"
    before, after = (score_top(each) for each in (rows, calibrator.apply_predictions(rows)))
    changed = int(np.sum(before.predicted != after.predicted))
    return f"changes {changed} of {rows.n} predicted classes"


def _with_worth(
    calibrator: Calibrator, rows: Predictions | Shards, options: FitOptions, source: Source
) -> tuple[Calibrator, str]:
    """Return what is saved, and what it gains, in words; see `--no-gain`."""
    from calibrant.posthoc.per_label import PerLabel
    from calibrant.posthoc.registry import make_calibrator
    from calibrant.posthoc.worth import cross_validated

    if options.no_worth:
        return calibrator, ""
    with source.working("sampling") as how:
        engine = how["engine"]
    with watching(f"the gain of {calibrator.method}", remaining=True) as watch:
        try:
            worth = cross_validated(calibrator, rows, seed=options.seed, engine=engine, watch=watch)
        except InputError as reason:
            return calibrator, f"The gain can't be measured: {reason}."
    said = [worth.headline(), worth.advice(), worth.note and sentence(worth.note)]
    if worth.state == "gain":
        saved = calibrator
    elif options.no_gain == "keep" or options.no_gain == calibrator.method:
        saved = calibrator
        said.append(
            "It was saved all the same; --no-gain temperature or --no-gain none saves that instead."
        )
    else:
        said.append(f"So {options.no_gain} was saved instead.")
        saved = make_calibrator(options.no_gain)
        if options.per_label:
            saved = PerLabel.like(saved)
        with source.working(f"fitting {saved.method}") as how:
            saved.fit_predictions(rows, **how)
    saved.fit_report_ = replace(saved.fit_report_, worth=worth.as_dict())
    return saved, " ".join(each for each in said if each)


def _with_prior(
    calibrator: Calibrator,
    options: PriorOptions,
    before: Predictions | Shards | None,
    read: ReadOptions,
) -> tuple[Calibrator, str, dict[str, Any]]:
    """Return a calibrator for other shares of the classes; and what was found, as text and JSON.

    Args:
        calibrator: fitted; options: which shares there are.
        before: rows with labels, as it was fitted to.
        read: how a file of rows without labels is read.
    """
    from calibrant.posthoc.prior_estimate import estimate_prior
    from calibrant.posthoc.prior_shift import with_kept_negatives, with_prior

    behind = f"The probabilities of {calibrator.method} are corrected for other class shares."
    if options.kept_negatives is not None:
        kept = options.kept_negatives
        return with_kept_negatives(calibrator, kept), behind, {"kept_negatives": kept}
    if not options.prior:
        return calibrator, "", {}
    if not isinstance(before, Predictions):
        raise InputError(
            "--prior needs one file with the rows of the fit, for the shares of their "
            "classes; give " + ("it as --before" if before is None else "one file")
        )
    if options.unlabelled is not None:
        new = read_predictions(options.unlabelled, read.but(labels=None), labelled=False)
        with watching("estimating shares", remaining=True) as watch:
            found = estimate_prior(calibrator, new, before, watch=watch)
        return found.calibrator, f"{wrap(behind)}\n\n{found}", {"prior": found.as_dict()}
    prior: dict[str | int, float] = {}
    for part in options.prior.split(","):
        name, equals, share = part.rpartition("=")
        try:
            prior[name.strip()] = float(share)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(
                f"--prior takes name=share for each class, or a file of rows; there is no file "
                f"'{options.prior}', and '{part}' is no share"
            )
    return with_prior(calibrator, prior, before), behind, {"prior": prior}


def _rows_of(rows: Predictions | Shards) -> tuple[str, dict[str, Any]]:
    """Return which rows a calibrator was fitted to, in words and as JSON takes it."""
    facts: dict[str, Any] = {"file": rows.source, "n_classes": rows.n_classes, "clusters": None}
    if not isinstance(rows, Predictions):
        facts |= {"n": rows.rows, "weighted": rows.weighted, "shards": len(rows)}
    else:
        facts |= {"n": rows.n, "weighted": rows.weights is not None}
        if rows.clusters is not None:
            facts["clusters"] = len(set(rows.clusters.tolist()))
    words = " with weights" if facts["weighted"] else ""
    if facts["clusters"] is not None:
        words += f" in {facts['clusters']} clusters"
    return f"{counted(facts['n'], 'row')}{words} of {rows.source}", facts


def _fitted(
    calibrator: Any, rows: Predictions | Shards, out: Path
) -> tuple[list[str], dict[str, Any]]:
    """Return the paragraphs that are printed about a fitted calibrator, and its JSON.

    Args:
        calibrator: the fitted one.
        rows: what it was fitted to.
        out: where it was saved.
    """
    report, method, (words, facts) = calibrator.fit_report_, calibrator.method, _rows_of(rows)
    document: dict[str, Any] = {
        "method": method,
        "arguments": calibrator.get_params(),
        "n_classes": calibrator.n_classes_,
        "class_names": calibrator.class_names_,
        "parameters": calibrator.n_parameters,
        "keeps_prediction": calibrator.keeps_prediction,
        "fit": report.as_dict(),
        "out": str(out),
    }
    text = (
        f"{method} fitted on {words} and saved to {out}\n"
        f"{counted(calibrator.n_parameters, 'parameter')}, "
        f"{counted(report.iterations, 'iteration')}; {on_classes(calibrator, rows)}"
    )
    if names := calibrator.class_names_:
        text += f"\nclasses in order: {in_order(names, calibrator.form_)}"
    paragraphs = [text]
    parts = {name: part.method for name, part in calibrator.parts().items()}
    if parts:
        document["parts"] = parts
    for note in report.notes:
        if not note.partition(":")[0].endswith("Warning"):  # warnings go to stderr
            paragraphs.append(wrap(_sentence(note)))
    return paragraphs, document | facts


def _sentence(note: str) -> str:
    """Return a note as a sentence begins: a metric's name becomes its title, nll NLL."""
    first = note.split(" ", 1)[0]
    title = METRICS[first].title if first in METRICS else first[:1].upper() + first[1:]
    return title + note[len(first) :]


def apply(
    calibrator: Annotated[
        Path,
        typer.Argument(
            help="A calibrator that `calibrant fit` saved, or a decision of `calibrant decide`."
        ),
    ],
    files: Files,
    prior: PriorOptions,
    output: AppliedOptions,
    read: ReadOptions,
    engine: EngineOptions,
) -> None:
    """Apply a saved calibrator to FILE, which needs no labels, and write its rows back.

    Calibrated probabilities take the place of the scores; all other columns stay. Added are
    predicted and confidence, confidence_before for mere confidences, and a decision's columns.
    """
    from calibrant.decision.decision_file import is_decision, load_decision
    from calibrant.posthoc.accuracy_estimate import expected_accuracy
    from calibrant.posthoc.loading import load
    from calibrant.posthoc.needs import check_width
    from calibrant.posthoc.shards import ShardWork, Wanted, apply_to_shards, write_rows

    source, out = Source(files, read, engine), output.out
    # A folder of many outputs may be there: a second call goes on to fill it.
    outputs = [output.json] if source.many else [out, output.json]
    check_outputs([calibrator, output.before, prior.unlabelled], outputs)
    decision = load_decision(calibrator) if is_decision(calibrator) else None
    fitted = load(calibrator) if decision is None else decision.calibrator
    if decision is not None and prior != PriorOptions():
        raise InputError(
            f"{calibrator}: the promise of a decision needs rows with the class shares that it "
            "was found on; fit with --prior, and decide on rows with the new shares"
        )
    before = None if output.before is None else read_predictions(output.before, read)
    if output.expect and before is None:
        raise InputError("--expect compares with the rows of the fit; give them as --before")
    fitted, said, found = _with_prior(fitted, prior, before, read)
    columns = None if decision is None else decision.columns
    needed = None if decision is None else decision.beside
    wanted = Wanted(output.probs, output.interval, columns, needed)
    rows = source.rows(outputs, labelled=False)
    check_width(fitted, rows)
    with source.working(f"applying {fitted.method}") as how:
        done: Any
        if isinstance(rows, Predictions):
            where, options = source.one()
            beside = None if needed is None else read_column(where, needed, options)
            whole = [(slice(0, rows.n), rows, beside)]
            options = options.but(labelled=False)
            done = write_rows(fitted, str(where), options, rows.n, whole, str(out), wanted)
        else:
            work = ShardWork.on(rows, how["engine"], how["watch"], how["skip_broken"])
            done = apply_to_shards(fitted, work, out, wanted)
    document: dict[str, Any] = {
        "calibrator": str(calibrator),
        "method": fitted.method,
        "keeps_prediction": fitted.keeps_prediction,
        "file": rows.source,
        "n_classes": rows.n_classes,
        "out": str(out),
    }
    if isinstance(rows, Predictions):
        document["n"] = done.n
        text = f"applied to {counted(done.n, 'row')} of {rows.source}, written to {out}"
        text += _to_measure(rows, source.one()[1], out)
    else:
        document, text = document | done.as_dict(), f"applied: {done}"
    text = f"{fitted.method} {text}"
    if output.expect and before is not None:
        if not isinstance(rows, Predictions):
            raise InputError("--expect takes the rows of one file; give one file")
        with watching("expecting an accuracy", remaining=True) as watch:
            expected = expected_accuracy(fitted, rows, before, watch=watch)
        said = "\n\n".join(each for each in (said, str(expected)) if each)
        found |= {"expected": expected.as_dict()}
    emit(f"{text}\n\n{said}" if said else text, document | found, output.json)


def _to_measure(rows: Predictions, options: ReadOptions, out: Path) -> str:
    """Return the command that measures what was written, where that of the input no longer does."""
    if rows.kind == "score" or not (options.scores or options.are):
        return ""
    given = options.but(labelled=True)
    for each in (given, given.but(scores=None, are=None)):
        if reads(str(out), each, options):
            line = command(str(out), each)
            return f"\nThe scores are calibrated probabilities now; to measure them:\n  {line}"
    return ""
