"""Is a running training well? Steps that stand still, idle or faulty GPUs, a worker that holds up the others. Pure.

Nothing flaps: each condition needs some time to become true, and some to become false again. What was seen over time is
kept in `Health`, in memory; after a restart the operator starts to watch anew, and what is true
stays so until it knows better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.events import EventToPost
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord, fold_gpus, leading_record
from gputraining_operator.spec import Spec
from gputraining_operator.status import ConditionUpdate, grouped, is_true
from gputraining_operator.times import format_duration, format_time, parse_time

SLOW_FACTOR: Final = 2.0
"""A worker is slow when its own part of a step takes so many times the median of the others'."""
SLOW_CLEAR_FACTOR: Final = 1.5
SLOW_LEAST_SECONDS: Final = 0.001
"""A worker that takes so little more than the others holds nobody up, whatever the factor."""
SLOW_AFTER: Final = timedelta(seconds=30)
SLOW_SAMPLES: Final = 3
BUSY_AFTER: Final = timedelta(seconds=60)
_SHOWN: Final = 4
_XIDS: Final = {
    48: "uncorrected ECC error",
    63: "row remapping",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many corrected ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}
"""Those that people meet most; see https://docs.nvidia.com/deploy/xid-errors/."""


@dataclass(frozen=True)
class Spell:
    """Something that was seen again and again without a break."""

    since: datetime
    last: datetime
    samples: int = 1

    @property
    def length(self) -> timedelta:
        """Time from the first to the last sight of it."""
        return self.last - self.since


@dataclass(frozen=True)
class Fault:
    """Something wrong with a GPU; ``kind`` tells faults of one GPU apart."""

    rank: int
    uuid: str
    kind: str
    text: str


@dataclass(frozen=True)
class Health:
    """What was seen of one attempt over time.

    ``watched_since`` is when this operator first asked; ``told`` has the time of each worker's newest record, so that a
    silent worker's old one is not taken for news.
    """

    watched_since: datetime | None = None
    told: Mapping[int, datetime] = field(default_factory=dict)
    step: int | None = None
    utilization: float | None = None
    low: Spell | None = None
    busy: Spell | None = None
    slowest: int | None = None
    factor: float = 1.0
    slow: Spell | None = None
    even: Spell | None = None
    faults: tuple[Fault, ...] = ()


def follow(health: Health, spec: Spec, records: Mapping[int, ProgressRecord], now: datetime) -> Health:
    """Take in the newest records, by node rank; called after every pull."""
    if health.watched_since is None:
        health = replace(health, watched_since=now)
    fresh = {rank: record for rank, record in records.items() if health.told.get(rank) != record.time}
    if not fresh:
        return health
    health = replace(health, told={rank: record.time for rank, record in records.items()})
    gap = _patience(spec)
    return _follow_workers(_follow_gpus(health, spec, fresh, now, gap), fresh, now, gap)


def _patience(spec: Spec) -> timedelta:
    """How long a worker may say nothing before what it said counts no more."""
    return timedelta(seconds=max(60, 3 * spec.monitoring.interval_seconds))


def _lasting(spell: Spell | None, holds: bool, now: datetime, gap: timedelta) -> Spell | None:
    """The spell with this moment added. Nothing is known of a longer gap, so that a new spell begins after it."""
    if not holds:
        return None
    if spell is None or now - spell.last > gap:
        return Spell(now, now)
    return Spell(spell.since, now, spell.samples + 1)


def _follow_gpus(
    health: Health, spec: Spec, records: Mapping[int, ProgressRecord], now: datetime, gap: timedelta
) -> Health:
    gpus = fold_gpus(records.values())
    if gpus is None:
        return health
    # What was wrong with a device once in this attempt stays so: no figure can say that it is well again.
    faults = {(fault.rank, fault.uuid, fault.kind): fault for fault in (*health.faults, *_faults(records))}
    health = replace(health, faults=tuple(faults.values()))
    if gpus.utilization_percent is None:
        return health
    low = gpus.utilization_percent < spec.monitoring.idle_gpu_percent
    return replace(
        health,
        utilization=gpus.utilization_percent,
        low=_lasting(health.low, low, now, gap),
        busy=_lasting(health.busy, not low, now, gap),
    )


