"""Carries decisions out: observe from memory, ask `reconcile`, create, write status, post events, come back later."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from gputraining_operator.api import API_VERSION, KIND, MANAGER, Json, Phase, Reason
from gputraining_operator.attempts import FormerJob, current_number
from gputraining_operator.capacity import ClusterCapacity
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.decision import CreateProblem, Observed, Plan
from gputraining_operator.events import EventToPost
from gputraining_operator.health import Health
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import parse_job, parse_pod
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.reconcile import reconcile
from gputraining_operator.spec import GpuTraining, parse_training
from gputraining_operator.store import Key, Listing, Store
from gputraining_operator.times import format_time
from gputraining_operator.workqueue import WorkQueue, backoff_seconds

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Findings:
    """What was found out about one training beyond the watches. Lost at a restart, and then found out anew.

    All but ``create_problem`` is about the job ``job_uid``.
    """

    job_uid: str | None = None
    records: dict[int, ProgressRecord] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    pull_problem: str | None = None
    create_problem: CreateProblem | None = None
    job_warning: str | None = None
    pod_warning: str | None = None

    def about(self, job_uid: str | None) -> Findings:
        """Itself, if it is about this job; else it begins anew."""
        if job_uid is not None and job_uid != self.job_uid:
            self.job_uid, self.records, self.health = job_uid, {}, Health()
            self.pull_problem = self.job_warning = self.pod_warning = None
        return self


class Controller:
    """Reconciles trainings: one at a time each, many at the same time."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        metrics: Metrics,
        trainer_image: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()
        self.store = store
        self.capacity: ClusterCapacity | None = None
        self.clock = clock
        self._cluster = cluster
        self._metrics = metrics
        self._trainer_image = trainer_image
        self._findings: dict[str, Findings] = {}
        metrics.watch(store, lambda: len(self.queue))

    def findings(self, training: GpuTraining) -> Findings:
        """The findings about a training, to read and to add to."""
        return self._findings.setdefault(training.uid, Findings())

    def observe(self, key: Key) -> Observed | None:
        """All facts about one training as they are known now; None when there is no such training."""
        training = self.store.training(key)
        if training is None:
            return None
        number = current_number(training.status)
        jobs = self.store.jobs(key)
        # Of two jobs of one attempt the one that is there counts, not the one that somebody deleted before.
        current = sorted((job for job in jobs if job.attempt == number), key=lambda job: not job.gone)
        job = current[-1] if current else None
        found = self.findings(training).about(job.uid if job else None)
        return Observed(
            training=training,
            job=job,
            pods=self.store.pods(key, job),
            former=tuple(FormerJob(old, self.store.pods(key, old)) for old in jobs if old.attempt < number),
            records=dict(found.records) if job else {},
            health=found.health,
            pull_problem=found.pull_problem,
            create_problem=found.create_problem,
            capacity=self.capacity,
            job_warning=found.job_warning,
            pod_warning=found.pod_warning,
        )

    def reconsider_all(self) -> None:
        """Look at every training anew, as after taking the lead: a former leader may have left anything half done."""
        for training in self.store.trainings():
            self.queue.add((training.namespace, training.name))

    async def resync(self) -> None:
        """Compare the memory with the API server: at start, and now and then in case a watch lost something.

        Raises:
            ApiError: a listing failed; nothing was changed.
        """
        trainings, trainings_version = await self._cluster.list_trainings()
        jobs, jobs_version = await self._cluster.list_jobs()
        pods, pods_version = await self._cluster.list_pods()
        changed = self.store.take_in(
            Listing(_parse_all(parse_training, trainings), trainings_version),
            Listing(_parse_all(parse_job, jobs), jobs_version),
            Listing(_parse_all(parse_pod, pods), pods_version),
        )
        for key in changed:
            self.queue.add(key)
        known = {training.uid for training in self.store.trainings()}
        for uid in set(self._findings) - known:
            del self._findings[uid]

    async def run_worker(self) -> None:
        """Work off the queue until cancelled. No failure ends it: each is logged, counted and tried again."""
        while True:
            key = await self.queue.get()
            try:
                with self._metrics.reconciles.time():
                    requeue_after = await self._reconcile(key)
                self.queue.succeeded(key)
                if requeue_after is not None:
                    self.queue.add_after(key, requeue_after)
            except ApiError as error:
                self._retry(key, error.retry_after)
                logger.info("%s/%s: %s; trying again", *key, error)
            except Exception:
                self._retry(key, None)
                logger.exception("%s/%s: reconcile failed; trying again", *key)
            finally:
                self.queue.done(key)

    def _retry(self, key: Key, seconds: float | None) -> None:
        self._metrics.reconcile_errors.inc()
        # Jitter keeps many trainings from coming back in step; it decides nothing.
        delay = backoff_seconds(self.queue.failed(key), random.random())
        self.queue.add_after(key, max(delay, seconds or 0))

    async def _reconcile(self, key: Key) -> float | None:
        observed = self.observe(key)
        if observed is None:
            return None
        plan = reconcile(observed, self._trainer_image, self.clock())
        problem: ApiError | None = None
        if plan.create is not None:
            problem = await self._create(observed.training, plan.create)
            observed = self.observe(key)
            if observed is None:
                return None
            plan = reconcile(observed, self._trainer_image, self.clock())
        await self._carry_out(observed, plan)
        if problem is not None and not _classify_create(problem).final:
            raise problem
        return plan.requeue_after

    async def _create(self, training: GpuTraining, body: Json) -> ApiError | None:
        """Create the PyTorchJob; returns the problem, after noting what it means for the user."""
        found = self.findings(training)
        try:
            job = parse_job(await self._cluster.create_job(body))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                found.create_problem = _classify_create(error)
                return error
            job = parse_job(await self._cluster.get_job(training.namespace, body["metadata"]["name"]))
            if job.owner_uid != training.uid or job.deleting:
                found.create_problem = _name_taken(job.name, leaving=job.deleting)
                return error
        found.create_problem = None
        self._metrics.attempts.inc()
        self.store.put_job(job)
        return None

    async def _carry_out(self, observed: Observed, plan: Plan) -> None:
        training = observed.training
        if plan.delete_training:
            await self._cluster.delete_training(training.namespace, training.name, training.uid)
            logger.info("%s/%s: deleted, its time after the end is over", training.namespace, training.name)
            return
        if plan.status is not None and not await self._write_status(training, plan):
            return
        for job in plan.delete_jobs:
            await self._cluster.delete_job(job.namespace, job.name, job.uid, foreground=True)
            logger.info("%s/%s: PyTorchJob %s deleted", training.namespace, training.name, job.name)
        for event in plan.events:
            attempt = (plan.status or training.status).get("attempt", 0)
            await self._post(training, event, attempt)

    async def _write_status(self, training: GpuTraining, plan: Plan) -> bool:
        """Write the status that was decided; tells whether the training still exists."""
        assert plan.status is not None
        try:
            version = training.resource_version
            body = await self._cluster.apply_status(training.namespace, training.name, version, plan.status)
        except ApiError as error:
            if error.status == 404:
                self.store.drop_training((training.namespace, training.name), training.uid)
                return False
            raise
        self.store.put_training(parse_training(body))
        self._metrics.status_writes.inc()
        if plan.failed_attempt is not None:
            self._metrics.attempt_failures.labels(plan.failed_attempt).inc()
        if plan.status["phase"] == Phase.FAILED:
            reason = next(c["reason"] for c in plan.status["conditions"] if c["type"] == "Failed")
            self._metrics.failures.labels(reason).inc()
        return True

    async def _post(self, training: GpuTraining, event: EventToPost, attempt: int) -> None:
        logger.info("%s/%s: %s: %s", training.namespace, training.name, event.reason, event.message)
        try:
            await self._cluster.create_event(training.namespace, render_event(training, event, attempt, self.clock()))
        except ApiError as error:
            # The status says the same; an event is never worth a second reconcile.
            logger.warning("%s/%s: event %s not posted: %s", training.namespace, training.name, event.reason, error)


