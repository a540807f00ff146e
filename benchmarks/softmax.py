"""What a softmax with a temperature costs here, and in libraries that fuse its passes.

    benchmarks/.peers/bin/python -m benchmarks.softmax

10 000 rows in float32 on one thread. All contenders take turns; printed are medians of processor
time with their quartiles, and how many times as long as ours each took. Libraries that aren't there
are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import calibrant as cb
from calibrant.core.text import format_table

Rows = NDArray[np.float32]


def with_torch(logits: Rows, beta: float, fitted: cb.TemperatureScaling) -> dict[str, Any]:
    """Return calls of torch: its fused softmax, and ours on a tensor."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    tensor = torch.from_numpy(logits)
    return {
        "ours, a tensor of torch": lambda: cast(Any, fitted.predict_proba(tensor)).numpy(),
        "torch.softmax": lambda: torch.softmax(tensor * beta, -1).numpy(),
    }


def with_numba(logits: Rows, beta: float, _: Any) -> dict[str, Any]:
    """Return a call of a loop that numba compiles, a row at a time."""
    numba = import_module("numba")

    @numba.njit(fastmath=True)
    def softmax(rows: Any, scale: Any) -> Any:  # pragma: no cover - compiled
        out = np.empty_like(rows)
        for i in range(rows.shape[0]):
            most = rows[i, 0]
            for k in range(rows.shape[1]):
                most = max(most, rows[i, k])
            total = np.float32(0.0)
            for k in range(rows.shape[1]):
                out[i, k] = np.exp((rows[i, k] - most) * scale)
                total += out[i, k]
            for k in range(rows.shape[1]):
                out[i, k] /= total
        return out

    return {"numba": lambda: softmax(logits, np.float32(beta))}


def with_numexpr(logits: Rows, beta: float, _: Any) -> dict[str, Any]:
    """Return a call of numexpr, which fuses all but the sums of rows."""
    numexpr = import_module("numexpr")
    numexpr.set_num_threads(1)
    scale = np.float32(beta)

    def softmax() -> Rows:
        local = {"z": logits, "most": logits.max(axis=1)[:, None], "beta": scale}
        weights = numexpr.evaluate("exp((z - most) * beta)", local)
        return numexpr.evaluate("w / total", {"w": weights, "total": weights.sum(axis=1)[:, None]})

    return {"numexpr": softmax}


def with_scipy(logits: Rows, beta: float, _: Any) -> dict[str, Any]:
    """Return a call of SciPy's softmax."""
    special = import_module("scipy.special")
    return {"scipy.special": lambda: special.softmax(logits * np.float32(beta), axis=1)}


def timed(call: Callable[[], Any]) -> float:
    """Return processor seconds."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.softmax", description=__doc__)
    parser.add_argument("--turns", type=int, default=25)
    turns = parser.parse_args().turns
    table: list[list[str]] = []
    for classes in (10, 100, 1000):
        rng = np.random.default_rng(classes)
        logits = (3 * rng.normal(size=(10_000, classes))).astype(np.float32)
        labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        fitted = cb.TemperatureScaling().fit(logits, labels)
        wanted = fitted.predict_proba(logits)
        calls: dict[str, Any] = {"ours": lambda m=fitted, z=logits: m.predict_proba(z)}
        for maker in (with_torch, with_numba, with_numexpr, with_scipy):
            try:
                calls |= maker(logits, fitted.beta_, fitted)
            except ImportError as error:
                print(f"left out: {error}")
        for name, call in calls.items():
            apart = float(np.abs(call() - wanted).max())
            assert apart < 1e-5, (name, apart)
        seconds = np.array([[timed(call) for call in calls.values()] for _ in range(turns)])
        low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75], axis=0) * 1e3
        for i, name in enumerate(calls):
            spread = f"{middle[i]:.2f} ({low[i]:.2f} to {high[i]:.2f})"
            table.append([str(classes), name, spread, f"{middle[i] / middle[0]:.2f}"])
    print(format_table(["classes", "", "ms", "of ours"], table))


if __name__ == "__main__":
    main()
