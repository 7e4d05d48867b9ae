"""Why a training failed: container state, exit code and the trainer's last word -> one reason and one line."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gputraining_operator.api import Reason
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressError, ProgressRecord, parse_record

_MAX_MESSAGE: Final = 1024
# What follows from another's failure, the further from the cause the higher: pods are deleted when the job has failed,
# and the peers of a pod that went away fail in turn.
_AFTERMATH: Final = {Reason.EVICTED: 1, Reason.PEER_LOST: 2}
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Failure:
    """A classified failure: a reason of `api.Reason` and a message that says who, what, and the fix."""

    reason: str
    message: str


def final_record(pod: PodView) -> ProgressRecord | None:
    """The trainer's last word in the pod's termination message, or None if it left none."""
    if pod.termination is None or not pod.termination.message.startswith("{"):
        return None
    try:
        return parse_record(pod.termination.message)
    except ProgressError:
        return None


def classify(job: JobView, pods: Iterable[PodView]) -> Failure:
    """Find the first cause among the failed pods of a job.

    A worker that died because another went away (PeerLost) is a consequence, so it only counts when nobody else failed;
    among the others the one that ended first is the cause.
    """
    failed = [(pod, _pod_failure(pod)) for pod in pods if pod.failed or _exit_code(pod)]
    if failed:
        pod, failure = min(failed, key=lambda item: (_AFTERMATH.get(item[1].reason, 0), _end(item[0]), item[0].rank))
        return Failure(failure.reason, _clip(f"worker {pod.rank}: {failure.message}"))
    condition = job.condition("Failed") or {}
    return Failure(Reason.JOB_FAILED, _clip(condition.get("message") or "the training-operator reports a failure"))


def has_first_cause(pods: Iterable[PodView]) -> bool:
    """Whether a pod failed by itself, not only because a peer went away: that peer's end may still be on its way."""
    failed = (pod for pod in pods if pod.failed or _exit_code(pod))
    return any(_pod_failure(pod).reason != Reason.PEER_LOST for pod in failed)


def _pod_failure(pod: PodView) -> Failure:
    if pod.reason == "Evicted" or pod.termination is None:
        return Failure(Reason.EVICTED, f"the pod was evicted or lost: {pod.message or pod.reason or 'no reason given'}")
    if pod.termination.reason == "OOMKilled":
        return Failure(
            Reason.OUT_OF_MEMORY,
            "killed for using more memory than its limit (data in /dev/shm counts too); "
            "raise resources.limits.memory or lower batchSize",
        )
    record = final_record(pod)
    if record and record.error:
        return Failure(record.error.type, record.error.message)
    if pod.deleting:
        return Failure(Reason.EVICTED, f"its pod was deleted or evicted from node {pod.node}")
    return Failure(Reason.USER_CODE_ERROR, _exit_text(pod.termination.exit_code, pod.termination.message))


def _exit_text(code: int, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if code > 128:
        try:
            return f"ended by {signal.Signals(code - 128).name} (exit code {code}){last}"
        except ValueError:
            pass
    return f"ended with exit code {code}{last}"


def _exit_code(pod: PodView) -> int:
    return pod.termination.exit_code if pod.termination else 0


def _end(pod: PodView) -> datetime:
    return (pod.termination.finished if pod.termination else None) or _LATEST


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
