"""What is timed, and when two results count as the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import calibrant as cb
from benchmarks import peers
from benchmarks.clock import Timing, in_turn
from benchmarks.data import (
    Rows,
    one_pass,
    optimality_gap,
    plain_ece,
    plain_nll,
    plain_temperature,
    softmax,
    synthetic,
)
from calibrant.predictions.rows import summarize
from calibrant.predictions.scoring import score_top

OURS = "calibrant"
# Beyond this many classes our matrix map refuses, and its peer takes 20 s.
MOST_MATRIX_CLASSES = 300
# A penalised likelihood this close to its optimum counts as optimised.
NEAR_OPTIMUM = 1e-6


@dataclass
class Line:
    """One kernel at one size: our time, the unit's, and that of every peer.

    Attributes:
        kernel: what was computed; rows: N; classes: K.
        unit: what `multiple` counts: one pass `exp(z - max).sum(1)`, or one read `z.max()`.
        multiple: our quickest repeat over the unit's. The unit allocates two arrays as large as
            the input, whose page faults can take six times as long as its arithmetic; a median of
            it would flatter us.
        seconds: median of each contender; spread: quickest and slowest repeat.
        agrees: why a contender's result counts or doesn't; empty if it is the same as ours.
        errors: contenders that failed or weren't run, with the reason.
    """

    kernel: str
    rows: int
    classes: int
    unit: str
    multiple: float
    seconds: dict[str, float]
    spread: dict[str, tuple[float, float]]
    agrees: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float]:
        """How many times longer each peer took."""
        return {
            name: took / self.seconds[OURS]
            for name, took in self.seconds.items()
            if name not in (OURS, self.unit) and took == took
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the ratios as plain values."""
        return asdict(self) | {"ratios": self.ratios}


def _line(
    kernel: str,
    rows: Rows,
    unit: str,
    timings: dict[str, Timing],
    check: Callable[[str, Any], str],
    missing: dict[str, str],
) -> Line:
    errors = dict(missing) | {name: t.error for name, t in timings.items() if t.error}
    done = {name: timing for name, timing in timings.items() if not timing.error}
    return Line(
        kernel,
        len(rows.labels),
        int(rows.logits.shape[1]),
        unit,
        timings[OURS].spread[0] / timings[unit].spread[0],
        {name: timing.median for name, timing in done.items()},
        {name: timing.spread for name, timing in done.items()},
        {name: check(name, timing.result) for name, timing in done.items() if name != unit},
        errors,
    )


def _apart(value: float, wanted: float, tolerance: float) -> str:
    return "" if abs(value - wanted) <= tolerance else f"{value:.6g} instead of {wanted:.6g}"


