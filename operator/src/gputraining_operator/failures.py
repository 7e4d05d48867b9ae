"""Why a training failed: container state, exit code, pod conditions and the trainer's last word -> one reason and one
line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gputraining_operator.api import Reason
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressError, ProgressRecord, parse_record

EXIT_PREEMPTED: Final = 75
"""The trainer's exit code after SIGTERM and an agreed checkpoint (EX_TEMPFAIL: try again)."""

_MAX_MESSAGE: Final = 1024
_MAX_LOG: Final = 4096
# What follows from another's failure, the further from the cause the higher: when one worker fails the pods of the
# others are deleted, a worker that is told to stop takes the others with it, and peers of one that vanished fail.
_AFTERMATH: Final = {Reason.POD_DELETED: 1, Reason.PREEMPTED: 2, Reason.PEER_LOST: 3}
_LATEST: Final = datetime.max.replace(tzinfo=UTC)

# Reasons of the pod condition DisruptionTarget, and of the pod itself when its kubelet ended or refused it.
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": (Reason.PREEMPTED, "pushed off by a pod of higher priority"),
    "EvictionByEvictionAPI": (Reason.EVICTED, "evicted, for example by kubectl drain or the cluster autoscaler"),
    "DeletionByTaintManager": (Reason.NODE_LOST, "its node went away (not ready, unreachable or tainted)"),
    "DeletionByPodGC": (Reason.NODE_LOST, "its node is gone"),
    "TerminationByKubelet": (Reason.EVICTED, "ended by its node (shutdown, or short of memory or disk)"),
}
_POD_REASONS: Final = {
    "Evicted": (Reason.EVICTED, "evicted by its node"),
    "NodeShutdown": (Reason.NODE_LOST, "its node was shut down"),
    "Shutdown": (Reason.NODE_LOST, "its node was shut down"),
    "Terminated": (Reason.NODE_LOST, "its node was shut down"),
    "NodeLost": (Reason.NODE_LOST, "its node does not answer"),
    "Preempting": (Reason.PREEMPTED, "pushed off by a pod of higher priority"),
}
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Iteration)\b.*")


@dataclass(frozen=True)
class Failure:
    """A classified failure: a reason of `api.Reason` and a message that says who, what, and the fix.

    ``log`` is the end of the worker's traceback or log. ``aftermath`` is 0 for a cause, more for what follows from one.
    """

    reason: str
    message: str
    worker: int | None = None
    node: str | None = None
    exit_code: int | None = None
    log: str | None = None
    aftermath: int = 0


def final_record(pod: PodView) -> ProgressRecord | None:
    """The trainer's last word in the pod's termination message, or None if it left none."""
    if pod.termination is None or not pod.termination.message.startswith("{"):
        return None
    try:
        return parse_record(pod.termination.message)
    except ProgressError:
        return None


def has_failed(pod: PodView) -> bool:
    """Whether the pod ended otherwise than well. One that was deleted before it ended has failed, too."""
    return pod.failed or bool(_exit_code(pod)) or (pod.gone and not pod.succeeded and pod.termination is None)


def classify(job: JobView, pods: Iterable[PodView]) -> Failure:
    """Find the first cause among the failed pods of a job.

    A worker that died because another went away is a consequence, so it only counts when nobody else failed; among the
    others the one that ended, or was deleted, first is the cause.
    """
    failed = [(pod, _pod_failure(pod)) for pod in pods if has_failed(pod)]
    if failed:
        _, failure = min(failed, key=lambda item: (item[1].aftermath, *_order(*item), item[0].rank))
        if failure.aftermath and (job.gone or job.deleting):
            return Failure(Reason.JOB_DELETED, f"the PyTorchJob {job.name} was deleted")
        return failure
    condition = job.condition("Failed")
    if condition is None and (job.gone or job.deleting):
        return Failure(Reason.JOB_DELETED, f"the PyTorchJob {job.name} was deleted")
    return Failure(Reason.JOB_FAILED, _clip((condition or {}).get("message") or "the training-operator gave it up"))


def has_first_cause(pods: Sequence[PodView]) -> bool:
    """Whether a pod failed by itself, not only in consequence: the end of the one that caused it may be on its way.

    That a pod was deleted is the cause only when no other one is still ending: the training-operator deletes the pods
    of a job whose first worker has ended.
    """
    ending = any(pod.deleting and not pod.over for pod in pods)
    causes = {0} if ending else {0, _AFTERMATH[Reason.POD_DELETED]}
    return any(_pod_failure(pod).aftermath in causes for pod in pods if has_failed(pod))


def lost_worker(pod: PodView) -> Failure:
    """The failure that a pod means which should long be gone but whose node does not answer."""
    reason, text = _taken_away(pod) or (Reason.NODE_LOST, "its node does not answer")
    reason = Reason.NODE_LOST if reason == Reason.POD_DELETED else reason
    return Failure(reason, f"worker {pod.rank} on node {pod.node}: {text}", pod.rank, pod.node)


