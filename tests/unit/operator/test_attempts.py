"""Attempts: what follows a failure in time, who is waited for, and what people and the clock do to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gputraining_operator.api import Json, Reason
from gputraining_operator.attempts import FormerJob, current_number, retire
from gputraining_operator.decision import CreateProblem, Observed, Plan
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.reconcile import reconcile
from tests.unit.operator.builders import (
    TRAINER_IMAGE,
    at,
    deleting_pod,
    ended_pod,
    gone_pod,
    job,
    running_pod,
    starting_pod,
    stuck_pod,
    training,
    unschedulable_pod,
)

SPEC: Json = {
    "workers": 2,
    "gpusPerWorker": 1,
    "training": {"batchSize": 64, "onOutOfMemory": "ReduceBatchSize"},
    "volumes": [{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "digits-out"}],
    "checkpoint": {"volume": "out"},
}
TWO = (running_pod(0), running_pod(1))


def decide(now: float, status: Json | None = None, spec: Json = SPEC, **facts: Any) -> Plan:
    return reconcile(Observed(training(spec, status), **facts), TRAINER_IMAGE, at(now))


def status_of(plan: Plan) -> Json:
    assert plan.status is not None
    return plan.status


def told(step: int, seconds: float, **more: Any) -> dict[int, ProgressRecord]:
    return {0: ProgressRecord("Training", at(seconds), rank=0, step=step, total_steps=1000, **more)}


def with_policy(**policy: Any) -> Json:
    return SPEC | {"runPolicy": policy}


def condition(status: Json, kind: str) -> tuple[str, str]:
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


SAVED = {"checkpoint_step": 40, "checkpoint_time": at(15)}
RUNNING: Json = status_of(decide(5, job=job(), pods=TWO))
AHEAD: Json = status_of(decide(20, RUNNING, job=job(), pods=TWO, records=told(43, 19, **SAVED)))
KILLED: Plan = decide(
    30, AHEAD, job=job(), pods=(running_pod(0), ended_pod(1, 137, ended=28)), records=told(44, 29, **SAVED)
)


def test_a_worker_that_fails_ends_the_attempt_at_once_and_the_others_are_torn_down() -> None:
    status = status_of(KILLED)
    assert (status["phase"], status["countedFailures"]) == ("Restarting", 1)
    assert KILLED.delete_jobs == (job(),)
    assert KILLED.failed_attempt == Reason.KILLED
    assert KILLED.requeue_after == 0
    entry = status["attempts"][0]
    assert (entry["lastStep"], entry["reason"], entry["exitCode"], entry["worker"]) == (44, Reason.KILLED, 137, 1)
    assert status["message"].endswith("attempt 2 follows from the checkpoint at step 40")
    assert [event.reason for event in KILLED.events] == [Reason.KILLED]
    assert "eta" not in status["summary"]


def test_the_others_are_asked_for_their_last_word_but_not_for_long() -> None:
    pods = (running_pod(0), ended_pod(1, 137, ended=29))
    assert decide(30, AHEAD, job=job(), pods=pods) == Plan(requeue_after=0.5)
    assert decide(31, AHEAD, job=job(), pods=pods).failed_attempt == Reason.KILLED
    word = json.dumps({"version": 1, "state": "Failed", "time": "2026-11-21T10:00:29Z", "step": 47, "totalSteps": 1000})
    plan = decide(30, AHEAD, job=job(), pods=(ended_pod(0, 1, word, ended=29), pods[1]))
    assert status_of(plan)["attempts"][0]["lastStep"] == 47


def test_the_next_attempt_waits_for_the_former_workers_and_for_its_time() -> None:
    status = status_of(KILLED)
    leaving = replace(job(), deleting=True)
    former = (FormerJob(leaving, (deleting_pod(running_pod(0), until=61), ended_pod(1, 137))),)
    assert decide(33, status, former=former) == Plan(requeue_after=1)
    soon = decide(32, status | {"nextAttemptTime": "2026-11-21T10:00:40Z"})
    assert (soon.create, soon.requeue_after) == (None, 8)
    plan = decide(33, status, former=(FormerJob(leaving, (gone_pod(running_pod(0)), ended_pod(1, 137))),))
    assert plan.create is not None
    assert plan.create["metadata"]["name"] == "digits-2"


def test_a_dead_node_does_not_block_the_next_attempt() -> None:
    status = status_of(KILLED)
    former = (FormerJob(replace(job(), deleting=True), (deleting_pod(running_pod(0), until=61),)),)
    assert decide(75, status, former=former).create is None
    assert decide(77, status, former=former).create is not None


def test_an_attempt_that_a_former_operator_made_is_taken_up() -> None:
    plan = decide(35, status_of(KILLED), job=job(attempt=2), pods=(starting_pod(0), starting_pod(1)))
    status = status_of(plan)
    assert (status["attempt"], status["jobName"], status["phase"]) == (2, "digits-2", "Pending")
    assert [attempt["number"] for attempt in status["attempts"]] == [1, 2]
    assert plan.events[0].message.startswith("attempt 2: 2 workers")
    assert status["progress"]["step"] == 44, "what is known stays until there is more to say"


def test_a_new_attempt_tells_where_it_continues_and_its_progress_may_be_behind() -> None:
    second = job(attempt=2, creationTimestamp="2026-11-21T10:00:35Z")
    pending = status_of(decide(35, status_of(KILLED), job=second, pods=(starting_pod(0), starting_pod(1))))
    starting = {0: ProgressRecord("Rendezvous", at(43), rank=0)}
    silent = decide(44, pending, job=second, pods=TWO, records=starting)
    assert [event.reason for event in silent.events] == [Reason.RUNNING], "nothing is told of what is not known"
    plan = decide(45, silent.status, job=second, pods=TWO, records=told(41, 44, restored_step=40, **SAVED))
    assert ("Restored", "attempt 2 continues at step 40 (4 steps lost)") in [(e.reason, e.message) for e in plan.events]
    status = status_of(plan)
    assert (status["progress"]["step"], status["progress"]["restoredStep"]) == (41, 40)
    assert status["attempts"][1]["restoredStep"] == 40
    again = decide(46, status, job=second, pods=TWO, records=told(42, 45, restored_step=40, **SAVED))
    assert again.events == ()


def test_backoff_grows_and_the_limit_ends_it() -> None:
    status: Json = {}
    delays = []
    for number in range(1, 5):
        plan = decide(number * 1000, status, job=job("Failed", attempt=number), pods=(ended_pod(0, 3, "boom"),))
        status = status_of(plan)
        delays.append(plan.requeue_after)
    assert status["phase"] == "Failed"
    assert status["countedFailures"] == 4
    assert status["message"].endswith("(spec.runPolicy.backoffLimit of 3 is used up)")
    assert [attempt["number"] for attempt in status["attempts"]] == [1, 2, 3, 4]


def test_history_keeps_the_last_ten() -> None:
    status: Json = {}
    for number in range(1, 13):
        failed = (deleting_pod(ended_pod(0, 75), disruption="EvictionByEvictionAPI"), ended_pod(1, 75))
        status = status_of(decide(number * 1000, status, job=job("Failed", attempt=number), pods=failed))
    assert [attempt["number"] for attempt in status["attempts"]] == list(range(3, 13))
    assert "countedFailures" not in status
    assert current_number(status) == 13


def test_an_evicted_worker_is_waited_for_while_it_writes_its_checkpoint() -> None:
    ending = deleting_pod(running_pod(1), until=55, disruption="EvictionByEvictionAPI")
    plan = decide(30, AHEAD, job=job(), pods=(running_pod(0), ending), records=told(44, 29))
    status = status_of(plan)
    assert (status["phase"], condition(status, "Running")) == ("Running", ("False", Reason.WORKER_ENDING))
    assert status["message"].startswith("worker 1 on node node-a stops: evicted")
    assert plan.delete_jobs == ()
    # The survivor ends first, by agreement; who caused it is still to come.
    both = (ended_pod(0, 75, ended=33), ending)
    assert decide(33, status, job=job("Failed", ended=at(33)), pods=both).failed_attempt is None
    done = (ended_pod(0, 75, ended=33), deleting_pod(ended_pod(1, 75, ended=34), disruption="EvictionByEvictionAPI"))
    over = decide(34, status, job=job("Failed", ended=at(33)), pods=done)
    assert over.failed_attempt == Reason.EVICTED
    assert "countedFailures" not in status_of(over)
    assert over.delete_jobs == (), "a finished job is kept for its logs"


def test_a_worker_on_a_dead_node_is_given_up_after_its_grace() -> None:
    dead = deleting_pod(running_pod(1), until=60, disruption="DeletionByTaintManager")
    waiting = decide(50, AHEAD, job=job(), pods=(running_pod(0), dead))
    assert waiting.requeue_after == pytest.approx(25.1)
    plan = decide(76, status_of(waiting), job=job(), pods=(running_pod(0), dead))
    assert plan.failed_attempt == Reason.NODE_LOST
    assert plan.delete_jobs == (job(),)


def test_a_former_attempt_that_does_not_leave_is_told() -> None:
    stuck = (FormerJob(replace(job(), deleting=True), (running_pod(1),)),)
    status = status_of(KILLED)
    assert decide(35, status, former=stuck).status is None
    plan = decide(41, status, former=stuck)
    assert status_of(plan)["message"] == "the next attempt waits until digits-1-worker-0 on node node-a is gone"
    late = decide(200, status, with_policy(pendingDeadlineSeconds=60), former=stuck)
    assert condition(status_of(late), "Failed") == ("True", Reason.PENDING_DEADLINE_EXCEEDED)


def test_a_former_worker_that_stays_does_not_shorten_the_backoff() -> None:
    stuck = (FormerJob(replace(job(), deleting=True), (running_pod(1),)),)
    status = status_of(KILLED) | {"nextAttemptTime": "2026-11-21T10:05:00Z"}
    assert decide(60, status, former=stuck) == Plan(requeue_after=10)
    assert status_of(decide(300, status, former=stuck))["message"].startswith("the next attempt waits until")


def test_a_stray_job_of_a_former_attempt_is_removed() -> None:
    stray = (FormerJob(job(), TWO),)
    plan = decide(50, status_of(KILLED), job=job(attempt=2), pods=(starting_pod(0),), former=stray)
    assert plan.delete_jobs == (job(),)


def test_a_suspension_taken_back_while_the_workers_leave_is_no_failure() -> None:
    leaving = status_of(decide(30, AHEAD, with_policy(suspend=True), job=job(), pods=TWO))
    gone = tuple(gone_pod(ended_pod(pod.rank, 75)) for pod in TWO)
    plan = decide(40, leaving, job=replace(job(), gone=True), pods=gone)
    assert plan.failed_attempt == Reason.SUSPENDED
    assert status_of(plan)["attempts"][0]["countsAgainstBackoffLimit"] is False


def test_a_deleted_job_is_followed_by_the_next_attempt_and_said() -> None:
    deleted = replace(job(), gone=True)
    plan = decide(30, AHEAD, job=deleted, pods=tuple(gone_pod(pod) for pod in TWO))
    assert plan.failed_attempt == Reason.JOB_DELETED
    assert plan.delete_jobs == ()
    unseen = decide(30, AHEAD)
    assert unseen.failed_attempt == Reason.JOB_DELETED
    assert status_of(unseen)["attempts"][0]["lastStep"] == 43


def test_out_of_memory_takes_a_smaller_batch_along() -> None:
    killed = (running_pod(0), ended_pod(1, 137, reason="OOMKilled", ended=20))
    first = status_of(decide(30, RUNNING, job=job(), pods=killed))
    assert first["training"] == {"batchSize": 32, "gradientAccumulationSteps": 2}
    plan = decide(40, first)
    assert plan.create is not None
    env = plan.create["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"]
    values = {entry["name"]: entry["value"] for entry in env}
    assert (values["BATCH_SIZE"], values["GRADIENT_ACCUMULATION_STEPS"]) == ("32", "2")
    second = status_of(decide(41, first, job=job(attempt=2), pods=killed))
    assert second["attempts"][1]["batchSize"] == 32
    assert second["training"]["batchSize"] == 16


def test_suspending_frees_the_workers_and_resuming_goes_on() -> None:
    spec = with_policy(suspend=True, activeDeadlineSeconds=1000)
    plan = decide(30, AHEAD, spec, job=job(), pods=TWO)
    assert plan.delete_jobs == (job(),)
    assert status_of(plan)["phase"] == "Running"
    leaving = replace(job(), deleting=True)
    pods = (deleting_pod(running_pod(0)), deleting_pod(ended_pod(1, 75)))
    assert decide(31, status_of(plan), spec, job=leaving, pods=pods).delete_jobs == ()
    word = json.dumps(
        {"version": 1, "state": "Preempted", "time": "2026-11-21T10:00:32Z", "step": 50, "totalSteps": 1000,
         "checkpoint": {"step": 50, "time": "2026-11-21T10:00:32Z"}}
    )  # fmt: skip
    gone = (gone_pod(ended_pod(0, 75, word)), gone_pod(ended_pod(1, 75)))
    over = decide(40, status_of(plan), spec, job=replace(leaving, gone=True), pods=gone)
    status = status_of(over)
    assert (status["phase"], condition(status, "Suspended")[0]) == ("Suspended", "True")
    assert (status["progress"]["lastCheckpoint"]["step"], status["attempts"][0]["lastStep"]) == (50, 50)
    assert status["attempts"][0]["reason"] == Reason.SUSPENDED
    assert decide(41, status, spec).create is None
    assert decide(5000, status, spec).status is None, "time does not count while it is suspended"
    resumed = status_of(decide(140, status, with_policy(activeDeadlineSeconds=1000)))
    assert (resumed["suspendedSeconds"], condition(resumed, "Suspended")) == (100, ("False", Reason.RESUMED))
    following = decide(140, resumed, with_policy(activeDeadlineSeconds=1000))
    assert following.create is not None
    assert following.create["metadata"]["name"] == "digits-2"


def test_a_training_applied_suspended_starts_when_resumed() -> None:
    status = status_of(decide(1, spec=with_policy(suspend=True)))
    assert (status["phase"], status["message"]) == (
        "Suspended",
        "suspended before it started; starts when spec.runPolicy.suspend is false",
    )
    resumed = status_of(decide(9, status))
    assert decide(9, resumed).create is not None


def test_pending_deadline_tells_why_nothing_ran() -> None:
    spec = with_policy(pendingDeadlineSeconds=60)
    pods = (unschedulable_pod(0, "0/1 nodes are available: 1 Insufficient memory."), starting_pod(1))
    early = decide(20, None, spec, job=job(), pods=pods)
    assert early.requeue_after == 40
    status = status_of(decide(60, early.status, spec, job=job(), pods=pods))
    assert condition(status, "Failed") == ("True", Reason.PENDING_DEADLINE_EXCEEDED)
    assert status["message"] == (
        "not all workers ran within 1m00s (spec.runPolicy.pendingDeadlineSeconds is 60): "
        "worker 0 cannot be placed: 1 node with too little memory"
    )
    missing = CreateProblem(Reason.TRAINING_OPERATOR_MISSING, "training-operator is not installed")
    assert status_of(decide(61, None, spec, create_problem=missing))["phase"] == "Failed"


def test_an_image_that_does_not_exist_is_given_up() -> None:
    pods = (stuck_pod(0, "ErrImagePull", "x:1: not found"), starting_pod(1))
    assert status_of(decide(100, RUNNING, job=job(), pods=pods))["phase"] == "Pending"
    status = status_of(decide(121, RUNNING, job=job(), pods=pods))
    assert condition(status, "Failed") == ("True", Reason.IMAGE_PULL_FAILED)
    impossible = (stuck_pod(0, "InvalidImageName", "bad"), starting_pod(1))
    assert status_of(decide(1, RUNNING, job=job(), pods=impossible))["phase"] == "Failed"


def test_a_queue_may_take_the_workers_away_and_bring_them_back() -> None:
    spec = with_policy(activeDeadlineSeconds=1000, pendingDeadlineSeconds=10_000)
    spec["scheduling"] = {"queueName": "team-a"}
    queued = job(suspended=True)
    status = status_of(decide(5, None, spec, job=queued))
    assert condition(status, "Running") == ("False", Reason.QUEUED)
    assert status["message"] == "waiting for Kueue to admit it in queue team-a"
    running = status_of(decide(9, status, spec, job=job(), pods=TWO))
    taken = tuple(deleting_pod(pod) for pod in TWO)
    assert decide(20, running, spec, job=queued, pods=taken).failed_attempt is None
    late = decide(9000, status_of(decide(20, running, spec, job=queued, pods=taken)), spec, job=queued)
    assert status_of(late)["phase"] == "Pending", "time in the queue is no time of running"
    resumed = {"Suspended": {"status": "False", "lastTransitionTime": "2026-11-21T10:00:30Z"}}
    back = (gone_pod(running_pod(0)), *TWO)
    again = decide(40, running, spec, job=replace(job(), conditions=resumed), pods=back)
    assert again.failed_attempt is None
    lost_now = (replace(gone_pod(running_pod(0)), created=at(35)), *TWO)
    deleted = decide(40, running, spec, job=replace(job(), conditions=resumed), pods=lost_now)
    assert deleted.failed_attempt == Reason.POD_DELETED


def test_a_stalled_training_is_reported_or_restarted() -> None:
    for policy in ("Report", "Restart"):
        spec = SPEC | {"monitoring": {"stalledAfterSeconds": 60, "onStall": policy}}
        before = status_of(decide(20, RUNNING, spec, job=job(), pods=TWO, records=told(43, 19)))
        fresh = decide(30, before, spec, job=job(), pods=TWO, records=told(43, 30))
        assert fresh.requeue_after == pytest.approx(49)
        late = decide(80, status_of(fresh), spec, job=job(), pods=TWO, records=told(43, 79))
        if policy == "Report":
            assert condition(status_of(late), "ProgressStalled") == ("True", Reason.NO_STEP_ADVANCES)
            assert Reason.NO_STEP_ADVANCES in [event.reason for event in late.events]
        else:
            assert late.failed_attempt == Reason.STALLED
            assert late.delete_jobs == (job(),)


def test_gpu_time_is_accounted_and_lost_work_told() -> None:
    scheduled = tuple(replace(pod, scheduled=at(0)) for pod in TWO)
    running = status_of(decide(10, RUNNING, job=job(), pods=scheduled, records=told(20, 9, **SAVED)))
    assert running["accounting"]["gpuSeconds"] == 20
    killed = (scheduled[0], replace(ended_pod(1, 137, ended=30), scheduled=at(0)))
    status = status_of(decide(32, running, job=job(), pods=killed))
    assert status["accounting"]["gpuSeconds"] == 62
    assert status["accounting"]["lostGpuSeconds"] == 34, "since the checkpoint at 15 s, two GPUs"
    second = tuple(replace(pod, scheduled=at(40)) for pod in TWO)
    later = status_of(decide(50, status, job=job(attempt=2), pods=second))
    assert later["accounting"]["gpuSeconds"] == 82


@pytest.mark.parametrize(
    ("jobs", "deleted", "blocked"),
    [
        ([], [], False),
        ([(job("Failed"), ())], [], False),
        ([(job("Failed"), TWO)], [1], True),
        ([(job(), ())], [1], True),
        ([(replace(job(), deleting=True), TWO)], [], True),
        ([(replace(job(), gone=True), ())], [], False),
        ([(job("Failed"), ()), (job("Failed", attempt=2), ())], [1], False),
    ],
)
def test_retiring(jobs: list[tuple[JobView, tuple[PodView, ...]]], deleted: list[int], blocked: bool) -> None:
    to_delete, waits = retire(tuple(FormerJob(*entry) for entry in jobs), at(600))
    assert [gone.attempt for gone in to_delete] == deleted
    assert waits == blocked


def test_at_the_end_a_job_without_verdict_is_removed() -> None:
    failed = status_of(decide(62, RUNNING, with_policy(activeDeadlineSeconds=30), job=job(), pods=TWO))
    left = (FormerJob(job(), TWO),)
    assert decide(63, failed, former=left).delete_jobs == (job(),)
    complete = status_of(decide(62, RUNNING, job=job(), pods=(ended_pod(0), ended_pod(1))))
    assert decide(63, complete, former=left).delete_jobs == ()
    assert decide(130, complete, former=left).delete_jobs == (job(),)
