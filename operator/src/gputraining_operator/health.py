"""Is a running training well? Steps that stand still, idle or faulty GPUs, a worker that holds up the others. Pure.

Nothing flaps: each condition needs some time to become true, and some to become false again. What was seen over time is
kept in `Health`, in memory; after a restart the operator starts to watch anew, and conditions stay until it knows better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.events import EventToPost
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord, fold_gpus
from gputraining_operator.spec import Spec
from gputraining_operator.status import ConditionUpdate, grouped, is_true
from gputraining_operator.times import format_duration, format_time, parse_time

SLOW_FACTOR: Final = 2.0
"""A worker is slow when its own part of a step takes so many times the median of the others'."""
SLOW_CLEAR_FACTOR: Final = 1.5
SLOW_AFTER: Final = timedelta(seconds=30)
SLOW_SAMPLES: Final = 3
BUSY_AFTER: Final = timedelta(seconds=60)
_STALE: Final = timedelta(seconds=60)


@dataclass(frozen=True)
class Slowness:
    """The worker that takes longest for its own part of a step, by how much, and since when it is that one."""

    rank: int
    factor: float
    since: datetime
    samples: int = 1


@dataclass(frozen=True)
class Health:
    """What was seen of one attempt over time."""

    utilization: float | None = None
    low_since: datetime | None = None
    busy_since: datetime | None = None
    slow: Slowness | None = None
    even_since: datetime | None = None
    faults: tuple[tuple[int, str], ...] = ()


def follow(health: Health, spec: Spec, records: Mapping[int, ProgressRecord], now: datetime) -> Health:
    """Take in the newest records, by node rank; called after every pull."""
    fresh = {rank: record for rank, record in records.items() if now - record.time < _STALE}
    return _follow_gpus(_follow_workers(health, fresh, now), spec, fresh, now)


def _follow_gpus(health: Health, spec: Spec, records: Mapping[int, ProgressRecord], now: datetime) -> Health:
    gpus = fold_gpus(records.values())
    if gpus is None:
        return health
    # What was wrong with a device once in this attempt stays so: no figure can say that it is well again.
    faults = tuple(dict.fromkeys((*health.faults, *_faults(records))))
    if gpus.utilization_percent is None:
        return replace(health, faults=faults)
    low = gpus.utilization_percent < spec.monitoring.idle_gpu_percent
    return replace(
        health,
        faults=faults,
        utilization=gpus.utilization_percent,
        low_since=(health.low_since or now) if low else None,
        busy_since=None if low else (health.busy_since or now),
    )


def _follow_workers(health: Health, records: Mapping[int, ProgressRecord], now: datetime) -> Health:
    times = {rank: r.local_step_seconds for rank, r in records.items() if r.local_step_seconds is not None}
    if len(times) < 2:
        return health
    slowest = max(times, key=lambda rank: times[rank])
    others = median(seconds for rank, seconds in times.items() if rank != slowest)
    factor = times[slowest] / others if others > 0 else 1.0
    even_since = None if factor >= SLOW_CLEAR_FACTOR else (health.even_since or now)
    if factor < SLOW_FACTOR:
        # Between the two thresholds nothing new begins, and what was found stays.
        kept = health.slow if even_since is None else None
        return replace(health, slow=kept, even_since=even_since)
    before = health.slow
    same = before is not None and before.rank == slowest
    since, samples = (before.since, before.samples + 1) if before is not None and same else (now, 1)
    return replace(health, slow=Slowness(slowest, factor, since, samples), even_since=None)


def _faults(records: Mapping[int, ProgressRecord]) -> Iterable[tuple[int, str]]:
    for rank, record in sorted(records.items()):
        for gpu in record.gpus:
            if gpu.xid is not None:
                yield rank, f"GPU {gpu.uuid} reported XID {gpu.xid}"
            if gpu.uncorrected_ecc_errors:
                yield rank, f"GPU {gpu.uuid} has uncorrected ECC errors"
            if gpu.error:
                yield rank, f"GPU {gpu.uuid}: {gpu.error}"


def health_conditions(
    spec: Spec,
    status: Json,
    health: Health,
    records: Mapping[int, ProgressRecord],
    pods: Sequence[PodView],
    now: datetime,
) -> tuple[ConditionUpdate, ...]:
    """GpuUnderutilized, GpuUnhealthy and StragglerDetected, as far as there is something to say.

    A condition that never was true is left out; one that was is set to False when it clears.
    """
    updates = (
        _underutilized(spec, status, health, now),
        _unhealthy(health, pods),
        _straggler(status, health, pods, now),
    )
    return tuple(update for update in updates if update is not None)