class Bench:
    """All kernels at one size."""

    def __init__(self, rows: int, classes: int, repeats: int, slow: set[tuple[str, str]]) -> None:
        """Draw the rows. `slow` holds (kernel, peer) pairs to leave out as too slow here."""
        self.fit_rows = synthetic(rows, classes, 1)
        self.test_rows = synthetic(rows, classes, 2)
        self.probs = softmax(self.test_rows.logits)
        self.repeats, self.slow = repeats, slow

    def lines(self) -> list[Line]:
        """Time every kernel."""
        lines = [self.measure(name) for name in ("ece", "smece", "smce")]
        lines += [self.ece_from_logits(), self.evaluate()]
        names = ["temperature", "vector", "svs", "isotonic", "histogram", "smart"]
        if self.fit_rows.logits.shape[1] <= MOST_MATRIX_CLASSES:
            names.insert(3, "sms")
        lines += [self.fit(name) for name in names]
        lines += [self.apply(name) for name in ("temperature", "smart")]
        return lines

    def _peers(self, kernel: str, makers: dict[str, Callable[[], Any]]) -> tuple[Any, Any]:
        found, missing = peers.available(makers)
        for name in list(found):
            if (kernel, name) in self.slow:
                missing[name] = "not run: more than three seconds at a fifth of the rows"
                del found[name]
        return found, missing

    def measure(self, name: str) -> Line:
        """Time a metric of (N, K) probabilities; the softmax is outside the clock."""
        probs, labels = self.probs, self.test_rows.labels
        ours = {
            "ece": cb.metrics.expected_calibration_error,
            "smece": cb.metrics.smooth_ece,
            "smce": cb.metrics.smooth_calibration_error,
        }[name]
        found, missing = self._peers(name, peers.MEASURES.get(name, {}))
        calls: dict[str, Callable[[], Any]] = {
            "read": lambda: probs.max(),
            OURS: lambda: ours(probs, labels),
        }
        calls |= {peer: lambda call=call: call(probs, labels) for peer, call in found.items()}
        timings = in_turn(calls, self.repeats)
        plain = plain_ece(probs, labels)
        wanted = plain if name == "ece" else timings[OURS].result

        def check(who: str, value: float) -> str:
            # Float32 sums and other grids still do the same job: such a peer counts against us.
            return _apart(value, wanted, 1e-6 if who == OURS else 1e-4 if name == "ece" else 1e-3)

        return _line(name, self.test_rows, "read", timings, check, missing)

    def ece_from_logits(self) -> Line:
        """Time argmax, confidence and ECE from logits in one go."""
        rows = self.test_rows

        def ours() -> float:
            scores = score_top(cb.Predictions.from_logits(rows.logits, rows.labels))
            return cb.metrics.expected_calibration_error(
                scores.confidence, scores.correct, kind="confidence"
            )

        calls = {
            "read": lambda: rows.logits.max(),
            OURS: ours,
            "numpy": lambda: plain_ece(softmax(rows.logits), rows.labels),
        }
        timings = in_turn(calls, self.repeats)
        wanted = plain_ece(self.probs, rows.labels)
        return _line(
            "ece from logits", rows, "read", timings, lambda _, v: _apart(v, wanted, 1e-6), {}
        )

    def evaluate(self) -> Line:
        """Time the seven core metrics with 1000 bootstrap resamples and the floor."""
        probs, labels = self.probs, self.test_rows.labels
        wanted = plain_ece(probs, labels)
        calls = {
            "pass": lambda: one_pass(self.test_rows.logits),
            OURS: lambda: cb.evaluate(probs, labels)["ece"].value,
        }
        timings = in_turn(calls, min(self.repeats, 3), warm_up=False)
        return _line(
            "evaluate", self.test_rows, "pass", timings, lambda _, v: _apart(v, wanted, 1e-6), {}
        )

    def fit(self, name: str) -> Line:
        """Time a fit from logits, with whatever softmax a peer needs."""
        rows, test = self.fit_rows, self.test_rows
        makers: dict[str, Callable[[], Any]] = {
            "temperature": cb.TemperatureScaling,
            # Its cross-validation, which peers don't have, is five fits more.
            "vector": lambda: cb.posthoc.VectorScaling(guard=False),
            "svs": cb.posthoc.StructuredVectorScaling,
            "sms": cb.posthoc.StructuredMatrixScaling,
            "isotonic": cb.posthoc.IsotonicRegression,
            "histogram": cb.posthoc.HistogramBinning,
            "smart": cb.SMART,
        }
        found, missing = self._peers(name, peers.FITS.get(name, {}))
        calls: dict[str, Callable[[], Any]] = {
            "pass": lambda: one_pass(rows.logits),
            OURS: lambda: makers[name]().fit(rows.logits, rows.labels),
        }
        calls |= {peer: lambda call=call: call(rows) for peer, call in found.items()}
        timings = in_turn(calls, self.repeats)
        model = timings[OURS].result
        if name == "temperature":
            wanted = plain_temperature(rows)

            def check(who: str, value: Any) -> str:
                # Peers that stop a little early are still counted as doing the same.
                near = 1e-4 if who == OURS else 1e-3
                value = value.temperature_ if who == OURS else value
                return _apart(value, wanted, near * wanted)

        elif name == "smart":

            def check(who: str, value: Any) -> str:
                return far_from_exact(model, rows, test)

        elif name in ("vector", "svs", "sms"):
            wanted = plain_nll(model.predict_proba(test.logits), test.labels)

            def check(who: str, value: Any) -> str:
                if who == OURS:
                    return far_from_optimum(model, rows)
                # Each has its own penalty: the same job if the held-out NLL is no worse.
                nll = plain_nll(value(test.logits), test.labels)
                return "" if nll <= wanted + 0.02 else f"held-out NLL {nll:.3f}, not {wanted:.3f}"

        else:
            _, ours = model.predict_confidence(test.logits)

            def check(who: str, value: Any) -> str:
                if who == OURS:
                    gap = plain_gap(ours, self.probs, test)
                    return "" if gap < 0.03 else f"{gap:.3f} off on average"
                apart = float(np.abs(value(test.logits) - ours).mean())
                return "" if apart < 0.01 else f"confidences {apart:.3f} apart"

        return _line(f"fit {name}", rows, "pass", timings, check, missing)

    def apply(self, name: str) -> Line:
        """Time `predict_proba`."""
        rows = self.test_rows
        model = {"temperature": cb.TemperatureScaling, "smart": cb.SMART}[name]().fit(
            *self.fit_rows
        )
        calls: dict[str, Callable[[], Any]] = {
            "pass": lambda: one_pass(rows.logits),
            OURS: lambda: model.predict_proba(rows.logits),
        }
        if name == "temperature":
            calls |= _softmaxes(rows, model.temperature_)
        timings = in_turn(calls, self.repeats)
        wanted = timings[OURS].result

        def check(_: str, value: Any) -> str:
            apart = float(np.abs(value - wanted).max())
            return "" if apart < 1e-5 else f"up to {apart:.1e} apart"

        return _line(f"apply {name}", rows, "pass", timings, check, {})


