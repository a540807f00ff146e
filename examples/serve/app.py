"""The service: FastAPI around the model, with its counts and a monitor of its confidences."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

import calibrant as cb
from calibrant.monitor.checkpointing import metrics_text
from examples.serve.counters import Counters
from examples.serve.model import Model, Unusable

MOST_BYTES = 8 << 20


class Asked(BaseModel):
    """Rows to judge.

    With `ids`, outcomes can be told later, and the monitor learns whether confidences are honest.
    """

    inputs: Any = Field(description="A row of numbers, or a list of rows.")
    ids: list[str] | str | None = Field(None, description="A name for each row.")
    probs: bool = Field(False, description="Whether to return the probabilities of all classes.")


class Outcomes(BaseModel):
    """What turned out to be true of rows that were judged before."""

    ids: list[str]
    labels: list[int] = Field(description="The number of the true class of each.")


def make_app(model: Model, monitor: cb.Monitor | None = None) -> FastAPI:
    """Return the service around a model. Its paths: /predict, /outcomes, /health and /metrics."""
    app = FastAPI(title="A calibrated network", version=cb.__version__)
    counters, watched = Counters(), cb.Monitor() if monitor is None else monitor
    lock = Lock()

    @app.middleware("http")
    async def counted(
        request: Request, follow: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        started, path = time.perf_counter(), request.url.path
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            said = f"a request may hold {MOST_BYTES >> 20} MiB at most"
            response: Response = JSONResponse({"detail": said}, 413)
        else:
            response = await follow(request)
        known = path if path in ("/predict", "/outcomes", "/health", "/metrics") else "other"
        counters.request(known, response.status_code, time.perf_counter() - started)
        return response

    @app.exception_handler(RequestValidationError)
    async def not_understood(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        why = "the body must be JSON" if first["type"] == "json_invalid" else first["msg"].lower()
        return JSONResponse({"detail": f"{place}: {why}" if place else why}, 422)

    @app.exception_handler(Unusable)
    async def unusable(_: Request, error: Unusable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.post("/predict")
    def predict(asked: Asked) -> dict[str, Any]:
        rows = model.rows(asked.inputs)
        ids = [asked.ids] if isinstance(asked.ids, str) else asked.ids
        if ids is not None and len(ids) != len(rows):
            raise Unusable(f"there are {len(ids)} ids for {len(rows)} rows of inputs")
        found = model(rows)
        watch(ids, found)
        judged = [judgement(found, place, asked.probs) for place in range(len(rows))]
        single = not isinstance(asked.inputs[0], list)
        return {"prediction": judged[0]} if single else {"predictions": judged}

    def judgement(found: dict[str, np.ndarray], place: int, probs: bool) -> dict[str, Any]:
        confidence, label = float(found["confidence"][place]), int(found["label"][place])
        answered = confidence >= model.threshold
        counters.row(confidence, answered)
        said: dict[str, Any] = {
            "label": label,
            "name": model.names[label],
            "confidence": confidence,
            "answered": answered,
        }
        if "low" in found:
            said["interval"] = [float(found[end][place]) for end in ("low", "high")]
        if probs:
            said["probs"] = found["probs"][place].tolist()
        return said

    def watch(ids: list[str] | None, found: dict[str, np.ndarray]) -> None:
        confidence = found["confidence"].astype(np.float64)
        with lock:
            if ids is None:
                watched.update(confidence)
            else:
                watched.predict(ids, confidence, found["label"])

    @app.post("/outcomes")
    def outcomes(told: Outcomes) -> dict[str, Any]:
        if len(told.ids) != len(told.labels):
            raise Unusable(f"there are {len(told.ids)} ids for {len(told.labels)} labels")
        if not all(0 <= label < len(model.names) for label in told.labels):
            raise Unusable(f"labels must be numbers of classes, from 0 to {len(model.names) - 1}")
        with lock:
            watched.learn(told.ids, told.labels)
            return {"rows": watched.rows, "alarms": sorted(watched.alarms)}

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "method": model.said["method"],
            "calibrant": model.said["calibrant_version"],
            "classes": len(model.names),
            "threshold": model.threshold,
            "alarms": sorted(watched.alarms),
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        with lock:
            return counters.text() + metrics_text(watched)

    return app
