"""Model selection among methods and chains: who takes part, and what held-out losses say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from calibrant.core.arrays import FloatArray, namespace, to_numpy
from calibrant.core.errors import InputError, NotApplicableError, NotIdentifiedWarning
from calibrant.core.text import counted
from calibrant.core.weights import mean, total
from calibrant.metrics.registry import METRICS
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.fitting.cross_validation import (
    CrossValidation,
    Difference,
    Trial,
    clearly_lower,
    difference_of_losses,
    shared_rows_factor,
)
from calibrant.posthoc.fitting.minimizing import newton_within
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.state import learns_each_class
from calibrant.predictions.names import all_alike
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax

# What every other candidate has to beat, and what is taken where the rows can't say.
FALLBACK = "temperature"
FALLBACK_OF_SCORES = "platt"
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


def learns_positions(chain: str) -> bool:
    """Return whether a step of a chain learns a number a class."""
    return any(learns_each_class(type(make_step(step))) for step in chain.split("+"))


def make_step(name: str) -> Calibrator:
    """Return the unfitted method of a name, in another form than its usual one if it names it."""
    method, _, form = name.partition(OF_FORM)
    return METHODS.named(method)().set_params(**{"form": form} if form else {})


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
    names: Sequence[str], *, same_prediction: bool, judge: str, fallback: str = FALLBACK
) -> tuple[list[str], dict[str, str]]:
    """Return the chains that take part, and why others that were named don't.

    Args:
        names: of chains.
        same_prediction: leave out what may change the predicted class.
        judge: the method that holds the contest, which can't enter.
        fallback: what takes part in any case.
    """
    chains, left_out = [fallback], dict[str, str]()
    for text in names:
        steps = [name.strip() for name in text.split("+") if name.strip()]
        name = "+".join(steps)
        if judge in steps:
            raise InputError(f"candidates must not hold '{name}', which does the choosing")
        kinds = [make_step(step) for step in steps]
        if any(kind.needs for kind in kinds):
            left_out[name] = "it needs more than logits"
        elif fallback == FALLBACK_OF_SCORES and kinds and not kinds[0].fits_scores:
            left_out[name] = "it needs a probability, and a score isn't one"
        elif same_prediction and not all(kind.keeps_prediction for kind in kinds):
            left_out[name] = "it may change the predicted class"
        elif name and name not in chains:
            chains.append(name)
    return chains, left_out


def trials_of(
    contest: CrossValidation,
    chains: list[str],
    left_out: dict[str, str],
    fallback: str = FALLBACK,
) -> tuple[dict[str, Trial], dict[str, Calibrator]]:
    """Return the trials of all chains and what they begin with, less those that are left out.

    Left out are methods that refuse the rows; chains whose first step is worse than the fallback
    by more than `HOPELESS` standard errors; and chains so far from the best that their last
    step, gaining what it gains by itself, can't catch up. Beside them the unfitted last steps: what
    a step chooses by rows held out, a ridge, it chooses once and not in every fold; but for itself
    behind other steps, which change what suits it (by .017 in NLL on a random forest's rows).
    """
    trials: dict[str, Trial] = {}
    settled: dict[str, Calibrator] = {}
    few = prod(contest.predictions.scores.shape) <= MOST_FOR_END
    # Shorter ones first: they say whether longer ones are worth their time.
    every = sorted(with_prefixes(chains), key=lambda name: name.count("+"))
    for name in every:
        before, step = parted(name)
        if before and before not in trials:
            left_out[name] = left_out[before]
            continue
        if before in trials and "+" not in before:
            own, base = trials[before].losses, trials[fallback].losses
            gap = difference_of_losses(own, base, contest.folds, trials[before].worth)
            if gap.value > HOPELESS * gap.error:
                left_out[name] = f"{before} alone is clearly worse than {fallback}"
                continue
        if before and (ahead := _out_of_reach(trials, before, step, contest.folds, fallback)):
            left_out[name] = f"{before} alone is too far behind {ahead}"
            continue
        behind = few or any(parted(other)[0] == name for other in every)
        try:
            given = trials[before] if before else None
            rows = contest.predictions.only_logits(given.scores[0] if given else None)
            settled[name] = make_step(step).settled(rows, contest.assignments[0])
            trials[name] = contest.trial(settled[name], given, keep_scores=behind)
        except NotApplicableError as refusal:
            left_out[name] = str(refusal)
    return trials, settled


# Nothing is put behind a step that alone is so many standard errors worse than the fallback.
HOPELESS = 4.0
# A chain is out of reach where even then it would be so many standard errors worse than the best.
# On twelve data sets with two draws of 5 000 rows, 1 instead of 4 spared a sixth of the time and
# cost .00004 in NLL, .0009 at most; 0 spared a third and cost .0003 to .0012, .020 at most.
OUT_OF_REACH = 1.0


def _out_of_reach(
    trials: dict[str, Trial], before: str, step: str, folds: int, fallback: str
) -> str | None:
    """Return the best so far if one more step can't catch up with it, else None.

    Behind others a step has gained less than it does alone, on all networks measured, but for the
    harm that they did, which it may repair.
    """
    best = min(trials, key=lambda name: trials[name].mean)
    if step not in trials:
        return None
    own = trials[before]
    gap = difference_of_losses(own.losses, trials[best].losses, folds, own.worth)
    gain = max(trials[fallback].mean - trials[step].mean, 0.0)
    gain += max(own.mean - trials[fallback].mean, 0.0)
    return best if gap.value - gain > OUT_OF_REACH * gap.error else None


def too_few(predictions: Predictions) -> str:
    """Return why the rows can't choose a method, or nothing."""
    if predictions.n < FEWEST_ROWS:
        rows = counted(predictions.n, "calibration row")
        return f"{rows}, and a choice needs at least {FEWEST_ROWS}"
    scores = predictions.scores
    predicted = to_numpy(namespace(scores).argmax(scores, axis=1))
    right = int((predicted == predictions.labels).sum())
    for count, kind in ((predictions.n - right, "wrong"), (right, "right")):
        if count < FEWEST_OF_EITHER:
            return (
                f"{count} of {predictions.n} rows are {kind}, and a choice needs at least "
                f"{FEWEST_OF_EITHER}"
            )
    return all_alike(predictions.labels)


# How many standard errors a candidate must be better than the frequencies of the classes, where
# one temperature sees no more than chance.
SAYS_MORE = 2.0
BY_CHANCE = "no candidate predicts the labels better than the class frequencies do"


def says_no_more(contest: CrossValidation, trials: dict[str, Trial]) -> bool:
    """Return whether labels are as if by chance: nobody does better than their frequencies.

    Nothing is asked where one temperature is told from chance. The frequencies are those of the
    other rows, each class with one row more; or equal ones, if they have the lower loss.
    """
    rows, classes = contest.predictions, int(contest.predictions.scores.shape[1])
    if not isinstance(rows.temperature.warning, NotIdentifiedWarning):
        return False
    counts = np.bincount(rows.labels, rows.weights, classes)
    own = 1.0 if rows.weights is None else rows.weights
    every = total(rows.n, rows.weights)
    squares = ((counts + 1) ** 2).sum() / (every + classes) ** 2
    of_label = np.maximum(counts[rows.labels] + 1 - own, 1e-9) / (every - own + classes)
    equal = np.full(rows.n, 1 / classes)
    by_chance = [
        -np.log(p) if contest.score == "nll" else 1 - 2 * p + square
        for p, square in ((of_label, squares), (equal, 1 / classes))
    ]
    base = min(by_chance, key=lambda losses: mean(losses, rows.weights))
    best = min(trials.values(), key=lambda trial: trial.mean)
    lead = difference_of_losses(base, best.losses, contest.folds, best.worth)
    return lead.value < SAYS_MORE * lead.error


Rule = Literal["average", "lowest", "simplest"]
# A candidate of less than this share of the largest weight is left out. The share is taken off all
# weights, so that none of them jumps. From so many rows on it is larger, since each candidate is
# fitted once more: with 5 000 rows of 18 data sets that spared a fifth of the steps and cost .00002
# in NLL, .0005 at most, while with 300 rows, where an average hedges, it would have cost .0015.
SMALLEST_SHARE, SMALLEST_OF_MANY, MANY_ROWS = 0.02, 0.1, 3000
# The mixture among the candidates, a name that no method can have; and how much it is believed in
# beforehand, as a share of another candidate. With 300 rows whose truth is one temperature an equal
# share cost .0004 in NLL; a tenth costs nothing, and with 5 000 rows .0002 of a gain of .0050.
MIXTURE, BELIEF_IN_MIXTURE = "+", 0.1
# What another candidate must have over temperature scaling to be chosen alone, in standard errors.
CLEAR_LEAD = 0.5


def weights_by_likelihood(
    trials: dict[str, Trial], folds: int, fallback: str, prior: float = 0.5
) -> dict[str, float]:
    """Return how much each candidate is to be believed, given its losses on rows held out.

    With L the sum of a candidate's losses, its weight is in proportion to

        b exp(-L / (1 + V / (V - 1)))

    b being what is believed beforehand: `prior` for the fallback, and equal parts of the rest for
    the others. For log losses exp(-L) is the likelihood of the rows held out, and the weights would
    be posterior probabilities, had the rows been independent. They share fits; V folds make N
    rows tell as much about a difference as N / (1 + V / (V - 1)) would, see `difference_of_losses`.
    A fiftieth of the largest weight, from 3 000 rows on a tenth, is then taken off all of them, and
    what falls below 0 is left out.

    Args:
        trials: candidates by name, at least that of `fallback`.
        folds: V of the cross-validation.
        fallback: the candidate that is believed in beforehand.
        prior: how much, in (0, 1).

    References:
        Weights by cross-validated likelihood: Geisser, Eddy: A Predictive Approach to Model
        Selection, JASA 74, 1979; Yao, Vehtari, Simpson, Gelman: Using Stacking to Average Bayesian
        Predictive Distributions, Bayesian Analysis 13, 2018 ("pseudo-BMA").
    """
    others = max(len(trials) - 1, 1)
    evidence = np.array(
        [
            np.log(prior if name == fallback else (1 - prior) / others)
            + (np.log(BELIEF_IN_MIXTURE) if name == MIXTURE else 0.0)
            - _evidence(trial, trials[fallback]) / shared_rows_factor(folds)
            for name, trial in trials.items()
        ]
    )
    return _without_small(trials, np.exp(evidence - evidence.max()))


def _without_small(trials: dict[str, Trial], weights: FloatArray) -> dict[str, float]:
    """Return weights minus a share of the largest, none below 0, summing to 1."""
    rows = len(next(iter(trials.values())).losses)
    share = SMALLEST_SHARE if rows < MANY_ROWS else SMALLEST_OF_MANY
    weights = np.maximum(weights - share * weights.max(), 0.0)
    return dict(zip(trials, (weights / weights.sum()).tolist(), strict=True))


def weights_of_average(
    trials: dict[str, Trial], contest: CrossValidation, fallback: str
) -> dict[str, float]:
    """Return the weight of each candidate: by likelihood, one of them being the best mixture.

    Candidates may be right on different rows, and then a mixture of them has a higher likelihood
    than each: as the best one alone has all the weight where rows are many, it wouldn't be found.
    So the mixture of the highest likelihood is a candidate itself of `weights_by_likelihood`,
    believed in beforehand a tenth as much as another. Its loss on the rows of a fold is that of the
    weights that are best for the other folds. Of Brier scores, which don't tell a mixture's, there
    is no mixture.

    References:
        Stacking of predictive distributions: Yao, Vehtari, Simpson, Gelman: Using Stacking to
        Average Bayesian Predictive Distributions, Bayesian Analysis 13, 2018.
    """
    if contest.score != "nll" or len(trials) < 2:
        return weights_by_likelihood(trials, contest.folds, fallback)
    worth, fold = trials[fallback].worth, contest.assignments[0]
    losses = np.array([trial.losses for trial in trials.values()])
    mixed = np.empty(losses.shape[1])
    for part in range(contest.folds):
        seen, unseen = fold != part, fold == part
        rows = None if worth.weights is None else worth.weights[seen]
        mixed[unseen] = _mixed(losses[:, unseen], best_mixture(losses[:, seen], rows))
    parts = {**trials, MIXTURE: Trial(mixed, len(trials) - 1, False, worth=worth)}
    weights = weights_by_likelihood(parts, contest.folds, fallback)
    share = weights.pop(MIXTURE)
    every = np.array(list(weights.values())) + share * best_mixture(losses, worth.weights)
    return _without_small(trials, every)


def _mixed(losses: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the (N,) log losses of the mixture of candidates with (C, N) log losses."""
    least = losses.min(axis=0)
    return least - np.log(weights @ np.exp(least - losses))


# Candidates that say the same share their weight: a pull on its square, too weak to matter else.
PULL = 1e-9
MOST_STEPS = 100


def best_mixture(losses: FloatArray, row_weights: FloatArray | None = None) -> FloatArray:
    """Return the (C,) weights of the mixture of the highest likelihood.

    With p the (C, N) likelihoods they minimise sum(w) - mean log(w . p) among all w >= 0: scaled by
    c, weights have c sum(w) - log c more, least where they sum to 1.

    Args:
        losses: (C, N) log losses of the candidates.
        row_weights: (N,), positive.
    """
    count, rows = losses.shape
    shares = np.full(rows, 1 / rows) if row_weights is None else row_weights / row_weights.sum()
    likelihoods = np.exp(losses.min(axis=0) - losses)

    def at(weights: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        mixed = weights @ likelihoods
        ratios = likelihoods / mixed
        value = weights.sum() - np.log(mixed) @ shares + PULL / 2 * weights @ weights
        slopes = 1 - ratios @ shares + PULL * weights
        return float(value), slopes, (ratios * shares) @ ratios.T + PULL * np.eye(count)

    start, none = np.full(count, 1 / count), np.zeros(count)
    found = newton_within(at, start, none, none + np.inf, MOST_STEPS).place
    return found / found.sum()


# What may stand behind the average, which is kept for what comes before it in names of steps; and
# from how many rows on the second does, with which 300 gained nothing.
AVERAGE, ENDS = "average", ("natural-spline", "temperature")
FEWEST_FOR_TEMPERATURE = 1000
# Of more logits than this the held-out scores of all candidates would take much memory.
MOST_FOR_END = 2_000_000


def end_of_average(
    trials: dict[str, Trial], contest: CrossValidation, weights: dict[str, float]
) -> tuple[Calibrator, FloatArray, Difference | None] | None:
    """Return what maps the average, its held-out scores and, if it was asked, what it gains.

    An average of calibrated probabilities is underconfident where its parts differ; and all
    candidates may be off in the same way. So a spline of the average's log odds is fitted to what
    that says of rows held out. It is taken if it lowers the loss of other rows clearly, see
    `clearly_lower`. If not, an average of several candidates has one temperature: on twelve data
    sets with four draws of 5 000 rows it lowered the NLL by .0002 and raised it by .0002 at most,
    and the ECE fell from 1.51 to 1.46 %; on six put aside the ECE fell from 1.43 to 1.36 %.

    References:
        Ranjan, Gneiting: Combining Probability Forecasts, JRSS B 72, 2010.
    """
    parts = {name: weight for name, weight in weights.items() if weight > 0}
    rows, repeats = contest.predictions, range(len(contest.assignments))
    if any(not trials[name].scores for name in parts):
        return None
    with np.errstate(divide="ignore"):  # a masked class stays masked
        scores = tuple(
            np.log(sum(w * softmax(trials[name].scores[one]) for name, w in parts.items()))
            for one in repeats
        )
    losses = np.mean([contest.losses(np.exp(each), rows) for each in scores], axis=0)
    keeps = all(trials[name].keeps_prediction for name in parts)
    pool = Trial(losses, 0, keeps, scores, next(iter(trials.values())).worth)
    spline, single = (make_step(end) for end in ENDS)
    try:
        own = contest.trial(spline, pool).losses
    except NotApplicableError:
        return None
    if clearly_lower(own, losses, contest.folds, pool.worth):
        return spline, scores[0], difference_of_losses(losses, own, contest.folds, pool.worth)
    if len(parts) < 2 or rows.n < FEWEST_FOR_TEMPERATURE:
        return None
    known = rows.only_logits(scores[0]).temperature.warning is None
    return (single, scores[0], None) if known else None


def _evidence(trial: Trial, fallback: Trial) -> float:
    """Return L, or for rows with weights or in clusters what it exceeds the fallback's by.

    Rows of a cluster say partly the same: the sum over them counts for as many rows as would have
    its variance if they were independent.
    """
    worth = trial.worth
    if worth.weights is None and worth.clusters is None:
        return float(trial.losses.sum())
    more = trial.losses - fallback.losses
    return total(len(more), worth.weights) * mean(more, worth.weights) / worth.doubt(more)


def sentence_of_weights(
    weights: dict[str, float], trials: dict[str, Trial], score: str, how: str, fallback: str
) -> str:
    """Return in words what is averaged and why."""
    largest_first = sorted(weights, key=lambda name: -weights[name])
    shares = [
        f"{name} {share:.0f} %" if (share := 100 * weights[name]) >= 0.5 else f"{name} under 1 %"
        for name in largest_first
        if weights[name] > 0
    ]
    means = {name: trial.mean for name, trial in trials.items()}
    # The score of an average is never above the average of the scores.
    together = sum(weight * means[name] for name, weight in weights.items())
    if len(shares) > 1:
        text, value = f"averages {', '.join(shares)}; weights", f"at most {together:.4f}"
    else:
        text, value = f"takes {largest_first[0]}; chosen", f"{together:.4f}"
    text += f" by {how}, with a held-out {METRICS[score].title} of {value}"
    if shares == [f"{fallback} 100 %"]:
        return text + ", and no other method is likely to do better"
    return text + f" ({fallback} alone: {means[fallback]:.4f})"


class Choice(NamedTuple):
    """Outcome of `choose`.

    Attributes:
        rule: see `choose`.
        chosen: the candidate that is taken.
        best: the one of the lowest mean loss.
        runner_up: the one of the lowest mean loss but the chosen; None if there is no other.
        means: name to mean loss, simplest first.
        to_best: name to paired difference to the best.
    """

    rule: Rule
    chosen: str
    best: str
    runner_up: str | None
    means: dict[str, float]
    to_best: dict[str, Difference]

    def sentence(self, score: str, how: str) -> str:
        """Return the choice and its reason."""
        mean = self.means[self.chosen]
        text = f"chose {self.chosen}, {METRICS[score].title} {mean:.4f} by {how}: "
        if self.rule == "lowest" and self.chosen == self.best:
            text += "it has the lowest"
        elif self.rule == "lowest":
            gap = self.to_best[self.chosen]
            text += (
                f"{self.best} has {self.means[self.best]:.4f}, which isn't lower by half a "
                f"standard error (difference {gap.value:.4f} +- {gap.error:.4f})"
            )
        elif self.chosen == self.best:
            text += "it has the lowest, and no simpler method is within one standard error of it"
        else:
            gap = self.to_best[self.chosen]
            text += (
                f"the simplest method within one standard error of the lowest, "
                f"{self.means[self.best]:.4f} of {self.best} (difference {gap.value:.4f} "
                f"+- {gap.error:.4f})"
            )
        if self.runner_up not in (None, self.best):
            gap = self.to_best[self.runner_up]
            text += (
                f"; runner-up {self.runner_up} {self.means[self.runner_up]:.4f} "
                f"(above the lowest by {gap.value:.4f} +- {gap.error:.4f})"
            )
        return text

    def all_scores(self, score: str) -> str:
        """Return every candidate's mean loss, simplest first."""
        scores = ", ".join(f"{name} {mean:.4f}" for name, mean in self.means.items())
        return f"{METRICS[score].title} of each, simplest first: {scores}"


def choose(trials: dict[str, Trial], folds: int, fallback: str, rule: Rule = "simplest") -> Choice:
    """Choose one of the candidates by their `trials`.

    Args:
        trials: at least that of `fallback`.
        folds: of the cross-validation.
        fallback: the method that any other choice must score better than.
        rule: ``"simplest"`` of those within one standard error of the lowest mean loss, or the
            ``"lowest"``, if it is below that of `fallback` by half a standard error.
    """
    simplest_first = sorted(
        trials, key=lambda name: (not trials[name].keeps_prediction, trials[name].parameters)
    )
    means = {name: trials[name].mean for name in simplest_first}
    best = min(means, key=lambda name: means[name])
    to_best = {
        name: difference_of_losses(
            trials[name].losses, trials[best].losses, folds, trials[name].worth
        )
        for name in means
    }
    if rule == "lowest":
        lead = to_best[fallback]
        chosen = best if lead.value > CLEAR_LEAD * lead.error else fallback
    else:
        close = [name for name, gap in to_best.items() if gap.value <= gap.error]
        chosen = next(name for name in close if name == fallback or means[name] < means[fallback])
    others = [name for name in means if name != chosen]
    runner_up = min(others, key=lambda name: means[name]) if others else None
    return Choice(rule, chosen, best, runner_up, means, to_best)
