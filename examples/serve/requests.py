"""What a request may hold, and where it is read: bounded while it comes, checked field by field."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from examples.serve.counters import Counters
from examples.serve.model import Unusable

MOST_BYTES = 8 << 20
# Seconds within which a whole body has to be there.
BODY_SECONDS = 20.0
MOST_OUTCOMES = 10_000
PATHS = ("/predict", "/outcomes", "/health", "/metrics")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Id = Annotated[str, Field(min_length=1, max_length=128)]
Label = Annotated[int, Field(ge=0, lt=1 << 31)]
Body = TypeVar("Body", bound=BaseModel)


class Asked(BaseModel):
    """Rows to judge.

    With `ids`, outcomes can be told later, and the monitor learns whether confidences are honest.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    inputs: Any = Field(description="A row of numbers, or a list of rows.")
    ids: list[Id] | Id | None = Field(None, description="A name for each row.")
    probs: bool = Field(False, description="Whether to return the probabilities of all classes.")


class Outcomes(BaseModel):
    """What turned out to be true of rows that were judged before."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: list[Id] = Field(max_length=MOST_OUTCOMES)
    labels: list[Label] = Field(description="The number of the true class of each.")


async def body_of(kind: type[Body], request: Request) -> Body:
    """Return the body of a request.

    The parser takes no name without its other half of a surrogate pair, and no endless nesting.

    Raises:
        Unusable: it isn't such an object.
    """
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        why = "the body must be JSON" if first["type"] == "json_invalid" else first["msg"].lower()
        raise Unusable(f"{place}: {why}" if place else why) from error


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a body for the service's own page of documentation."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


class Bounded:
    """Reads each body before the service does, no further than a limit, and counts requests."""

    def __init__(self, app: Any, counters: Counters) -> None:
        self.app, self.counters = app, counters

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or pass on what is none."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            body = await self._body(scope, receive)
            if isinstance(body, bytes):
                await self.app(scope, _replay(body, receive), sent)
            else:
                await _refuse(sent, *body)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.counters.request(path, status, time.perf_counter() - started)

    async def _body(self, scope: Message, receive: Receive) -> bytes | tuple[int, str]:
        """Return the whole body, or with which status and sentence it is refused."""
        large = 413, f"a request may hold {MOST_BYTES >> 20} MiB at most"
        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if len(length) > 12 or not length.isdigit() or int(length) > MOST_BYTES:
            return large
        parts, size, until = list[bytes](), 0, time.monotonic() + BODY_SECONDS
        while True:
            try:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
            except TimeoutError:
                return 408, f"a request has to be there within {BODY_SECONDS:g} s"
            if message["type"] == "http.disconnect":
                return 400, "the request ended too early"
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MOST_BYTES:
                return large
            if not message.get("more_body"):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the service a body that was read already."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


async def _refuse(send: Send, status: int, sentence: str) -> None:
    content = b'{"detail":"%s"}' % sentence.encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),  # what is still coming in is read by nobody
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
