"""The first cause of a failure, and what the user is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gputraining_operator.api import Json, Reason
from gputraining_operator.failures import classify, final_record, has_failed, has_first_cause, lost_worker
from gputraining_operator.observed import parse_pod
from tests.unit.operator.builders import deleting_pod, ended_pod, gone_pod, job, pod_body, running_pod


def last_word(kind: str, message: str) -> str:
    record: Json = {
        "version": 1,
        "state": "Failed",
        "time": "2026-11-21T10:01:00Z",
        "error": {"type": kind, "message": message},
    }
    return json.dumps(record)


def test_the_trainers_own_word_is_taken() -> None:
    failure = classify(job("Failed"), [ended_pod(1, 66, last_word("DatasetNotFound", "DATASET_PATH: no such folder"))])
    assert (failure.reason, failure.message) == (Reason.DATASET_NOT_FOUND, "worker 1: DATASET_PATH: no such folder")


def test_a_lost_peer_is_a_consequence_even_when_it_ended_first() -> None:
    peer = ended_pod(0, 1, last_word("PeerLost", "worker 1 went away"), ended=50)
    cause = ended_pod(1, 1, last_word("UserCodeError", "ValueError: boom"), ended=51)
    assert classify(job("Failed"), [peer, cause]).message == "worker 1: ValueError: boom"


def test_of_several_causes_the_first_in_time_counts() -> None:
    pods = [ended_pod(0, 3, "late", ended=70), ended_pod(1, 4, "early", ended=60)]
    assert classify(job("Failed"), pods).message == "worker 1: ended with exit code 4: early"


def test_memory_limit() -> None:
    failure = classify(job("Failed"), [running_pod(0), ended_pod(1, 137, reason="OOMKilled")])
    assert failure.reason == Reason.OUT_OF_MEMORY
    assert "raise resources.limits.memory" in failure.message


TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\n    f()\nKeyError: 'x'\nprinted later\n"


@pytest.mark.parametrize(
    ("code", "log", "reason", "text"),
    [
        (1, "line 1\nboom\n", Reason.USER_CODE_ERROR, "ended with exit code 1: boom"),
        (1, TRACEBACK, Reason.USER_CODE_ERROR, "ended with exit code 1: KeyError: 'x'"),
        (139, "", Reason.USER_CODE_ERROR, "ended by SIGSEGV (exit code 139)"),
        (250, "", Reason.USER_CODE_ERROR, "ended with exit code 250"),
        (134, "[PG 0] NCCL watchdog", Reason.PEER_LOST, "aborted by NCCL's watchdog"),
        (134, "assert failed", Reason.USER_CODE_ERROR, "ended by SIGABRT (exit code 134): assert failed"),
        (137, "", Reason.KILLED, "ended by SIGKILL (exit code 137)"),
        (75, "", Reason.PREEMPTED, "stopped with a checkpoint"),
    ],
)
def test_workers_that_say_nothing(code: int, log: str, reason: str, text: str) -> None:
    failure = classify(job("Failed"), [ended_pod(0, code, log)])
    assert (failure.reason, failure.worker, failure.node, failure.exit_code) == (reason, 0, "node-a", code)
    assert failure.message.split(": ", 1)[1].startswith(text)


@pytest.mark.parametrize(
    ("disruption", "pod_reason", "reason"),
    [
        ("PreemptionByScheduler", "", Reason.PREEMPTED),
        ("EvictionByEvictionAPI", "", Reason.EVICTED),
        ("DeletionByTaintManager", "", Reason.NODE_LOST),
        ("DeletionByPodGC", "", Reason.NODE_LOST),
        ("TerminationByKubelet", "Evicted", Reason.EVICTED),
        ("TerminationByKubelet", "Terminated", Reason.NODE_LOST),
        ("", "", Reason.POD_DELETED),
    ],
)
def test_whoever_takes_a_pod_away_is_named(disruption: str, pod_reason: str, reason: str) -> None:
    taken = replace(deleting_pod(ended_pod(1, 75), disruption=disruption), reason=pod_reason)
    follower = ended_pod(0, 75, ended=50)
    assert classify(job("Failed"), [follower, taken]).reason == reason
    assert not has_first_cause([follower])
    assert has_first_cause([follower, taken])


def test_of_several_deleted_pods_the_one_deleted_first_counts() -> None:
    first = replace(deleting_pod(ended_pod(1, 75, ended=61)), deletion_version=20)
    cleaned_up = replace(deleting_pod(ended_pod(0, 75, ended=60)), deletion_version=30)
    assert classify(job("Failed"), [cleaned_up, first]).worker == 1


def test_a_deleted_pod_is_no_first_cause_while_another_one_is_still_ending() -> None:
    cleaned_up = deleting_pod(ended_pod(0, 75, ended=60))
    assert has_first_cause([cleaned_up])
    assert not has_first_cause([cleaned_up, deleting_pod(running_pod(1), disruption="EvictionByEvictionAPI")])
    killed = ended_pod(0, 137)
    assert has_first_cause([killed, deleting_pod(running_pod(1))])


def test_a_pod_deleted_after_its_own_failure_is_still_the_cause() -> None:
    cause = deleting_pod(ended_pod(1, 1, last_word("UserCodeError", "ValueError: boom"), ended=61))
    survivor = deleting_pod(ended_pod(0, 1, last_word("PeerLost", "worker 1 went away"), ended=60))
    assert classify(job("Failed"), [survivor, cause]).message == "worker 1: ValueError: boom"


def test_a_pod_that_vanished_unseen() -> None:
    assert has_failed(gone_pod(running_pod(0)))
    failure = classify(job(), [gone_pod(running_pod(0)), running_pod(1)])
    assert (failure.reason, failure.message) == (Reason.POD_DELETED, "worker 0: its pod on node node-a was deleted")


def test_deleting_the_job_explains_the_deleted_pods() -> None:
    deleted = job(deletionTimestamp="2026-11-21T10:00:00Z")
    pods = [deleting_pod(ended_pod(0, 75)), deleting_pod(ended_pod(1, 75))]
    assert classify(deleted, pods).reason == Reason.JOB_DELETED
    assert classify(deleted, []).message == "the PyTorchJob digits-1 was deleted"


def test_the_traceback_or_the_end_of_the_log_is_kept() -> None:
    word = json.loads(last_word("UserCodeError", "ValueError: boom"))
    word["error"]["traceback"] = TRACEBACK
    assert classify(job("Failed"), [ended_pod(0, 1, json.dumps(word))]).log == TRACEBACK
    assert classify(job("Failed"), [ended_pod(0, 66, last_word("DatasetNotFound", "no such folder"))]).log is None
    assert classify(job("Failed"), [ended_pod(0, 1, "x" * 5000)]).log == "x" * 4096
    assert classify(job("Failed"), [ended_pod(0, 137)]).log is None


def test_a_deleted_pod_is_nobodys_code() -> None:
    taken = deleting_pod(ended_pod(0, 137))
    peer = ended_pod(1, 1, last_word("PeerLost", "worker 0 went away"), ended=50)
    assert classify(job("Failed"), [taken, peer]).reason == Reason.POD_DELETED
    assert classify(job("Failed"), [taken, ended_pod(1, 3, "boom", ended=61)]).reason == Reason.USER_CODE_ERROR


def test_eviction_by_the_node() -> None:
    body = pod_body(0, phase="Failed", node="a", status={"reason": "Evicted", "message": "node was low on memory"})
    failure = classify(job("Failed"), [parse_pod(body)])
    assert failure.message == "worker 0 on node a: evicted by its node: node was low on memory"


def test_a_storage_limit_is_the_trainings_own_doing() -> None:
    said = 'Usage of EmptyDir volume "gputraining-shm" exceeds the limit "64Mi".'
    pod = replace(ended_pod(0, 137), reason="Evicted", message=said)
    failure = classify(job("Failed"), [pod])
    assert failure.reason == Reason.STORAGE_LIMIT_EXCEEDED
    assert said in failure.message
    assert "raise sharedMemory.sizeLimit" in failure.message


def test_a_dead_node_takes_its_worker_along() -> None:
    failure = lost_worker(deleting_pod(running_pod(1)))
    assert (failure.reason, failure.worker) == (Reason.NODE_LOST, 1)


def test_without_pods_the_job_speaks() -> None:
    assert classify(job("Failed"), []).message == "job Failed"


def test_garbage_is_no_last_word() -> None:
    assert final_record(ended_pod(0, 1, '{"version": 9}')) is None
    assert final_record(ended_pod(0, 1, "{")) is None
    assert final_record(running_pod(0)) is None
