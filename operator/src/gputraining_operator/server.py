"""The operator's own HTTP port: /metrics for Prometheus, /healthz and /readyz for the kubelet."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


async def start_server(
    port: int, registry: CollectorRegistry, healthy: Callable[[], bool], ready: Callable[[], bool]
) -> web.AppRunner:
    """Start serving on all addresses; the caller cleans the runner up.

    Raises:
        OSError: the port is taken.
    """

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def probe(check: Callable[[], bool]) -> Callable[[web.Request], object]:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="ok\n") if check() else web.Response(text="not ok\n", status=503)

        return answer

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", probe(healthy))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