def ending_text(pods: Sequence[PodView]) -> str:
    """What happens to workers that are being taken away right now."""
    pod = pods[0]
    _, text = _taken_away(pod) or ("", "its pod is being deleted")
    others = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    return f"worker {pod.rank} on node {pod.node} stops{others}: {text}"


def _pod_failure(pod: PodView) -> Failure:
    reason, text = _reason(pod)
    where = f" on node {pod.node}" if reason in (Reason.NODE_LOST, Reason.EVICTED, Reason.PREEMPTED) else ""
    return Failure(
        reason,
        _clip(f"worker {pod.rank}{where}: {text}"),
        pod.rank,
        pod.node,
        pod.termination.exit_code if pod.termination else None,
        _log(pod),
        # Being preempted is a cause where the pod says who did it, else the consequence of a peer's being stopped.
        0 if reason == Reason.PREEMPTED and _taken_away(pod) else _AFTERMATH.get(reason, 0),
    )


def _reason(pod: PodView) -> tuple[str, str]:
    code, record = _exit_code(pod), final_record(pod)
    if pod.termination is not None and pod.termination.reason == "OOMKilled":
        return (
            Reason.OUT_OF_MEMORY,
            "killed for using more memory than its limit (data in /dev/shm counts too); "
            "raise resources.limits.memory or lower batchSize",
        )
    own_error = record.error if record is not None else None
    if own_error is not None and own_error.type != Reason.PEER_LOST:
        return own_error.type, own_error.message
    taken_away = _taken_away(pod)
    if taken_away is not None:
        return taken_away
    if own_error is not None:
        return own_error.type, own_error.message
    log = pod.termination.message if pod.termination else ""
    if code == EXIT_PREEMPTED:
        return Reason.PREEMPTED, "stopped with a checkpoint, since it or another worker was told to end"
    if code == 128 + signal.SIGABRT and "NCCL" in log:
        return Reason.PEER_LOST, "aborted by NCCL's watchdog: another worker went away or hangs"
    if code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        name = signal.Signals(code - 128).name
        return Reason.KILLED, f"ended by {name} (exit code {code}), not for its memory limit: by somebody on its node"
    if pod.termination is None:
        return Reason.EVICTED, f"refused or lost by its node: {pod.message or pod.reason or 'no reason given'}"
    return Reason.USER_CODE_ERROR, _exit_text(code, log)


def _taken_away(pod: PodView) -> tuple[str, str] | None:
    """Reason and words when Kubernetes or a person removed the pod; None when it ended by itself."""
    if pod.reason == "Evicted" and "exceed" in pod.message:
        fix = "raise sharedMemory.sizeLimit, the emptyDir's sizeLimit or resources.limits.ephemeral-storage"
        return Reason.STORAGE_LIMIT_EXCEEDED, f"evicted for its own use of storage: {pod.message.strip()}; {fix}"
    if pod.disruption is not None and pod.disruption.reason in _DISRUPTIONS:
        reason, text = _DISRUPTIONS[pod.disruption.reason]
        if pod.reason in _POD_REASONS:
            reason, text = _POD_REASONS[pod.reason]
        return reason, _with_detail(text, pod.message or pod.disruption.message)
    if pod.reason in _POD_REASONS:
        reason, text = _POD_REASONS[pod.reason]
        return reason, _with_detail(text, pod.message)
    if pod.deleting or pod.gone:
        return Reason.POD_DELETED, f"its pod on node {pod.node} was deleted" if pod.node else "its pod was deleted"
    return None


def _log(pod: PodView) -> str | None:
    """The end of the traceback in the last word, or of the log of a worker that left none."""
    record = final_record(pod)
    if record is not None:
        return record.error.traceback or None if record.error else None
    return pod.termination.message[-_MAX_LOG:].strip() or None if pod.termination else None


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def _exit_text(code: int, log: str) -> str:
    cause = _last_cause(log)
    detail = f": {cause}" if cause else ""
    if code > 128:
        try:
            return f"ended by {signal.Signals(code - 128).name} (exit code {code}){detail}"
        except ValueError:
            pass
    return f"ended with exit code {code}{detail}"


def _last_cause(log: str) -> str:
    """The line of a log's end that says why: the exception of the last traceback, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if starts:
        raised = (line for line in lines[starts[-1] :] if _EXCEPTION.fullmatch(line))
        if (line := next(raised, None)) is not None:
            return line
    return lines[-1] if lines else ""


def _exit_code(pod: PodView) -> int:
    return pod.termination.exit_code if pod.termination else 0


def _order(pod: PodView, failure: Failure) -> tuple[int, datetime]:
    """By when it was deleted, for the reasons that follow from that; else by when it ended."""
    deleted = pod.deletion_version if failure.reason == Reason.POD_DELETED else 0
    return deleted, (pod.termination.finished if pod.termination else None) or _LATEST


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
