"""Every number that a person reads, held to a value computed elsewhere: here, with plain NumPy.

Tables, page, JSON and public properties; what each is a mean or a sum of is written out with loops
and masks, and nothing of the package is used but to make what is checked.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from calibrant.cli import main
from calibrant.comparison.compare import compare
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.groups import evaluate_by
from calibrant.metrics.top_label import TopLabel
from calibrant.posthoc.registry import METHODS, make_calibrator
from calibrant.posthoc.temperature.scaling import RowTemperature
from calibrant.predictions.predictions import Predictions
from calibrant.report.classes import classes_to_show
from calibrant.report.document import comparison_document, evaluation_document

Floats = NDArray[np.float64]
Labelled = tuple[Floats, NDArray[np.int64]]
Z95 = 1.959963984540054
NOT_ROWWISE = {name for name, made in METHODS.items() if not issubclass(made, RowTemperature)}


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def plain_ece(c: Floats, right: NDArray[np.bool_]) -> float:
    total = 0.0
    for b in range(15):
        inside = (c > b / 15) & (c <= (b + 1) / 15)
        if inside.any():
            total += abs(c[inside].mean() - right[inside].mean()) * inside.sum()
    return total / len(c)


def plain_adaece(c: Floats, right: NDArray[np.bool_]) -> float:
    order = np.argsort(c)
    parts = np.array_split(order, 15)
    return sum(abs((c[p] - right[p]).sum()) for p in parts if len(p)) / len(c)


def wilson(hits: float, n: int) -> tuple[float, float]:
    p, z = hits / n, Z95
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def plain_gap(c: Floats, right: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Mean confidence less accuracy, and the gaps that lie just z of their own errors away."""
    from scipy.optimize import brentq

    residual, p, n = c - right, float(right.mean()), len(c)
    gap, variance = float(residual.mean()), float(residual.var())

    def beyond(other: float) -> float:
        q = p + gap - other
        error = max(variance + q * (1 - q) - p * (1 - p), 0.0) / n
        return (gap - other) ** 2 - Z95**2 * error

    far = 0.5
    return gap, brentq(beyond, gap - far, gap), brentq(beyond, gap, gap + far)


class Plain:
    """What there is to know of some rows."""

    def __init__(self, p: Floats, y: NDArray[np.int64]) -> None:
        self.p, self.y, self.n = p, y, len(y)
        self.c, self.said = p.max(axis=1), p.argmax(axis=1)
        self.right = self.said == y
        of_label = p[np.arange(self.n), y]
        self.values = {
            "ece": plain_ece(self.c, self.right),
            "adaece": plain_adaece(self.c, self.right),
            "nll": float(-np.log(of_label).mean()),
            "brier": float(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1).mean()),
            "accuracy": float(self.right.mean()),
        }


PERCENT = {"ece", "adaece", "accuracy"}
TITLES = {"ece": "ECE", "adaece": "AdaECE", "nll": "NLL", "brier": "Brier", "accuracy": "accuracy"}


def printed(name: str, value: float) -> str:
    return f"{value * 100:.2f}" if name in PERCENT else f"{value:.4f}"


@pytest.fixture(scope="module")
def rows(labelled_logits) -> Labelled:
    return labelled_logits(900, 4, seed=3)


@pytest.fixture(scope="module")
def plain(rows: Labelled) -> Plain:
    return Plain(softmax(rows[0]), rows[1])


@pytest.fixture(scope="module")
def sets(labelled_logits) -> tuple[Predictions, Predictions]:
    return tuple(Predictions.from_logits(*labelled_logits(600, 4, seed=s)) for s in (5, 6))  # type: ignore[return-value]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line and return its JSON."""

    def call(*words: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words), "--json", "-"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def file(tmp_path: Path, rows: Labelled) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, logits=rows[0], labels=rows[1])
    return path


# --- public properties


@pytest.mark.parametrize("method", sorted(set(METHODS) - NOT_ROWWISE))
def test_temperatures_are_what_the_logits_are_divided_by(method: str, rows: Labelled):
    z, y = rows
    calibrator = make_calibrator(method).fit(z, y)
    temperature = calibrator.temperatures(z)
    assert temperature.shape == (len(z),)
    assert (temperature > 0).all()
    np.testing.assert_allclose(1 / temperature, calibrator.inverse_temperatures(z), rtol=1e-12)
    np.testing.assert_allclose(
        softmax(z / temperature[:, None]), calibrator.predict_proba(z), atol=1e-9
    )


