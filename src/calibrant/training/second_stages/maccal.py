"""MaC-Cal: retrain the classifier under random masks whose density follows its confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrationWarning, InputError, warn_caller
from calibrant.training.second_stages.learning import check_finite, train
from calibrant.training.second_stages.masked import (
    HeadRetraining,
    MaskedDescent,
    MaskedHeads,
    MaskedLearner,
    MaskedMomentum,
    MaskMode,
    folded,
)
from calibrant.training.second_stages.measured import (
    EpochRecord,
    Held,
    logits_of,
    measure_logits,
)
from calibrant.training.second_stages.sources import (
    DEEP_LENGTH,
    LINEAR_LENGTH,
    READ_ROWS,
    Batch,
    FeatureRows,
    FeatureScaling,
    FeatureSource,
)
from calibrant.training.second_stages.stage import HELD_OUT_SHARE, Given

# Candidates as factors on training accuracy, the same for every network. Denser towards 1, where
# networks that generalise well have their kappa.
KAPPAS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6)
# Candidates as shares of what a head without masks would need, its confidence over its accuracy on
# the training rows. A kappa above that takes no connection away, so all of them give one head.
# A network that was 11 points too confident needed 0.91.
SHARES = (
    *(0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.91, 0.9, 0.89, 0.88),
    *(0.86, 0.84, 0.82, 0.79, 0.75, 0.7),
)
Adaptation = Literal["none", "static", "decaying"]


def step_bound(
    epoch: int, epochs: int, largest: float, smallest: float, adaptation: Adaptation
) -> float:
    """Return how far retention may move after an epoch, counted from 0.

    ``largest * (smallest / largest) ** (epoch / epochs)`` if the bound decays, `largest` if the
    adaptation is static, and 0 if there is none.
    """
    if adaptation == "none":
        return 0.0
    if adaptation == "static":
        return largest
    return largest * (smallest / largest) ** (epoch / epochs)


def next_retention(
    retention: FloatArray,
    accuracy: FloatArray,
    confidence: FloatArray,
    kappa: FloatArray,
    bound: float,
    lowest: float,
    highest: float = 1.0,
) -> FloatArray:
    """Return the retention of the next epoch for each of R heads; all arrays are (R,).

    It falls where confidence exceeds `kappa` times accuracy on the training rows, because a head
    with fewer connections is less confident; it moves by at most `bound` and stays between
    `lowest` and `highest`.
    """
    step = np.clip(kappa * accuracy - confidence, -bound, bound)
    return np.clip(retention + step, lowest, highest)


class Kappas:
    """The kappas of heads that are trained side by side.

    They are as given, or shares of what a head without masks would need: its confidence over its
    accuracy on the training rows, epoch by epoch. That head is a twin at the first place, of the
    same layers and spared all masks, or one that is trained beside them.

    Args:
        factors: the kappas, or the shares.
        follow: gives what the epoch that has ended showed of the head without masks; None for
            kappas as they are given, and for shares that follow a twin.
        twin: whether the first head is such a twin.
    """

    def __init__(
        self,
        factors: Sequence[float],
        follow: Callable[[], EpochRecord] | None = None,
        *,
        twin: bool = False,
    ) -> None:
        self._factors = np.array([1.0, *factors] if twin else factors)
        self._follow, self._twin, self._now = follow, twin, self._factors
        self.count, self.heads = len(self._factors), range(int(twin), len(self._factors))

    @property
    def shares(self) -> list[float] | list[None]:
        """The shares without that of a twin, or as many Nones where kappas are as given."""
        if self._twin or self._follow is not None:
            return [float(self._factors[head]) for head in self.heads]
        return [None] * len(self.heads)

    @property
    def last(self) -> FloatArray:
        """The kappas of the last epoch, without that of a twin."""
        return self._now[self.heads.start :]

    def after(self, accuracy: FloatArray, confidence: FloatArray) -> FloatArray:
        """Return (R,) kappas once an epoch has ended; the arguments are as in `next_retention`."""
        if self._twin:
            self._now = shares_of(float(accuracy[0]), float(confidence[0]), self._factors)
        elif self._follow is not None:
            seen = self._follow()
            self._now = shares_of(seen.accuracy, seen.confidence, self._factors)
        return self._now

    def spared(self, retention: FloatArray) -> FloatArray:
        """Return (R,) retention with that of a twin put to 1."""
        return np.where(np.arange(self.count) < self.heads.start, 1.0, retention)


def shares_of(accuracy: float, confidence: float, shares: FloatArray) -> FloatArray:
    """Return shares of the kappa that takes no connection away; none is above 1."""
    return np.minimum(1.0, shares * confidence / max(accuracy, 1e-12))


@dataclass(frozen=True, kw_only=True)
class Candidate(Held):
    """A head to choose among, measured on held-out rows.

    Attributes:
        loss: accuracy lost against the network's own head, or if nothing is known of that against
            the plainly retrained one; a fraction.
        loss_error: standard error of the loss, paired row by row: rows that both predict right, or
            both wrong, add nothing to it.
    """

    loss: float
    loss_error: float

    @property
    def gap(self) -> float:
        """How far held-out confidence and accuracy are apart."""
        return abs(self.confidence - self.accuracy)

    def keeps(self, tolerance: float) -> bool:
        """Return whether the loss is at most `tolerance`, as far as the rows can tell."""
        return self.loss - self.loss_error <= tolerance


@dataclass(frozen=True, kw_only=True)
class KappaPoint(Candidate):
    """What one kappa led to.

    Attributes:
        kappa: the factor on training accuracy; of the last epoch where it follows a head without
            masks.
        share: what it is of that head's kappa; None where kappas are as given.
        retention: of the last epoch.
    """

    kappa: float
    share: float | None = None
    retention: float


def accuracy_lost(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the accuracy lost from one (N,) set of outcomes to another, and its paired error."""
    lost = before.astype(np.float64) - after
    return float(lost.mean()), float(lost.std() / len(lost) ** 0.5)


