"""Puts the whole status of a training together from what is observed, and wraps it into a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gputraining_operator.accounting import account, attempt_energy_joules, attempt_gpu_seconds, attempt_share
from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.attempts import begun, last_attempt, put_attempt
from gputraining_operator.decision import Observed, Plan
from gputraining_operator.events import EventToPost
from gputraining_operator.failures import final_record
from gputraining_operator.observed import JobView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.spec import BatchPlan
from gputraining_operator.status import (
    ConditionUpdate,
    clip,
    gpu_status,
    is_true,
    set_conditions,
    summary,
    worker_counts,
)
from gputraining_operator.times import parse_time

HEALTH_CONDITIONS = (
    Condition.PROGRESS_STALLED,
    Condition.GPU_UNDERUTILIZED,
    Condition.GPU_UNHEALTHY,
    Condition.STRAGGLER_DETECTED,
)


def compose_status(
    observed: Observed,
    now: datetime,
    *,
    phase: str,
    message: str,
    conditions: tuple[ConditionUpdate, ...],
    progress: Json | None = None,
    attempt: Json | None = None,
    batch: BatchPlan | None = None,
) -> Json:
    """The status as it should be; what the arguments do not say stays as it was.

    ``attempt`` is the entry of the current attempt where it says more than that the attempt goes on.
    """
    training = observed.training
    old, job = training.status, observed.job
    pods = [pod for pod in observed.pods if not pod.gone]
    workers = worker_counts(training.spec, pods)
    progress = progress or old.get("progress")
    if attempt is None and job is not None:
        attempt = begun(training.spec, old, job)
    attempts = put_attempt(old.get("attempts") or (), attempt) if attempt else list(old.get("attempts") or ())
    reduced = (
        {"batchSize": batch.batch_size, "gradientAccumulationSteps": batch.gradient_accumulation_steps}
        if batch
        else old.get("training")
    )
    status: Json = {
        "observedGeneration": training.generation,
        "phase": phase,
        "message": clip(message),
        "workers": workers,
        "summary": summary(workers, progress),
        "conditions": set_conditions(old.get("conditions") or (), conditions, training.generation, now),
    }
    optional: Json = {
        "attempt": attempts[-1]["number"] if attempts else None,
        "attempts": attempts or None,
        "jobName": job.name if job else old.get("jobName"),
        "training": reduced,
        "progress": progress,
        "gpu": gpu_status(observed.records) or old.get("gpu"),
        "accounting": old.get("accounting"),
        "startTime": old.get("startTime"),
        "completionTime": old.get("completionTime"),
        "outputPath": old.get("outputPath"),
        "countedFailures": old.get("countedFailures"),
        "suspendedSeconds": old.get("suspendedSeconds"),
    }
    return status | {key: value for key, value in optional.items() if value is not None}


def plan_for(
    observed: Observed,
    status: Json,
    events: tuple[EventToPost, ...],
    now: datetime,
    *,
    create: Json | None = None,
    delete_jobs: tuple[JobView, ...] = (),
    failed_attempt: str | None = None,
    requeue_after: float | None = None,
) -> Plan:
    """The plan that makes this the status. GPU time alone is no news: it is told along with something else."""
    changed = status != observed.training.status
    return Plan(
        create=create,
        status=with_accounting(observed, status, now) if changed else None,
        delete_jobs=delete_jobs,
        events=events if changed else (),
        failed_attempt=failed_attempt if changed else None,
        requeue_after=requeue_after,
    )


def with_accounting(observed: Observed, status: Json, now: datetime) -> Json:
    """The status with the current attempt's share of GPU time and energy brought up to date."""
    entry = last_attempt(status)
    if entry is None or not observed.training.spec.gpus_per_worker or observed.job is None:
        return status
    end = parse_time(entry["endTime"]) if "endTime" in entry else now
    seconds = attempt_gpu_seconds(observed.training.spec, observed.pods, end)
    energy = attempt_energy_joules(final_records(observed))
    before = next((a for a in observed.training.status.get("attempts") or () if a["number"] == entry["number"]), None)
    spent = attempt_share(before, seconds, energy)
    return status | {
        "attempts": put_attempt(status["attempts"], entry | spent),
        "accounting": account(status.get("accounting"), before, seconds, energy),
    }


def final_records(observed: Observed) -> Mapping[int, ProgressRecord]:
    """The last words of the pods where there are any, else what was pulled last."""
    words = {pod.rank: final_record(pod) for pod in observed.pods}
    return dict(observed.records) | {rank: record for rank, record in words.items() if record is not None}


def accepted(job: JobView) -> ConditionUpdate:
    """The workers' job exists."""
    return ConditionUpdate(Condition.ACCEPTED, True, Reason.RENDERED, f"PyTorchJob {job.name} exists")


def health_over(status: Json, reason: str, message: str) -> tuple[ConditionUpdate, ...]:
    """What was wrong with the workers of an attempt ends with it."""
    true = (kind for kind in HEALTH_CONDITIONS if is_true(status, kind))
    return tuple(ConditionUpdate(kind, False, reason, message) for kind in true)


def tell_of_this_attempt(observed: Observed) -> bool:
    """Whether the progress in the status is of the current attempt, not of the one before."""
    progress, job = observed.training.status.get("progress"), observed.job
    return progress is not None and (job is None or parse_time(progress["lastUpdateTime"]) >= job.created)


def soonest(seconds: Iterable[float | None]) -> float | None:
    """The smallest of the known ones, not below 0."""
    known = [max(0.0, value) for value in seconds if value is not None]
    return min(known, default=None)