def _follow_workers(health: Health, records: Mapping[int, ProgressRecord], now: datetime, gap: timedelta) -> Health:
    """Only steps that were done since are news: a worker repeats its last figure while it evaluates, for example."""
    leader = leading_record(records)
    step = leader.step if leader else None
    times = {rank: r.local_step_seconds for rank, r in records.items() if r.local_step_seconds is not None}
    if len(times) < 2 or step is None or step == health.step:
        return health
    slowest = max(times, key=lambda rank: times[rank])
    others = median(seconds for rank, seconds in times.items() if rank != slowest)
    excess = times[slowest] - others
    factor = times[slowest] / others if others > 0 and excess >= SLOW_LEAST_SECONDS else 1.0
    even = _lasting(health.even, factor < SLOW_CLEAR_FACTOR, now, gap)
    same = health.slow if slowest == health.slowest else None
    slow = _lasting(same, factor >= SLOW_FACTOR, now, gap)
    return replace(health, step=step, slowest=slowest, factor=factor, slow=slow, even=even)


def _faults(records: Mapping[int, ProgressRecord]) -> Iterable[Fault]:
    for rank, record in sorted(records.items()):
        for gpu in record.gpus:
            if gpu.xid is not None:
                meaning = f" ({_XIDS[gpu.xid]})" if gpu.xid in _XIDS else ""
                yield Fault(rank, gpu.uuid, "XID", f"XID {gpu.xid}{meaning}")
            if gpu.uncorrected_ecc_errors:
                errors = "error" if gpu.uncorrected_ecc_errors == 1 else "errors"
                yield Fault(rank, gpu.uuid, "ECC", f"{gpu.uncorrected_ecc_errors} uncorrected ECC {errors}")
            if gpu.error:
                yield Fault(rank, gpu.uuid, "error", gpu.error)


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
    nodes = {pod.rank: pod.node for pod in pods if not pod.gone and pod.node}
    updates = (
        _underutilized(spec, status, health, records),
        _unhealthy(health, nodes),
        _straggler(status, health, nodes),
    )
    return tuple(update for update in updates if update is not None)


def _underutilized(
    spec: Spec, status: Json, health: Health, records: Mapping[int, ProgressRecord]
) -> ConditionUpdate | None:
    kind, limit = Condition.GPU_UNDERUTILIZED, spec.monitoring.idle_gpu_percent
    patience = timedelta(seconds=spec.monitoring.idle_gpu_after_seconds)
    # No text here may depend on the time of day: between two pulls it has to stay the same.
    if limit and health.low is not None and health.low.length >= patience and health.utilization is not None:
        leader = leading_record(records)
        doing = f", state {leader.state}" if leader else ""
        text = (
            f"GPU utilization is {health.utilization:.0f}% (mean of the job{doing}), and has been below {limit}% for "
            f"{format_duration(health.low.length.total_seconds())}; fix: faster data loading "
            "(training.dataLoaderWorkers, resources.cpu, faster storage) or a larger training.batchSize"
        )
        return ConditionUpdate(kind, True, Reason.GPU_IDLE, text)
    if not is_true(status, kind):
        return None
    if not limit:
        return ConditionUpdate(kind, False, Reason.GPU_BUSY, "not watched: spec.monitoring.idleGpuPercent is 0")
    if health.busy is not None and health.busy.length >= BUSY_AFTER:
        return ConditionUpdate(kind, False, Reason.GPU_BUSY, f"GPU utilization is at least {limit}% again")
    return None


