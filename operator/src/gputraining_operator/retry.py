"""What follows a failed attempt: another one, when, with what; or the end. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gputraining_operator.api import Json, Reason
from gputraining_operator.attempts import attempts_without_advance, batch_in_force
from gputraining_operator.failures import Failure
from gputraining_operator.spec import BatchPlan, GpuTraining
from gputraining_operator.status import grouped

INFRASTRUCTURE: Final = frozenset(
    {
        Reason.PREEMPTED,
        Reason.EVICTED,
        Reason.NODE_LOST,
        Reason.POD_DELETED,
        Reason.JOB_DELETED,
        Reason.SUSPENDED,
    }
)
"""The cluster took the workers away: no fault of the training, so not counted against backoffLimit."""

PERMANENT: Final = frozenset(
    {
        Reason.INVALID_CONFIG,
        Reason.DATASET_NOT_FOUND,
        Reason.CHECKPOINT_NOT_FOUND,
        Reason.REJECTED,
        Reason.IMAGE_PULL_FAILED,
        Reason.PENDING_DEADLINE_EXCEEDED,
        Reason.DEADLINE_EXCEEDED,
    }
)
"""Another attempt would end in the same way."""

FIRST_DELAY: Final = 0.0
"""Seconds before the next attempt when the last one got somewhere: the fault was of the moment, so time is all it
costs. It waits for the former workers anyway."""
BASE_DELAY: Final = 10.0
MAX_DELAY: Final = 300.0


@dataclass(frozen=True)
class Verdict:
    """What follows. Without ``retry`` the training fails with ``reason`` and ``message``.

    ``counts``: the failure is counted against backoffLimit. ``batch``: what the next attempt reduces to.
    """

    retry: bool
    counts: bool
    message: str
    delay_seconds: float = 0.0
    batch: BatchPlan | None = None


def decide(training: GpuTraining, attempts: Sequence[Json], failure: Failure) -> Verdict:
    """Decide what follows the failure of the newest attempt.

    Args:
        training: with the status from before the failure.
        attempts: the history with the failed attempt as its last entry.
        failure: why it failed.
    """
    if failure.reason in PERMANENT:
        return Verdict(False, True, failure.message)
    if failure.reason == Reason.OUT_OF_MEMORY and training.spec.training is not None:
        return _out_of_memory(training, failure)
    if failure.reason == Reason.NON_FINITE_LOSS and _same_step_again(attempts):
        where = f"at step {grouped(attempts[-1]['lastStep'])} in two attempts"
        return Verdict(False, True, f"{failure.message} ({where}: another one would end the same)")
    counts = failure.reason not in INFRASTRUCTURE or _nobody_asked(training, failure)
    failures, limit = training.status.get("countedFailures", 0) + counts, training.spec.run_policy.backoff_limit
    if counts and failures > limit:
        suffix = f" (spec.runPolicy.backoffLimit of {limit} is used up)" if limit else ""
        return Verdict(False, True, failure.message + suffix)
    return Verdict(True, counts, failure.message, delay_seconds(training.uid, attempts))


def delay_seconds(uid: str, attempts: Sequence[Json]) -> float:
    """Seconds until the next attempt: exponential while nothing advances, ±20 % so that trainings that one event has
    stopped do not come back in step. The jitter follows from uid and attempt: the same facts, the same decision."""
    idle = attempts_without_advance(attempts)
    base = min(MAX_DELAY, BASE_DELAY * 2 ** min(idle - 1, 10)) if idle else FIRST_DELAY
    share = zlib.crc32(f"{uid}/{attempts[-1]['number']}".encode()) / 2**32
    return base * (0.8 + 0.4 * share)


def smaller(batch: BatchPlan) -> BatchPlan | None:
    """The next smaller batch with the same effective batch; None at 1.

    An even batch is halved; an odd one is divided by its smallest factor, so that no sample is lost.
    """
    factor = next((f for f in range(2, batch.batch_size + 1) if batch.batch_size % f == 0), None)
    if factor is None:
        return None
    return BatchPlan(batch.batch_size // factor, batch.gradient_accumulation_steps * factor)


def _out_of_memory(training: GpuTraining, failure: Failure) -> Verdict:
    builtin = training.spec.training
    assert builtin is not None, "only the built-in trainer has a batch to reduce"
    now = batch_in_force(training.spec, training.status) or BatchPlan(
        builtin.batch_size, builtin.gradient_accumulation_steps
    )
    if builtin.on_out_of_memory != "ReduceBatchSize":
        advice = "or set training.onOutOfMemory: ReduceBatchSize"
        return Verdict(False, True, f"{failure.message} (batch size {now.batch_size}; {advice})")
    reduced = smaller(now)
    if reduced is None:
        text = f"out of memory even at batch size 1 with {now.gradient_accumulation_steps} accumulation steps"
        return Verdict(False, True, f"{text}; {failure.message}")
    text = (
        f"{failure.message} (batch size {now.batch_size}): the next attempt uses {reduced.batch_size} "
        f"with {reduced.gradient_accumulation_steps} accumulation steps"
    )
    return Verdict(True, False, text, FIRST_DELAY, reduced)


def _nobody_asked(training: GpuTraining, failure: Failure) -> bool:
    """Whether a script says by its exit code that it was told to stop, and no pod was: it may do so for ever."""
    return failure.reason == Reason.PREEMPTED and failure.aftermath > 0 and training.spec.training is None


def _same_step_again(attempts: Sequence[Json]) -> bool:
    step = attempts[-1].get("lastStep")
    before = [a for a in attempts[:-1] if a.get("reason") == Reason.NON_FINITE_LOSS]
    return step is not None and bool(before) and before[-1].get("lastStep") == step
