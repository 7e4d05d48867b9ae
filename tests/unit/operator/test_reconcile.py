"""The decision, case by case: from nothing to Complete, what goes wrong on the way, and what the clock ends."""

from __future__ import annotations

import json
from typing import Any

from gputraining_operator.api import Json, Reason
from gputraining_operator.decision import CreateProblem, Observed, Plan
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.reconcile import needs_diagnosis, needs_pull, reconcile
from tests.unit.operator.builders import (
    TRAINER_IMAGE,
    at,
    ended_pod,
    job,
    running_pod,
    starting_pod,
    training,
    unschedulable_pod,
)

TWO_ON_CPU: Json = {
    "workers": 2,
    "gpusPerWorker": 0,
    "training": {},
    "volumes": [{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "digits-out"}],
}


def decide(now: float, spec: Json = TWO_ON_CPU, status: Json | None = None, **facts: Any) -> Plan:
    return reconcile(Observed(training(spec, status), **facts), TRAINER_IMAGE, at(now))


def status_of(plan: Plan) -> Json:
    assert plan.status is not None
    return plan.status


def condition(status: Json, kind: str) -> tuple[str, str]:
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


def reasons(plan: Plan) -> list[str]:
    return [event.reason for event in plan.events]


def record(step: int, seconds: float, **more: Any) -> ProgressRecord:
    return ProgressRecord("Training", at(seconds), rank=0, step=step, total_steps=100, **more)


PENDING: Json = status_of(decide(1, job=job(), pods=(starting_pod(0), starting_pod(1))))
RUNNING: Json = status_of(decide(5, status=PENDING, job=job(), pods=(running_pod(0), running_pod(1))))


def test_a_new_training_gets_its_job_and_nothing_else_yet() -> None:
    plan = decide(0)
    assert plan.create is not None
    assert plan.create["metadata"]["name"] == "digits-1"
    assert plan.status is None
    assert plan.events == ()


def test_once_the_job_exists_it_is_accepted_and_waits() -> None:
    plan = decide(1, job=job(), pods=(starting_pod(0), starting_pod(1)))
    status = status_of(plan)
    assert plan.create is None
    assert (status["phase"], status["attempt"], status["jobName"]) == ("Pending", 1, "digits-1")
    assert condition(status, "Accepted") == ("True", Reason.RENDERED)
    assert condition(status, "Running") == ("False", Reason.STARTING_CONTAINERS)
    assert status["summary"] == {"workers": "0/2"}
    assert reasons(plan) == [Reason.ATTEMPT_STARTED]


def test_output_without_a_claim_is_warned_about() -> None:
    plan = decide(1, spec={"training": {}}, job=job())
    assert reasons(plan) == [Reason.ATTEMPT_STARTED, Reason.NO_OUTPUT_VOLUME]


def test_all_workers_run() -> None:
    plan = decide(38, status=PENDING, job=job(), pods=(running_pod(0), running_pod(1)))
    status = status_of(plan)
    assert (status["phase"], status["startTime"]) == ("Running", "2026-11-21T10:00:38Z")
    assert condition(status, "Running") == ("True", Reason.ALL_WORKERS_READY)
    assert [event.message for event in plan.events] == ["all 2 workers run after 38s"]


def test_a_gang_runs_only_when_all_of_it_does() -> None:
    plan = decide(5, job=job("Running"), pods=(running_pod(0), starting_pod(1)))
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["workers"] == {"desired": 2, "ready": 1, "failed": 0}


def test_the_same_facts_change_nothing() -> None:
    pods = (running_pod(0), running_pod(1))
    assert decide(6, status=RUNNING, job=job(), pods=pods) == Plan(requeue_after=599), "it could stall"


def test_progress_is_reported() -> None:
    plan = decide(
        20, status=RUNNING, job=job(), pods=(running_pod(0), running_pod(1)),
        records={0: record(43, 19, epoch=9, total_epochs=20, metrics=(("loss", 0.5),))},
    )  # fmt: skip
    status = status_of(plan)
    assert status["progress"]["percent"] == 43
    assert status["message"] == "epoch 9 of 20, loss 0.5"
    assert "gpu" not in status
    assert plan.events == ()


def test_the_end_of_another_worker_than_rank_0_waits_for_rank_0() -> None:
    plan = decide(60, status=RUNNING, job=job("Running"), pods=(running_pod(0), ended_pod(1, 0)))
    assert plan.status is None


LAST_WORD = json.dumps(
    {
        "version": 1,
        "state": "Complete",
        "time": "2026-11-21T10:00:59Z",
        "epoch": 20,
        "totalEpochs": 20,
        "step": 100,
        "totalSteps": 100,
        "metrics": {"loss": 0.031, "accuracy": 0.981},
        "result": {"modelPath": "/output/trained-model.pth", "durationSeconds": 48},
    }
)


