"""The first cause of a failure, and what the user is told."""

from __future__ import annotations

import json

import pytest

from gputraining_operator.api import Json, Reason
from gputraining_operator.failures import classify, final_record
from gputraining_operator.observed import parse_pod
from tests.unit.operator.builders import ended_pod, job, pod_body, running_pod


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


@pytest.mark.parametrize(
    ("code", "log", "text"),
    [
        (1, "line 1\nKeyError: 'x'\n", "worker 0: ended with exit code 1: KeyError: 'x'"),
        (137, "", "worker 0: ended by SIGKILL (exit code 137)"),
        (250, "", "worker 0: ended with exit code 250"),
    ],
)
def test_scripts_that_say_nothing(code: int, log: str, text: str) -> None:
    failure = classify(job("Failed"), [ended_pod(0, code, log)])
    assert (failure.reason, failure.message) == (Reason.USER_CODE_ERROR, text)


def test_a_deleted_pod_is_nobodys_code() -> None:
    body = pod_body(0, phase="Failed", node="node-a")
    terminated = {"exitCode": 137, "finishedAt": "2026-11-21T10:01:00Z"}
    body["status"]["containerStatuses"] = [{"name": "pytorch", "state": {"terminated": terminated}}]
    body["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:59Z"
    gone = parse_pod(body)
    failure = classify(job("Failed"), [gone, ended_pod(1, 1, last_word("PeerLost", "worker 0 went away"), ended=50)])
    assert (failure.reason, failure.message) == (
        Reason.EVICTED,
        "worker 0: its pod was deleted or evicted from node node-a",
    )
    assert classify(job("Failed"), [gone, ended_pod(1, 3, "boom", ended=61)]).reason == Reason.USER_CODE_ERROR


def test_eviction() -> None:
    body = pod_body(0, phase="Failed", node="a", status={"reason": "Evicted", "message": "node was low on memory"})
    assert classify(job("Failed"), [parse_pod(body)]).reason == Reason.EVICTED


def test_without_pods_the_job_speaks() -> None:
    assert classify(job("Failed"), []).message == "job Failed"


def test_garbage_is_no_last_word() -> None:
    assert final_record(ended_pod(0, 1, '{"version": 9}')) is None
    assert final_record(ended_pod(0, 1, "{")) is None
    assert final_record(running_pod(0)) is None
