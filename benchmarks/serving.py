"""How quickly the example service answers: `python -m benchmarks.serving`.

It starts the service on the loopback and asks it from 1 and from 16 clients, a bounded number of
times; beside it stands the network of the same file, called in this process without a service. The
clients share the machine's cores with the service.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from examples.serve.build import build
from examples.serve.load import ask
from examples.serve.model import Model

import calibrant as cb

CLIENTS = (1, 16)
ROOT = Path(__file__).parent.parent


@contextmanager
def service(model: Path) -> Generator[str]:
    """Run the service and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "examples.serve", "--port", str(port), "--model", str(model)]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    httpx.get(f"{url}/health", timeout=5)
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def bare(model: Model, requests: int, rows: int) -> np.ndarray:
    """Return the seconds of each call of the network and its calibrator alone."""
    features = np.asarray(cb.load_sample("test").features, dtype=np.float32)
    seconds = np.empty(requests)
    for i in range(requests):
        picked = features[(i * rows + np.arange(rows)) % len(features)]
        started = time.perf_counter()
        model(picked)
        seconds[i] = time.perf_counter() - started
    return seconds


def show(name: str, seconds: np.ndarray, whole: float) -> None:
    """Print a line of the table."""
    p50, p99 = 1e3 * np.quantile(seconds, (0.5, 0.99))
    print(f"{name:34} {p50:8.2f} {p99:8.2f} {len(seconds) / whole:12,.0f}", flush=True)


def main() -> None:
    """Time everything."""
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="of each request")
    given = parser.parse_args()
    print(f"{'':34} {'p50, ms':>8} {'p99, ms':>8} {'requests/s':>12}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "served.onnx"
        build(path, 0.05)
        model = Model(path)
        with service(path) as url:
            for rows in given.rows:
                each = bare(model, given.requests, rows)
                show(f"bare network, {rows} rows", each, float(each.sum()))
                for clients in CLIENTS:
                    load = ask(url, given.requests, clients, rows)
                    if load.failed:
                        raise SystemExit(f"{load.failed} requests failed")
                    name = f"service, {clients} clients, {rows} rows"
                    show(name, load.seconds, load.whole)


if __name__ == "__main__":
    main()
