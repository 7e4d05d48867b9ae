"""How an attempt ends, and what that means for the training: complete, failed, another attempt, suspended. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from gputraining_operator.accounting import attempt_gpu_seconds, lost_gpu_seconds
from gputraining_operator.api import Condition, Json, Phase, Reason
from gputraining_operator.attempts import begun, end_of, ended, put_attempt
from gputraining_operator.compose import (
    accepted,
    compose_status,
    final_records,
    health_over,
    plan_for,
    tell_of_this_attempt,
)
from gputraining_operator.decision import Observed, Plan
from gputraining_operator.events import EventToPost, complete_message, started_events
from gputraining_operator.failures import Failure
from gputraining_operator.observed import JobView
from gputraining_operator.progress import leading_record
from gputraining_operator.retry import Verdict, decide
from gputraining_operator.status import ConditionUpdate, grouped, output_location, progress_status, summary
from gputraining_operator.times import format_time, parse_time

SUSPENDED_FAILURE = Failure(Reason.SUSPENDED, "suspended by spec.runPolicy.suspend")


def complete(observed: Observed, now: datetime) -> Plan:
    """The training has succeeded."""
    training, job = observed.training, observed.job
    assert job is not None, "only a job succeeds"
    last = final_records(observed)
    record = leading_record(last)
    progress = progress_status(training.status.get("progress"), last, complete=True)
    # Very short trainings end before anybody sees them run.
    started = _start_time(observed, now)
    location = output_location(training.spec, record.model_path if record else None)
    end = end_of(job, now)
    message = complete_message(training.spec, progress, (end - started).total_seconds(), location)
    entry = _progressed(observed, job, progress)
    status = compose_status(
        observed,
        now,
        phase=Phase.COMPLETE,
        progress=progress,
        message=message,
        conditions=(
            accepted(job),
            ConditionUpdate(Condition.RUNNING, False, Reason.FINISHED, "the training has ended"),
            *health_over(training.status, Reason.FINISHED, "the training has ended"),
            ConditionUpdate(Condition.COMPLETE, True, Reason.TRAINING_SUCCEEDED, message),
        ),
        attempt=ended(entry, end, Failure(Reason.TRAINING_SUCCEEDED, message), counts=False),
    )
    status["workers"] = {"desired": training.spec.workers, "ready": training.spec.workers, "failed": 0}
    status["summary"] = summary(status["workers"], progress)
    status["startTime"] = format_time(started)
    status["completionTime"] = format_time(end)
    if location:
        status["outputPath"] = location
    events = (*started_events(training, job), EventToPost("Normal", Reason.COMPLETE, message))
    return plan_for(observed, status, events, now, requeue_after=_ttl(observed))


def attempt_over(observed: Observed, failure: Failure, now: datetime) -> Plan:
    """The current attempt has failed: another one follows, or the training fails.

    The status is written before the job is deleted, so the cause is never lost.
    """
    training, job = observed.training, observed.job
    assert job is not None, "an attempt is a job"
    progress = _progress_at_end(observed)
    end = end_of(job, now)
    entry = _progressed(observed, job, progress)
    attempts = put_attempt(training.status.get("attempts") or (), ended(entry, end, failure, counts=True))
    verdict = decide(training, attempts, failure)
    entry = ended(entry, end, failure, counts=verdict.counts)
    if not verdict.retry:
        return fail(observed, Failure(failure.reason, verdict.message), now, attempt=entry, progress=progress)
    number, at = entry["number"] + 1, end + timedelta(seconds=verdict.delay_seconds)
    message = f"{verdict.message}; attempt {number} follows {_from_where(observed, progress)}"
    status = compose_status(
        observed,
        now,
        phase=Phase.RESTARTING,
        progress=progress,
        message=message,
        conditions=(
            accepted(job),
            ConditionUpdate(Condition.RUNNING, False, failure.reason, message),
            *health_over(training.status, failure.reason, "the attempt has ended"),
        ),
        attempt=entry,
        batch=verdict.batch,
    )
    _at_rest(status)
    if verdict.delay_seconds:
        status["nextAttemptTime"] = format_time(at + timedelta(seconds=0.999))  # whole seconds: rather late than early
    _count(status, observed, verdict, progress, job, end)
    events = (*started_events(training, job), EventToPost("Warning", failure.reason, message))
    return plan_for(
        observed,
        status,
        events,
        now,
        delete_jobs=_unfinished(job),
        failed_attempt=failure.reason,
        requeue_after=max(0.0, (at - now).total_seconds()),
    )


def fail(
    observed: Observed,
    failure: Failure,
    now: datetime,
    *,
    attempt: Json | None = None,
    progress: Json | None = None,
) -> Plan:
    """The training has failed for good; a job that still runs is deleted."""
    training, job = observed.training, observed.job
    progress = progress or _progress_at_end(observed)
    if attempt is None and job is not None:
        entry = _progressed(observed, job, progress)
        attempt = ended(entry, end_of(job, now), failure, counts=True)
    status = compose_status(
        observed,
        now,
        phase=Phase.FAILED,
        progress=progress,
        message=failure.message,
        conditions=(
            accepted(job) if job else ConditionUpdate(Condition.ACCEPTED, False, failure.reason, failure.message),
            ConditionUpdate(Condition.RUNNING, False, Reason.FINISHED, "the training has ended"),
            *health_over(training.status, Reason.FINISHED, "the training has ended"),
            ConditionUpdate(Condition.FAILED, True, failure.reason, failure.message),
        ),
        attempt=attempt,
    )
    end = end_of(job, now)
    status["completionTime"] = format_time(end)
    _at_rest(status)
    if job is not None:
        _count(status, observed, Verdict(False, True, failure.message), progress, job, end)
    return plan_for(
        observed,
        status,
        (*started_events(training, job), EventToPost("Warning", failure.reason, failure.message)),
        now,
        delete_jobs=_unfinished(job),
        failed_attempt=failure.reason if job else None,
        requeue_after=_ttl(observed),
    )


def suspended(observed: Observed, now: datetime) -> Plan:
    """The workers of a suspended training are gone, or never were there."""
    training, job = observed.training, observed.job
    progress = _progress_at_end(observed) if job else training.status.get("progress")
    checkpoint = (progress or {}).get("lastCheckpoint")
    where = f"continues at step {grouped(checkpoint['step'])}" if checkpoint else "starts from the beginning"
    message = f"suspended, holds no GPUs; {where} when spec.runPolicy.suspend is false"
    if not training.status.get("attempts") and job is None:
        message = "suspended before it started; starts when spec.runPolicy.suspend is false"
    entry = None
    if job is not None:
        entry = _progressed(observed, job, progress)
        entry = ended(entry, now, SUSPENDED_FAILURE, counts=False)
    status = compose_status(
        observed,
        now,
        phase=Phase.SUSPENDED,
        progress=progress,
        message=message,
        conditions=(
            ConditionUpdate(Condition.RUNNING, False, Reason.SUSPENDED, message),
            ConditionUpdate(Condition.SUSPENDED, True, Reason.SUSPENDED, message),
            *health_over(training.status, Reason.SUSPENDED, message),
        ),
        attempt=entry,
    )
    _at_rest(status)
    if job is not None:
        _count(status, observed, Verdict(True, False, message), progress, job, now)
    return plan_for(observed, status, (EventToPost("Normal", Reason.SUSPENDED, message),), now)


def _progress_at_end(observed: Observed) -> Json | None:
    same = tell_of_this_attempt(observed)
    return progress_status(observed.training.status.get("progress"), final_records(observed), same_attempt=same)


def _progressed(observed: Observed, job: JobView, progress: Json | None) -> Json:
    """The entry of the attempt with how far it came, as far as it told."""
    entry = begun(observed.training.spec, observed.training.status, job)
    records = final_records(observed)
    if not records and not tell_of_this_attempt(observed):
        return entry
    steps = [record.step for record in records.values() if record.step is not None]
    restored = [record.restored_step for record in records.values() if record.restored_step is not None]
    if not records and progress:
        steps = [progress["step"]] if "step" in progress else []
        restored = [progress["restoredStep"]] if "restoredStep" in progress else []
    known = ({"lastStep": max(steps)} if steps else {}) | ({"restoredStep": max(restored)} if restored else {})
    return entry | known


def _from_where(observed: Observed, progress: Json | None) -> str:
    checkpoint = (progress or {}).get("lastCheckpoint")
    if checkpoint:
        return f"from the checkpoint at step {grouped(checkpoint['step'])}"
    if observed.training.spec.checkpoint is None:
        return "from the beginning (spec.checkpoint is not set)"
    return "from the newest checkpoint"


def _at_rest(status: Json) -> None:
    """No worker runs, and nothing can be said about the time that remains."""
    status["workers"]["ready"] = 0
    status["summary"] = summary(status["workers"], status.get("progress"))
    status["summary"].pop("eta", None)


def _count(
    status: Json, observed: Observed, verdict: Verdict, progress: Json | None, job: JobView, end: datetime
) -> None:
    """Add a failed attempt to the totals."""
    if verdict.counts:
        status["countedFailures"] = status.get("countedFailures", 0) + 1
    if not observed.training.spec.gpus_per_worker:
        return
    checkpoint = (progress or {}).get("lastCheckpoint")
    saved = parse_time(checkpoint["time"]) if checkpoint else None
    spent = attempt_gpu_seconds(observed.training.spec, observed.pods, end)
    lost = min(spent, lost_gpu_seconds(observed.training.spec, job.created, end, saved))
    totals = dict(status.get("accounting") or {})
    totals["lostGpuSeconds"] = totals.get("lostGpuSeconds", 0) + lost
    status["accounting"] = totals


def _unfinished(job: JobView | None) -> tuple[JobView, ...]:
    return (job,) if job is not None and not (job.finished or job.deleting or job.gone) else ()


def _ttl(observed: Observed) -> float | None:
    ttl = observed.training.spec.run_policy.ttl_seconds_after_finished
    return None if ttl is None else float(ttl)


def _start_time(observed: Observed, now: datetime) -> datetime:
    if "startTime" in observed.training.status:
        return parse_time(observed.training.status["startTime"])
    seconds = max((r.duration_seconds or 0 for r in final_records(observed).values()), default=0)
    end = end_of(observed.job, now)
    most = max(0.0, (end - observed.training.created).total_seconds())  # pods may claim anything
    return end - timedelta(seconds=math.ceil(min(seconds, most)))


def add_suspended(status: Json, since: datetime, now: datetime) -> None:
    """Time without workers, by the user's or a queue's wish, does not count against the deadline."""
    seconds = max(0, round((now - since).total_seconds()))
    status["suspendedSeconds"] = status.get("suspendedSeconds", 0) + seconds
