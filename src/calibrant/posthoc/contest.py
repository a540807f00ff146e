"""A contest of methods and chains: which take part, and how each does on rows held out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from calibrant.core.arrays import namespace, to_numpy
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.core.text import counted
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Trial,
    difference_of_losses,
)
from calibrant.posthoc.methods import CANDIDATES
from calibrant.predictions.predictions import Predictions

# What every other candidate has to beat, and what is taken where the rows can't say.
FALLBACK = "temperature"
# Between a candidate and the form that it is to have.
OF_FORM = ":"
# With fewer rows, or fewer wrong or right ones among them, there is nothing to choose by.
FEWEST_ROWS, FEWEST_OF_EITHER = 150, 5

# Of more logits than this a contest is held on as many rows as have so many, but not on fewer.
MANY_LOGITS, FEWEST_FOR_MANY = 4_000_000, 2000


def many(predictions: Predictions) -> bool:
    """Return whether rows have so many logits that fits of all of them take long."""
    return predictions.n * int(predictions.scores.shape[1]) > MANY_LOGITS


def some_rows(predictions: Predictions, seed: int) -> Predictions:
    """Return the rows that a contest is held on: all, or a sample if they have very many logits."""
    most = max(MANY_LOGITS // int(predictions.scores.shape[1]), FEWEST_FOR_MANY)
    if predictions.n <= most:
        return predictions
    chosen = np.random.default_rng([seed, 9]).choice(predictions.n, most, replace=False)
    return predictions.take(np.sort(chosen))


def make_step(name: str) -> Calibrator:
    """Return the unfitted method of a name, in another form than its usual one if it names it."""
    method, _, form = name.partition(OF_FORM)
    return CANDIDATES.named(method)().set_params(**{"form": form} if form else {})


def parted(chain: str) -> tuple[str, str]:
    """Return the chain before the last step, and that step."""
    before, _, step = chain.rpartition("+")
    return before, step


def with_prefixes(chains: Collection[str]) -> list[str]:
    """Return the chains and all that they begin with, each behind what it begins with."""
    found = dict[str, None]()
    for chain in chains:
        steps = chain.split("+")
        for count in range(1, len(steps) + 1):
            found["+".join(steps[:count])] = None
    return list(found)


def entrants(
    names: Sequence[str], *, same_prediction: bool, judge: str
) -> tuple[list[str], dict[str, str]]:
    """Return the chains that take part, and why others that were named don't.

    Args:
        names: of chains.
        same_prediction: leave out what may change the predicted class.
        judge: the method that holds the contest, which can't enter.
    """
    chains, left_out = [FALLBACK], dict[str, str]()
    for text in names:
        steps = [name.strip() for name in text.split("+") if name.strip()]
        name = "+".join(steps)
        if judge in steps:
            raise InputError(f"candidates must not hold '{name}', which does the choosing")
        kinds = [make_step(step) for step in steps]
        if any(kind.needs for kind in kinds):
            left_out[name] = "it needs more than logits"
        elif same_prediction and not all(kind.keeps_prediction for kind in kinds):
            left_out[name] = "it may change the predicted class"
        elif name and name not in chains:
            chains.append(name)
    return chains, left_out


def trials_of(
    contest: CrossValidation, chains: list[str], left_out: dict[str, str], hopeless: float
) -> dict[str, Trial]:
    """Return the trials of all chains and what they begin with, less those that are left out.

    Those are what refuses the rows, and what stands behind a first step that is worse than the
    fallback by more than `hopeless` standard errors.
    """
    trials: dict[str, Trial] = {}
    every = with_prefixes(chains)
    for name in every:
        before, step = parted(name)
        if before and before not in trials:
            left_out[name] = left_out[before]
            continue
        if before in trials and "+" not in before:
            own, base = trials[before].losses, trials[FALLBACK].losses
            gap = difference_of_losses(own, base, contest.folds, trials[before].worth)
            if gap.value > hopeless * gap.error:
                left_out[name] = f"{before} alone is clearly worse than {FALLBACK}"
                continue
        behind = any(parted(other)[0] == name for other in every)
        try:
            given = trials[before] if before else None
            trials[name] = contest.trial(make_step(step), given, keep_scores=behind)
        except NotApplicableError as refusal:
            left_out[name] = str(refusal)
    return trials


def too_few(predictions: Predictions) -> str:
    """Return why the rows can't choose a method, or nothing."""
    if predictions.n < FEWEST_ROWS:
        rows = counted(predictions.n, "calibration row")
        return f"{rows}, where a choice takes at least {FEWEST_ROWS}"
    scores = predictions.scores
    predicted = to_numpy(namespace(scores).argmax(scores, axis=1))
    right = int((predicted == predictions.labels).sum())
    for count, kind in ((predictions.n - right, "wrong"), (right, "right")):
        if count < FEWEST_OF_EITHER:
            return (
                f"{count} of {predictions.n} rows are {kind}, and a choice takes at least "
                f"{FEWEST_OF_EITHER}"
            )
    return ""
