"""The sweep: who is pulled when, and when the cluster is asked why something waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.pull import Puller, PullError
from gputraining_operator.reconcile import Observed
from gputraining_operator.store import Store
from gputraining_operator.sweep import DIAGNOSIS_SECONDS, Sweep, pods_to_pull
from tests.unit.operator.builders import START, at, job, running_pod, starting_pod, training, unschedulable_pod

KEY = ("team-a", "digits")
SPEC: Json = {"workers": 2, "gpusPerWorker": 0, "training": {}, "monitoring": {"intervalSeconds": 10}}


class PlayedPods(Puller):
    """Pods that answer with a record, or with a problem."""

    def __init__(self) -> None:
        super().__init__(concurrency=4)
        self.asked: list[int] = []
        self.problem: str | None = None

    async def pull(self, pod: PodView) -> ProgressRecord:
        self.asked.append(pod.rank)
        if self.problem:
            raise PullError(self.problem)
        return ProgressRecord("Training", START, rank=pod.rank, step=len(self.asked))


class PlayedCluster(Cluster):
    """A cluster with no nodes that has a warning for every job."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def list_nodes(self) -> list[Json]:
        self.calls.append("nodes")
        return []

    async def list_running_pods(self) -> list[Json]:
        return []

    async def latest_warning(self, namespace: str, uid: str) -> str | None:
        self.calls.append("events")
        return "refused"

    async def list_trainings(self) -> tuple[list[Json], int]:
        self.calls.append("resync")
        raise ApiError(0, "Unreachable", "away")


class Scene:
    """A sweep over one training, with a clock that the test moves."""

    def __init__(self, spec: Json, pods: tuple[PodView, ...]) -> None:
        self.now = 1000.0
        self.pods, self.cluster = PlayedPods(), PlayedCluster()
        metrics = Metrics()
        self.controller = Controller(self.cluster, Store(), metrics, "x", clock=lambda: at(1))
        self.controller.store.put_training(training(spec))
        self.controller.store.put_job(job())
        for pod in pods:
            self.controller.store.put_pod(pod)
        self.sweep = Sweep(
            self.controller, self.cluster, self.pods, metrics, 60, sees_nodes=True, monotonic=lambda: self.now
        )

    async def tick(self, seconds: float = 0) -> None:
        """Lets time pass, sweeps, and lets what was started end."""
        self.now += seconds
        self.sweep.tick()
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def scene(*pods: PodView, **spec: Any) -> AsyncIterator[Scene]:
    set_up = Scene(SPEC | spec, pods)
    yield set_up
    set_up.controller.queue.close()


async def test_progress_is_pulled_at_once_and_then_at_its_interval() -> None:
    async with scene(running_pod(0), running_pod(1)) as s:
        await s.tick()
        assert s.pods.asked == [0]
        await s.tick(9.9)
        assert s.pods.asked == [0]
        await s.tick(0.2)
        assert s.pods.asked == [0, 0]
        assert s.controller.findings(training(SPEC)).records[0].step == 2
        assert len(s.controller.queue) == 1


async def test_a_pod_that_does_not_answer_is_a_finding() -> None:
    async with scene(running_pod(0), running_pod(1)) as s:
        s.pods.problem = "nothing listens on port 9400"
        await s.tick()
        assert s.controller.findings(training(SPEC)).pull_problem == "worker 0: nothing listens on port 9400"
        s.pods.problem = None
        await s.tick(10)
        assert s.controller.findings(training(SPEC)).pull_problem is None


def test_all_pods_with_gpus_are_asked_but_on_cpu_only_the_speaker() -> None:
    pods = (running_pod(0), running_pod(1), starting_pod(2))
    on_cpu = Observed(training(SPEC), job(), pods)
    on_gpus = Observed(training(SPEC | {"gpusPerWorker": 1}), job(), pods)
    assert [pod.rank for pod in pods_to_pull(on_cpu)] == [0]
    assert [pod.rank for pod in pods_to_pull(on_gpus)] == [0, 1]


async def test_the_cluster_is_asked_why_something_waits_but_not_all_the_time() -> None:
    async with scene(unschedulable_pod(0, "0/1 nodes"), starting_pod(1)) as s:
        await s.tick()
        assert s.cluster.calls == ["nodes"]
        assert s.controller.capacity is not None
        await s.tick(DIAGNOSIS_SECONDS / 2)
        assert s.cluster.calls == ["nodes"]
        await s.tick(DIAGNOSIS_SECONDS)
        assert s.cluster.calls == ["nodes", "nodes"]


async def test_missing_pods_are_looked_up_in_the_events() -> None:
    async with scene(starting_pod(0)) as s:
        await s.tick()
        assert s.cluster.calls == ["events"]
        assert s.controller.findings(training(SPEC)).job_warning == "refused"


async def test_nobody_is_asked_when_nothing_runs_or_waits() -> None:
    async with scene(starting_pod(0), starting_pod(1)) as s:
        await s.tick()
        assert s.pods.asked == []
        assert s.cluster.calls == []


async def test_memory_and_cluster_are_compared_now_and_then() -> None:
    async with scene(starting_pod(0), starting_pod(1)) as s:
        await s.tick(59)
        assert s.cluster.calls == []
        await s.tick(1)
        await s.tick(1)
        assert s.cluster.calls == ["resync"], "once per minute, also when the API server is away"


async def test_a_sweep_that_stands_still_shows() -> None:
    async with scene(running_pod(0)) as s:
        await s.tick()
        s.now += 31
        assert s.sweep.seconds_since_tick == 31
