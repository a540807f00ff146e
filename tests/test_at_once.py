"""Methods compared on several cores at a time: the same results, each with its warnings."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.comparison import compare as comparing
from calibrant.core.errors import CalibrationWarning, heard_warnings, warn_caller
from calibrant.core.threads import each_at_once, worker_count
from calibrant.evaluation import bootstrap as draws

METHODS = ["none", "temperature", "svs", "isotonic", "platt", "top-rest", "vector"]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k}
    return [without_times(v) for v in value] if isinstance(value, list) else value


@pytest.fixture
def cores(monkeypatch):
    def use(number: int) -> None:
        monkeypatch.setattr("calibrant.core.threads.core_count", lambda: number)

    return use


def halves(labelled_logits: Any) -> tuple[cb.Predictions, cb.Predictions]:
    return cb.Predictions.from_logits(*labelled_logits(600, 4)).split(0.5)


def test_results_are_the_same_to_the_last_bit(cores, labelled_logits):
    fit, test = halves(labelled_logits)
    found = []
    for number in (1, 3):
        cores(number)
        result = cb.compare(METHODS, fit=fit, test=test, resamples=60)
        found.append(without_times(result.as_dict()))
    assert found[0] == found[1]


def test_rows_are_drawn_once_for_all_methods(cores, labelled_logits, monkeypatch):
    fit, test = halves(labelled_logits)
    drawn: list[int] = []
    real = draws.draw_columns

    def counted(rng: np.random.Generator, number: int, size: int) -> Any:
        drawn.append(size)
        return real(rng, number, size)

    monkeypatch.setattr(draws, "draw_columns", counted)
    for number in (1, 3):
        cores(number)
        drawn.clear()
        cb.compare(METHODS, fit=fit, test=test, resamples=60)
        assert sum(drawn) == 60
    drawn.clear()
    binary = cb.Predictions.from_binary(np.linspace(0.1, 0.9, 50), np.arange(50) % 2)
    cb.evaluate(binary, resamples=60)
    assert sum(drawn) == 60
    cb.evaluate(binary, resamples=60)
    assert sum(drawn) == 120  # nothing is kept beyond an evaluation


@dataclass(eq=False)
class Warns(cb.TemperatureScaling):
    text: str = ""
    directly: bool = False

    def _fit(self, predictions: cb.Predictions) -> Any:
        report = super()._fit(predictions)
        for _ in range(3):
            time.sleep(0.005)  # so that fits take turns
            if self.directly:
                warnings.warn(CalibrationWarning(self.text), stacklevel=2)
            else:
                warn_caller(CalibrationWarning(self.text))
        return report


@pytest.mark.parametrize("number", [1, 4])
def test_each_method_keeps_its_own_warnings(number: int, cores, labelled_logits):
    cores(number)
    fit, test = halves(labelled_logits)
    methods = [Warns(text=f"of {i}", directly=i % 2 == 1) for i in range(6)]
    filters = list(warnings.filters)
    found = cb.compare(methods, fit=fit, test=test, resamples=10)
    assert {entry.name: entry.warnings for entry in found.methods} == {
        f"temperature-{i + 1}": (f"of {i}",) * 3 for i in range(6)
    }
    assert list(warnings.filters) == filters


def test_heard_warnings_are_not_issued_and_others_are():
    with heard_warnings() as outer:
        warn_caller(CalibrationWarning("outer"))
        with heard_warnings() as inner:
            warn_caller(CalibrationWarning("inner"))
    assert [str(each) for each in outer] == ["outer"]
    assert [str(each) for each in inner] == ["inner"]
    with pytest.warns(CalibrationWarning, match="loud"):
        warn_caller(CalibrationWarning("loud"))


def test_at_once_keeps_the_order_and_gives_each_one_core(cores):
    cores(4)
    together = threading.Barrier(3, timeout=30)

    def work(item: int) -> tuple[int, int]:
        together.wait()  # three of them do run at the same time
        return item * item, worker_count()

    assert each_at_once([1, 2, 3], work, 3) == [(1, 1), (4, 1), (9, 1)]
    assert worker_count() == 4
    assert each_at_once([1, 2], lambda item: (item, worker_count()), 1) == [(1, 4), (2, 4)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_first_error_in_their_order_is_raised_and_the_rest_is_left(workers: int):
    begun: list[int] = []

    def work(item: int) -> None:
        time.sleep(0.002)
        if item >= 3:
            raise ZeroDivisionError(item)

    with pytest.raises(ZeroDivisionError, match="3"):
        each_at_once(list(range(50)), work, workers, begun.append)
    assert begun == list(range(len(begun)))
    assert 4 <= len(begun) <= 4 + workers


def test_an_interruption_begins_nothing_more(monkeypatch):
    begun: list[int] = []

    def work(item: int) -> None:
        if item == 2:
            raise KeyboardInterrupt
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        each_at_once(list(range(400)), work, 2, begun.append)
    assert len(begun) < 400


def test_few_methods_are_worked_on_at_a_time_where_rows_are_many(cores, monkeypatch):
    cores(8)
    rows = cb.Predictions.from_logits(np.zeros((50, 4)), np.zeros(50, dtype=int))
    monkeypatch.setattr(comparing, "MOST_NUMBERS", 1200)
    assert comparing._workers(2, rows, rows) == 2  # pyright: ignore[reportPrivateUsage]
    assert comparing._workers(9, rows, rows) == 3  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(comparing, "MOST_NUMBERS", 10)
    assert comparing._workers(9, rows, rows) == 1  # pyright: ignore[reportPrivateUsage]