def _unhealthy(health: Health, nodes: Mapping[int, str]) -> ConditionUpdate | None:
    if not health.faults:
        return None
    told = "; ".join(
        f"worker {fault.rank}{_on_node(nodes, fault.rank)}: GPU {fault.uuid}: {fault.text}"
        for fault in health.faults[:_SHOWN]
    )
    more = f" and {len(health.faults) - _SHOWN} more" if len(health.faults) > _SHOWN else ""
    fix = "fix: cordon the node, then reset or replace the GPU"
    return ConditionUpdate(Condition.GPU_UNHEALTHY, True, Reason.GPU_FAULT, f"{told}{more}; {fix}")


def _straggler(status: Json, health: Health, nodes: Mapping[int, str]) -> ConditionUpdate | None:
    kind, slow = Condition.STRAGGLER_DETECTED, health.slow
    if slow is not None and slow.samples >= SLOW_SAMPLES and slow.length >= SLOW_AFTER and health.slowest is not None:
        others = "the other" if len(health.told) == 2 else "the others"
        factor = f"{health.factor:.1f}" if health.factor < 10 else f"{health.factor:.0f}"
        text = f"worker {health.slowest} is {factor}× slower than {others}{_on_node(nodes, health.slowest)}"
        return ConditionUpdate(kind, True, Reason.WORKER_SLOW, text)
    if is_true(status, kind) and health.even is not None and health.even.length >= SLOW_AFTER:
        return ConditionUpdate(kind, False, Reason.WORKERS_IN_STEP, "all workers take about the same time")
    return None


def _on_node(nodes: Mapping[int, str], rank: int) -> str:
    return f" (node {nodes[rank]})" if rank in nodes else ""


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
    health: Health,
    records: Mapping[int, ProgressRecord],
    running_since: datetime,
    now: datetime,
) -> ConditionUpdate | None:
    """ProgressStalled; None while there is nothing to say, as for the other conditions."""
    kind, at = Condition.PROGRESS_STALLED, stall_time(spec, progress, running_since)
    if at is None or (now < at and not is_true(status, kind)):
        return None
    if now < at:
        return ConditionUpdate(kind, False, Reason.STEPS_ADVANCE, "steps advance again")
    limit = timedelta(seconds=spec.monitoring.stalled_after_seconds)
    newest = max((record.time for record in records.values()), default=health.watched_since)
    # An operator that has just started has heard of nothing, which is no proof that nothing happens.
    if newest is None or ((not records or newest < at) and now < newest + limit):
        return None
    seconds = max(newest - (at - limit), limit).total_seconds()
    facts = [f"spec.monitoring.stalledAfterSeconds is {spec.monitoring.stalled_after_seconds}"]
    if progress and "step" in progress and "lastStepTime" in progress:
        facts.append(f"last step {grouped(progress['step'])} at {progress['lastStepTime']}")
    facts += _states(records, newest - _patience(spec))
    return ConditionUpdate(
        kind, True, Reason.NO_STEP_ADVANCES, f"no step for {format_duration(seconds)} ({', '.join(facts)})"
    )


def _states(records: Mapping[int, ProgressRecord], heard_since: datetime) -> list[str]:
    """What the workers do, those in the same state together; the odd ones first, since they hold up the others."""
    ranks: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        heard = record.time >= heard_since
        state = f"in state {record.state}" if heard else f"silent since {format_time(record.time)}"
        ranks.setdefault(state, []).append(rank)
    groups = sorted(ranks.items(), key=lambda group: len(group[1]))[:_SHOWN]
    return [f"{_workers(members)} {state}" for state, members in groups]


def _workers(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"worker {ranks[0]} is"
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN])
    return f"workers {shown}{f' and {len(ranks) - _SHOWN} more' if len(ranks) > _SHOWN else ''} are"


def health_events(status: Json, updates: Sequence[ConditionUpdate]) -> tuple[EventToPost, ...]:
    """A warning when something became wrong, a word when it is well again."""
    return tuple(
        EventToPost("Warning" if update.status else "Normal", update.reason, update.message)
        for update in updates
        if update.status != is_true(status, update.type)
    )
