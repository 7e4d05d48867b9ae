"""What must hold for every course of events: faults of workers and nodes, people's doings, an operator that dies."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gputraining_operator.api import Json
from gputraining_operator.attempts import alive, lost
from tests.unit.operator.builders import at
from tests.unit.operator.world import World

SPEC: Json = {
    "workers": 2,
    "gpusPerWorker": 1,
    "training": {"batchSize": 4, "onOutOfMemory": "ReduceBatchSize"},
    "runPolicy": {"activeDeadlineSeconds": 100_000, "backoffLimit": 3},
}
ENDS = st.sampled_from([(1, ""), (137, "OOMKilled"), (137, ""), (75, ""), (143, ""), (0, "")])


class AnyCourse(RuleBasedStateMachine):
    """One training in a world where anything happens."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(SPEC)
        self.attempt = 0
        self.suspend = False

    @property
    def status(self) -> Json | None:
        return self.world.status

    @rule()
    def training_operator_acts(self) -> None:
        self.world.training_operator()

    @rule()
    def kubelet_acts(self) -> None:
        self.world.kubelet()

    @rule()
    def workers_advance(self) -> None:
        self.world.advance()

    @rule(seconds=st.sampled_from([0.5, 5, 20, 400]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(rank=st.integers(0, 1), how=ENDS)
    def a_worker_ends(self, rank: int, how: tuple[int, str]) -> None:
        for pod in self.world.live_pods():
            if pod.rank == rank:
                self.world.end(pod, *how)

    @rule(rank=st.integers(0, 1))
    def somebody_deletes_a_pod(self, rank: int) -> None:
        for pod in self.world.live_pods():
            if pod.rank == rank:
                self.world.delete_pod(pod)

    @precondition(lambda self: self.world.jobs)
    @rule()
    def somebody_deletes_a_job(self) -> None:
        number = max(self.world.jobs)
        self.world.jobs[number] = replace(self.world.jobs[number], deleting=True)

    @rule(suspend=st.booleans())
    def somebody_suspends(self, suspend: bool) -> None:
        self.suspend = suspend
        self.world.spec = SPEC | {"runPolicy": SPEC["runPolicy"] | {"suspend": suspend}}

    @rule(watches=st.booleans(), writes=st.sampled_from([0, 1, 2, 99]))
    def operator_acts(self, watches: bool, writes: int) -> None:
        """It may know less than there is, and die after any write."""
        if watches:
            self.world.watch()
        self._reconcile(writes)
        if writes < 99:
            self.world.forget()

    @rule()
    def operator_restarts(self) -> None:
        self.world.forget()
        self._reconcile(99)

    def _reconcile(self, writes: int) -> None:
        world = self.world
        known = world.observed()
        before, created = world.status, len(world.created)
        plan = world.decide()
        assert plan == world.decide(), "the same facts, the same plan"
        if plan.status is None:
            assert plan.events == (), "events only go with a change of status"
        world.reconcile(writes)
        if len(world.created) > created:
            others = [pod for former in known.former for pod in alive(former.pods, at(world.now))]
            assert others == [], "never two attempts at a time"
        if before is not None and before.get("phase") in ("Complete", "Failed"):
            assert world.status == before, "a terminal phase stays"
            assert len(world.created) == created
        if world.status is not None and world.status != before:
            self._check_status(world.status, before or {})

    def _check_status(self, status: Json, before: Json) -> None:
        assert status.get("attempt", 0) >= before.get("attempt", 0), "attempts never go back"
        numbers = [attempt["number"] for attempt in status.get("attempts", ())]
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= 10
        assert all("endTime" in attempt for attempt in status.get("attempts", ())[:-1]), "only the last one is open"
        assert status.get("countedFailures", 0) <= SPEC["runPolicy"]["backoffLimit"] + 1
        assert status.get("accounting", {}).get("gpuSeconds", 0) >= before.get("accounting", {}).get("gpuSeconds", 0)
        true = {c["type"] for c in status["conditions"] if c["status"] == "True"}
        assert len(true & {"Running", "Suspended", "Complete", "Failed"}) <= 1
        if status["phase"] in ("Complete", "Failed", "Suspended", "Running"):
            assert status["phase"] in true or "Running" in status["phase"]
        if status["phase"] in ("Complete", "Failed"):
            assert "completionTime" in status
            assert "endTime" in (status.get("attempts") or [{"endTime": ""}])[-1]

    @invariant()
    def one_attempt_holds_the_workers(self) -> None:
        world = self.world
        living = {pod.owner_uid for pod in world.live_pods() if not lost(pod, at(world.now))}
        assert len(living) <= 1, "two attempts train at a time"

    def teardown(self) -> None:
        """When the faults end, it comes to a good end."""
        world = self.world
        world.spec = SPEC
        for _ in range(80):
            world.now += 30
            world.training_operator()
            world.kubelet()
            world.watch()
            self._reconcile(99)
            if world.over:
                break
            world.training_operator()
            world.kubelet()
            world.advance()
            world.watch()
            self._reconcile(99)
            if world.phase == "Running":
                world.finish()
        assert world.over, f"no end in sight: {world.status}"


COURSES = settings(
    max_examples=int(os.environ.get("RECONCILE_EXAMPLES", "150")),  # 10,000 and more every now and then
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = COURSES
