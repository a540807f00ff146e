"""BLAS stays on one thread while it is asked to, and is as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import calibrant as cb
from calibrant.core.arrays import THREADED_ELEMENTS, for_row_chunks
from calibrant.core.threads import one_blas_thread, worker_count
from calibrant.posthoc.fitting.minimizing import minimize


def blas_threads() -> set[int]:
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(3, "blas"):
        if blas_threads() != {3}:
            pytest.skip("the BLAS here can't be given three threads")
        yield


def test_one_inside_and_as_before_afterwards() -> None:
    with one_blas_thread():
        assert blas_threads() == {1}
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {3}
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 / 0
    assert blas_threads() == {3}


def test_fits_run_inside_and_leave_it_as_before() -> None:
    seen: list[set[int]] = []

    class Watched(cb.TemperatureScaling):
        def _fit(self, predictions: cb.Predictions) -> cb.posthoc.FitReport:
            seen.append(blas_threads())
            return super()._fit(predictions)

    rows = cb.load_sample("validation")
    Watched().fit(rows.logits, rows.labels)
    assert seen == [{1}]
    assert blas_threads() == {3}


def test_a_blas_that_scipy_brings_later_is_kept_to_one_thread_as_well() -> None:
    seen: list[set[int]] = []

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        seen.append(blas_threads())
        return float(x @ x), 2 * x

    with one_blas_thread():
        found = minimize(objective, np.ones(3), maxiter=10)
    assert found.success
    np.testing.assert_allclose(found.x, 0, atol=1e-6)
    assert all(threads == {1} for threads in seen)


def test_chunks_that_threads_share_run_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.core.arrays.worker_count", lambda: 2)
    rows = np.zeros((THREADED_ELEMENTS // 64, 64), dtype=np.float32)
    seen: list[set[int]] = []
    for_row_chunks(rows, lambda chunk: seen.append(blas_threads()))
    assert seen
    assert seen == [{1}] * len(seen)
    assert blas_threads() == {3}


def test_workers_are_the_cores_that_may_be_used_but_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert worker_count() == 8
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    assert worker_count() == 1
