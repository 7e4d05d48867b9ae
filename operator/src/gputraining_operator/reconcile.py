"""The decision: what is observed, and the time -> what to do. Pure and level-triggered.

Everything that matters is decided here and can be tested without a cluster. The caller carries the plan out, observes
again and asks again, until the plan changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from gputraining_operator.api import TERMINAL_PHASES, Condition, Json, Phase, Reason
from gputraining_operator.attempts import (
    LOST_GRACE,
    alive,
    batch_in_force,
    begun,
    current_number,
    end_of,
    last_attempt,
    lost,
    open_attempt,
    pending_since,
    retire,
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
from gputraining_operator.outcome import attempt_over, complete, deadline_text, fail, suspended
from gputraining_operator.progress import leading_record
from gputraining_operator.render import render_job
from gputraining_operator.spec import GpuTraining, Spec
from gputraining_operator.status import ConditionUpdate, find_condition, is_true, progress_status, running_message
from gputraining_operator.times import format_duration, format_time, parse_time
from gputraining_operator.waiting import (
    SCHEDULING_GRACE,
    TELLS_AGE,
    Waiting,
    explain_waiting,
    image_is_missing,
    is_stuck,
)

FINAL_RECORD_GRACE: Final = timedelta(seconds=10)
"""How long the end of an attempt is held back for the pods' last words, which come by another watch."""
SURVIVOR_GRACE: Final = timedelta(seconds=2)
"""How long the others may take to notice that a worker is gone: they know best how far the training came."""
SETTLED_GRACE: Final = timedelta(seconds=60)
"""How long the job of a complete training may go without a verdict; nothing waits for it, and its logs had better
stay."""


def reconcile(observed: Observed, trainer_image: str, now: datetime) -> Plan:
    """Decide what to do about one training."""
    training = observed.training
    if training.deleting:
        return Plan()
    if training.status.get("phase") in TERMINAL_PHASES:
        return _after_the_end(observed, now)
    if observed.job is not None:
        return _attempt(observed, observed.job, now)
    if (lost_entry := open_attempt(training.status)) is not None:
        return _attempt_without_trace(observed, lost_entry, now)
    return _between_attempts(observed, trainer_image, now)


def needs_pull(observed: Observed) -> bool:
    """Whether the pods of this training have progress to tell now."""
    return (
        observed.training.status.get("phase") not in TERMINAL_PHASES
        and observed.job is not None
        and any(pod.running for pod in observed.pods)
    )


def needs_diagnosis(observed: Observed, now: datetime) -> bool:
    """Whether looking at nodes, other pods or events would help to say why this training waits."""
    if observed.job is None or observed.training.status.get("phase") in TERMINAL_PHASES:
        return False
    pods = [pod for pod in observed.pods if not pod.gone]
    unplaced = any(pod.unschedulable is not None and pod.node is None for pod in pods)
    return unplaced or len(pods) < observed.training.spec.workers or any(is_stuck(pod, now) for pod in pods)


def _attempt(observed: Observed, job: JobView, now: datetime) -> Plan:
    """An attempt is under way, or has just ended."""
    training, pods = observed.training, observed.pods
    if _succeeded(job, pods):
        patient = now < end_of(job, now) + FINAL_RECORD_GRACE
        return Plan(requeue_after=1) if patient and not _main_word_known(pods) else complete(observed, now)
    suspend = training.spec.run_policy.suspend
    if job.gone or (job.deleting and not alive(pods, now)):
        return suspended(observed, now) if suspend else attempt_over(observed, classify(job, pods), now)
    deadline = _active_deadline(training)
    if deadline is not None and now >= deadline:
        return fail(observed, _deadline_failure(training), now)
    until_deadline = (deadline - now).total_seconds() if deadline else None
    if suspend:
        return _stopping(observed, Reason.SUSPENDING, "suspending: the workers write a checkpoint and end", now)
    if job.deleting:
        return _stopping(observed, Reason.JOB_DELETED, f"the PyTorchJob {job.name} is being deleted", now)
    if _broken(training.spec, job, pods):
        return _broken_attempt(observed, job, now)
    if _all_workers_run(training.spec, pods):
        return _running(observed, job, until_deadline, now)
    return _waiting(observed, job, until_deadline, now)


