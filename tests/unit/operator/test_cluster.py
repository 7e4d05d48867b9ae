"""The client's answer to an API server that refuses, breaks off, or talks nonsense: always one `ApiError`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from gputraining_operator.api import Json
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


async def test_an_unknown_kind_of_job_means_no_jobs_until_it_is_known() -> None:
    known = False

    async def answer(request: web.Request) -> web.Response:
        if not known:
            return web.Response(status=404, text="404 page not found")
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})

    async with api_server_that(answer) as cluster:
        assert await cluster.list_jobs() == ([], 0)
        assert not cluster.serves_jobs
        known = True
        assert await cluster.list_jobs() == ([], 7)
        assert cluster.serves_jobs


async def test_a_replica_that_does_not_lead_reads_and_takes_part_in_the_election_but_changes_nothing() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(f"{request.method} {request.path.rsplit('/', 1)[-1]}")
        return web.json_response({"metadata": {}, "items": []})

    body: Json = {"metadata": {"namespace": "a", "name": "x"}}
    async with api_server_that(answer) as cluster:
        cluster.may_write = lambda: False
        for write in (
            cluster.create_job(body),
            cluster.delete_job("a", "x", "uid", foreground=True),
            cluster.delete_training("a", "x", "uid"),
            cluster.apply_status("a", "x", 1, {}),
            cluster.create_event("a", body),
        ):
            with pytest.raises(ApiError, match="another replica leads") as caught:
                await write
            assert caught.value.reason == "NotLeading"
        assert seen == []
        await cluster.list_nodes()
        await cluster.create_lease(body)
        await cluster.update_lease(body)
    assert seen == ["GET nodes", "POST leases", "PUT x"]


@pytest.mark.parametrize(("foreground", "policy"), [(True, "Foreground"), (False, "Background")])
async def test_how_a_job_is_deleted(foreground: bool, policy: str) -> None:
    bodies: list[Json] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({})

    async with api_server_that(answer) as cluster:
        await cluster.delete_job("a", "x", "uid", foreground=foreground)
    assert (bodies[0]["propagationPolicy"], bodies[0]["preconditions"]) == (policy, {"uid": "uid"})


def events(*told: tuple[str, str, str]) -> Handler:
    """An API server that has these events: time, reason, message."""
    items = [
        {"metadata": {"resourceVersion": str(i), "creationTimestamp": "t0"}, "lastTimestamp": time, "reason": reason,
         "message": message}
        for i, (time, reason, message) in enumerate(told)
    ]  # fmt: skip

    async def answer(request: web.Request) -> web.Response:
        assert request.query["fieldSelector"] == "involvedObject.uid=uid"
        return web.json_response({"metadata": {}, "items": items})

    return answer


async def test_only_what_keeps_pods_from_being_made_is_told_of_a_job() -> None:
    told = events(("t2", "FailedCreatePod", "quota"), ("t1", "FailedCreateService", "old"), ("t3", "Other", "noise"))
    async with api_server_that(told) as cluster:
        assert await cluster.latest_warning("a", "uid") == "quota"
    async with api_server_that(events(("t3", "PyTorchJobRestarting", "noise"))) as cluster:
        assert await cluster.latest_warning("a", "uid") is None


async def test_a_volume_that_cannot_be_mounted_is_told_of_a_pod_until_it_gets_further() -> None:
    failed = ("t2", "FailedMount", 'configmap "x" not found')
    async with api_server_that(events(("t1", "Scheduled", "on node"), failed)) as cluster:
        assert await cluster.latest_pod_warning("a", "uid") == 'configmap "x" not found'
    async with api_server_that(events(failed, ("t2", "Pulling", "image"))) as cluster:
        assert await cluster.latest_pod_warning("a", "uid") is None
    async with api_server_that(events()) as cluster:
        assert await cluster.latest_pod_warning("a", "uid") is None