def test_temperature_of_one_is_the_most_likely(rows: Labelled):
    z, y = rows

    def nll(t: float) -> float:
        return float(-np.log(softmax(z / t)[np.arange(len(y)), y]).mean())

    calibrator = make_calibrator("temperature").fit(z, y)
    t = calibrator.temperature_
    assert calibrator.beta_ * t == pytest.approx(1, rel=1e-15)
    assert nll(t) < min(nll(t * 1.001), nll(t / 1.001))
    np.testing.assert_allclose(calibrator.predict_proba(z), softmax(z / t), atol=1e-12)
    assert calibrator.fit_report_.value == pytest.approx(nll(t), rel=1e-12)
    assert calibrator.fit_report_.n == len(z)
    laplace = make_calibrator("temperature-laplace").fit(z, y)
    assert laplace.temperature_ * laplace.beta_ == pytest.approx(1, rel=1e-15)


# --- one set


def test_the_printed_table_of_a_measurement(rows: Labelled, plain: Plain):
    found = evaluate(Predictions.from_logits(*rows, source="here"), resamples=50)
    lines = str(found).splitlines()
    table = {line.split("  ")[0]: line.split() for line in lines if ".." in line}
    for name, value in plain.values.items():
        cells = table[TITLES[name]]
        assert cells[1] == printed(name, value), name
        result = found[name]
        assert [cells[2], cells[4]] == [printed(name, result.low), printed(name, result.high)]
        if result.floor is not None:
            assert cells[5:] == [printed(name, result.floor), printed(name, result.floor_95)]
        assert result.value == pytest.approx(value, rel=1e-9)
    assert "here: 900 rows, 4 classes, logits" in lines
    gap, low, high = plain_gap(plain.c, plain.right)
    text = " ".join(str(found).split())
    assert text.startswith(
        f"Overconfident by {gap * 100:.1f} points (95 % interval {low * 100:.1f} to "
        f"{high * 100:.1f}): mean confidence {plain.c.mean() * 100:.1f} %, accuracy "
        f"{plain.right.mean() * 100:.1f} %."
    )


def test_floors_and_p_values_are_those_of_simulated_labels(rows: Labelled, plain: Plain):
    result = evaluate(Predictions.from_logits(*rows), metrics="ece", resamples=2000)["ece"]
    rng = np.random.default_rng(77)
    honest = np.array([plain_ece(plain.c, rng.random(plain.n) < plain.c) for _ in range(1000)])
    assert result.floor == pytest.approx(honest.mean(), rel=0.04)
    assert result.floor_95 == pytest.approx(np.quantile(honest, 0.95), rel=0.06)
    assert result.p_value == pytest.approx(1 / 2001)
    # Twenty rows in a single bin: how many are right is binomial.
    c = np.full(20, 0.7)
    labels = (np.arange(20) >= 11).astype(int)
    few = Predictions.from_confidence(c, np.zeros(20, int), labels)
    off = evaluate(few, metrics="ece", resamples=4000)["ece"]
    hits = np.arange(21)
    chance = np.array([math.comb(20, k) * 0.7**k * 0.3 ** (20 - k) for k in hits])
    values = np.abs(0.7 - hits / 20)
    assert off.value == pytest.approx(0.15)
    assert off.floor == pytest.approx(chance @ values, rel=0.04)
    assert off.p_value == pytest.approx(chance[values >= 0.15 - 1e-12].sum(), rel=0.15)


def test_json_of_a_measurement_is_in_fractions(command, file: Path, plain: Plain):
    document = command("measure", file, "--resamples", "30", "--level", "0.9")
    assert (document["n"], document["n_classes"], document["level"]) == (900, 4, 0.9)
    assert document["clipped_nll_rows"] == 0
    for name, value in plain.values.items():
        assert document["metrics"][name]["value"] == pytest.approx(value, rel=1e-6), name
    found = evaluate(softmax(np.load(file)["logits"]), plain.y, resamples=30, level=0.9)
    for name, result in found.results.items():
        assert document["metrics"][name]["high"] == pytest.approx(result.high, rel=1e-6)


# --- groups