@dataclass(frozen=True)
class Choice:
    """Which head to take.

    Attributes:
        index: place of its kappa among the points; None for the plainly retrained head.
        note: what there is to say about it, or None.
    """

    index: int | None
    note: str | None


def choose(points: Sequence[KappaPoint], plain: Candidate, tolerance: float) -> Choice:
    """Return the head whose held-out confidence is nearest to its accuracy, if it keeps accuracy.

    That is what kappa is there for, and the gap varies less from sample to sample than a binned
    error. The plainly retrained head is a candidate like any other, and what is left if none keeps
    the accuracy (see `Candidate.keeps`).
    """
    best = min(range(len(points)), key=lambda index: points[index].gap)
    kept = [index for index, point in enumerate(points) if point.keeps(tolerance)]
    chosen = min(kept, key=lambda index: points[index].gap) if kept else None
    if chosen is not None and plain.keeps(tolerance) and plain.gap <= points[chosen].gap:
        chosen = None
    nearest = points[best]
    if chosen == best or (plain.keeps(tolerance) and plain.gap <= nearest.gap):
        return Choice(chosen, None)
    ruled_out = (
        f"kappa {nearest.kappa:.3g} brings held-out confidence nearest to accuracy but loses "
        f"{_points(nearest)} of it"
    )
    if chosen is not None:
        return Choice(chosen, f"{ruled_out}; backed off to {points[chosen].kappa:.3g}")
    if not kept:
        return Choice(
            None,
            f"no kappa keeps held-out accuracy within {100 * tolerance:g} points; backed off to "
            f"plain retraining, which loses {_points(plain)}",
        )
    return Choice(None, f"{ruled_out}; backed off to plain retraining")


def warning_of(point: KappaPoint, tolerance: float) -> str | None:
    """Return the note on a kappa that was given, which is kept whatever its effect."""
    if point.keeps(tolerance):
        return None
    return (
        f"kappa {point.kappa:g} loses {_points(point)} of held-out accuracy, more than the "
        f"tolerance of {100 * tolerance:g}"
    )


def _points(candidate: Candidate) -> str:
    return f"{100 * candidate.loss:.2f} ± {100 * candidate.loss_error:.2f} points"


