"""The one background loop: pulls progress when it is due, finds out why trainings wait, compares memory and cluster.

A replica that does not lead only compares memory and cluster, so that it can take over at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Final

from gputraining_operator.api import TERMINAL_PHASES
from gputraining_operator.capacity import parse_capacity
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller, Findings
from gputraining_operator.decision import Observed
from gputraining_operator.health import follow
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.pull import NothingListensError, Puller, PullError
from gputraining_operator.reconcile import needs_diagnosis, needs_pull
from gputraining_operator.spec import Spec
from gputraining_operator.store import Key
from gputraining_operator.waiting import is_stuck

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
DIAGNOSIS_SECONDS: Final = 10.0
"""How often nodes, other pods and events are looked up while something waits; once for all trainings."""
DIAGNOSIS_CONCURRENCY: Final = 8
"""How many requests for events are in flight at the same time."""
PULLED_ON_CPU: Final = 64
"""How many workers of one training without GPUs are asked: enough to find one that is slow."""


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
        on_new_kind: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._cluster = cluster
        self._puller = puller
        self._metrics = metrics
        self._resync_seconds = resync_seconds
        self._sees_nodes = sees_nodes
        self._on_new_kind = on_new_kind
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
        if self._metrics.leads():
            self._look_after_trainings(now)
        self.last_tick = now

    def _look_after_trainings(self, now: float) -> None:
        waiting: list[Observed] = []
        pulled: set[Key] = set()
        for training in self._controller.store.trainings():
            if training.status.get("phase") in TERMINAL_PHASES:
                continue
            key = (training.namespace, training.name)
            observed = self._controller.observe(key)
            if observed is None:
                continue
            if needs_diagnosis(observed, self._controller.clock()):
                waiting.append(observed)
            else:
                found = self._controller.findings(training)
                found.job_warning = found.pod_warning = None
            if needs_pull(observed):
                pulled.add(key)
                # The first pull comes at once; after that the beat is kept.
                due = self._next_pull.setdefault(key, now)
                if now >= due and self._start(key, self._pull(observed)):
                    self._next_pull[key] = max(due + training.spec.monitoring.interval_seconds, now)
        for key in self._next_pull.keys() - pulled:
            del self._next_pull[key]
        if waiting and now >= self._next_diagnosis and self._start("diagnosis", self._diagnose(waiting)):
            self._next_diagnosis = now + DIAGNOSIS_SECONDS
        if not waiting:
            self._controller.capacity = None

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
        knew_jobs = self._cluster.serves_jobs
        try:
            await self._controller.resync()
        except ApiError as error:
            logger.info("resync: %s; trying again", error)
        if self._on_new_kind and self._cluster.serves_jobs and not knew_jobs:
            self._on_new_kind()

    async def _pull(self, observed: Observed) -> None:
        training = observed.training
        pods = pods_to_pull(observed)
        answers = await asyncio.gather(*(self._pull_pod(training.spec, pod) for pod in pods))
        found = self._controller.findings(training)
        if not _still_about(found, observed):
            return
        for pod, answer in zip(pods, answers, strict=True):
            if isinstance(answer, ProgressRecord):
                found.records[pod.rank] = answer
        silent = [(pod, answer) for pod, answer in zip(pods, answers, strict=True) if isinstance(answer, str)]
        found.pull_problem = f"worker {silent[0][0].rank}: {silent[0][1]}" if silent else None
        found.health = follow(found.health, training.spec, found.records, self._controller.clock())
        self._controller.queue.add((training.namespace, training.name))

    async def _pull_pod(self, spec: Spec, pod: PodView) -> ProgressRecord | str:
        with self._metrics.pulls.time():
            try:
                return await self._puller.pull(pod)
            except PullError as error:
                # A script of one's own need not report anything.
                if spec.training or not isinstance(error, NothingListensError):
                    self._metrics.pull_failures.inc()
                return str(error)

    async def _diagnose(self, waiting: list[Observed]) -> None:
        """Look up what makes the messages better; without it the scheduler's own words are shown."""
        if self._sees_nodes and any(pod.unschedulable for observed in waiting for pod in observed.pods):
            try:
                nodes, pods = await asyncio.gather(self._cluster.list_nodes(), self._cluster.list_running_pods())
                self._controller.capacity = parse_capacity(nodes, pods)
            except ApiError as error:
                logger.info("diagnosis: nodes: %s", error)
            except Exception:
                logger.exception("diagnosis: nodes: failed")
        slots = asyncio.Semaphore(DIAGNOSIS_CONCURRENCY)
        await asyncio.gather(*(self._diagnose_one(observed, slots) for observed in waiting))

    async def _diagnose_one(self, observed: Observed, slots: asyncio.Semaphore) -> None:
        key = (observed.training.namespace, observed.training.name)
        async with slots:
            try:
                await self._look_up_events(observed)
            except ApiError as error:
                logger.info("diagnosis: %s/%s: %s", *key, error)
            except Exception:
                logger.exception("diagnosis: %s/%s: failed", *key)
        self._controller.queue.add(key)

    async def _look_up_events(self, observed: Observed) -> None:
        training, job = observed.training, observed.job
        if job is None:
            return
        pods = [pod for pod in observed.pods if not pod.gone]
        stuck = next((pod for pod in pods if is_stuck(pod, self._controller.clock())), None)
        job_warning = pod_warning = None
        if len(pods) < training.spec.workers:
            job_warning = await self._cluster.latest_warning(job.namespace, job.uid)
        if stuck is not None:
            pod_warning = await self._cluster.latest_pod_warning(stuck.namespace, stuck.uid)
        found = self._controller.findings(training)
        if _still_about(found, observed):
            found.job_warning, found.pod_warning = job_warning, pod_warning


def _still_about(found: Findings, observed: Observed) -> bool:
    """Whether what was asked for is still the job that counts; the next attempt may have begun meanwhile."""
    return observed.job is not None and found.job_uid == observed.job.uid


def pods_to_pull(observed: Observed) -> list[PodView]:
    """Which pods to ask: all that have GPUs or run the built-in trainer, else the one that speaks for the job."""
    running = [pod for pod in observed.pods if pod.running and pod.ip]
    spec = observed.training.spec
    if spec.gpus_per_worker:
        return running
    return running[: PULLED_ON_CPU if spec.training else 1]
