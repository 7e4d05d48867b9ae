"""What follows a failed attempt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputraining_operator.api import Json, Reason
from gputraining_operator.failures import Failure
from gputraining_operator.retry import INFRASTRUCTURE, PERMANENT, Verdict, decide, delay_seconds, smaller
from gputraining_operator.spec import BatchPlan
from tests.unit.operator.builders import training


def failed(number: int = 1, reason: str = Reason.KILLED, **more: Any) -> Json:
    return {"number": number, "startTime": "x", "endTime": "y", "reason": reason} | more


def verdict(reason: str, status: Json | None = None, attempts: list[Json] | None = None, **spec: Any) -> Verdict:
    owner = training({"training": {}} | spec, status)
    return decide(owner, attempts or [failed(reason=reason)], Failure(reason, "why"))


@pytest.mark.parametrize("reason", sorted(PERMANENT))
def test_what_cannot_get_better_is_not_tried_again(reason: str) -> None:
    assert not verdict(reason).retry


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
def test_what_the_cluster_did_is_never_counted(reason: str) -> None:
    found = verdict(reason, {"countedFailures": 99}, runPolicy={"backoffLimit": 0})
    assert (found.retry, found.counts) == (True, False)


def test_the_limit_holds() -> None:
    assert verdict(Reason.KILLED, {"countedFailures": 2}).retry
    last = verdict(Reason.KILLED, {"countedFailures": 3})
    assert not last.retry
    assert last.message == "why (spec.runPolicy.backoffLimit of 3 is used up)"
    assert verdict(Reason.KILLED, runPolicy={"backoffLimit": 0}).message == "why"


def test_nan_at_the_same_step_again_is_for_good() -> None:
    nan = [failed(n, Reason.NON_FINITE_LOSS, lastStep=70) for n in (1, 2)]
    assert not verdict(Reason.NON_FINITE_LOSS, attempts=nan).retry
    assert "at step 70 in two attempts" in verdict(Reason.NON_FINITE_LOSS, attempts=nan).message
    elsewhere = [nan[0], nan[1] | {"lastStep": 71}]
    assert verdict(Reason.NON_FINITE_LOSS, attempts=elsewhere).retry
    assert verdict(Reason.NON_FINITE_LOSS, attempts=nan[:1]).retry


def test_nan_is_recognised_behind_another_failure() -> None:
    nan: Any = {"reason": Reason.NON_FINITE_LOSS, "lastStep": 70}
    attempts = [failed(1, **nan), failed(2, Reason.EVICTED, lastStep=50), failed(3, **nan)]
    assert not verdict(Reason.NON_FINITE_LOSS, attempts=attempts).retry
    unknown = [failed(n, Reason.NON_FINITE_LOSS) for n in (1, 2)]
    assert verdict(Reason.NON_FINITE_LOSS, attempts=unknown).retry


def test_a_script_that_claims_to_have_been_stopped_is_not_believed_for_ever() -> None:
    script = training({"command": ["train"]}, {"countedFailures": 3})
    claim = Failure(Reason.PREEMPTED, "why", exit_code=75, aftermath=2)
    assert not decide(script, [failed()], claim).retry
    assert decide(script, [failed()], Failure(Reason.PREEMPTED, "why", exit_code=75)).retry


def test_an_attempt_that_ends_where_others_ended_has_not_advanced() -> None:
    again = [failed(n, lastStep=10) for n in (1, 2, 3)]
    assert delay_seconds("uid", again[:1]) == 0
    assert 8 <= delay_seconds("uid", again[:2]) <= 12
    assert 16 <= delay_seconds("uid", again) <= 24


def test_out_of_memory_fails_with_the_fix_unless_told_to_reduce() -> None:
    found = verdict(Reason.OUT_OF_MEMORY)
    assert not found.retry
    assert found.message == "why (batch size 64; or set training.onOutOfMemory: ReduceBatchSize)"


def test_out_of_memory_halves_the_batch_and_keeps_the_effective_one() -> None:
    spec: Json = {"batchSize": 2, "gradientAccumulationSteps": 3, "onOutOfMemory": "ReduceBatchSize"}
    first = verdict(Reason.OUT_OF_MEMORY, training=spec, runPolicy={"backoffLimit": 0})
    assert (first.retry, first.counts, first.batch) == (True, False, BatchPlan(1, 6))
    assert "the next attempt uses 1 with 6 accumulation steps" in first.message
    reduced = {"training": {"batchSize": 1, "gradientAccumulationSteps": 6}}
    last = verdict(Reason.OUT_OF_MEMORY, reduced, training=spec)
    assert not last.retry
    assert last.message == "out of memory even at batch size 1 with 6 accumulation steps; why"


def test_a_script_that_runs_out_of_memory_is_tried_again_within_the_limit() -> None:
    script = training({"command": ["train"], "gpusPerWorker": 0})
    assert decide(script, [failed()], Failure(Reason.OUT_OF_MEMORY, "why")).retry


@given(st.integers(1, 4096), st.integers(1, 64))
def test_smaller_batches_keep_the_effective_batch_and_end_at_1(size: int, steps: int) -> None:
    batch: BatchPlan | None = BatchPlan(size, steps)
    while batch is not None:
        assert batch.batch_size * batch.gradient_accumulation_steps == size * steps
        before, batch = batch, smaller(batch)
        if batch is not None and before.batch_size % 2 == 0:
            assert batch == BatchPlan(before.batch_size // 2, before.gradient_accumulation_steps * 2)
    assert before.batch_size == 1


def test_delays_grow_while_nothing_advances_and_differ_between_trainings() -> None:
    idle = [failed(n) for n in range(1, 11)]
    delays = [delay_seconds("uid", idle[:n]) for n in range(1, 11)]
    for seconds, base in zip(delays, (10, 20, 40, 80, 160, 300, 300, 300, 300, 300), strict=True):
        assert 0.8 * base <= seconds <= 1.2 * base
    assert delay_seconds("uid", idle) == delay_seconds("uid", idle)
    assert len({delay_seconds(f"uid-{n}", idle) for n in range(20)}) == 20
    ahead = [*idle, failed(11, restoredStep=100, lastStep=130)]
    assert delay_seconds("uid", ahead) == 0
    assert delay_seconds("uid", [*idle, failed(11, restoredStep=100, lastStep=100)]) > 200
    assert delay_seconds("uid", [*ahead, failed(12, Reason.SUSPENDED)]) == 0
