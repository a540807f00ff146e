"""Build what is missing and serve it: ``python -m examples.serve --port 8000``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import uvicorn

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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model
        if path is None:
            path = Path(folder) / "served.onnx"
            build(path, given.risk)
        model = Model(path, given.threads, given.most_rows)
    uvicorn.run(
        make_app(model), host=given.host, port=given.port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
