"""Build what is missing and serve it: ``python -m examples.serve --port 8000``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import uvicorn

import calibrant as cb
from calibrant.monitor.checkpointing import only_one
from examples.serve.app import make_app
from examples.serve.build import build
from examples.serve.model import Model


def main() -> None:
    """Build the demo's file unless one is given, and serve it until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="file of `calibrant export --behind`")
    parser.add_argument("--risk", type=float, default=0.05, help="share of wrong answers to accept")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=1, help="of onnxruntime, for one request")
    parser.add_argument("--most-rows", type=int, default=1024, help="of one request")
    parser.add_argument("--most-clients", type=int, default=256, help="at once; others get 503")
    parser.add_argument("--state", type=Path, help="of the monitor; this process alone has it")
    parser.add_argument("--save-seconds", type=float, default=30, help="between writes of it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model
        if path is None:
            path = Path(folder) / "served.onnx"
            build(path, given.risk)
        model = Model(path, given.threads, given.most_rows)
    state: Path | None = given.state
    try:
        with only_one(state):
            monitor = cb.Monitor.load(state) if state is not None and state.exists() else None
            # SIGTERM and SIGINT: no new request is taken, those at work are answered, the state is
            # written.
            uvicorn.run(
                make_app(model, monitor, state, given.save_seconds),
                host=given.host,
                port=given.port,
                log_level="warning",
                access_log=False,
                limit_concurrency=given.most_clients,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=20,
            )
    except cb.CalibrantError as error:  # another service has the state, or it is damaged
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
