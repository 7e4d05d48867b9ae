"""The decision: what is observed, and the time -> what to do. Pure and level-triggered.

Everything that matters is decided here and can be tested without a cluster. The caller carries the plan out, observes
again and asks again, until the plan changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gputraining_operator.api import FIRST_ATTEMPT, TERMINAL_PHASES, Condition, Json, Phase, Reason
from gputraining_operator.capacity import ClusterCapacity
from gputraining_operator.events import EventToPost, all_workers, complete_message, started_events, waiting_events
from gputraining_operator.failures import Failure, classify, final_record, has_first_cause
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressRecord, leading_record
from gputraining_operator.render import render_job
from gputraining_operator.spec import GpuTraining, Spec
from gputraining_operator.status import (
    ConditionUpdate,
    clip,
    gpu_status,
    is_true,
    output_location,
    progress_status,
    running_message,
    set_conditions,
    summary,
    worker_counts,
)
from gputraining_operator.times import format_duration, format_time, parse_time
from gputraining_operator.waiting import SCHEDULING_GRACE, TELLS_AGE, Waiting, explain_waiting

FINAL_RECORD_GRACE: Final = timedelta(seconds=10)
"""How long the end of a job is held back for the pods' last words, which come by another watch."""


@dataclass(frozen=True)
class CreateProblem:
    """Why the PyTorchJob could not be created. ``final`` means that trying again cannot help."""

    reason: str
    message: str
    final: bool = False


@dataclass(frozen=True)
class Observed:
    """All facts about one training at one moment. ``records`` are the last pulled ones by node rank."""

    training: GpuTraining
    job: JobView | None = None
    pods: tuple[PodView, ...] = ()
    records: Mapping[int, ProgressRecord] = field(default_factory=dict)
    pull_problem: str | None = None
    create_problem: CreateProblem | None = None
    capacity: ClusterCapacity | None = None
    job_warning: str | None = None


@dataclass(frozen=True)
class Plan:
    """What to do. ``status`` is the whole status that should be; None leaves it as it is.

    ``requeue_after`` is in seconds; None means that nothing is due by the clock.
    """

    create: Json | None = None
    delete_job: bool = False
    delete_training: bool = False
    status: Json | None = None
    events: tuple[EventToPost, ...] = ()
    requeue_after: float | None = None


def reconcile(observed: Observed, trainer_image: str, now: datetime) -> Plan:
    """Decide what to do about one training."""
    training = observed.training
    if training.deleting:
        return Plan()
    if training.status.get("phase") in TERMINAL_PHASES:
        return _after_the_end(training, now)
    job = observed.job
    deadline = _active_deadline(training)
    if job is None:
        late = deadline is not None and now >= deadline
        return _deadline_exceeded(observed, now) if late else _without_job(observed, trainer_image, now)
    finished = job.succeeded or job.failed
    if finished and not _last_words_known(job, observed.pods) and now < _ended(job, now) + FINAL_RECORD_GRACE:
        return Plan(requeue_after=1)
    if job.succeeded:
        return _complete(observed, now)
    if job.failed:
        return _failed(observed, classify(job, observed.pods), now)
    if deadline and now >= deadline:
        return _deadline_exceeded(observed, now)
    until_deadline = max(0.0, (deadline - now).total_seconds()) if deadline else None
    if _all_workers_run(training.spec, observed.pods):
        return _running(observed, until_deadline, now)
    if is_true(training.status, Condition.RUNNING) and any(pod.termination or pod.failed for pod in observed.pods):
        # A worker has just ended; the training-operator's verdict follows within moments.
        return Plan(requeue_after=until_deadline)
    return _waiting(observed, job, until_deadline, now)


def needs_pull(observed: Observed) -> bool:
    """Whether the pods of this training have progress to tell now."""
    return (
        observed.training.status.get("phase") not in TERMINAL_PHASES
        and observed.job is not None
        and any(pod.running for pod in observed.pods)
    )


def needs_diagnosis(observed: Observed) -> bool:
    """Whether looking at nodes, other pods or events would help to say why this training waits."""
    if observed.job is None or observed.training.status.get("phase") in TERMINAL_PHASES:
        return False
    unplaced = any(pod.unschedulable is not None and pod.node is None for pod in observed.pods)
    return unplaced or len(observed.pods) < observed.training.spec.workers


def _without_job(observed: Observed, trainer_image: str, now: datetime) -> Plan:
    training, problem = observed.training, observed.create_problem
    create = render_job(training, FIRST_ATTEMPT, trainer_image)
    if problem is None:
        return Plan(create=create)
    if problem.final:
        return _failed(observed, Failure(problem.reason, problem.message), now)
    status = _status(
        observed,
        now,
        phase=Phase.PENDING,
        message=problem.message,
        conditions=(
            ConditionUpdate(Condition.ACCEPTED, False, problem.reason, problem.message),
            ConditionUpdate(Condition.RUNNING, False, problem.reason, problem.message),
        ),
    )
    return _plan(observed, status, waiting_events(training, Waiting(problem.reason, problem.message)), create=create)


