"""Pulling from a real HTTP server: what a pod may do wrong is bounded and told."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from gputraining_operator import pull
from gputraining_operator.progress import MAX_BODY_BYTES
from gputraining_operator.pull import NothingListensError, Puller, PullError
from tests.unit.operator.builders import running_pod

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RECORD = {"version": 1, "state": "Training", "time": "2026-11-21T10:00:00Z", "step": 7}


@asynccontextmanager
async def pod_that_answers(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A server on this machine in the place of a pod."""
    app = web.Application()
    app.router.add_get("/progress", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(pull, "PROGRESS_PORT", runner.addresses[0][1])
    try:
        yield
    finally:
        await runner.cleanup()


POD = replace(running_pod(0), ip="127.0.0.1")


async def problem_with(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> str:
    async with pod_that_answers(handler, monkeypatch), Puller(4) as puller:
        with pytest.raises(PullError) as caught:
            await puller.pull(POD)
    return str(caught.value)


async def test_a_record_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(RECORD)

    async with pod_that_answers(answer, monkeypatch), Puller(4) as puller:
        assert (await puller.pull(POD)).step == 7


async def test_an_error_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500, text="no")

    assert await problem_with(answer, monkeypatch) == "its progress port answers 500"


async def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1/elsewhere")

    assert await problem_with(answer, monkeypatch) == "its progress port answers 302"


async def test_an_endless_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * 65536)
        return response

    assert await problem_with(answer, monkeypatch) == f"its progress is larger than {MAX_BODY_BYTES} bytes"


async def test_a_packed_body_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        bomb = gzip.compress(b" " * 10_000_000)
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    assert await problem_with(answer, monkeypatch) == "its progress is packed (gzip); it must be plain JSON"
    assert asked == ["identity"]


async def test_garbage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(RECORD | {"step": "many"}))

    assert "its progress is not understood: step: must be a whole number" in await problem_with(answer, monkeypatch)


async def test_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    released = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    monkeypatch.setattr(pull, "_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    async with pod_that_answers(answer, monkeypatch), Puller(4) as puller:
        with pytest.raises(PullError, match="does not answer"):
            await puller.pull(POD)
        released.set()


async def test_nothing_listens(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setattr(pull, "PROGRESS_PORT", unused_tcp_port)
    async with Puller(4) as puller:
        with pytest.raises(NothingListensError, match=f"nothing listens on port {unused_tcp_port}"):
            await puller.pull(POD)
