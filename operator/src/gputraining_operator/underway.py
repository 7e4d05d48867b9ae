"""An attempt that is under way: its workers are waited for, run, are being stopped, or have just failed. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from gputraining_operator.api import Condition, Json, Phase, Reason
from gputraining_operator.attempts import (
    LOST_GRACE,
    begun,
    end_of,
    lost,
    pending_since,
)
from gputraining_operator.compose import accepted, compose_status, plan_for, soonest, tell_of_this_attempt
from gputraining_operator.decision import Observed, Plan
from gputraining_operator.events import (
    EventToPost,
    all_workers,
    checkpoint_events,
    restored_events,
    started_events,
    waiting_events,
)
from gputraining_operator.failures import Failure, classify, ending_text, has_failed, has_first_cause, lost_worker
from gputraining_operator.health import health_conditions, health_events, stall_condition, stall_time
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.outcome import (
    add_suspended,
    attempt_over,
    fail,
)
from gputraining_operator.progress import leading_record
from gputraining_operator.spec import Spec
from gputraining_operator.status import ConditionUpdate, find_condition, is_true, progress_status, running_message
from gputraining_operator.times import format_duration, format_time, parse_time
from gputraining_operator.waiting import (
    SCHEDULING_GRACE,
    TELLS_AGE,
    Waiting,
    explain_waiting,
    image_is_missing,
)

FINAL_RECORD_GRACE: Final = timedelta(seconds=10)
"""How long the end of an attempt is held back for the pods' last words, which come by another watch."""
SURVIVOR_GRACE: Final = timedelta(seconds=2)
"""How long the others may take to notice that a worker is gone: they know best how far the training came."""


def of_this_admission(observed: Observed) -> Observed:
    """Without the pods that a queue took away before: it brings them again later, within the same job."""
    job = observed.job
    resumed = (job.conditions.get("Suspended") or {}) if job else {}
    if resumed.get("status") != "False" or not resumed.get("lastTransitionTime"):
        return observed
    since = parse_time(resumed["lastTransitionTime"])
    pods = tuple(pod for pod in observed.pods if not (pod.gone or pod.deleting) or pod.created >= since)
    return replace(observed, pods=pods)


def is_broken(job: JobView, pods: tuple[PodView, ...]) -> bool:
    """Whether a worker failed, or is being taken away: the others cannot go on without it."""
    if job.failed or job.suspended:
        return job.failed
    return any(has_failed(pod) or (pod.deleting and not pod.succeeded) for pod in pods)


def broken(observed: Observed, job: JobView, now: datetime) -> Plan:
    """Waits, within bounds, until the cause is known and a worker that was told to end has written its checkpoint."""
    pods = observed.pods
    ends = [pod.termination.finished for pod in pods if pod.termination and pod.termination.finished]
    ends += [end_of(job, now)] if job.finished else []
    age = now - min(ends, default=datetime.min.replace(tzinfo=UTC))
    if has_first_cause(pods):
        if any(pod.running for pod in pods) and age < SURVIVOR_GRACE:
            return Plan(requeue_after=0.5)
        return attempt_over(observed, classify(job, pods), now)
    dead = [pod for pod in pods if lost(pod, now)]
    ending = [pod for pod in pods if pod.deleting and not pod.over and pod not in dead]
    if dead and not ending:
        return attempt_over(observed, lost_worker(dead[0]), now)
    if ending:
        last = max(pod.deletion_time or now for pod in ending)
        wait = (last + LOST_GRACE - now).total_seconds() + 0.1
        return stopping(observed, Reason.WORKER_ENDING, ending_text(ending), now, requeue_after=wait)
    if age < FINAL_RECORD_GRACE:
        return Plan(requeue_after=1)
    return attempt_over(observed, classify(job, pods), now)


def stopping(
    observed: Observed, reason: str, message: str, now: datetime, *, requeue_after: float | None = None
) -> Plan:
    """Workers are on their way out; the phase stays what it was until they are gone."""
    training, job = observed.training, observed.job
    assert job is not None, "only an attempt's workers can stop"
    status = compose_status(
        observed,
        now,
        phase=training.status.get("phase", Phase.PENDING),
        message=message,
        conditions=(accepted(job), ConditionUpdate(Condition.RUNNING, False, reason, message)),
        progress=progress_status(
            training.status.get("progress"), observed.records, same_attempt=tell_of_this_attempt(observed)
        ),
    )
    delete = (job,) if reason == Reason.SUSPENDING and not job.deleting else ()
    last = max((pod.deletion_time for pod in observed.pods if pod.deletion_time and not pod.over), default=None)
    if requeue_after is None and last is not None:
        requeue_after = max(1.0, (last + LOST_GRACE - now).total_seconds() + 0.1)
    events = started_events(training, job)
    return plan_for(observed, status, events, now, delete_jobs=delete, requeue_after=requeue_after)


