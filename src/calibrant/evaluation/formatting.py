"""How numbers are written: the same in print, on the page and in sentences.

Values are fractions or nats; what people read in percent is multiplied here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrant.core.text import counted
from calibrant.metrics.metric_types import Metric

# A number below the first, which isn't read in percent, has an exponent: four digits would leave
# next to nothing of it. One below the second is a rounding error.
SMALLEST_IN_FULL, ROUNDING = 1e-3, 1e-9
# A legend lists no more metrics than this if it can list the others instead.
MOST_TITLES = 6
FLOOR = (
    "Floor: the average value of perfectly calibrated confidences on as many rows; floor 95 %: "
    "they stay below it in 95 % of cases, so that a value up to it may be noise."
)
# What forms are called in print, where that isn't the word of `--kind`.
FORMS = {
    "prob": "probability of the positive class",
    "logit": "log odds of the positive class",
    "toplabel": "confidence of the top label",
    "score": "score of the top label, no probability",
}
RANKS = (
    "these scores aren't probabilities, so there is no calibration to measure until a "
    "calibrator is fitted to them (calibrant fit FILE --are score --out FITTED)"
)


def show(metric: Metric, value: float | None) -> str:
    """Return a value as tables have it: percent with two digits, or four digits; "" for None.

    A zero has no sign.
    """
    if value is None:
        return ""
    if not metric.percent and ROUNDING < abs(value) < SMALLEST_IN_FULL:
        return f"{value:.1e}"
    text = f"{100 * value:.2f}" if metric.percent else f"{value:.4f}"
    return text.lstrip("-") if float(text) == 0 else text


def with_unit(metric: Metric, value: float) -> str:
    """Return a value as sentences have it, as in "1.23 %"."""
    return show(metric, value) + (" %" if metric.percent else "")


def with_interval(
    metric: Metric, ends: tuple[float, float, float], level: float | None = None
) -> str:
    """Return a value and the ends of its interval, as in "1.23 % (95 % interval 1.00 to 1.47)".

    Args:
        metric: what was measured.
        ends: the value, the lower and the upper end.
        level: nominal coverage; None to leave it unsaid.
    """
    value, low, high = ends
    lead = "" if level is None else f"{interval_of(level)} "
    return f"{with_unit(metric, value)} ({lead}{show(metric, low)} to {show(metric, high)})"


def difference_with_interval(metric: Metric, ends: tuple[float, float, float]) -> str:
    """Return a difference of two values and its interval, as in "+0.40 points (0.10 to 0.70)"."""
    value, low, high = (show(metric, number) for number in ends)
    unit = " points" if metric.percent else ""
    return f"{'+' if ends[0] > 0 else ''}{value}{unit} ({low} to {high})"


def compared(metric: Metric, ends: tuple[float, float, float]) -> str:
    """Return a difference and its interval in words, as in "0.0605 lower (0.0520 to 0.0697)"."""
    value, low, high = ends
    word = "higher"
    if value < 0:
        value, low, high, word = -value, -high, -low, "lower"
    unit = " points" if metric.percent else ""
    written = (all_digits(metric, end) for end in (value, low, high))
    return "{}{} {} ({} to {})".format(next(written), unit, word, *written)


def all_digits(metric: Metric, value: float) -> str:
    """Return a difference with as many digits as sentences have, a small one too."""
    text = f"{100 * value:.2f}" if metric.percent else f"{value:.4f}"
    return text.lstrip("-") if float(text) == 0 else text


def interval_of(level: float) -> str:
    """Return what an interval of nominal coverage `level` is called, as in "95 % interval"."""
    return f"{100 * level:g} % interval"


def percent(fraction: float) -> str:
    """Return a share, or a difference of two in points, in percent with one digit."""
    text = f"{100 * fraction:.1f}"
    return text.lstrip("-") if float(text) == 0 else text


def percent_asked(fraction: float) -> str:
    """Return a share that was asked for in percent; with more digits where one says nothing."""
    return percent(fraction) if 0.0005 <= fraction <= 0.9995 else f"{100 * fraction:.6g}"


def in_percent(metrics: Sequence[Metric]) -> str:
    """Return the sentence that says which of these metrics tables show in percent."""
    return in_percent_are(
        [metric.title for metric in metrics if metric.percent],
        [metric.title for metric in metrics if not metric.percent],
    )


def in_percent_are(titles: Sequence[str], others: Sequence[str]) -> str:
    """Return the sentence that says that some columns are in percent and others aren't."""
    if not titles:
        return "No value is in percent."
    if not others:
        return "All values in percent."
    if len(titles) <= len(others) or len(titles) <= MOST_TITLES:
        return f"In percent: {'; '.join(titles)}."
    return f"All values in percent but {'; '.join(others)}."


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def left_out(broken: Mapping[str, str]) -> list[dict[str, str]]:
    """Return files that couldn't be read, with reasons, as JSON takes them."""
    return [{"shard": name, "reason": broken[name]} for name in sorted(broken)]


def left_out_text(broken: Mapping[str, str]) -> str:
    """Return what is printed of them below a result; nothing if there are none."""
    if not broken:
        return ""
    lines = [f"left out: {broken[name]}" for name in sorted(broken)]
    return "\n\n" + "\n".join([f"{counted(len(lines), 'file')} couldn't be read:", *lines])