def test_complete_with_the_last_word() -> None:
    plan = decide(62, status=RUNNING, job=job("Succeeded", ended=at(60)), pods=(ended_pod(0, 0, LAST_WORD),))
    status = status_of(plan)
    assert status["phase"] == "Complete"
    assert status["progress"]["percent"] == 100
    assert status["outputPath"] == "digits-out:/trained-model.pth"
    assert status["completionTime"] == "2026-11-21T10:01:00Z"
    assert status["workers"] == {"desired": 2, "ready": 2, "failed": 0}
    assert status["summary"]["workers"] == "2/2"
    assert "eta" not in status["summary"]
    assert condition(status, "Running") == ("False", Reason.FINISHED)
    assert condition(status, "Complete") == ("True", Reason.TRAINING_SUCCEEDED)
    assert status["message"] == "20 epochs in 55s, accuracy 0.981, model at digits-out:/trained-model.pth"
    assert reasons(plan) == [Reason.COMPLETE]


def test_the_end_waits_for_the_last_word_but_not_for_ever() -> None:
    ended = job("Succeeded", ended=at(60))
    assert decide(62, status=RUNNING, job=ended, pods=(running_pod(0), running_pod(1))) == Plan(requeue_after=1)
    assert status_of(decide(71, status=RUNNING, job=ended))["phase"] == "Complete"


def test_the_success_of_rank_0_is_the_jobs_even_when_nobody_says_so() -> None:
    plan = decide(62, status=RUNNING, job=job("Running"), pods=(ended_pod(0, 0, LAST_WORD), ended_pod(1)))
    assert status_of(plan)["phase"] == "Complete"


def test_a_job_that_was_over_before_it_was_seen_running() -> None:
    status = status_of(decide(62, job=job("Succeeded", ended=at(60)), pods=(ended_pod(0, 0, LAST_WORD),)))
    assert status["startTime"] == "2026-11-21T10:00:12Z"


def test_gpu_hours_are_told() -> None:
    spec = {"workers": 2, "gpusPerWorker": 4, "command": ["true"]}
    status = dict(RUNNING)
    plan = decide(3605, spec=spec, status=status, job=job("Succeeded", ended=at(3605)), pods=(ended_pod(0),))
    assert status_of(plan)["message"] == "done in 1h00m, 8.00 GPU-hours"


ONCE: Json = TWO_ON_CPU | {"runPolicy": {"backoffLimit": 0}}


def test_failed_with_the_first_cause() -> None:
    pods = (running_pod(0), ended_pod(1, 3, "boom"))
    plan = decide(62, spec=ONCE, status=RUNNING, job=job("Failed", ended=at(60)), pods=pods)
    status = status_of(plan)
    assert status["phase"] == "Failed"
    assert condition(status, "Failed") == ("True", Reason.USER_CODE_ERROR)
    assert status["message"] == "worker 1: ended with exit code 3: boom"
    assert status["summary"]["workers"] == "0/2"
    assert [(event.type, event.reason) for event in plan.events] == [("Warning", Reason.USER_CODE_ERROR)]
    assert status["attempts"] == [
        {
            "number": 1,
            "startTime": "2026-11-21T10:00:00Z",
            "endTime": "2026-11-21T10:01:00Z",
            "reason": Reason.USER_CODE_ERROR,
            "message": "worker 1: ended with exit code 3: boom",
            "exitCode": 3,
            "worker": 1,
            "node": "node-a",
            "log": "boom",
            "countsAgainstBackoffLimit": True,
            "batchSize": 64,
            "gradientAccumulationSteps": 1,
        }
    ]


def test_a_terminal_phase_is_never_left() -> None:
    done = status_of(decide(62, job=job("Succeeded", ended=at(60)), pods=(ended_pod(0, 0, LAST_WORD),)))
    for facts in ({}, {"job": job("Failed")}, {"job": job(), "pods": (running_pod(0), running_pod(1))}):
        assert decide(99, status=done, **facts) == Plan()


def test_training_operator_missing_is_said_and_tried_again() -> None:
    problem = CreateProblem(Reason.TRAINING_OPERATOR_MISSING, "training-operator is not installed")
    plan = decide(1, create_problem=problem)
    status = status_of(plan)
    assert plan.create is not None
    assert (status["phase"], status["message"]) == ("Pending", "training-operator is not installed")
    assert condition(status, "Accepted") == ("False", Reason.TRAINING_OPERATOR_MISSING)
    assert "attempt" not in status
    assert reasons(plan) == [Reason.TRAINING_OPERATOR_MISSING]
    again = decide(9, status=status, create_problem=problem)
    assert again.status is None
    assert again.events == ()
    assert condition(status_of(decide(20, status=status, job=job())), "Accepted") == ("True", Reason.RENDERED)


