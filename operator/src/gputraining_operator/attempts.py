"""The history of a training's attempts, as its status tells it. Pure.

The status is the only memory: which attempt is the current one, and whether the next one is due, follows from it, so a
restarted operator goes on where the former one stopped and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.failures import Failure
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.spec import BatchPlan, GpuTraining, Spec
from gputraining_operator.times import format_time, parse_time

KEPT: Final = 10
"""Attempts in the status; older ones fall off."""

LOST_GRACE: Final = timedelta(seconds=15)
"""How long after the end of its grace a deleted pod may still be there. After that its node does not answer any more:
it counts for nothing, or one dead node would block the training for ever."""

CLEANING_GRACE: Final = timedelta(seconds=10)
"""How long the training-operator has to remove the workers of a job that it calls finished; then the job is deleted."""


@dataclass(frozen=True)
class FormerJob:
    """The PyTorchJob of an earlier attempt, and its pods."""

    job: JobView
    pods: tuple[PodView, ...] = ()


def last_attempt(status: Json) -> Json | None:
    """The newest attempt of the history, or None."""
    attempts = status.get("attempts") or ()
    return attempts[-1] if attempts else None


def open_attempt(status: Json) -> Json | None:
    """The attempt that has begun and not ended, or None."""
    last = last_attempt(status)
    return last if last is not None and "endTime" not in last else None


def current_number(status: Json) -> int:
    """Number of the attempt that runs, or that comes next."""
    last = last_attempt(status)
    if last is None:
        return int(status.get("attempt") or 1)
    return int(last["number"]) + (1 if "endTime" in last else 0)


def batch_in_force(spec: Spec, status: Json) -> BatchPlan | None:
    """Batch size and accumulation after reductions; None for own scripts and while nothing was reduced."""
    reduced = status.get("training")
    if spec.training is None or not reduced:
        return None
    return BatchPlan(reduced["batchSize"], reduced["gradientAccumulationSteps"])


def begun(spec: Spec, status: Json, job: JobView) -> Json:
    """The entry of the attempt that this PyTorchJob is, made new if the history does not have it yet."""
    current = open_attempt(status)
    if current is not None and current["number"] == job.attempt:
        return dict(current)
    entry: Json = {"number": job.attempt, "startTime": format_time(job.created)}
    if spec.training is not None:
        batch = batch_in_force(spec, status)
        entry["batchSize"] = batch.batch_size if batch else spec.training.batch_size
        steps = batch.gradient_accumulation_steps if batch else spec.training.gradient_accumulation_steps
        entry["gradientAccumulationSteps"] = steps
    return entry


def ended(entry: Json, end: datetime, failure: Failure, *, counts: bool) -> Json:
    """The entry closed, with all that is known about the end."""
    known: Json = {
        "endTime": format_time(end),
        "reason": failure.reason,
        "message": failure.message,
        "exitCode": failure.exit_code,
        "worker": failure.worker,
        "node": failure.node,
        "log": failure.log,
        "countsAgainstBackoffLimit": counts,
    }
    return entry | {key: value for key, value in known.items() if value is not None}


def put_attempt(attempts: Sequence[Json], entry: Json) -> list[Json]:
    """The history with this entry added, or put in the place of the one with its number."""
    others = [attempt for attempt in attempts if attempt["number"] != entry["number"]]
    return [*others, entry][-KEPT:]


def advanced(entry: Json, earlier: Sequence[Json]) -> bool:
    """Whether the attempt got further than where it started, and than any attempt before."""
    reached = max((attempt.get("lastStep", 0) for attempt in earlier), default=0)
    return bool(entry.get("lastStep", 0) > max(entry.get("restoredStep", 0), reached))


def attempts_without_advance(attempts: Sequence[Json]) -> int:
    """How many of the newest attempts in a row got nowhere; being suspended is no failure to advance."""
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        if advanced(attempts[index], attempts[:index]) or attempts[index].get("reason") == Reason.SUSPENDED:
            break
        count += 1
    return count


def lost(pod: PodView, now: datetime) -> bool:
    """Whether a pod should long be gone: its node is dead, and nobody will hear of it soon."""
    return not pod.over and pod.deletion_time is not None and now > pod.deletion_time + LOST_GRACE


def alive(pods: Sequence[PodView], now: datetime) -> list[PodView]:
    """Pods that may still train, or hold GPUs."""
    return [pod for pod in pods if not pod.over and not lost(pod, now)]


def retire(former: tuple[FormerJob, ...], now: datetime) -> tuple[tuple[JobView, ...], bool]:
    """What to delete of earlier attempts, and whether one of them may still train.

    The newest finished job is kept: its pods hold nothing any more but their logs.
    """
    finished = [f.job for f in former if f.job.finished and not f.job.gone]
    kept = finished[-1] if finished else None
    to_delete, blocked = [], False
    for old in former:
        living = alive(old.pods, now)
        overstay = bool(living) and now > end_of(old.job, now) + CLEANING_GRACE
        if not old.job.gone and not old.job.deleting and (old.job is not kept or overstay):
            to_delete.append(old.job)
        leaving = old.job.gone or old.job.deleting or old.job.finished
        blocked = blocked or bool(living) or not leaving
    return tuple(to_delete), blocked


def end_of(job: JobView | None, now: datetime) -> datetime:
    """When the training-operator saw the job end; now if it did not, or its clock is ahead."""
    for kind in ("Succeeded", "Failed"):
        condition = job.condition(kind) if job else None
        if condition and condition.get("lastTransitionTime"):
            return min(now, parse_time(condition["lastTransitionTime"]))
    return now


def pending_since(training: GpuTraining, job: JobView | None) -> datetime:
    """Since when the training has been waiting for its workers. A queue may take them away in mid-attempt."""
    status = training.status
    if job is not None:
        taken = training.spec.scheduling.queue_name and "startTime" in status
        return max([job.created, *(_turned(status, Condition.RUNNING) if taken else [])])
    last, resumed = last_attempt(status), _turned(status, Condition.SUSPENDED)
    moments = [training.created, *([parse_time(last["endTime"])] if last and "endTime" in last else []), *resumed]
    if "nextAttemptTime" in status:
        moments.append(parse_time(status["nextAttemptTime"]))
    return max(moments)


def _turned(status: Json, kind: str) -> list[datetime]:
    """When the condition became False, if it is."""
    return [
        parse_time(condition["lastTransitionTime"])
        for condition in status.get("conditions") or ()
        if condition["type"] == kind and condition["status"] == "False"
    ]
