"""The decision: what is observed, and the time -> what to do. Pure and level-triggered.

Everything that matters is decided here and can be tested without a cluster. The caller carries the plan out, observes
again and asks again, until the plan changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gputraining_operator.api import TERMINAL_PHASES, Condition, Json, Phase, Reason
from gputraining_operator.attempts import (
    CLEANING_GRACE,
    alive,
    batch_in_force,
    current_number,
    end_of,
    last_attempt,
    open_attempt,
    retire,
)
from gputraining_operator.compose import compose_status, plan_for, soonest
from gputraining_operator.decision import Observed, Plan
from gputraining_operator.events import (
    EventToPost,
    waiting_events,
)
from gputraining_operator.failures import Failure, classify
from gputraining_operator.observed import JobView
from gputraining_operator.outcome import (
    SUSPENDED_FAILURE,
    add_suspended,
    attempt_over,
    complete,
    fail,
    suspended,
)
from gputraining_operator.render import render_job
from gputraining_operator.spec import GpuTraining
from gputraining_operator.status import ConditionUpdate, find_condition, is_true
from gputraining_operator.times import format_duration, parse_time
from gputraining_operator.underway import (
    FINAL_RECORD_GRACE,
    all_workers_run,
    broken,
    has_succeeded,
    is_broken,
    main_word_known,
    of_this_admission,
    pending_overdue,
    running,
    stopping,
    waiting_for_workers,
)
from gputraining_operator.waiting import (
    Waiting,
    is_stuck,
)

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
        plan = _attempt(of_this_admission(observed), observed.job, now)
        strays, _ = retire(observed.former, now)
        return replace(plan, delete_jobs=plan.delete_jobs + strays) if strays else plan
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
    if has_succeeded(job, pods):
        patient = now < end_of(job, now) + FINAL_RECORD_GRACE
        return Plan(requeue_after=1) if patient and not main_word_known(pods) else complete(observed, now)
    suspend = training.spec.run_policy.suspend
    if job.gone or (job.deleting and not alive(pods, now)):
        if suspend:
            return suspended(observed, now)
        # Resumed before the workers were gone: nobody but the operator has deleted the job.
        ours = (find_condition(training.status, Condition.RUNNING) or {}).get("reason") == Reason.SUSPENDING
        return attempt_over(observed, SUSPENDED_FAILURE if ours else classify(job, pods), now)
    deadline = None if job.suspended else _active_deadline(training)
    if deadline is not None and now >= deadline:
        return fail(observed, _deadline_failure(training), now)
    until_deadline = (deadline - now).total_seconds() if deadline else None
    if suspend:
        return stopping(observed, Reason.SUSPENDING, "suspending: the workers write a checkpoint and end", now)
    if job.deleting:
        return stopping(observed, Reason.JOB_DELETED, f"the PyTorchJob {job.name} is being deleted", now)
    if is_broken(job, pods):
        return broken(observed, job, now)
    if all_workers_run(training.spec, pods) and not job.suspended:
        return running(observed, job, until_deadline, now)
    return waiting_for_workers(observed, job, until_deadline, now)


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
    due = status.get("nextAttemptTime")
    if due is not None and now < parse_time(due):
        wait = (parse_time(due) - now).total_seconds()
        cleaning = CLEANING_GRACE.total_seconds() if blocked else None
        return Plan(delete_jobs=to_delete, requeue_after=soonest([wait, until_deadline, cleaning]))
    if blocked:
        return _blocked(observed, to_delete, now)
    create = render_job(training, current_number(status), trainer_image, batch_in_force(training.spec, status))
    if problem is None:
        return Plan(create=create, delete_jobs=to_delete)
    waiting = Waiting(problem.reason, problem.message)
    overdue = pending_overdue(observed, waiting, now)
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


def _blocked(observed: Observed, to_delete: tuple[JobView, ...], now: datetime) -> Plan:
    """Workers of a former attempt are still there. Said when it takes longer than usual."""
    last = last_attempt(observed.training.status)
    if last is None or now < parse_time(last["endTime"]) + CLEANING_GRACE:
        return Plan(delete_jobs=to_delete, requeue_after=1)
    names = [f"{pod.name} on node {pod.node}" for former in observed.former for pod in alive(former.pods, now)]
    names = names or [f"the PyTorchJob {former.job.name}" for former in observed.former]
    waiting = Waiting(Reason.FORMER_ATTEMPT_LEAVING, f"the next attempt waits until {names[0]} is gone")
    overdue = pending_overdue(observed, waiting, now)
    if overdue is not None:
        return fail(observed, overdue, now)
    new_status = compose_status(
        observed,
        now,
        phase=Phase.RESTARTING,
        message=waiting.message,
        conditions=(ConditionUpdate(Condition.RUNNING, False, waiting.reason, waiting.message),),
    )
    return plan_for(observed, new_status, (), now, delete_jobs=to_delete, requeue_after=1)


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
        add_suspended(status, parse_time(condition["lastTransitionTime"]), now)
    return plan_for(observed, status, (EventToPost("Normal", Reason.RESUMED, message),), now, requeue_after=0)


def _deadline_failure(training: GpuTraining) -> Failure:
    limit = training.spec.run_policy.active_deadline_seconds or 0
    text = (
        f"stopped after running for {format_duration(limit)}: "
        f"spec.runPolicy.activeDeadlineSeconds is {limit}; raise it or train less"
    )
    return Failure(Reason.DEADLINE_EXCEEDED, text)


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


def _active_deadline(training: GpuTraining) -> datetime | None:
    """When the training has run for too long, all attempts together, without the time it was suspended."""
    limit, start = training.spec.run_policy.active_deadline_seconds, training.status.get("startTime")
    if not limit or not start:
        return None
    return parse_time(start) + timedelta(seconds=limit + training.status.get("suspendedSeconds", 0))