def test_the_table_of_groups_is_in_percent_of_each_group(rows: Labelled, plain: Plain):
    found = evaluate_by(Predictions.from_logits(*rows), "predicted", metrics=["ece"], resamples=20)
    lines = {line.split()[0]: line.split() for line in str(found).splitlines() if ".." in line}
    document = found.as_dict()
    for k in range(4):
        of = plain.said == k
        c, right = plain.c[of], plain.right[of]
        cells = lines[str(k)]
        ece = plain_ece(c, right)
        result = found[str(k)]["ece"]
        wanted = [f"{of.sum()}", f"{c.mean() * 100:.1f}", f"{right.mean() * 100:.1f}"]
        assert cells[1:4] == wanted
        assert cells[4].rstrip("*") == f"{ece * 100:.2f}"
        assert (cells[4][-1] == "*") == (found.p_adjusted[str(k)] <= 0.05)
        assert (cells[5], cells[7]) == (f"{result.low * 100:.2f}", f"{result.high * 100:.2f}")
        assert cells[8] == f"{result.floor_95 * 100:.2f}"
        held = document["groups"][str(k)]
        assert held["n"] == of.sum()
        assert held["metrics"]["ece"]["value"] == pytest.approx(ece, rel=1e-9)


# --- comparisons


def test_the_table_and_json_of_a_comparison(sets):
    fit, test = sets
    found = compare(["none", "temperature", "vector"], fit=fit, test=test, resamples=40)
    document = found.as_dict()
    _, text = str(found).split("\n---", maxsplit=1)
    lines = {line.split()[0].rstrip("*"): line for line in text.split("\n\n")[0].splitlines()[1:]}
    table = ("ece", "adaece", "smce", "nll", "brier", "accuracy")
    assert [entry["method"] for entry in document["methods"]] == [m.name for m in found.methods]
    values = {}
    for method in found.methods:
        p = np.asarray(method.calibrator.predict_proba(test.logits))
        plain = values[method.name] = Plain(p, test.labels)
        cells = lines[method.name].split()
        marked = [cell.endswith("+") for cell in cells[1:7]]
        assert marked == [method.name in document["may_be_best"][name] for name in table]
        cells = [cell.rstrip("+") for cell in cells]
        shown = [plain.values[n] for n in ("ece", "adaece")]
        assert cells[1:3] == [printed("ece", value) for value in shown]
        assert cells[4:6] == [printed(n, plain.values[n]) for n in ("nll", "brier")]
        kept = bool((plain.said == test.logits.argmax(axis=1)).all())
        # On these rows `vector` sees no clear gain, and takes one temperature.
        parameters = {"none": 0, "temperature": 1, "vector": 1}[method.name]
        assert cells[6] == printed("accuracy", plain.values["accuracy"])
        assert cells[7:9] == ["yes" if kept else "no", str(parameters)]
        assert cells[9] == f"{method.fit_seconds:.2f}"
        entry = next(e for e in document["methods"] if e["method"] == method.name)
        assert (entry["parameters"], entry["keeps_accuracy"]) == (parameters, kept)
        for name, value in plain.values.items():
            assert entry["metrics"][name]["value"] == pytest.approx(value, rel=1e-8)
    assert (document["fit_rows"], document["test_rows"]) == (600, 600)
    best = min(values, key=lambda name: values[name].values["ece"])
    assert document["best"] == found.best == best
    for entry in document["methods"]:
        difference = values[entry["method"]].values["ece"] - values[best].values["ece"]
        assert entry["difference_to_best"]["value"] == pytest.approx(difference, abs=1e-9)
    for name, winner in document["best_by_metric"].items():
        if name in TITLES:
            sign = -1 if name == "accuracy" else 1
            assert sign * values[winner].values[name] == pytest.approx(
                min(sign * plain.values[name] for plain in values.values()), rel=1e-9
            )
    head = values[best].values["ece"] * 100
    assert found.ranking().startswith(f"Lowest ECE: {best}, {head:.2f} % (95 % interval ")


def test_json_of_a_fit(command, file: Path, tmp_path: Path):
    out = tmp_path / "v.safetensors"
    document = command("fit", file, "--method", "vector", "--out", out)
    assert (document["n"], document["n_classes"], document["parameters"]) == (900, 4, 1)
    assert any("took one temperature" in note for note in document["fit"]["notes"])
    assert document["keeps_prediction"] is False
    assert document["fit"]["iterations"] > 0
    applied = command("apply", out, file, "--out", tmp_path / "p.npz")
    assert (applied["n"], applied["n_classes"], applied["method"]) == (900, 4, "vector")


# --- the page


@pytest.fixture(scope="module")
def page(rows: Labelled) -> dict[str, Any]:
    predictions = Predictions.from_logits(*rows)
    return evaluation_document(evaluate(predictions, resamples=30))


