"""The service: FastAPI around the model, with its counts and a monitor of its confidences."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse

import calibrant as cb
from calibrant.monitor.checkpointing import alarm_line, metrics_text
from calibrant.monitor.sequential_tests import Alarm
from examples.serve.counters import Counters
from examples.serve.model import Model, Unusable
from examples.serve.requests import Asked, Bounded, Outcomes, body_of, schema_of


def make_app(
    model: Model,
    monitor: cb.Monitor | None = None,
    state: Path | None = None,
    save_seconds: float = 30.0,
) -> FastAPI:
    """Return the service around a model. Its paths: /predict, /outcomes, /health and /metrics.

    Args:
        model: what is served.
        monitor: watches its confidences; a new one unless given.
        state: where the monitor's state is written, every `save_seconds` and when the service ends
            in good order. Requests wait meanwhile, 0.2 s where 100 000 rows wait for their outcome.
        save_seconds: see above.
    """
    counters, watched = Counters(), cb.Monitor() if monitor is None else monitor
    lock = Lock()

    def save() -> None:
        if state is None:
            return
        try:
            with lock:
                watched.save(state)
        except cb.CalibrantError as error:  # no room: the service goes on
            print(f"error: {error}", file=sys.stderr, flush=True)

    async def keep() -> None:
        while True:
            await asyncio.sleep(save_seconds)
            await run_in_threadpool(save)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        keeping = asyncio.create_task(keep())
        yield
        keeping.cancel()
        save()

    def tell(alarms: Iterable[Alarm]) -> None:
        """Write a line of JSON for each alarm, as `calibrant monitor` does."""
        for alarm in alarms:
            print(alarm_line(alarm, watched), file=sys.stderr, flush=True)

    app = FastAPI(title="A calibrated network", version=cb.__version__, lifespan=life)
    app.add_middleware(Bounded, counters=counters)

    @app.exception_handler(Unusable)
    async def unusable(_: Request, error: Unusable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.post("/predict", openapi_extra=schema_of(Asked))
    async def predict(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(judge, await body_of(Asked, request))

    def judge(asked: Asked) -> dict[str, Any]:
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
                tell(watched.predict(ids, confidence, found["label"], times=time.time()))

    @app.post("/outcomes", openapi_extra=schema_of(Outcomes))
    async def outcomes(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(learn, await body_of(Outcomes, request))

    def learn(told: Outcomes) -> dict[str, Any]:
        if len(told.ids) != len(told.labels):
            raise Unusable(f"there are {len(told.ids)} ids for {len(told.labels)} labels")
        if not all(0 <= label < len(model.names) for label in told.labels):
            raise Unusable(f"labels must be numbers of classes, from 0 to {len(model.names) - 1}")
        with lock:
            tell(watched.learn(told.ids, told.labels))
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