def far_from_optimum(model: Any, rows: Rows) -> str:
    """Return why a linear map isn't the optimum of its objective; empty if it is."""
    n, classes = rows.logits.shape
    if isinstance(model, cb.posthoc.VectorScaling):
        beta, ridge = cb.TemperatureScaling().fit(*rows).beta_, model.ridge / n
        weight = model.weight_ / beta
    else:
        beta, ridge = model.beta_, model.ridge * classes / n
        change = model.change_
        weight = change + (1.0 if change.ndim == 1 else np.eye(classes))
    gap = optimality_gap(rows, weight, model.bias_, beta, ridge, model.x_is)
    return "" if gap < NEAR_OPTIMUM else f"up to {gap:.1e} above the optimum"


def far_from_exact(model: Any, rows: Rows, test: Rows) -> str:
    """Return by how much SMART misses its fit on exact float64 curves, if that is noticeable.

    Noticeable is a tenth of the bootstrap interval of ECE or NLL.
    """
    exact = cb.SMART().fit_rows(
        summarize(rows.logits.astype(np.float64), rows.labels, curve="dense")
    )
    ours, wanted = (
        cb.evaluate(m.predict_proba(test.logits), test.labels, metrics=["ece", "nll"])
        for m in (model, exact)
    )
    for name in ("ece", "nll"):
        off = abs(ours[name].value - wanted[name].value)
        width = wanted[name].high - wanted[name].low
        if off > width / 10:
            return f"{name} {off:.1e} from the exact fit's, whose interval is {width:.1e} wide"
    return ""


def plain_gap(confidence: Any, probs: Any, rows: Rows) -> float:
    """Return |mean confidence - accuracy|."""
    return abs(float(confidence.mean() - (probs.argmax(axis=1) == rows.labels).mean()))


def _softmaxes(rows: Rows, temperature: float) -> dict[str, Callable[[], Any]]:
    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: softmax(rows.logits / np.float32(temperature))
    }
    try:
        import torch
    except ImportError:
        return calls
    logits = torch.from_numpy(rows.logits)
    calls["torch"] = lambda: torch.softmax(logits / temperature, -1).numpy()
    return calls