def test_the_page_counts_the_bins_that_it_draws(page, plain: Plain):
    (method,) = page["methods"]
    width = [(plain.c > b / 15) & (plain.c <= (b + 1) / 15) for b in range(15)]
    order = np.argsort(plain.c)
    mass = [np.isin(np.arange(plain.n), part) for part in np.array_split(order, 15)]
    for name, bins in (("uniform", width), ("quantile", mass)):
        drawn, used = method["bins"][name], [inside for inside in bins if inside.any()]
        assert drawn["count"] == [inside.sum() for inside in used]
        for key, of in (("confidence", plain.c), ("accuracy", plain.right)):
            np.testing.assert_allclose(drawn[key], [of[i].mean() for i in used], rtol=1e-4)
        ends = [wilson(plain.right[i].sum(), int(i.sum())) for i in used]
        np.testing.assert_allclose(drawn["low"], [low for low, _ in ends], rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(drawn["high"], [high for _, high in ends], rtol=1e-4)
    assert method["confidence"] == pytest.approx(plain.c.mean())
    assert method["accuracy"] == pytest.approx(plain.right.mean())
    bars = page["histogram_bins"]
    inside = [(plain.c > b / bars) & (plain.c <= (b + 1) / bars) for b in range(bars)]
    assert method["histogram"]["count"] == [i.sum() for i in inside]
    assert method["histogram"]["correct"] == [plain.right[i].sum() for i in inside]


def test_the_page_counts_what_a_threshold_accepts(page, plain: Plain):
    risk = page["methods"][0]["risk"]
    assert risk["accepted"][-1] == plain.n
    points = zip(*(risk[name] for name in ("threshold", "accepted", "wrong", "bound")), strict=True)
    for threshold, accepted, wrong, bound in points:
        taken = plain.c >= threshold - 1e-6
        assert abs(taken.sum() - accepted) <= 1  # the threshold is written with six digits
        least = np.sort(plain.c)[-accepted]
        assert wrong == (~plain.right[plain.c >= least]).sum()
        # Clopper and Pearson's bound: so few wrong ones or fewer have a chance of 5 % there.
        ends = bound * np.array([1.01, 0.99])  # it is written with three digits
        lower, upper = binom.cdf(wrong, accepted, np.minimum(ends, 1))
        assert lower < 0.05 < upper


def test_the_page_counts_by_class_and_by_margin(page, plain: Plain, rows: Labelled):
    (method,) = page["methods"]
    held = method["classes"]
    assert page["class_labels"] == [0, 1, 2, 3]
    for k in range(4):
        of = plain.said == k
        low, high = wilson(plain.right[of].sum(), int(of.sum()))
        assert held["count"][k] == of.sum()
        assert held["confidence"][k] == pytest.approx(plain.c[of].mean(), rel=1e-4)
        assert held["accuracy"][k] == pytest.approx(plain.right[of].mean(), rel=1e-4)
        # The gap's ends: mean confidence less those of the accuracy.
        assert held["low"][k] == pytest.approx(plain.c[of].mean() - high, abs=1e-5)
        assert held["high"][k] == pytest.approx(plain.c[of].mean() - low, abs=1e-5)
    ranked = np.sort(rows[0], axis=1)
    margin = ranked[:, -1] - ranked[:, -2]
    for part, group in zip(
        np.array_split(np.argsort(margin), 4), method["margin_groups"], strict=True
    ):
        assert group["rows"] == len(part)
        assert group["confidence"] == pytest.approx(plain.c[part].mean())
        assert group["accuracy"] == pytest.approx(plain.right[part].mean())
        ends = wilson(plain.right[part].sum(), len(part))
        assert (group["low"], group["high"]) == pytest.approx(ends)
        assert group["margin"] == pytest.approx([margin[part].min(), margin[part].max()], rel=1e-4)
    assert sum(page["margin_histogram"]["count"]) == plain.n


def test_the_smoothed_curve_is_a_kernel_mean(page, plain: Plain):
    smooth = page["methods"][0]["smooth"]
    for index, accuracy in zip(smooth["index"][::10], smooth["accuracy"][::10], strict=True):
        x = index / 100
        weight = np.exp(-0.5 * ((plain.c - x) / 0.04) ** 2)
        mean = x + (weight * (plain.right - plain.c)).sum() / weight.sum()
        assert accuracy == pytest.approx(min(max(mean, 0), 1), abs=2e-3)


def test_the_page_of_a_comparison_draws_the_temperatures(sets):
    fit, test = sets
    found = compare(["none", "smart"], fit=fit, test=test, resamples=20)
    document = comparison_document(found)
    before = Plain(softmax(np.asarray(fit.logits)), fit.labels)
    assert document["fit"]["rows"] == 600
    assert document["fit"]["accuracy"] == pytest.approx(before.right.mean())
    assert document["fit"]["confidence"] == pytest.approx(before.c.mean())
    drawn = next(m for m in document["methods"] if m["name"] == "smart")["temperature"]
    ranked = np.sort(np.asarray(test.logits), axis=1)
    margin = ranked[:, -1] - ranked[:, -2]
    after = np.asarray(found["smart"].calibrator.predict_proba(test.logits))
    # The ratio of two probabilities tells the temperature of a row.
    top = np.sort(after, axis=1)
    told = margin / np.log(top[:, -1] / top[:, -2])
    for at, temperature in zip(drawn["margin"], drawn["temperature"], strict=True):
        row = int(np.abs(margin - at).argmin())
        assert temperature == pytest.approx(told[row], rel=2e-3)


def test_percent_on_the_page_is_a_hundred_times_the_fraction(sets, tmp_path: Path):

    fit, test = sets
    found = compare(["none", "temperature"], fit=fit, test=test, resamples=20)
    found.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    table = text[text.index('id="numbers-table"') :]
    table = table[: table.index("</table>")]
    shown = [float(cell) for cell in re.findall(r"<b>\s*([\d.]+)", table)]
    wanted: list[float] = []
    for method in found.methods:
        p = np.asarray(method.calibrator.predict_proba(test.logits))
        values = Plain(p, test.labels).values
        for name, result in method.evaluation.results.items():
            value = values.get(name, result.value)
            wanted.append(round(value * 100, 2) if result.metric.percent else round(value, 4))
    assert shown == pytest.approx(wanted, abs=1e-9)


# --- what random changes to the code showed to be unwatched


def test_seconds_are_those_between_the_calls(sets, monkeypatch):
    # A clock that moves on by a second, then by two, whenever somebody looks.
    ticks = iter([100.0, 101.0, 103.0])
    monkeypatch.setattr("calibrant.comparison.compare.time.perf_counter", lambda: next(ticks))
    fit, test = sets
    found = compare(["temperature"], fit=fit, test=test, metrics=["nll"], rank_by="nll")
    assert (found["temperature"].fit_seconds, found["temperature"].apply_seconds) == (1, 2)


def test_seconds_of_methods_at_a_time_are_those_of_their_own_thread(sets, monkeypatch):
    clocks = threading.local()

    def look() -> float:
        # Each thread's clock moves on by a second, then by two, and begins again.
        if not hasattr(clocks, "ticks"):
            clocks.ticks = itertools.cycle([100.0, 101.0, 103.0])
        return next(clocks.ticks)

    monkeypatch.setattr("calibrant.comparison.compare.worker_count", lambda: 2)
    monkeypatch.setattr("calibrant.comparison.compare.time.thread_time", look)
    fit, test = sets
    found = compare(["none", "temperature", "platt"], fit=fit, test=test, metrics=["nll"])
    assert [(one.fit_seconds, one.apply_seconds) for one in found.methods] == [(1, 2)] * 3


def test_a_gap_within_noise_is_written_in_points(labelled_logits):
    z, y = labelled_logits(500, 3, temperature=1.0)
    plain = Plain(softmax(z), y)
    gap, low, high = plain_gap(plain.c, plain.right)
    assert low < 0 < high
    text = evaluate(Predictions.from_logits(z, y), metrics="nll", resamples=5).headline()
    ends = f"{low * 100:.1f} to {high * 100:.1f}"
    assert f"(difference {gap * 100:.1f} points, 95 % interval {ends}): mean" in text


def test_confidences_that_rounding_lifts_above_one_count_as_one():
    c = np.array([0.5, 1.0 + 5e-7])
    rows = TopLabel.sort(c, np.array([True, True]))
    assert rows.confidence.tolist() == [0.5, 1.0]


def test_the_grid_of_the_smoothed_curve_begins_at_0_and_ends_at_1(page):
    assert page["smooth_grid"] == [i / 100 for i in range(101)]


def test_as_many_classes_as_fit_are_all_shown(plain: Plain, rows: Labelled):
    scores = evaluate(Predictions.from_logits(*rows), metrics="nll", resamples=5).scores
    shown, count = classes_to_show([scores], 4, limit=4)
    assert (shown.tolist(), count) == ([0, 1, 2, 3], 4)
    # A class that nobody predicts belongs to the table too, as long as there is room.
    shown, count = classes_to_show([scores], 5, limit=5)
    assert (shown.tolist(), count) == ([0, 1, 2, 3, 4], 5)
