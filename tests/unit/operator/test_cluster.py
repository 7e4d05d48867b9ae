"""The client's answer to an API server that refuses, breaks off, or talks nonsense: always one `ApiError`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from gputraining_operator.cluster import ApiError, Cluster

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def api_server_that(answers: Handler) -> AsyncIterator[Cluster]:
    """A client of a server on this machine that answers every request the same."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    cluster = Cluster(ApiClient(configuration=configuration))
    try:
        yield cluster
    finally:
        await cluster.close()
        await runner.cleanup()


async def error_from(answers: Handler) -> ApiError:
    async with api_server_that(answers) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.list_nodes()
    return caught.value


async def test_too_many_requests_name_a_time_to_wait() -> None:
    async def answer(request: web.Request) -> web.Response:
        status = {"kind": "Status", "reason": "TooManyRequests", "message": "slow down"}
        return web.json_response(status, status=429, headers={"Retry-After": "7"})

    error = await error_from(answer)
    assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)


@pytest.mark.parametrize("body", ["<html>bad gateway</html>", '["no", "Status"]', ""])
async def test_an_answer_that_is_no_status_is_still_an_error(body: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=502, text=body)

    error = await error_from(answer)
    assert (error.status, error.reason) == (502, "Unknown")


async def test_a_connection_cut_in_the_middle_of_an_answer() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"items": [')
        assert request.transport is not None
        request.transport.close()
        return response

    error = await error_from(answer)
    assert error.status == 0
    assert str(error).startswith("the API server cannot be reached")


async def test_half_an_answer_is_no_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text='{"items": [')

    assert (await error_from(answer)).status == 0


async def test_an_unknown_kind_of_job_means_no_jobs() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    async with api_server_that(answer) as cluster:
        assert await cluster.list_jobs() == ([], 0)
