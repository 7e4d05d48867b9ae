"""Conditions about a running training come after some time, go after some time, and never flap."""

from __future__ import annotations

from dataclasses import replace

from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.health import (
    Health,
    follow,
    health_conditions,
    health_events,
    stall_condition,
    stall_time,
)
from gputraining_operator.progress import GpuSample, ProgressRecord
from gputraining_operator.spec import parse_spec
from gputraining_operator.status import ConditionUpdate
from tests.unit.operator.builders import at, running_pod

SPEC = parse_spec(
    {
        "workers": 3,
        "training": {},
        "monitoring": {"stalledAfterSeconds": 60, "idleGpuPercent": 10, "idleGpuAfterSeconds": 120},
    }
)
PODS = [running_pod(0), running_pod(1, "node-b"), running_pod(2)]
Records = dict[int, ProgressRecord]


def gpus(percent: float | None, seconds: float, **more: object) -> Records:
    gpu = replace(GpuSample("GPU-1", utilization_percent=percent), **more)  # type: ignore[arg-type]
    return {0: ProgressRecord("Training", at(seconds), gpus=(gpu,))}


def steps(seconds: float, *own: float | None) -> Records:
    return {rank: ProgressRecord("Training", at(seconds), local_step_seconds=s) for rank, s in enumerate(own)}


def true(kind: str) -> Json:
    return {"conditions": [{"type": kind, "status": "True"}]}


def seen(health: Health, now: float, status: Json | None = None) -> tuple[ConditionUpdate, ...]:
    return health_conditions(SPEC, status or {}, health, {}, PODS, at(now))


def test_idle_gpus_are_told_after_a_while_and_forgiven_after_a_while() -> None:
    health = Health()
    for second in range(0, 120, 10):
        assert seen(health, second) == ()
        health = follow(health, SPEC, gpus(3, second), at(second))
    (idle,) = seen(health, 120)
    assert (idle.type, idle.status, idle.reason) == (Condition.GPU_UNDERUTILIZED, True, Reason.GPU_IDLE)
    health = follow(health, SPEC, gpus(80, 130), at(130))
    assert seen(health, 130, true(idle.type)) == (), "one good sample is not enough"
    health = follow(health, SPEC, gpus(80, 190), at(190))
    (busy,) = seen(health, 190, true(idle.type))
    assert (busy.status, busy.reason) == (False, Reason.GPU_BUSY)
    assert seen(health, 190) == (), "what never was true needs no word"


def test_one_busy_moment_starts_the_idle_clock_anew() -> None:
    health = follow(Health(), SPEC, gpus(3, 0), at(0))
    health = follow(health, SPEC, gpus(50, 100), at(100))
    health = follow(health, SPEC, gpus(3, 110), at(110))
    assert seen(health, 150) == ()


def test_no_gpus_no_gpu_conditions() -> None:
    health = follow(Health(), SPEC, {0: ProgressRecord("Training", at(0))}, at(0))
    assert seen(health, 9999) == ()
    silent = follow(Health(), SPEC, gpus(None, 0), at(0))
    assert seen(silent, 9999) == ()
    off = parse_spec({"training": {}, "monitoring": {"idleGpuPercent": 0}})
    assert health_conditions(off, {}, follow(Health(), off, gpus(0, 0), at(0)), {}, PODS, at(9999)) == ()


def test_a_faulty_gpu_is_named_and_stays_faulty() -> None:
    health = follow(Health(), SPEC, gpus(50, 0, xid=79), at(0))
    health = follow(health, SPEC, gpus(50, 5), at(5))
    (unhealthy,) = seen(health, 5)
    assert (unhealthy.type, unhealthy.status) == (Condition.GPU_UNHEALTHY, True)
    assert unhealthy.message == (
        "worker 0 (node node-a): GPU GPU-1 reported XID 79; drain the node and reset or replace the GPU"
    )
    several = follow(health, SPEC, gpus(50, 9, uncorrected_ecc_errors=2, error="GPU is lost"), at(9))
    assert len(several.faults) == 3


def test_a_straggler_is_named_after_a_while() -> None:
    health = Health()
    for second in (0, 10, 20, 30):
        health = follow(health, SPEC, steps(second, 0.1, 0.24, 0.1), at(second))
        if second < 30:
            assert seen(health, second) == ()
    (slow,) = seen(health, 30)
    assert (slow.type, slow.reason) == (Condition.STRAGGLER_DETECTED, Reason.WORKER_SLOW)
    assert slow.message == "worker 1 is 2.4× slower than the others (node node-b)"
    health = follow(health, SPEC, steps(40, 0.1, 0.17, 0.1), at(40))
    assert seen(health, 40, true(slow.type)) == (slow,), "between the thresholds it stays"
    health = follow(health, SPEC, steps(50, 0.1, 0.1, 0.1), at(50))
    assert seen(health, 50, true(slow.type)) == ()
    health = follow(health, SPEC, steps(80, 0.1, 0.1, 0.1), at(80))
    (even,) = seen(health, 80, true(slow.type))
    assert not even.status


def test_slowness_that_wanders_is_no_straggler() -> None:
    health = Health()
    for second in range(0, 100, 10):
        own = [0.1, 0.1, 0.1]
        own[second // 10 % 3] = 0.5
        health = follow(health, SPEC, steps(second, *own), at(second))
        assert seen(health, second) == ()


def test_one_worker_alone_cannot_straggle_and_old_words_do_not_count() -> None:
    assert follow(Health(), SPEC, steps(0, 0.1, None), at(0)) == Health()
    assert follow(Health(), SPEC, steps(0, 0.1, 0.9), at(99)) == Health()


def progress(second: float, step: int = 40) -> Json:
    return {"step": step, "lastStepTime": at(second).isoformat()}


def test_a_training_stalls_when_no_step_is_done_in_time() -> None:
    assert stall_time(SPEC, progress(10), at(0)) == at(70)
    assert stall_time(SPEC, None, at(5)) == at(65), "a trainer that never comes to its first step"
    assert stall_time(SPEC, progress(10), at(30)) == at(90), "an attempt has its own time"
    script = parse_spec({"command": ["train"]})
    assert stall_time(script, None, at(5)) is None
    assert stall_time(script, progress(10), at(5)) is not None


def test_a_stall_tells_what_is_known() -> None:
    records = {0: ProgressRecord("Evaluating", at(69))}
    assert stall_condition(SPEC, {}, progress(10), records, at(0), at(69)) is None
    stalled = stall_condition(SPEC, {}, progress(10), records, at(0), at(70))
    assert stalled is not None
    assert stalled.message == (
        "no step for 1m00s and more (spec.monitoring.stalledAfterSeconds is 60); "
        "step 40 was the last, at 2026-11-21T10:00:10+00:00; "
        "worker 0 is in state Evaluating (told 2026-11-21T10:01:09Z)"
    )
    again = stall_condition(SPEC, true("ProgressStalled"), progress(75, 41), records, at(0), at(76))
    assert again is not None
    assert (again.status, again.reason) == (False, Reason.STEPS_ADVANCE)


def test_events_come_with_a_change_only() -> None:
    update = ConditionUpdate(Condition.PROGRESS_STALLED, True, Reason.NO_STEP_ADVANCES, "x")
    assert [event.type for event in health_events({}, [update])] == ["Warning"]
    assert health_events(true("ProgressStalled"), [update]) == ()
    cleared = replace(update, status=False)
    assert [event.type for event in health_events(true("ProgressStalled"), [cleared])] == ["Normal"]
