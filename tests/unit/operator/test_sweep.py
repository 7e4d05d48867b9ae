"""The sweep: who is pulled when, and when the cluster is asked why something waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller, Findings
from gputraining_operator.decision import Observed
from gputraining_operator.metrics import Metrics
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.pull import NothingListensError, Puller, PullError
from gputraining_operator.store import Store
from gputraining_operator.sweep import DIAGNOSIS_SECONDS, Sweep, pods_to_pull
from tests.unit.operator.builders import at, job, running_pod, starting_pod, training, unschedulable_pod

KEY = ("team-a", "digits")
SPEC: Json = {"workers": 2, "gpusPerWorker": 0, "training": {}, "monitoring": {"intervalSeconds": 10}}


class PlayedPods(Puller):
    """Pods that answer with a record, or with a problem."""

    def __init__(self) -> None:
        super().__init__(concurrency=4)
        self.asked: list[int] = []
        self.slow_rank: int | None = None
        self.problem: PullError | None = None

    async def pull(self, pod: PodView) -> ProgressRecord:
        self.asked.append(pod.rank)
        if self.problem:
            raise self.problem
        seconds = 1.0 if pod.rank == self.slow_rank else 0.1
        return ProgressRecord("Training", at(1), rank=pod.rank, step=len(self.asked), local_step_seconds=seconds)


class PlayedCluster(Cluster):
    """A cluster with no nodes that has a warning for every job and pod."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.serves_jobs = False
        self.away = True

    async def list_nodes(self) -> list[Json]:
        self.calls.append("nodes")
        if self.error:
            raise self.error
        return []

    async def list_running_pods(self) -> list[Json]:
        return []

    async def latest_warning(self, namespace: str, uid: str) -> str | None:
        self.calls.append("events")
        if self.error:
            raise self.error
        return "refused"

    async def latest_pod_warning(self, namespace: str, uid: str) -> str | None:
        self.calls.append(f"events of {uid}")
        return "no such secret"

    async def list_trainings(self) -> tuple[list[Json], int]:
        self.calls.append("resync")
        if self.away:
            raise ApiError(0, "Unreachable", "away")
        return [], 0

    async def list_jobs(self) -> tuple[list[Json], int]:
        self.serves_jobs = True
        return [], 0

    async def list_pods(self) -> tuple[list[Json], int]:
        return [], 0


class Scene:
    """A sweep over one training, with a clock that the test moves."""

    def __init__(self, spec: Json, pods: tuple[PodView, ...]) -> None:
        self.now = 1000.0
        self.pods, self.cluster = PlayedPods(), PlayedCluster()
        self.metrics = metrics = Metrics()
        self.time = at(1)
        self.new_kinds = 0
        self.controller = Controller(self.cluster, Store(), metrics, "x", clock=lambda: self.time)
        self.controller.store.put_training(training(spec))
        self.controller.store.put_job(job())
        for pod in pods:
            self.controller.store.put_pod(pod)
        self.sweep = Sweep(
            self.controller, self.cluster, self.pods, metrics, 60, sees_nodes=True, on_new_kind=self._new_kind,
            monotonic=lambda: self.now,
        )  # fmt: skip

    def _new_kind(self) -> None:
        self.new_kinds += 1

    @property
    def findings(self) -> Findings:
        return self.controller.findings(training(SPEC))

    def pull_failures(self) -> float | None:
        return self.metrics.registry.get_sample_value("gputraining_operator_pull_failures_total")

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
        assert s.pods.asked == [0, 1]
        await s.tick(9.9)
        assert s.pods.asked == [0, 1]
        await s.tick(0.2)
        assert s.pods.asked == [0, 1, 0, 1]
        assert s.findings.records[0].step == 3
        assert len(s.controller.queue) == 1


async def test_a_pod_that_does_not_answer_is_a_finding() -> None:
    async with scene(running_pod(0), running_pod(1)) as s:
        s.pods.problem = NothingListensError("nothing listens on port 9400")
        await s.tick()
        assert s.findings.pull_problem == "worker 0: nothing listens on port 9400"
        assert s.pull_failures() == 2
        s.pods.problem = None
        await s.tick(10)
        assert s.findings.pull_problem is None