def render_event(training: GpuTraining, event: EventToPost, attempt: int, now: datetime) -> Json:
    """The Kubernetes event; its name follows from what it says, so the same one is not posted twice in one attempt."""
    digest = hashlib.sha256(f"{training.uid}/{attempt}/{event.reason}/{event.message}".encode()).hexdigest()[:16]
    time = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{training.name}.{digest}", "namespace": training.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": training.namespace,
            "name": training.name,
            "uid": training.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
    }


def _parse_all(parse: Callable[[Json], T], bodies: list[Json]) -> list[T]:
    """Parse what can be parsed: one odd object must not hide all the others."""
    parsed = []
    for body in bodies:
        try:
            parsed.append(parse(body))
        except Exception:
            meta = body.get("metadata") or {}
            logger.exception("%s/%s: not understood, left out", meta.get("namespace"), meta.get("name"))
    return parsed


def _classify_create(error: ApiError) -> CreateProblem:
    if error.reason == "AlreadyExists":
        return CreateProblem(Reason.NAME_TAKEN, error.message)
    if error.status == 404 and "namespaces" not in error.message:
        return CreateProblem(
            Reason.TRAINING_OPERATOR_MISSING,
            "training-operator is not installed: the kind PyTorchJob is unknown to this cluster; "
            "install the Kubeflow training-operator 1.9 (the training starts by itself then)",
        )
    if "failed calling webhook" in error.message:
        return CreateProblem(
            Reason.WEBHOOK_UNAVAILABLE, "the training-operator's webhook does not answer yet; trying again"
        )
    if error.status in (400, 422):
        return CreateProblem(Reason.REJECTED, f"the PyTorchJob was refused: {error.message}", final=True)
    return CreateProblem(Reason.API_UNAVAILABLE, f"the PyTorchJob could not be created, trying again: {error.message}")


def _name_taken(name: str, *, leaving: bool) -> CreateProblem:
    if leaving:
        return CreateProblem(Reason.NAME_TAKEN, f"waiting until the former PyTorchJob {name} is deleted")
    return CreateProblem(
        Reason.NAME_TAKEN,
        f"a PyTorchJob {name} exists that is not this training's; delete it, or apply this training under another name",
    )


async def run_workers(controller: Controller, count: int) -> None:
    """Run so many workers until cancelled."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(controller.run_worker())
