"""Ask a running service, a bounded number of times, and say how long answers took.

python -m examples.serve.load http://127.0.0.1:8000 --requests 2000 --clients 4 --rows 1
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
import numpy as np

import calibrant as cb


class Load(NamedTuple):
    """Outcome of a load: seconds of each answer, the whole time, and how many rows were judged."""

    seconds: np.ndarray
    whole: float
    rows: int
    failed: int

    def __str__(self) -> str:
        p50, p99 = (1e3 * np.quantile(self.seconds, share) for share in (0.5, 0.99))
        return (
            f"{len(self.seconds)} requests, {self.failed} failed: p50 {p50:.1f} ms, p99 {p99:.1f} "
            f"ms, {self.rows / self.whole:.0f} rows/s"
        )


def ask(url: str, requests: int, clients: int, rows: int) -> Load:
    """Send rows of the sample from several clients at once; each waits for its answers."""
    features = np.asarray(cb.load_sample("test").features, dtype=np.float64)

    def client(first: int) -> list[tuple[float, bool]]:
        found = list[tuple[float, bool]]()
        with httpx.Client(base_url=url, timeout=30) as session:
            for place in range(first, requests, clients):
                picked = features[(place * rows + np.arange(rows)) % len(features)].tolist()
                started = time.perf_counter()
                answer = session.post("/predict", json={"inputs": picked})
                found.append((time.perf_counter() - started, answer.status_code == 200))
        return found

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = [each for part in pool.map(client, range(clients)) for each in part]
    whole = time.perf_counter() - started
    seconds = np.array([taken for taken, _ in found])
    return Load(seconds, whole, rows * len(found), sum(not fine for _, fine in found))


def main() -> None:
    """Read the arguments, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1, help="of each request")
    given = parser.parse_args()
    print(ask(given.url, given.requests, given.clients, given.rows))


if __name__ == "__main__":
    main()