def _attempt_without_trace(observed: Observed, entry: Json, now: datetime) -> Plan:
    """The job of the open attempt is gone, and nobody saw how: the operator was away, or somebody deleted it."""
    training = observed.training
    name, number = training.status.get("jobName", ""), entry["number"]
    vanished = JobView(
        namespace=training.namespace,
        name=name,
        uid="",
        resource_version=0,
        owner_uid=training.uid,
        training_name=training.name,
        created=parse_time(entry["startTime"]),
        deleting=True,
        attempt=number,
        gone=True,
    )
    return _attempt(Observed(training=training, job=vanished, records=observed.records), vanished, now)


def _between_attempts(observed: Observed, trainer_image: str, now: datetime) -> Plan:
    """No attempt is under way: the next one is due, not due yet, or not wanted."""
    training, status = observed.training, observed.training.status
    to_delete, blocked = retire(observed.former, now)
    if training.spec.run_policy.suspend:
        plan = suspended(observed, now)
        return Plan(status=plan.status, events=plan.events, delete_jobs=to_delete)
    if is_true(status, Condition.SUSPENDED):
        return _resume(observed, now)
    deadline = _active_deadline(training)
    if deadline is not None and now >= deadline:
        return fail(observed, _deadline_failure(training), now)
    problem = observed.create_problem
    if problem is not None and problem.final:
        return fail(observed, Failure(problem.reason, problem.message), now)
    until_deadline = (deadline - now).total_seconds() if deadline else None
    if blocked:
        return Plan(delete_jobs=to_delete, requeue_after=1)
    due = status.get("nextAttemptTime")
    if due is not None and now < parse_time(due):
        wait = (parse_time(due) - now).total_seconds()
        return Plan(delete_jobs=to_delete, requeue_after=soonest([wait, until_deadline]))
    create = render_job(training, current_number(status), trainer_image, batch_in_force(training.spec, status))
    if problem is None:
        return Plan(create=create, delete_jobs=to_delete)
    waiting = Waiting(problem.reason, problem.message)
    overdue = _pending_overdue(observed, waiting, now)
    if overdue is not None:
        return fail(observed, overdue, now)
    new_status = compose_status(
        observed,
        now,
        phase=Phase.RESTARTING if last_attempt(status) else Phase.PENDING,
        message=problem.message,
        conditions=(
            ConditionUpdate(Condition.ACCEPTED, False, problem.reason, problem.message),
            ConditionUpdate(Condition.RUNNING, False, problem.reason, problem.message),
        ),
    )
    return plan_for(observed, new_status, waiting_events(training, waiting), now, create=create, delete_jobs=to_delete)


def _broken(spec: Spec, job: JobView, pods: tuple[PodView, ...]) -> bool:
    """Whether a worker failed, or is being taken away: the others cannot go on without it."""
    if job.failed:
        return True
    if spec.scheduling.queue_name:
        # A queue that takes its quota back deletes the pods and brings them again later, within the same job.
        return not job.suspended and any(has_failed(pod) for pod in pods if not (pod.gone or pod.deleting))
    return any(has_failed(pod) or (pod.deleting and not pod.succeeded) for pod in pods)


def _broken_attempt(observed: Observed, job: JobView, now: datetime) -> Plan:
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
        return _stopping(observed, Reason.WORKER_ENDING, ending_text(ending), now, requeue_after=wait)
    if age < FINAL_RECORD_GRACE:
        return Plan(requeue_after=1)
    return attempt_over(observed, classify(job, pods), now)


