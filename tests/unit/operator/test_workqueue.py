"""The work queue's promises: one at a time per key, nothing lost, the earliest delay wins."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputraining_operator.workqueue import WorkQueue, backoff_seconds


async def test_triggers_coalesce() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_key_in_work_is_queued_again_only_after_it_is_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done("a")
    assert await waiting == "a"


async def test_the_earliest_delay_wins_and_fires_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("a", 30)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_work_done_now_makes_a_later_date_moot() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.02)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.1)


async def test_failures_are_counted_until_success() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert [queue.failed("a"), queue.failed("a")] == [1, 2]
    queue.succeeded("a")
    assert queue.failed("a") == 1


async def test_close_drops_delays() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)


@given(st.integers(1, 1000), st.floats(0, 1))
def test_backoff_grows_and_is_bounded(failures: int, spread: float) -> None:
    assert 0.25 <= backoff_seconds(failures, spread) <= 45
    assert backoff_seconds(failures + 1, 0) >= backoff_seconds(failures, 0)
