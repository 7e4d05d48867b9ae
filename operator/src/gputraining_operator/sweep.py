"""The one background loop: pulls progress when it is due, finds out why trainings wait, compares memory and cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Final

from gputraining_operator.api import TERMINAL_PHASES
from gputraining_operator.capacity import parse_capacity
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.pull import Puller, PullError
from gputraining_operator.reconcile import Observed, needs_diagnosis, needs_pull
from gputraining_operator.store import Key

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
DIAGNOSIS_SECONDS: Final = 10.0
"""How often nodes, other pods and events are looked up while something waits; once for all trainings."""


class Sweep:
    """Walks over all trainings twice a second and starts what is due. Nothing here blocks the loop."""

    def __init__(
        self,
        controller: Controller,
        cluster: Cluster,
        puller: Puller,
        metrics: Metrics,
        resync_seconds: float,
        *,
        sees_nodes: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._cluster = cluster
        self._puller = puller
        self._metrics = metrics
        self._resync_seconds = resync_seconds
        self._sees_nodes = sees_nodes
        self._monotonic = monotonic
        self._next_pull: dict[Key, float] = {}
        self._next_diagnosis = 0.0
        self._next_resync = monotonic() + resync_seconds
        self._tasks: dict[str | Key, asyncio.Task[None]] = {}
        self.last_tick = monotonic()

    async def run(self) -> None:
        """Sweep until cancelled."""
        try:
            while True:
                try:
                    self.tick()
                except Exception:
                    # Not the end of the sweep: the next one may do; if none does, the liveness probe tells.
                    logger.exception("sweep: failed; trying again")
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()

    @property
    def seconds_since_tick(self) -> float:
        """Age of the last sweep in seconds: the operator is healthy while this is small."""
        return self._monotonic() - self.last_tick

    def tick(self) -> None:
        """Start what is due now."""
        now = self._monotonic()
        if now >= self._next_resync and self._start("resync", self._resync()):
            self._next_resync = now + self._resync_seconds
        waiting: list[Observed] = []
        pulled: set[Key] = set()
        for training in self._controller.store.trainings():
            if training.status.get("phase") in TERMINAL_PHASES:
                continue
            key = (training.namespace, training.name)
            observed = self._controller.observe(key)
            if observed is None:
                continue
            if needs_diagnosis(observed):
                waiting.append(observed)
            if needs_pull(observed):
                pulled.add(key)
                # The first pull comes at once; after that the beat is kept.
                due = self._next_pull.setdefault(key, now)
                if now >= due and self._start(key, self._pull(observed)):
                    self._next_pull[key] = max(due + training.spec.progress_interval_seconds, now)
        for key in self._next_pull.keys() - pulled:
            del self._next_pull[key]
        if waiting and now >= self._next_diagnosis and self._start("diagnosis", self._diagnose(waiting)):
            self._next_diagnosis = now + DIAGNOSIS_SECONDS
        if not waiting:
            self._controller.capacity = None
        self.last_tick = now

    def _start(self, name: str | Key, work: Coroutine[None, None, None]) -> bool:
        """Start a piece of work unless the former one of that name still runs."""
        running = self._tasks.get(name)
        if running is not None and not running.done():
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._finished(name, done))
        self._tasks[name] = task
        return True

    def _finished(self, name: str | Key, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("sweep: %s failed", name, exc_info=error)

    async def _resync(self) -> None:
        try:
            await self._controller.resync()
        except ApiError as error:
            logger.info("resync: %s; trying again", error)

    async def _pull(self, observed: Observed) -> None:
        training = observed.training
        pods = pods_to_pull(observed)
        answers = await asyncio.gather(*(self._pull_pod(pod) for pod in pods))
        found = self._controller.findings(training)
        for pod, answer in zip(pods, answers, strict=True):
            if isinstance(answer, ProgressRecord):
                found.records[pod.rank] = answer
        silent = [(pod, answer) for pod, answer in zip(pods, answers, strict=True) if isinstance(answer, str)]
        found.pull_problem = f"worker {silent[0][0].rank}: {silent[0][1]}" if silent else None
        self._controller.queue.add((training.namespace, training.name))

    async def _pull_pod(self, pod: PodView) -> ProgressRecord | str:
        with self._metrics.pulls.time():
            try:
                return await self._puller.pull(pod)
            except PullError as error:
                self._metrics.pull_failures.inc()
                return str(error)

    async def _diagnose(self, waiting: list[Observed]) -> None:
        try:
            if self._sees_nodes and any(pod.unschedulable for observed in waiting for pod in observed.pods):
                nodes, pods = await asyncio.gather(self._cluster.list_nodes(), self._cluster.list_running_pods())
                self._controller.capacity = parse_capacity(nodes, pods)
            for observed in waiting:
                if observed.job and len(observed.pods) < observed.training.spec.workers:
                    found = self._controller.findings(observed.training)
                    found.job_warning = await self._cluster.latest_warning(observed.job.namespace, observed.job.uid)
        except ApiError as error:
            # It only makes the message better; without it the scheduler's own words are shown.
            logger.info("diagnosis: %s", error)
        for observed in waiting:
            self._controller.queue.add((observed.training.namespace, observed.training.name))


def pods_to_pull(observed: Observed) -> list[PodView]:
    """Which pods to ask: all that have GPUs, else the one that speaks for the job."""
    running = [pod for pod in observed.pods if pod.running and pod.ip]
    return running if observed.training.spec.gpus_per_worker else running[:1]
