"""MaC-Cal: retrain the classifier under random masks whose density follows its confidence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import nn

from calibrant.core.arguments import argument
from calibrant.core.arrays import FloatArray
from calibrant.core.errors import CalibrationWarning, InputError
from calibrant.training.heads.held_out import Held, measure_head
from calibrant.training.heads.kappa import (
    KAPPAS,
    Adaptation,
    KappaPoint,
    choose_kappa,
    next_retention,
    step_bound,
)
from calibrant.training.heads.learning import (
    MaskedLearner,
    check_finite,
    train,
)
from calibrant.training.heads.masked import MaskedDescent, MaskedHeads, MaskedMomentum, MaskMode
from calibrant.training.heads.retraining import HeadRetraining, folded
from calibrant.training.heads.scaling import DEEP_LENGTH, LINEAR_LENGTH, READ_ROWS, FeatureScaling
from calibrant.training.heads.sources import FeatureRows, FeatureSource
from calibrant.training.heads.stage import Progress

FEWEST_HIDDEN = 64
HELD_OUT_SHARE = 0.2
# Training accuracy this far below its own best, with hardly a connection left, is a collapse.
COLLAPSE = 0.1

# The steps of the paper's ablation, each on top of the one before.
ABLATION: dict[str, dict[str, Any]] = {
    "masked retraining": {
        "bottleneck": False,
        "restrict_gradient": False,
        "adaptation": "none",
    },
    "gradient restriction": {"bottleneck": False, "adaptation": "none"},
    "bottleneck": {"adaptation": "none"},
    "static adaptation": {"adaptation": "static"},
    "decaying adaptation": {},
}


@dataclass(eq=False)
class MaCCal(HeadRetraining):
    """Mask-based classifier calibration (MaC-Cal).

    A head of two layers is trained from scratch. Every epoch draws one Bernoulli mask over its
    weights; masked connections carry nothing and learn nothing. A head with fewer connections is
    less confident, so the share p that is kept follows the training rows:

        p <- clip(p + clip(kappa * accuracy - confidence, -delta_t, delta_t), p_min, 1)
        delta_t = delta_max * (delta_min / delta_max) ** (t / T)

    kappa stands for how much worse the network does on rows it has not seen. It is chosen on
    held-out rows unless given: all candidates train side by side, and of those that keep the
    accuracy the one wins whose held-out confidence is nearest to it (`kappa_curve_` shows all). If
    none does, the result is a plainly retrained linear head, with a warning and kappa 1.

    The paper's text defines the parts and leaves constants open; those here are choices, and
    `docs/second-stages.md` shows what depends on them.

    Attributes:
        kappa: factor on training accuracy, in (0, 1]; None to choose among `kappas`.
        kappas: the candidates.
        tolerance: how far held-out accuracy may fall below that of a plainly retrained head and of
            the network's own.
        hidden: hidden units; None for a quarter of the features, but at least 64.
        bottleneck: whether the head has two layers; otherwise it is linear.
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
        kappa_: the kappa of the head.
        kappa_curve_: held-out results of every candidate, if there were held-out rows.
        plain_: held-out result of a plainly retrained linear head, likewise.

    References:
        Ni, Zhao, Yang, Guo: Deep Neural Network Calibration by Reducing Classifier Shift with
        Stochastic Masking. arXiv 2508.09116, 2025.
    """

    method: ClassVar[str] = "maccal"

    # The paper's 0.1 is for features of a length that it doesn't say. At that rate the second layer
    # never comes to rest, and which kappa is best changes from epoch to epoch.
    learning_rate: float = argument(0.05, above=0)
    kappa: float | None = None
    kappas: tuple[float, ...] = KAPPAS
    tolerance: float = argument(0.005, at_least=0, at_most=1)
    hidden: int | None = None
    bottleneck: bool = True
    restrict_gradient: bool = True
    adaptation: Adaptation = argument("decaying", choices=get_args(Adaptation))
    mode: MaskMode = argument("zeroing", choices=get_args(MaskMode))
    feedback: Literal["running", "epoch_end"] = argument(
        "running", choices=("running", "epoch_end")
    )
    strict_freeze: bool = True
    masked_momentum: MaskedMomentum = argument("dropped", choices=get_args(MaskedMomentum))
    initial_retention: float = argument(0.9, above=0, at_most=1)
    least_retention: float = argument(0.1, above=0, at_most=1)
    largest_step: float = argument(0.1, above=0)
    smallest_step: float = argument(0.01, above=0)

    kappa_: float = field(init=False, repr=False)
    kappa_curve_: list[KappaPoint] = field(init=False, repr=False)
    plain_: Held | None = field(init=False, repr=False)

    def _fit(
        self,
        source: FeatureSource,
        validation: FeatureRows | None,
        reference_accuracy: float | None,
        progress: Progress,
    ) -> None:
        candidates = self._candidates()
        if len(candidates) > 1 and validation is None:
            source, validation = self._hold_out(source)
        plain_scaling = self._scaling(source, LINEAR_LENGTH)
        longer = DEEP_LENGTH / LINEAR_LENGTH if self.bottleneck and self.standardise else 1.0
        learner = self._masked_learner(source, candidates, plain_scaling.longer(longer))
        plain = self._plain_learner(source, plain_scaling)
        # The plain head is only there to be compared with.
        learners = [learner] if validation is None else [learner, plain]
        train(source, learners, self.epochs, self.batch_size, progress)
        modules = [folded(learner, head) for head in range(len(candidates))]
        for module in modules:
            check_finite(module)
        self.kappa_curve_, self.plain_, chosen = [], None, 0
        if validation is not None:
            self.plain_ = measure_head(folded(plain, 0), validation)
            wanted = max(self.plain_.accuracy, reference_accuracy or 0.0)
            chosen = self._choose(candidates, modules, learner, validation, wanted)
        if chosen is None:
            # Without masks, kappa is 1 and MaC-Cal is plain retraining.
            self.kappa_, self.head_, self.history_ = 1.0, folded(plain, 0), plain.history(0)
            check_finite(self.head_)
            return
        self.kappa_, self.head_ = candidates[chosen], modules[chosen]
        self.history_ = learner.history(chosen)
        self._warn_of_collapse()

    def _candidates(self) -> tuple[float, ...]:
        given = self.kappas if self.kappa is None else (self.kappa,)
        if self.adaptation == "none":
            given = given[:1]  # nothing follows it
        for kappa in given:
            if not isinstance(kappa, Real) or not 0 < kappa <= 1:
                raise InputError(f"kappa must be a number above 0 and at most 1, not {kappa!r}")
        if not given:
            raise InputError("kappas must hold at least one number")
        if self.smallest_step > self.largest_step:
            raise InputError(
                f"smallest_step must not exceed largest_step, but is {self.smallest_step:g}"
            )
        if self.hidden is not None and not (isinstance(self.hidden, Integral) and self.hidden > 0):
            raise InputError(f"hidden must be a whole number of at least 1, not {self.hidden!r}")
        return tuple(float(kappa) for kappa in given)

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
            f"kappa is chosen on {held_out} rows held out of the training rows; right only if the "
            "network was not trained on them, so better give validation rows"
        )
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(source.n, generator=generator)
        return source.rows(order[held_out:]), source.rows(order[:held_out])

    def _widths(self, source: FeatureSource) -> tuple[int, ...]:
        if not self.bottleneck:
            return source.width, source.classes
        hidden = max(FEWEST_HIDDEN, source.width // 4) if self.hidden is None else self.hidden
        return source.width, hidden, source.classes

    def _masked_learner(
        self, source: FeatureSource, kappas: Sequence[float], scaling: FeatureScaling
    ) -> MaskedLearner:
        descent = MaskedDescent(
            self.mode,
            self.restrict_gradient,
            self.strict_freeze,
            self.momentum,
            self.weight_decay,
            self.masked_momentum,
        )
        place = source.place
        heads = MaskedHeads(self._widths(source), len(kappas), self.seed, descent, *place)
        factors = np.array(kappas)

        def adapt(
            epoch: int, retention: FloatArray, accuracy: FloatArray, confidence: FloatArray
        ) -> FloatArray:
            bound = step_bound(
                epoch, self.epochs, self.largest_step, self.smallest_step, self.adaptation
            )
            if bound == 0:
                return retention
            return next_retention(
                retention, accuracy, confidence, factors, bound, self.least_retention
            )

        start = np.full(len(kappas), self.initial_retention)
        again = (lambda: source.passes(READ_ROWS)) if self.feedback == "epoch_end" else None
        return MaskedLearner(heads, scaling, start, self._rate, adapt, again)

    def _choose(
        self,
        kappas: Sequence[float],
        modules: Sequence[nn.Module],
        learner: MaskedLearner,
        validation: FeatureRows,
        reference_accuracy: float,
    ) -> int | None:
        """Return which head to keep; None for the plain one."""
        for head, (kappa, module) in enumerate(zip(kappas, modules, strict=True)):
            held = measure_head(module, validation)
            retention = learner.history(head)[-1].retention
            point = KappaPoint(kappa=kappa, retention=retention, **held.as_dict())
            self.kappa_curve_.append(point)
        choice = choose_kappa(self.kappa_curve_, reference_accuracy, self.tolerance)
        # A kappa that was given is kept, with a warning.
        index = 0 if len(kappas) == 1 else choice.index
        if choice.note is not None:
            assert self.plain_ is not None
            plain = f" ({100 * self.plain_.accuracy:.2f} %)" if index is None else ""
            self._warn(choice.note + plain)
        return index

    def _warn_of_collapse(self) -> None:
        last, best = self.history_[-1], max(record.accuracy for record in self.history_)
        if last.retention <= self.least_retention and last.accuracy < best - COLLAPSE:
            self._warn(
                f"the head collapsed: retention is down at {last.retention:g} and training "
                f"accuracy fell from {100 * best:.1f} to {100 * last.accuracy:.1f} %; raise kappa"
            )

    def _warn(self, sentence: str) -> None:
        self.notes_.append(sentence)
        warnings.warn(CalibrationWarning(sentence), stacklevel=5)

    def summary(self) -> Mapping[str, Any]:
        """See `SecondStage.summary`."""
        curve = [point.as_dict() for point in self.kappa_curve_]
        return {"kappa": self.kappa_, "kappa_curve": curve}