def _stopping(
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
        requeue_after = (last + LOST_GRACE - now).total_seconds() + 0.1
    events = started_events(training, job)
    return plan_for(observed, status, events, now, delete_jobs=delete, requeue_after=requeue_after)


def _resume(observed: Observed, now: datetime) -> Plan:
    """Suspension is over; the time it took does not count against the deadline."""
    training = observed.training
    condition = find_condition(training.status, Condition.SUSPENDED)
    assert condition is not None, "it is true"
    message = "resumed: the next attempt follows"
    status = compose_status(
        observed,
        now,
        phase=Phase.PENDING,
        message=message,
        conditions=(
            ConditionUpdate(Condition.SUSPENDED, False, Reason.RESUMED, message),
            ConditionUpdate(Condition.RUNNING, False, Reason.RESUMED, message),
        ),
    )
    if "startTime" in training.status:
        seconds = round((now - parse_time(condition["lastTransitionTime"])).total_seconds())
        status["suspendedSeconds"] = status.get("suspendedSeconds", 0) + max(0, seconds)
    return plan_for(observed, status, (EventToPost("Normal", Reason.RESUMED, message),), now, requeue_after=0)


def _waiting(observed: Observed, job: JobView, until_deadline: float | None, now: datetime) -> Plan:
    training, spec = observed.training, observed.training.spec
    pods = tuple(pod for pod in observed.pods if not pod.gone)
    missing = image_is_missing(pods, now)
    if missing is not None:
        return attempt_over(observed, Failure(Reason.IMAGE_PULL_FAILED, missing), now)
    waiting = explain_waiting(spec, job, pods, observed.capacity, observed.job_warning, observed.pod_warning, now)
    overdue = _pending_overdue(observed, waiting, now)
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
    pending = limit - (now - job.created).total_seconds() if limit else None
    due = soonest([until_deadline, tells_age, grace, pending])
    return plan_for(observed, status, events, now, requeue_after=due)


def _running(observed: Observed, job: JobView, until_deadline: float | None, now: datetime) -> Plan:
    training, spec, old = observed.training, observed.training.spec, observed.training.status
    same = tell_of_this_attempt(observed)
    progress = progress_status(old.get("progress"), observed.records, same_attempt=same)
    # A worker that is still starting tells nothing of this attempt, and the former one's progress stays in sight.
    told = progress if same or progress != old.get("progress") else None
    since = _running_since(old, now)
    stalls_at = stall_time(spec, told, since)
    stall = stall_condition(spec, old, told, observed.records, since, now)
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


def _deadline_failure(training: GpuTraining) -> Failure:
    return Failure(Reason.DEADLINE_EXCEEDED, deadline_text(training.spec.run_policy.active_deadline_seconds or 0))


def _pending_overdue(observed: Observed, waiting: Waiting, now: datetime) -> Failure | None:
    training, limit = observed.training, observed.training.spec.run_policy.pending_deadline_seconds
    since = pending_since(training.created, training.status, observed.job)
    if limit is None or now < since + timedelta(seconds=limit):
        return None
    text = (
        f"not all workers ran within {format_duration(limit)} (spec.runPolicy.pendingDeadlineSeconds is {limit}): "
        f"{waiting.message}"
    )
    return Failure(Reason.PENDING_DEADLINE_EXCEEDED, text)


def _after_the_end(observed: Observed, now: datetime) -> Plan:
    """Nothing runs on, and nothing stays longer than it should."""
    training, end = observed.training, observed.training.status.get("completionTime")
    if end is None:
        return Plan()
    ttl, ended = training.spec.run_policy.ttl_seconds_after_finished, parse_time(end)
    if ttl is not None and now >= ended + timedelta(seconds=ttl):
        return Plan(delete_training=True)
    settled = ended + SETTLED_GRACE if training.status.get("phase") == Phase.COMPLETE else ended
    unfinished = [f.job for f in observed.former if not (f.job.finished or f.job.gone or f.job.deleting)]
    delete = tuple(unfinished) if now >= settled else ()
    waits = [
        (ended + timedelta(seconds=ttl) - now).total_seconds() if ttl is not None else None,
        (settled - now).total_seconds() if unfinished and not delete else None,
    ]
    return Plan(delete_jobs=delete, requeue_after=soonest(waits))


def _succeeded(job: JobView, pods: tuple[PodView, ...]) -> bool:
    """Rank 0 ends last and writes the model: its success is the job's, whether or not that has been said already."""
    return job.succeeded or any(pod.rank == 0 and pod.succeeded for pod in pods)


def _main_word_known(pods: tuple[PodView, ...]) -> bool:
    return any(pod.rank == 0 and (pod.termination or pod.succeeded) for pod in pods)


def _all_workers_run(spec: Spec, pods: tuple[PodView, ...]) -> bool:
    return sum(1 for pod in pods if pod.running or pod.succeeded) >= spec.workers and any(pod.running for pod in pods)


def _running_since(status: Json, now: datetime) -> datetime:
    condition = find_condition(status, Condition.RUNNING)
    if condition is not None and condition["status"] == "True":
        return parse_time(condition["lastTransitionTime"])
    return now


def _active_deadline(training: GpuTraining) -> datetime | None:
    """When the training has run for too long, all attempts together, without the time it was suspended."""
    limit, start = training.spec.run_policy.active_deadline_seconds, training.status.get("startTime")
    if not limit or not start:
        return None
    return parse_time(start) + timedelta(seconds=limit + training.status.get("suspendedSeconds", 0))