# The steps of the paper's ablation, each on top of the one before.
ABLATION: dict[str, dict[str, Any]] = {
    "masked retraining": {"restrict_gradient": False, "adaptation": "none"},
    "gradient restriction": {"adaptation": "none"},
    "bottleneck": {"bottleneck": True, "adaptation": "none"},
    "static adaptation": {"bottleneck": True, "adaptation": "static"},
    "decaying adaptation": {"bottleneck": True},
}
# From the paper's account of its head; how long a feature row is, which its rate depends on, and
# how kappa is found are not said, so give a kappa of your own.
PAPER: dict[str, Any] = {"bottleneck": True, "learning_rate": 0.1, "epochs": 40}


Feedback = Literal["running", "epoch_end"]
FEWEST_HIDDEN = 64
# Training accuracy this far below its own best, with hardly a connection left, is a collapse.
COLLAPSE = 0.1


@dataclass(eq=False)
class MaCCal(HeadRetraining):
    """Mask-based classifier calibration (MaC-Cal).

    A linear head, or one of two layers, is trained from scratch. Every epoch draws one Bernoulli
    mask over its weights; masked connections carry nothing and learn nothing. A head with fewer
    connections is less confident, so the share p that is kept follows the training rows:

        p <- clip(p + clip(kappa * accuracy - confidence, -delta_t, delta_t), p_min, 1)
        delta_t = delta_max * (delta_min / delta_max) ** (t / T)

    kappa stands for how much worse the network does on rows it has not seen. It is chosen on
    held-out rows unless given: all candidates train side by side. Among the candidates that keep
    the accuracy, the one is chosen whose held-out confidence is nearest to it (`kappa_curve_` shows
    all). A plainly retrained linear head is a candidate too, and is chosen if no other one keeps
    the accuracy; its `kappa_` is 1. Candidates are shares of the kappa at which a head of the same
    layers loses no connection, its confidence over its accuracy on the training rows.

    The paper defines the parts and leaves constants open. The constants here are choices, and
    docs/appendix/second-stages-compared.md shows their effects.

    Attributes:
        kappa: factor on training accuracy, in (0, 1]; None to choose it.
        kappas: candidates, such as `KAPPAS`; None for `SHARES` of an unmasked head's kappa.
        tolerance: how far held-out accuracy may fall below that of the network's own head (of the
            plainly retrained one, if nothing is known of that); see `Candidate.keeps`.
        hidden: hidden units; None for a quarter of the features, but at least 64.
        bottleneck: whether the head has two layers, as the paper's; otherwise it is linear.
        restrict_gradient: whether masked weights get no gradient.
        adaptation: ``"decaying"``, ``"static"`` (the bound stays delta_max) or ``"none"`` (p stays
            as it was).
        mode: what a mask does: ``"zeroing"`` sets masked weights to 0 for good, and the head is
            used as it is stored; ``"last_mask"`` leaves them and keeps the last epoch's mask for
            use; ``"expected"`` is used with p times the weights, ``"full"`` without masks. The last
            two don't calibrate; they are there to be studied.
        feedback: accuracy and confidence as the epoch runs (``"running"``) or with its last weights
            (``"epoch_end"``, one more pass).
        strict_freeze: whether masked weights are also spared decay and momentum.
        masked_momentum: ``"dropped"``: a revived weight starts from rest; ``"kept"``: with the
            velocity that it had when it was masked, epochs ago.
        initial_retention, least_retention, largest_step, smallest_step: p of the first epoch,
            p_min, delta_max and delta_min.
        kappa_: the kappa of the head; of the last epoch, if it follows an unmasked head.
        kappa_curve_: held-out results of every candidate, if there were held-out rows.
        plain_: held-out result of a plainly retrained linear head, likewise.
        plain_chosen_: whether that head is the result.

    References:
        Ni, Zhao, Yang, Guo: Deep Neural Network Calibration by Reducing Classifier Shift with
        Stochastic Masking. arXiv 2508.09116, 2025.
    """

    method: ClassVar[str] = "maccal"
    words: ClassVar[str] = (
        "MaC-Cal: a linear head under random masks, or two layers (`--set bottleneck=true`)"
    )

    # The paper's 0.1 is for features of a length that it doesn't say. At that rate the second layer
    # never comes to rest, and which kappa is best changes from epoch to epoch.
    learning_rate: float = argument(0.05, above=0)
    kappa: float | None = None
    kappas: tuple[float, ...] | None = None
    tolerance: float = argument(0.005, at_least=0, at_most=1)
    hidden: int | None = argument(None, whole=True, at_least=1)
    bottleneck: bool = False
    restrict_gradient: bool = True
    adaptation: Adaptation = argument("decaying", choices=get_args(Adaptation))
    mode: MaskMode = argument("zeroing", choices=get_args(MaskMode))
    feedback: Feedback = argument("running", choices=get_args(Feedback))
    strict_freeze: bool = True
    masked_momentum: MaskedMomentum = argument("dropped", choices=get_args(MaskedMomentum))
    initial_retention: float = argument(0.9, above=0, at_most=1)
    least_retention: float = argument(0.1, above=0, at_most=1)
    largest_step: float = argument(0.1, above=0)
    smallest_step: float = argument(0.01, above=0)

    kappa_: float = field(init=False, repr=False)
    kappa_curve_: list[KappaPoint] = field(init=False, repr=False)
    plain_: Candidate | None = field(init=False, repr=False)
    plain_chosen_: bool = field(init=False, repr=False)

    def _fit(self, given: Given) -> None:
        source, validation, reference, progress = given
        factors, relative = self._candidates()
        if len(factors) > 1 and validation is None:
            source, validation = self._hold_out(source)
        plain_scaling = self._scaling(source, LINEAR_LENGTH)
        longer = DEEP_LENGTH / LINEAR_LENGTH if self.bottleneck and self.standardise else 1.0
        plain = self._plain_learner(source, plain_scaling, self._remeasure(source))
        # A head of two layers has a twin without masks to follow, a linear one the plain head.
        follow = (lambda: plain.history(0)[-1]) if relative and not self.bottleneck else None
        kappas = Kappas(factors, follow, twin=relative and self.bottleneck)
        learner = self._masked_learner(source, kappas, plain_scaling.longer(longer))
        # Without held-out rows there is nothing to compare the plain head by. It learns first, so
        # that candidates can follow it.
        learners = [learner] if validation is None else [plain, learner]
        train(source, learners, self.epochs, self.batch_size, progress)
        modules = [folded(learner, head) for head in kappas.heads]
        for module in modules:
            check_finite(module)
        self.kappa_curve_, self.plain_, self.plain_chosen_, chosen = [], None, False, 0
        if validation is not None:
            plain_head = folded(plain, 0)
            check_finite(plain_head)
            retention = [learner.history(head)[-1].retention for head in kappas.heads]
            self._measure(kappas, retention, modules, plain_head, validation, reference)
            chosen = self._choose()
            self.plain_chosen_ = chosen is None
            if chosen is None:
                # Without masks MaC-Cal is plain retraining.
                self.kappa_, self.head_, self.history_ = 1.0, plain_head, plain.history(0)
                return
        self.kappa_, self.head_ = float(kappas.last[chosen]), modules[chosen]
        self.history_ = learner.history(kappas.heads[chosen])
        self._warn_of_collapse()

    def _candidates(self) -> tuple[tuple[float, ...], bool]:
        """Return the candidates, and whether they are shares of an unmasked head's kappa."""
        relative = self.kappa is None and self.kappas is None and self.adaptation != "none"
        given = SHARES if relative else KAPPAS if self.kappas is None else self.kappas
        if self.kappa is not None:
            given = (self.kappa,)
        if self.adaptation == "none":
            given = given[:1]  # nothing follows it
        for kappa in given:
            if not isinstance(kappa, Real) or not 0 < kappa <= 1:
                raise InputError(f"kappa must be a number above 0 and at most 1, not {kappa!r}")
        if not given:
            raise InputError("kappas must hold at least one number")
        if self.smallest_step > self.largest_step:
            raise InputError(f"smallest_step {self.smallest_step:g} must not exceed largest_step")
        return tuple(float(kappa) for kappa in given), relative

    def _hold_out(self, source: FeatureSource) -> tuple[FeatureRows, FeatureRows]:
        if not isinstance(source, FeatureRows):
            raise InputError(
                "kappa is chosen on rows that the network was not trained on: give a loader of "
                "validation rows, or a number for kappa"
            )
        if source.n < 2:
            raise InputError(
                "kappa is chosen on rows held out of the training rows, and there is only one: "
                "give validation rows, or a number for kappa"
            )
        held_out = max(1, round(HELD_OUT_SHARE * source.n))
        self._warn(
            f"kappa is chosen on {held_out} rows held out of the training rows; this is right "
            "only if the network was not trained on them, so better give validation rows"
        )
        order = torch.randperm(source.n, generator=torch.Generator().manual_seed(self.seed))
        return source.rows(order[held_out:]), source.rows(order[:held_out])

    def _widths(self, source: FeatureSource) -> tuple[int, ...]:
        if not self.bottleneck:
            return source.width, source.n_classes
        hidden = max(FEWEST_HIDDEN, source.width // 4) if self.hidden is None else self.hidden
        return source.width, hidden, source.n_classes

    def _remeasure(self, source: FeatureSource) -> Callable[[], Iterator[Batch]] | None:
        return (lambda: source.passes(READ_ROWS)) if self.feedback == "epoch_end" else None

    def _masked_learner(
        self, source: FeatureSource, kappas: Kappas, scaling: FeatureScaling
    ) -> MaskedLearner:
        descent = MaskedDescent(
            self.mode,
            self.restrict_gradient,
            self.strict_freeze,
            self.momentum,
            self.weight_decay,
            self.masked_momentum,
        )
        widths = self._widths(source)
        heads = MaskedHeads(widths, kappas.count, self.seed, descent, *source.place)

        def adapt(
            epoch: int, retention: FloatArray, accuracy: FloatArray, confidence: FloatArray
        ) -> FloatArray:
            bound = step_bound(
                epoch, self.epochs, self.largest_step, self.smallest_step, self.adaptation
            )
            seen = accuracy, confidence, kappas.after(accuracy, confidence)
            if bound == 0:
                return retention
            return kappas.spared(next_retention(retention, *seen, bound, self.least_retention))

        start = kappas.spared(np.full(kappas.count, self.initial_retention))
        return MaskedLearner(heads, scaling, start, self._rate, adapt, self._remeasure(source))

    def _measure(
        self,
        kappas: Kappas,
        retention: Sequence[float],
        modules: Sequence[nn.Module],
        plain: nn.Module,
        rows: FeatureRows,
        reference: Tensor | None,
    ) -> None:
        """Measure all candidates on held-out rows."""
        plain_held, plain_right = measure_logits(logits_of(plain, rows), rows)
        before = plain_right if reference is None else measure_logits(reference, rows)[1]
        loss, error = accuracy_lost(before, plain_right)
        self.plain_ = Candidate(loss=loss, loss_error=error, **plain_held.as_dict())
        tried = zip(kappas.last, kappas.shares, retention, modules, strict=True)
        for kappa, share, kept, module in tried:
            held, right = measure_logits(logits_of(module, rows), rows)
            loss, error = accuracy_lost(before, right)
            numbers = {"loss": loss, "loss_error": error, "retention": kept} | held.as_dict()
            self.kappa_curve_.append(KappaPoint(kappa=float(kappa), share=share, **numbers))

    def _choose(self) -> int | None:
        """Return which kappa's head to keep; None for the plain one."""
        assert self.plain_ is not None
        if len(self.kappa_curve_) == 1:  # a kappa that was given is kept, with a warning
            index, note = 0, warning_of(self.kappa_curve_[0], self.tolerance)
        else:
            choice = choose(self.kappa_curve_, self.plain_, self.tolerance)
            index, note = choice.index, choice.note
        if note is not None:
            self._warn(note)
        return index

    def _warn_of_collapse(self) -> None:
        last, best = self.history_[-1], max(record.accuracy for record in self.history_)
        if last.retention <= self.least_retention and last.accuracy < best - COLLAPSE:
            self._warn(
                f"the head collapsed: retention fell to {last.retention:g} and training "
                f"accuracy fell from {100 * best:.1f} to {100 * last.accuracy:.1f} %; raise "
                "kappa"
            )

    def _warn(self, sentence: str) -> None:
        self.notes_.append(sentence)
        warn_caller(CalibrationWarning(sentence))

    def summary(self) -> Mapping[str, Any]:
        """Return kappa, the curve it was chosen from, and the plain head, as JSON takes them."""
        return {
            "kappa": self.kappa_,
            "plain_chosen": self.plain_chosen_,
            "kappa_curve": [point.as_dict() for point in self.kappa_curve_],
            "plain": None if self.plain_ is None else self.plain_.as_dict(),
        }