def _underutilized(spec: Spec, status: Json, health: Health, now: datetime) -> ConditionUpdate | None:
    kind, limit = Condition.GPU_UNDERUTILIZED, spec.monitoring.idle_gpu_percent
    patience = timedelta(seconds=spec.monitoring.idle_gpu_after_seconds)
    if health.low_since is not None and now - health.low_since >= patience:
        text = (
            f"GPU utilization is below {limit}% (spec.monitoring.idleGpuPercent) for "
            f"{format_duration(patience.total_seconds())} and more; look at data loading and the batch size"
        )
        return ConditionUpdate(kind, True, Reason.GPU_IDLE, text)
    busy = health.busy_since is not None and now - health.busy_since >= BUSY_AFTER
    if is_true(status, kind) and busy:
        return ConditionUpdate(kind, False, Reason.GPU_BUSY, f"GPU utilization is {limit}% and more again")
    return None


def _unhealthy(health: Health, pods: Sequence[PodView]) -> ConditionUpdate | None:
    if not health.faults:
        return None
    nodes = {pod.rank: pod.node for pod in pods}
    told = "; ".join(f"worker {rank} (node {nodes.get(rank)}): {text}" for rank, text in health.faults[:4])
    more = f" and {len(health.faults) - 4} more" if len(health.faults) > 4 else ""
    fix = "drain the node and reset or replace the GPU"
    return ConditionUpdate(Condition.GPU_UNHEALTHY, True, Reason.GPU_FAULT, f"{told}{more}; {fix}")


def _straggler(status: Json, health: Health, pods: Sequence[PodView], now: datetime) -> ConditionUpdate | None:
    kind, slow = Condition.STRAGGLER_DETECTED, health.slow
    if slow is not None and slow.samples >= SLOW_SAMPLES and now - slow.since >= SLOW_AFTER:
        node = next((pod.node for pod in pods if pod.rank == slow.rank and not pod.gone), None)
        factor = round(slow.factor) if slow.factor >= 10 else round(slow.factor, 1)
        text = f"worker {slow.rank} is {factor}× slower than the others (node {node})"
        return ConditionUpdate(kind, True, Reason.WORKER_SLOW, text)
    even = health.even_since is not None and now - health.even_since >= SLOW_AFTER
    if is_true(status, kind) and even:
        return ConditionUpdate(kind, False, Reason.WORKERS_IN_STEP, "all workers take about the same time")
    return None


def stall_time(spec: Spec, progress: Json | None, running_since: datetime) -> datetime | None:
    """When the training counts as stalled if no step is done until then.

    None for a script that never told of a step: whether it advances cannot be known.
    """
    told = (progress or {}).get("lastStepTime")
    if told is None and spec.training is None:
        return None
    since = max(running_since, parse_time(told)) if told else running_since
    return since + timedelta(seconds=spec.monitoring.stalled_after_seconds)


def stall_condition(
    spec: Spec,
    status: Json,
    progress: Json | None,
    records: Mapping[int, ProgressRecord],
    running_since: datetime,
    now: datetime,
) -> ConditionUpdate | None:
    """ProgressStalled; None while there is nothing to say, as for the other conditions."""
    kind, at = Condition.PROGRESS_STALLED, stall_time(spec, progress, running_since)
    if at is not None and now >= at:
        limit = spec.monitoring.stalled_after_seconds
        text = f"no step for {format_duration(limit)} and more (spec.monitoring.stalledAfterSeconds is {limit})"
        if progress and "step" in progress and "lastStepTime" in progress:
            text += f"; step {grouped(progress['step'])} was the last, at {progress['lastStepTime']}"
        return ConditionUpdate(kind, True, Reason.NO_STEP_ADVANCES, text + _states(records))
    if at is not None and is_true(status, kind):
        return ConditionUpdate(kind, False, Reason.STEPS_ADVANCE, "steps advance again")
    return None


def _states(records: Mapping[int, ProgressRecord]) -> str:
    told = [
        f"worker {rank} is in state {record.state} (told {format_time(record.time)})"
        for rank, record in records.items()
    ]
    return f"; {', '.join(told[:4])}" if told else ""


def health_events(status: Json, updates: Sequence[ConditionUpdate]) -> tuple[EventToPost, ...]:
    """A warning when something became wrong, a word when it is well again."""
    return tuple(
        EventToPost("Warning" if update.status else "Normal", update.reason, update.message)
        for update in updates
        if update.status != is_true(status, update.type)
    )
