"""HEAD is GET without a body: the same status, the same headers, and no work after them."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware: routes see GET, the client gets the head of the answer.

    Once the head is out, the route hears that the client is gone, so that an export stops streaming.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        answered = asyncio.Event()
        asked = False

        async def receive_until_answered() -> Message:
            nonlocal asked
            if not asked:
                asked = True
                return await receive()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        inner = dict(scope, method="GET")
        try:
            await self.app(inner, receive_until_answered, send_head)
        finally:
            if "route" in inner:  # the metrics around this want to know which it was
                scope["route"] = inner["route"]
