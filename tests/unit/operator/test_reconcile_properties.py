"""What must hold for every sequence of observed states, however odd."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gputraining_operator.api import TERMINAL_PHASES, Json
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.reconcile import CreateProblem, Observed, reconcile
from tests.unit.operator.builders import (
    TRAINER_IMAGE,
    at,
    ended_pod,
    job,
    running_pod,
    starting_pod,
    stuck_pod,
    training,
    unschedulable_pod,
)

SPEC: Json = {"workers": 2, "gpusPerWorker": 1, "training": {}, "runPolicy": {"activeDeadlineSeconds": 500}}


def pods_of(rank: int) -> st.SearchStrategy[PodView | None]:
    return st.sampled_from(
        [
            None,
            unschedulable_pod(rank, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
            starting_pod(rank),
            stuck_pod(rank, "ErrImagePull", "not found"),
            running_pod(rank),
            ended_pod(rank),
            ended_pod(rank, 1, "boom"),
            ended_pod(rank, 137, reason="OOMKilled"),
        ]
    )


class AnySequence(RuleBasedStateMachine):
    """Feeds random observations to `reconcile`, as an operator would see them after restarts and lost events."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.status: Json | None = None
        self.job: JobView | None = None
        self.pods: tuple[PodView, ...] = ()
        self.problem: CreateProblem | None = None
        self.records: dict[int, ProgressRecord] = {}

    @rule(conditions=st.sampled_from([(), ("Created",), ("Running",), ("Succeeded",), ("Failed",)]))
    def job_is(self, conditions: tuple[str, ...]) -> None:
        self.job = job(*conditions, ended=at(self.now))

    @rule()
    def job_is_gone(self) -> None:
        self.job, self.pods = None, ()

    @rule(master=pods_of(0), worker=pods_of(1))
    def pods_are(self, master: PodView | None, worker: PodView | None) -> None:
        self.pods = tuple(pod for pod in (master, worker) if pod)

    @rule(step=st.integers(0, 120))
    def progress_is(self, step: int) -> None:
        self.records = {0: ProgressRecord("Training", at(self.now), step=step, total_steps=100)}

    @rule(final=st.booleans())
    def creating_fails(self, final: bool) -> None:
        self.problem = CreateProblem("WebhookUnavailable", "x", final)

    @rule()
    def creating_works(self) -> None:
        self.problem = None

    @rule(seconds=st.floats(0, 300))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def decisions_hold(self) -> None:
        before: dict[str, Any] = self.status or {}
        observed = Observed(training(SPEC, self.status), self.job, self.pods, self.records, None, self.problem)
        plan = reconcile(observed, TRAINER_IMAGE, at(self.now))
        assert plan == reconcile(observed, TRAINER_IMAGE, at(self.now)), "the same facts, the same plan"
        if self.job is not None:
            assert plan.create is None, "never a second job"
        if before.get("phase") in TERMINAL_PHASES:
            assert plan.status is None, "a terminal phase stays"
            assert plan.create is None
        if plan.status is None:
            assert plan.events == (), "events only go with a change of status"
            return
        self.status = plan.status
        again = reconcile(
            Observed(training(SPEC, self.status), self.job, self.pods, self.records, None, self.problem),
            TRAINER_IMAGE,
            at(self.now),
        )
        assert again.status is None, "one write is enough"
        assert plan.status.get("attempt", 0) >= before.get("attempt", 0) or self.job is None
        percent = plan.status.get("progress", {}).get("percent", 0)
        assert percent >= before.get("progress", {}).get("percent", 0)
        true = {c["type"] for c in plan.status["conditions"] if c["status"] == "True"}
        assert len(true & {"Running", "Complete", "Failed"}) <= 1
        if plan.status["phase"] in TERMINAL_PHASES:
            assert plan.status["phase"] in true
            assert "completionTime" in plan.status


TestAnySequence = AnySequence.TestCase