def waiting_for_workers(observed: Observed, job: JobView, until_deadline: float | None, now: datetime) -> Plan:
    """Not all workers run yet: say why. ``until_deadline`` is in seconds, None without a deadline."""
    training, spec = observed.training, observed.training.spec
    pods = tuple(pod for pod in observed.pods if not pod.gone)
    missing = image_is_missing(pods, now)
    if missing is not None:
        return attempt_over(observed, Failure(Reason.IMAGE_PULL_FAILED, missing), now)
    waiting = explain_waiting(spec, job, pods, observed.capacity, observed.job_warning, observed.pod_warning, now)
    overdue = pending_overdue(observed, waiting, now)
    if overdue is not None:
        return fail(observed, overdue, now)
    status = compose_status(
        observed,
        now,
        phase=Phase.PENDING,
        message=waiting.message,
        conditions=(accepted(job), ConditionUpdate(Condition.RUNNING, False, waiting.reason, waiting.message)),
    )
    events = started_events(training, job) + waiting_events(training, waiting)
    tells_age = spec.monitoring.interval_seconds if waiting.reason in TELLS_AGE else None
    grace = SCHEDULING_GRACE.total_seconds() if waiting.reason == Reason.SCHEDULING else None
    limit = spec.run_policy.pending_deadline_seconds
    since = pending_since(training, job)
    pending = limit - (now - since).total_seconds() if limit else None
    due = soonest([until_deadline, tells_age, grace, pending])
    return plan_for(observed, status, events, now, requeue_after=due)


def running(observed: Observed, job: JobView, until_deadline: float | None, now: datetime) -> Plan:
    """All workers run: tell how far they are, and how well. ``until_deadline`` as above."""
    training, spec, old = observed.training, observed.training.spec, observed.training.status
    same = tell_of_this_attempt(observed)
    progress = progress_status(old.get("progress"), observed.records, same_attempt=same)
    # A worker that is still starting tells nothing of this attempt, and the former one's progress stays in sight.
    told = progress if same or progress != old.get("progress") else None
    since = _running_since(old, now)
    stalls_at = stall_time(spec, told, since)
    stall = stall_condition(spec, old, told, observed.health, observed.records, since, now)
    if stall is not None and stall.status and spec.monitoring.on_stall == "Restart":
        return attempt_over(observed, Failure(Reason.STALLED, stall.message), now)
    record = leading_record(observed.records)
    verb = "runs" if spec.workers == 1 else "run"
    # A script of one's own need not report anything.
    problem = observed.pull_problem if spec.training else None
    entry = begun(spec, old, job)
    if told and "restoredStep" in told:
        entry["restoredStep"] = told["restoredStep"]
    health = (
        *((stall,) if stall is not None else ()),
        *health_conditions(spec, old, observed.health, observed.records, observed.pods, now),
    )
    status = compose_status(
        observed,
        now,
        phase=Phase.RUNNING,
        progress=progress,
        message=running_message(progress, record, problem),
        conditions=(
            accepted(job),
            ConditionUpdate(Condition.RUNNING, True, Reason.ALL_WORKERS_READY, f"{all_workers(spec)} {verb}"),
            *health,
        ),
        attempt=entry,
    )
    status.setdefault("startTime", format_time(now))
    waited_for = find_condition(old, Condition.RUNNING) or {}
    if waited_for.get("reason") == Reason.QUEUED and "startTime" in old:
        add_suspended(status, parse_time(waited_for["lastTransitionTime"]), now)
    events = started_events(training, job)
    if not is_true(old, Condition.RUNNING):
        waited = format_duration((now - max(job.created, training.created)).total_seconds())
        events += (EventToPost("Normal", Reason.RUNNING, f"{all_workers(spec)} {verb} after {waited}"),)
    events += (
        restored_events(old, job, told) + checkpoint_events(old.get("progress"), progress) + health_events(old, health)
    )
    limit = spec.run_policy.active_deadline_seconds
    if "startTime" not in old and limit:
        until_deadline = limit
    until_stall = (stalls_at - now).total_seconds() if stalls_at is not None and now < stalls_at else None
    return plan_for(observed, status, events, now, requeue_after=soonest([until_deadline, until_stall]))


def pending_overdue(observed: Observed, waiting: Waiting, now: datetime) -> Failure | None:
    """The failure of a training that has waited for longer than pendingDeadlineSeconds; None before that."""
    training, limit = observed.training, observed.training.spec.run_policy.pending_deadline_seconds
    since = pending_since(training, observed.job)
    if limit is None or now < since + timedelta(seconds=limit):
        return None
    text = (
        f"not all workers ran within {format_duration(limit)} (spec.runPolicy.pendingDeadlineSeconds is {limit}): "
        f"{waiting.message}"
    )
    return Failure(Reason.PENDING_DEADLINE_EXCEEDED, text)


def has_succeeded(job: JobView, pods: tuple[PodView, ...]) -> bool:
    """Rank 0 ends last and writes the model: its success is the job's, whether or not that has been said already."""
    return job.succeeded or any(pod.rank == 0 and pod.succeeded for pod in pods)


def main_word_known(pods: tuple[PodView, ...]) -> bool:
    """Whether rank 0 was seen to end, so that its last word is known."""
    return any(pod.rank == 0 and (pod.termination or pod.succeeded) for pod in pods)


def all_workers_run(spec: Spec, pods: tuple[PodView, ...]) -> bool:
    """Whether all of the gang run, or have ended well while others still run."""
    return sum(1 for pod in pods if pod.running or pod.succeeded) >= spec.workers and any(pod.running for pod in pods)


def _running_since(status: Json, now: datetime) -> datetime:
    condition = find_condition(status, Condition.RUNNING)
    if condition is not None and condition["status"] == "True":
        return parse_time(condition["lastTransitionTime"])
    return now
