"""Whether a running training is well: nothing flaps, nothing is claimed without evidence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gputraining_operator.api import Condition, Json
from gputraining_operator.health import (
    Health,
    follow,
    health_conditions,
    health_events,
    stall_condition,
    stall_time,
)
from gputraining_operator.progress import GpuSample, ProgressRecord
from gputraining_operator.spec import Spec, parse_spec
from gputraining_operator.status import ConditionUpdate
from gputraining_operator.times import format_time
from tests.unit.operator.builders import at, running_pod

SPEC = parse_spec({"workers": 3, "training": {}})
PODS = tuple(running_pod(rank, node=f"node-{rank}") for rank in range(3))
OWN = parse_spec({"workers": 1, "command": ["x"]})


def true(kind: str) -> Json:
    return {"conditions": [{"type": kind, "status": "True", "reason": "x", "lastTransitionTime": format_time(at(0))}]}


def conditions(health: Health, status: Json | None = None, spec: Spec = SPEC) -> tuple[ConditionUpdate, ...]:
    return health_conditions(spec, status or {}, health, {}, PODS, at(0))


def gpu_records(now: float, percent: float | None = 50, **more: Any) -> Mapping[int, ProgressRecord]:
    return {0: ProgressRecord("Training", at(now), gpus=(GpuSample("GPU-a", utilization_percent=percent, **more),))}


def watch(percents: Mapping[int, float], spec: Spec = SPEC) -> Health:
    health = Health()
    for now, percent in percents.items():
        health = follow(health, spec, gpu_records(now, percent), at(now))
    return health


def step_records(now: float, *seconds: float) -> Mapping[int, ProgressRecord]:
    return {
        rank: ProgressRecord("Training", at(now), step=int(now), local_step_seconds=each)
        for rank, each in enumerate(seconds)
    }


def race(times: Mapping[int, tuple[float, ...]], health: Health | None = None) -> Health:
    health = health or Health()
    for now, seconds in times.items():
        health = follow(health, SPEC, step_records(now, *seconds), at(now))
    return health


def test_gpus_that_stay_idle_are_told_once_patience_is_over() -> None:
    low = dict.fromkeys(range(0, 291, 10), 3.0)
    assert conditions(watch(low)) == ()
    (update,) = conditions(watch(low | {300: 4.0}))
    assert (update.type, update.status, update.reason) == (Condition.GPU_UNDERUTILIZED, True, "GpuIdle")
    assert update.message.startswith("GPU utilization is 4% (mean of the job), and has been below 10% for 5m00s; fix: ")
    assert conditions(watch(low | {295: 90.0, 300: 3.0})) == (), "one busy moment begins anew"


def test_idle_gpus_are_not_claimed_over_a_time_without_news() -> None:
    assert conditions(watch({0: 3.0, 310: 3.0})) == ()


def test_busy_gpus_clear_the_condition_after_a_minute() -> None:
    status = true(Condition.GPU_UNDERUTILIZED)
    busy = dict.fromkeys(range(0, 51, 10), 90.0)
    assert conditions(watch(busy), status) == ()
    (update,) = conditions(watch(busy | {60: 90.0}), status)
    assert (update.status, update.reason) == (False, "GpuBusy")
    assert conditions(watch(busy | {60: 90.0})) == (), "what never was true is not told"


def test_idle_gpus_can_be_left_unwatched() -> None:
    spec = parse_spec({"training": {}, "monitoring": {"idleGpuPercent": 0}})
    health = watch(dict.fromkeys(range(0, 400, 10), 0.0), spec)
    assert conditions(health, spec=spec) == ()
    assert [update.status for update in conditions(health, true(Condition.GPU_UNDERUTILIZED), spec)] == [False]


def test_a_slow_worker_is_named_after_half_a_minute() -> None:
    slow = dict.fromkeys((0, 10, 20), (0.1, 0.1, 0.24))
    assert conditions(race(slow)) == ()
    (update,) = conditions(race(slow | {30: (0.1, 0.1, 0.24)}))
    assert (update.type, update.status) == (Condition.STRAGGLER_DETECTED, True)
    assert update.message == "worker 2 is 2.4× slower than the others (node node-2)"


def test_of_two_workers_one_is_compared_to_the_other() -> None:
    (update,) = conditions(race(dict.fromkeys((0, 10, 20, 30), (0.5, 0.1))))
    assert update.message == "worker 0 is 5.0× slower than the other (node node-0)"


@pytest.mark.parametrize(
    "times",
    [
        {0: (0.1, 0.1, 0.24), 30: (0.1, 0.1, 0.24)},  # too few
        dict.fromkeys((0, 10, 20, 30), (0.1, 0.1, 0.19)),  # not by much
        dict.fromkeys((0, 10, 20, 30), (0.0001, 0.0001, 0.0005)),  # by nothing that matters
        dict.fromkeys((0, 10, 20, 30), (0.24,)),  # nobody to compare to
        {0: (0.1, 0.1, 0.24), 10: (0.1, 0.1, 0.24), 20: (0.1, 0.24, 0.1), 30: (0.1, 0.1, 0.24)},  # not the same one
    ],
)
def test_no_worker_is_slow_without_evidence(times: Mapping[int, tuple[float, ...]]) -> None:
    assert conditions(race(times)) == ()


def test_the_same_step_told_again_is_no_news() -> None:
    health = Health()
    for now in range(0, 60, 10):
        records = {
            rank: ProgressRecord("Evaluating", at(now), step=7, local_step_seconds=seconds)
            for rank, seconds in enumerate((0.1, 0.5))
        }
        health = follow(health, SPEC, records, at(now))
    assert conditions(health) == ()


def test_a_slow_worker_clears_when_it_keeps_up_for_half_a_minute() -> None:
    status = true(Condition.STRAGGLER_DETECTED)
    between = race(dict.fromkeys(range(0, 60, 10), (0.1, 0.1, 0.17)))
    assert conditions(between, status) == ()
    even = race(dict.fromkeys((60, 70, 80), (0.1, 0.1, 0.12)), between)
    assert conditions(even, status) == ()
    (update,) = conditions(race({90: (0.1, 0.1, 0.12)}, even), status)
    assert (update.status, update.reason) == (False, "WorkersInStep")


def test_a_faulty_gpu_stays_faulty() -> None:
    health = follow(Health(), SPEC, gpu_records(0, xid=79, uncorrected_ecc_errors=1), at(0))
    health = follow(health, SPEC, gpu_records(10, uncorrected_ecc_errors=2), at(10))
    (update,) = conditions(health)
    assert (update.type, update.status, update.reason) == (Condition.GPU_UNHEALTHY, True, "GpuFault")
    assert update.message == (
        "worker 0 (node node-0): GPU GPU-a: XID 79 (GPU has fallen off the bus); "
        "worker 0 (node node-0): GPU GPU-a: 2 uncorrected ECC errors; "
        "fix: cordon the node, then reset or replace the GPU"
    )


def test_a_lost_gpu_is_a_fault() -> None:
    health = follow(Health(), SPEC, gpu_records(0, None, error="GPU is lost"), at(0))
    assert "GPU GPU-a: GPU is lost" in conditions(health)[0].message


PROGRESS: Json = {"step": 1270, "lastStepTime": format_time(at(100))}


def told(*states: tuple[str, float]) -> Mapping[int, ProgressRecord]:
    return {rank: ProgressRecord(state, at(now)) for rank, (state, now) in enumerate(states)}


def stall(
    now: float, records: Mapping[int, ProgressRecord], status: Json | None = None, health: Health | None = None
) -> ConditionUpdate | None:
    return stall_condition(SPEC, status or {}, PROGRESS, health or Health(), records, at(10), at(now))


def test_the_stall_time_counts_from_the_last_step_or_the_start() -> None:
    assert stall_time(SPEC, PROGRESS, at(10)) == at(700)
    assert stall_time(SPEC, None, at(10)) == at(610)
    assert stall_time(OWN, None, at(10)) is None, "a script of one's own need not tell of steps"
    assert stall_time(OWN, PROGRESS, at(10)) == at(700)


def test_a_stall_is_told_with_what_the_workers_do() -> None:
    assert stall(699, told(("Training", 699))) is None
    update = stall(713, told(("Training", 712), ("Evaluating", 712), ("Training", 600)))
    assert update is not None
    assert (update.status, update.reason) == (True, "NoStepAdvances")
    assert update.message == (
        "no step for 10m12s (spec.monitoring.stalledAfterSeconds is 600, last step 1,270 at 2026-11-21T10:01:40Z, "
        "worker 0 is in state Training, worker 1 is in state Evaluating, worker 2 is silent since 2026-11-21T10:10:00Z)"
    )


def test_an_operator_that_has_heard_of_nothing_claims_no_stall() -> None:
    assert stall(5000, {}) is None
    asked = follow(Health(), SPEC, {}, at(4000))
    assert stall(4599, {}, health=asked) is None
    assert stall(4600, {}, health=asked) is not None, "it has asked in vain for as long as a stall takes"
    assert stall(710, told(("Training", 690))) is None, "silent for a moment only"
    assert stall(1290, told(("Training", 690))) is not None, "silent for too long"


def test_a_stall_clears_with_the_next_step() -> None:
    update = stall(650, told(("Training", 650)), true(Condition.PROGRESS_STALLED))
    assert update is not None
    assert (update.status, update.reason) == (False, "StepsAdvance")


def test_events_are_posted_when_something_changes() -> None:
    slow = ConditionUpdate(Condition.STRAGGLER_DETECTED, True, "WorkerSlow", "worker 1")
    even = ConditionUpdate(Condition.STRAGGLER_DETECTED, False, "WorkersInStep", "same")
    was = true(Condition.STRAGGLER_DETECTED)
    assert [(e.type, e.reason) for e in health_events({}, (slow,))] == [("Warning", "WorkerSlow")]
    assert [(e.type, e.reason) for e in health_events(was, (even,))] == [("Normal", "WorkersInStep")]
    assert health_events(was, (slow,)) == ()
    assert health_events({}, (even,)) == ()


def test_pods_with_a_wrong_clock_are_believed_all_the_same() -> None:
    health = Health()
    for now in range(0, 40, 10):
        records = {
            rank: ProgressRecord(
                "Training", datetime(2001, 1, 1, second=now, tzinfo=UTC), step=now, local_step_seconds=s
            )
            for rank, s in enumerate((0.1, 0.5))
        }
        health = follow(health, SPEC, records, at(now))
    assert [update.type for update in conditions(health)] == [Condition.STRAGGLER_DETECTED]