def test_a_refused_job_fails_at_once() -> None:
    problem = CreateProblem(Reason.REJECTED, "the PyTorchJob was refused: bad", final=True)
    status = status_of(decide(1, create_problem=problem))
    assert status["phase"] == "Failed"
    assert condition(status, "Failed") == ("True", Reason.REJECTED)


def test_warning_only_when_the_reason_is_new() -> None:
    pods = (starting_pod(0), unschedulable_pod(1, "0/1 nodes are available: 1 Insufficient memory."))
    at_once = decide(2, status=PENDING, job=job(), pods=pods)
    assert reasons(at_once) == []
    assert at_once.requeue_after == 5
    first = decide(7, status=at_once.status, job=job(), pods=pods)
    assert reasons(first) == [Reason.UNSCHEDULABLE]
    more = (starting_pod(0), unschedulable_pod(1, "0/2 nodes are available: 2 Insufficient memory."))
    second = decide(9, status=status_of(first), job=job(), pods=more)
    assert second.events == ()
    assert "2 nodes with too little memory" in status_of(second)["message"]


def test_active_deadline_counts_from_running() -> None:
    spec = TWO_ON_CPU | {"runPolicy": {"activeDeadlineSeconds": 30}}
    pods = (running_pod(0), running_pod(1))
    first = decide(100, spec=spec, status=PENDING, job=job(), pods=pods)
    assert first.requeue_after == 30
    running = status_of(first)
    assert decide(110, spec=spec, status=running, job=job(), pods=pods).requeue_after == 20
    plan = decide(130, spec=spec, status=running, job=job(), pods=pods)
    assert plan.delete_jobs == (job(),)
    assert condition(status_of(plan), "Failed") == ("True", Reason.DEADLINE_EXCEEDED)


def test_past_its_deadline_no_attempt_follows() -> None:
    spec = TWO_ON_CPU | {"runPolicy": {"activeDeadlineSeconds": 30}}
    failed = decide(31, spec=spec, status=RUNNING, job=job("Failed", ended=at(30)), pods=(ended_pod(0, 3),))
    plan = decide(130, spec=spec, status=status_of(failed))
    assert plan.create is None
    assert condition(status_of(plan), "Failed") == ("True", Reason.DEADLINE_EXCEEDED)


def test_a_lost_peer_alone_is_not_the_last_word() -> None:
    error = {"type": "PeerLost", "message": "worker 0 went away"}
    word = json.dumps({"version": 1, "state": "Failed", "time": "2026-11-21T10:00:59Z", "error": error})
    facts: dict[str, Any] = {"job": job("Failed", ended=at(60)), "pods": (running_pod(0), ended_pod(1, 1, word))}
    assert decide(61, status=RUNNING, **facts) == Plan(requeue_after=1)
    message = status_of(decide(71, status=RUNNING, **facts))["message"]
    assert message.startswith("worker 1: worker 0 went away; attempt 2 follows from the beginning")


def test_a_pod_that_claims_to_have_run_for_ages_ends_all_the_same() -> None:
    word = LAST_WORD.replace("48", "1e12")
    status = status_of(decide(62, job=job("Succeeded", ended=at(60)), pods=(ended_pod(0, 0, word),)))
    assert status["startTime"] == "2026-11-21T10:00:00Z"


def test_ttl_deletes_the_training_after_the_end() -> None:
    spec = TWO_ON_CPU | {"runPolicy": {"ttlSecondsAfterFinished": 60}}
    ended = decide(62, spec=spec, job=job("Succeeded", ended=at(60)), pods=(ended_pod(0, 0, LAST_WORD),))
    assert ended.requeue_after == 60
    assert decide(100, spec=spec, status=ended.status).requeue_after == 20
    assert decide(120, spec=spec, status=ended.status) == Plan(delete_training=True)


def test_a_training_that_is_being_deleted_is_left_alone() -> None:
    leaving = training(TWO_ON_CPU, deletionTimestamp="2026-11-21T10:00:00Z")
    assert reconcile(Observed(leaving), TRAINER_IMAGE, at(1)) == Plan()


def test_who_is_pulled_and_who_is_diagnosed() -> None:
    def seen(*pods: PodView, status: Json | None = None) -> Observed:
        return Observed(training(TWO_ON_CPU, status), job(), pods)

    assert needs_pull(seen(running_pod(0), starting_pod(1)))
    assert not needs_pull(seen(starting_pod(0), starting_pod(1)))
    assert not needs_pull(seen(running_pod(0), status={"phase": "Complete"}))
    assert needs_diagnosis(seen(running_pod(0)), at(1))
    assert needs_diagnosis(seen(running_pod(0), unschedulable_pod(1, "x")), at(1))
    assert not needs_diagnosis(seen(running_pod(0), running_pod(1)), at(1))
    assert not needs_diagnosis(seen(running_pod(0), starting_pod(1)), at(9))
    assert needs_diagnosis(seen(running_pod(0), starting_pod(1)), at(11)), "it may wait for a volume"