OWN_SCRIPT: Json = {"workers": 2, "gpusPerWorker": 0, "command": ["true"], "monitoring": {"intervalSeconds": 10}}


async def test_a_script_of_ones_own_that_serves_nothing_is_no_failure_to_count() -> None:
    s = Scene(OWN_SCRIPT, (running_pod(0), running_pod(1)))
    s.pods.problem = NothingListensError("nothing listens on port 9400")
    await s.tick()
    assert (s.pods.asked, s.pull_failures()) == ([0], 0)
    s.pods.problem = PullError("its progress is not understood")
    await s.tick(10)
    assert s.pull_failures() == 1


def test_who_is_asked() -> None:
    def ranks(spec: Json, count: int = 2) -> list[int]:
        pods = (*(running_pod(rank) for rank in range(count)), starting_pod(count))
        return [pod.rank for pod in pods_to_pull(Observed(training(spec), job(), pods))]

    assert ranks(SPEC) == [0, 1], "the built-in trainer tells who is slow"
    assert ranks(OWN_SCRIPT) == [0], "one speaks for the job"
    assert ranks(OWN_SCRIPT | {"gpusPerWorker": 1}) == [0, 1], "GPUs are counted"
    assert ranks(SPEC, 70) == list(range(64))


async def test_health_follows_the_records() -> None:
    async with scene(running_pod(0), running_pod(1)) as s:
        before = s.findings.health
        s.pods.slow_rank = 1
        for _ in range(4):
            await s.tick(10)
        assert s.findings.health != before
        assert s.findings.health.slow is not None


async def test_an_answer_about_a_former_attempt_is_dropped() -> None:
    async with scene(running_pod(0), running_pod(1)) as s:
        s.sweep.tick()
        s.findings.about("the next job")
        for _ in range(20):
            await asyncio.sleep(0)
        assert s.pods.asked == [0, 1]
        assert s.findings.records == {}


@pytest.mark.parametrize("phase", ["Complete", "Failed", "Suspended"])
async def test_what_is_over_or_suspended_is_not_asked(phase: str) -> None:
    async with scene() as s:
        s.controller.store.put_training(training(SPEC, {"phase": phase, "attempt": 1}, resourceVersion="99"))
        await s.tick()
        assert s.pods.asked == []


async def test_a_replica_that_stands_by_only_keeps_its_memory_fresh() -> None:
    async with scene(running_pod(0)) as s:
        s.metrics.leads = lambda: False
        await s.tick(61)
        assert (s.pods.asked, s.cluster.calls) == ([], ["resync"])
        assert s.sweep.seconds_since_tick == 0, "and it is well"
        s.metrics.leads = lambda: True
        await s.tick(1)
        assert s.pods.asked == [0]


async def test_a_kind_that_came_after_the_start_asks_for_a_restart() -> None:
    async with scene() as s:
        await s.tick(60)
        assert s.new_kinds == 0, "the API server is away"
        s.cluster.away = False
        await s.tick(60)
        await s.tick(60)
        assert s.new_kinds == 1


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
        assert s.findings.job_warning == "refused"
        s.controller.store.put_pod(starting_pod(1))
        await s.tick(1)
        assert s.findings.job_warning is None, "all are there now"


async def test_a_pod_that_is_stuck_on_its_node_is_looked_up_in_the_events() -> None:
    async with scene(starting_pod(0), starting_pod(1)) as s:
        s.time = at(11)
        await s.tick()
        assert s.cluster.calls == ["events of uid-pod-0"]
        assert s.findings.pod_warning == "no such secret"
        for rank in (0, 1):
            s.controller.store.put_pod(running_pod(rank))
        await s.tick(1)
        assert s.findings.pod_warning is None


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "no"), KeyError("odd")], ids=str)
async def test_a_diagnosis_that_fails_still_wakes_the_training(error: Exception) -> None:
    async with scene(unschedulable_pod(0, "0/1 nodes")) as s:
        s.cluster.error = error
        await s.tick()
        assert s.cluster.calls == ["nodes", "events"], "each is tried on its own"
        assert len(s.controller.queue) == 1


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
