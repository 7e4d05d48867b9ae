"""kopf's side: watches feed the store and trigger a reconcile; start and stop of everything that runs beside them.

Only raw events are used, for all kinds: no finalizers, no annotations on anybody's objects, no diffing. Owner
references collect the garbage, also while the operator is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import kopf

from gputraining_operator.api import (
    GROUP,
    JOB_GROUP,
    JOB_PLURAL,
    JOB_VERSION,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGER,
    PLURAL,
    VERSION,
)
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller, run_workers
from gputraining_operator.lease import Election
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import parse_job, parse_pod
from gputraining_operator.pull import Puller
from gputraining_operator.server import start_server
from gputraining_operator.settings import Settings
from gputraining_operator.spec import parse_training
from gputraining_operator.store import Store
from gputraining_operator.sweep import Sweep

logger = logging.getLogger(__name__)

STALE_SWEEP_SECONDS: Final = 30.0


class _ForEver:
    """Backoffs that never run out: an API server that is away for an hour is no reason to exit."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1, 2, 3, 5)
        while True:
            yield 10


class Operator:
    """Everything that lives as long as the process.

    Attributes:
        restart: set when the process has to end and start anew.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = Store()
        self.restart = asyncio.Event()
        self._stack = AsyncExitStack()
        self._controller: Controller | None = None
        self._election: Election | None = None

    @property
    def controller(self) -> Controller:
        """The controller, once started."""
        assert self._controller is not None, "kopf calls no handler before start-up is over"
        return self._controller

    async def start(self) -> None:
        """Fill the store, start the HTTP port and the sweep, and take part in the election."""
        settings, stack = self.settings, self._stack
        cluster = await Cluster.connect(settings.watch_namespaces, self.metrics.observe_request)
        stack.push_async_callback(cluster.close)
        puller = await stack.enter_async_context(Puller(settings.pull_concurrency))
        controller = self._controller = Controller(cluster, self.store, self.metrics, settings.trainer_image)
        stack.callback(controller.queue.close)
        new_election = None
        if settings.leader_election:
            new_election = partial(Election, cluster, settings.lease_namespace, settings.lease_name, settings.identity)
            cluster.may_write = self.metrics.leads = lambda: self._election is not None and self._election.leads()
        namespaced = bool(settings.watch_namespaces)
        sweep = Sweep(
            controller,
            cluster,
            puller,
            self.metrics,
            settings.resync_seconds,
            # A namespaced installation has no right to see nodes and other people's pods.
            sees_nodes=not namespaced,
            # Nor to watch for new kinds: kopf knows those that were there when it started.
            on_new_kind=(lambda: self.ask_for_restart("the PyTorchJob kind is new")) if namespaced else None,
        )
        synced = False
        runner = await start_server(
            settings.metrics_port,
            self.metrics.registry,
            healthy=lambda: (
                not self.restart.is_set() and (not synced or sweep.seconds_since_tick < STALE_SWEEP_SECONDS)
            ),
            ready=lambda: synced,
        )
        stack.push_async_callback(runner.cleanup)
        for delay in _ForEver():
            try:
                await controller.resync()
                break
            except ApiError as error:
                logger.warning("start: %s; trying again in %.0f s", error, delay)
                await asyncio.sleep(delay)
        synced = True
        self._spawn(sweep.run())
        self._spawn(self._work(controller, new_election))
        logger.info("watching %s", ", ".join(settings.watch_namespaces) or "all namespaces")

    async def _work(self, controller: Controller, new_election: Callable[[], Election] | None) -> None:
        """Reconcile while this replica leads. One that has lost its lead stands by again: what it was about to do is
        decided anew, by whoever leads then."""
        if new_election is None:
            return await run_workers(controller, self.settings.reconcile_workers)
        while True:
            election = self._election = new_election()
            await election.acquire()
            controller.reconsider_all()
            workers = asyncio.create_task(run_workers(controller, self.settings.reconcile_workers))
            try:
                await election.keep()
            finally:
                workers.cancel()
                await asyncio.gather(workers, return_exceptions=True)
                await election.release()

    def ask_for_restart(self, why: str) -> None:
        """Stop the process in good order; the kubelet starts it anew."""
        logger.error("%s; exiting for a restart", why)
        self.restart.set()

    async def stop(self) -> None:
        """Stop all of it, in reverse order."""
        await self._stack.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(cancel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)
            self.ask_for_restart("it cannot go on")


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """Bind the operator to kopf's registry."""

    # A failed start ends the process, and the kubelet starts it anew: a second try beside the first one's remains
    # would find its own port taken.
    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        try:
            await operator.start()
        except BaseException:
            await operator.stop()  # kopf does not clean up after a start that failed
            raise

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await operator.stop()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def on_training(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 (kopf names it)
        training = parse_training(dict(body))
        key = (training.namespace, training.name)
        if type == "DELETED":
            operator.store.drop_training(key, training.uid)
        else:
            operator.store.put_training(training)
        operator.controller.queue.add(key)

    @kopf.on.event(JOB_GROUP, JOB_VERSION, JOB_PLURAL, registry=registry)
    async def on_job(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        job = parse_job(dict(body))
        key = operator.store.drop_job(job) if type == "DELETED" else operator.store.put_job(job)
        operator.controller.queue.add(key)

    @kopf.on.event("", "v1", "pods", labels={LABEL_NAME: kopf.PRESENT}, registry=registry)
    async def on_pod(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        pod = parse_pod(dict(body))
        key = operator.store.drop_pod(pod) if type == "DELETED" else operator.store.put_pod(pod)
        operator.controller.queue.add(key)


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf's own settings, each with its reason in docs/design.md §6."""
    ours = f"{LABEL_MANAGED_BY}={MANAGER}"
    settings.watching.label_selectors["v1", "pods"] = ours
    settings.watching.label_selectors[JOB_GROUP, JOB_VERSION, JOB_PLURAL] = ours
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = 500
    settings.networking.error_backoffs = _ForEver()
    settings.posting.enabled = False