def _waiting(observed: Observed, job: JobView, requeue_after: float | None, now: datetime) -> Plan:
    spec = observed.training.spec
    waiting = explain_waiting(spec, job, observed.pods, observed.capacity, observed.job_warning, now)
    status = _status(
        observed,
        now,
        phase=Phase.PENDING,
        message=waiting.message,
        conditions=(_accepted(job), ConditionUpdate(Condition.RUNNING, False, waiting.reason, waiting.message)),
    )
    events = started_events(observed.training) + waiting_events(observed.training, waiting)
    if waiting.reason == Reason.SCHEDULING:
        requeue_after = SCHEDULING_GRACE.total_seconds()
    elif waiting.reason in TELLS_AGE:
        requeue_after = spec.progress_interval_seconds
    return _plan(observed, status, events, requeue_after=requeue_after)


def _running(observed: Observed, requeue_after: float | None, now: datetime) -> Plan:
    training = observed.training
    progress = progress_status(_progress_of_this_job(observed), observed.records)
    record = leading_record(observed.records)
    verb = "runs" if training.spec.workers == 1 else "run"
    # A script of one's own need not report anything.
    problem = observed.pull_problem if training.spec.training else None
    status = _status(
        observed,
        now,
        phase=Phase.RUNNING,
        progress=progress,
        message=running_message(progress, record, problem),
        conditions=(
            _accepted(observed.job),
            ConditionUpdate(Condition.RUNNING, True, Reason.ALL_WORKERS_READY, f"{all_workers(training.spec)} {verb}"),
        ),
    )
    status.setdefault("startTime", format_time(now))
    events = started_events(training)
    if not is_true(training.status, Condition.RUNNING):
        waited = format_duration((now - training.created).total_seconds())
        events += (EventToPost("Normal", Reason.RUNNING, f"{all_workers(training.spec)} {verb} after {waited}"),)
    if "startTime" not in training.status and training.spec.run_policy.active_deadline_seconds:
        requeue_after = training.spec.run_policy.active_deadline_seconds
    return _plan(observed, status, events, requeue_after=requeue_after)


def _complete(observed: Observed, now: datetime) -> Plan:
    training = observed.training
    last = _final_records(observed)
    record = leading_record(last)
    progress = progress_status(training.status.get("progress"), last, complete=True)
    # Very short trainings end before anybody sees them run.
    started = _start_time(observed, now)
    location = output_location(training.spec, record.model_path if record else None)
    ended = _ended(observed.job, now)
    message = complete_message(training.spec, progress, (ended - started).total_seconds(), location)
    status = _status(
        observed,
        now,
        phase=Phase.COMPLETE,
        progress=progress,
        message=message,
        conditions=(
            _accepted(observed.job),
            ConditionUpdate(Condition.RUNNING, False, Reason.FINISHED, "the training has ended"),
            ConditionUpdate(Condition.COMPLETE, True, Reason.TRAINING_SUCCEEDED, message),
        ),
    )
    status["workers"] = {"desired": training.spec.workers, "ready": training.spec.workers, "failed": 0}
    status["summary"] = summary(status["workers"], progress)
    status["startTime"] = format_time(started)
    status["completionTime"] = format_time(ended)
    if location:
        status["outputPath"] = location
    events = (*started_events(training), EventToPost("Normal", Reason.COMPLETE, message))
    return _plan(observed, status, events, requeue_after=_ttl(training))


def _failed(observed: Observed, failure: Failure, now: datetime, *, delete_job: bool = False) -> Plan:
    training = observed.training
    accepted = (
        _accepted(observed.job)
        if observed.job
        else ConditionUpdate(Condition.ACCEPTED, False, failure.reason, failure.message)
    )
    status = _status(
        observed,
        now,
        phase=Phase.FAILED,
        progress=progress_status(training.status.get("progress"), _final_records(observed)),
        message=failure.message,
        conditions=(
            accepted,
            ConditionUpdate(Condition.RUNNING, False, Reason.FINISHED, "the training has ended"),
            ConditionUpdate(Condition.FAILED, True, failure.reason, failure.message),
        ),
    )
    status.setdefault("completionTime", format_time(_ended(observed.job, now)))
    status["workers"]["ready"] = 0
    status["summary"] = summary(status["workers"], status.get("progress"))
    status["summary"].pop("eta", None)
    event = EventToPost("Warning", failure.reason, failure.message)
    return _plan(
        observed, status, (*started_events(training), event), delete_job=delete_job, requeue_after=_ttl(training)
    )


