"""A work queue of keys: each key is in work at most once at a time, triggers in between coalesce, delays are kept.

The semantics of client-go's workqueue, for asyncio.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Keys that wait for work. All methods must be called from one event loop."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._in_work: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakeup = asyncio.Semaphore(0)

    def __len__(self) -> int:
        return len(self._dirty)

    def add(self, key: K) -> None:
        """Ask for work on a key. While it is in work, it is queued again after that."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._in_work:
            self._enqueue(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Ask for work on a key later. An earlier time already asked for is kept."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._timer_due, key)

    async def get(self) -> K:
        """Take the next key; `done` must follow."""
        await self._wakeup.acquire()
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._in_work.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: K) -> None:
        """Give a key back; it is queued again if it was added meanwhile."""
        self._in_work.discard(key)
        if key in self._dirty:
            self._enqueue(key)

    def failed(self, key: K) -> int:
        """Count a failure of a key; returns how many there were in a row."""
        self._failures[key] = self._failures.get(key, 0) + 1
        return self._failures[key]

    def succeeded(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def close(self) -> None:
        """Drop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enqueue(self, key: K) -> None:
        self._ready.append(key)
        self._wakeup.release()

    def _timer_due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)


def backoff_seconds(failures: int, spread: float, *, base: float = 0.25, limit: float = 30.0) -> float:
    """Exponential backoff after so many failures in a row, plus up to half of it by ``spread`` in [0, 1)."""
    return min(limit, base * 2.0 ** min(failures - 1, 16)) * (1 + spread / 2)