def _deadline_exceeded(observed: Observed, now: datetime) -> Plan:
    limit = observed.training.spec.run_policy.active_deadline_seconds or 0
    message = (
        f"stopped after running for {format_duration(limit)}: "
        f"spec.runPolicy.activeDeadlineSeconds is {limit}; raise it or train less"
    )
    return _failed(observed, Failure(Reason.DEADLINE_EXCEEDED, message), now, delete_job=True)


def _after_the_end(training: GpuTraining, now: datetime) -> Plan:
    ttl, ended = training.spec.run_policy.ttl_seconds_after_finished, training.status.get("completionTime")
    if ttl is None or ended is None:
        return Plan()
    remaining = (parse_time(ended) + timedelta(seconds=ttl) - now).total_seconds()
    return Plan(delete_training=True) if remaining <= 0 else Plan(requeue_after=remaining)


def _plan(
    observed: Observed,
    status: Json,
    events: tuple[EventToPost, ...],
    *,
    create: Json | None = None,
    delete_job: bool = False,
    requeue_after: float | None = None,
) -> Plan:
    changed = status != observed.training.status
    return Plan(
        create=create,
        delete_job=delete_job,
        status=status if changed else None,
        events=events if changed else (),
        requeue_after=requeue_after,
    )


def _status(
    observed: Observed,
    now: datetime,
    *,
    phase: str,
    message: str,
    conditions: tuple[ConditionUpdate, ...],
    progress: Json | None = None,
) -> Json:
    training = observed.training
    old = training.status
    workers = worker_counts(training.spec, observed.pods)
    progress = progress or old.get("progress")
    status: Json = {
        "observedGeneration": training.generation,
        "phase": phase,
        "message": clip(message),
        "workers": workers,
        "summary": summary(workers, progress),
        "conditions": set_conditions(old.get("conditions") or (), conditions, training.generation, now),
    }
    gpu = gpu_status(observed.records) or old.get("gpu")
    optional: Json = {
        "attempt": FIRST_ATTEMPT if observed.job else None,
        "jobName": observed.job.name if observed.job else None,
        "progress": progress,
        "gpu": gpu,
        "startTime": old.get("startTime"),
        "completionTime": old.get("completionTime"),
        "outputPath": old.get("outputPath"),
    }
    return status | {key: value for key, value in optional.items() if value is not None}


def _progress_of_this_job(observed: Observed) -> Json | None:
    """The progress in the status, unless a former job made it that somebody has deleted."""
    progress: Json | None = observed.training.status.get("progress")
    if progress and observed.job and parse_time(progress["lastUpdateTime"]) < observed.job.created:
        return None
    return progress


def _accepted(job: JobView | None) -> ConditionUpdate:
    name = job.name if job else ""
    return ConditionUpdate(Condition.ACCEPTED, True, Reason.RENDERED, f"PyTorchJob {name} exists")


def _final_records(observed: Observed) -> dict[int, ProgressRecord]:
    """The last words of the pods where there are any, else what was pulled last."""
    words = {pod.rank: final_record(pod) for pod in observed.pods}
    return dict(observed.records) | {rank: record for rank, record in words.items() if record is not None}


def _last_words_known(job: JobView, pods: tuple[PodView, ...]) -> bool:
    if job.succeeded:
        return any(pod.rank == 0 and (pod.termination or pod.succeeded) for pod in pods)
    return has_first_cause(pods)


def _all_workers_run(spec: Spec, pods: tuple[PodView, ...]) -> bool:
    return sum(1 for pod in pods if pod.running or pod.succeeded) >= spec.workers and any(pod.running for pod in pods)


def _ended(job: JobView | None, now: datetime) -> datetime:
    for kind in ("Succeeded", "Failed"):
        condition = job.condition(kind) if job else None
        if condition and condition.get("lastTransitionTime"):
            return min(now, parse_time(condition["lastTransitionTime"]))
    return now


def _start_time(observed: Observed, now: datetime) -> datetime:
    if "startTime" in observed.training.status:
        return parse_time(observed.training.status["startTime"])
    seconds = max((r.duration_seconds or 0 for r in _final_records(observed).values()), default=0)
    ended = _ended(observed.job, now)
    most = max(0.0, (ended - observed.training.created).total_seconds())  # pods may claim anything
    return ended - timedelta(seconds=math.ceil(min(seconds, most)))


def _active_deadline(training: GpuTraining) -> datetime | None:
    limit, start = training.spec.run_policy.active_deadline_seconds, training.status.get("startTime")
    return parse_time(start) + timedelta(seconds=limit) if limit and start else None


def _ttl(training: GpuTraining) -> float | None:
    ttl = training.spec.run_policy.ttl_seconds_after_finished
    return None if ttl is None else float(ttl)
