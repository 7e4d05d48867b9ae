"""Who works when: a replica reconciles while it leads, and stands by again when it has lost its lead."""

from __future__ import annotations

import asyncio

from gputraining_operator.cluster import Cluster
from gputraining_operator.controller import Controller
from gputraining_operator.handlers import Operator
from gputraining_operator.lease import Election
from gputraining_operator.metrics import Metrics
from gputraining_operator.settings import Settings
from gputraining_operator.store import Store
from tests.unit.operator.builders import TRAINER_IMAGE, training


class PlayedElection(Election):
    """Won and lost when the test says so."""

    def __init__(self) -> None:
        self.won, self.lost = asyncio.Event(), asyncio.Event()
        self.workers_at_release: int | None = None
        self.controller: PlayedController | None = None

    async def acquire(self) -> None:
        await self.won.wait()

    async def keep(self) -> None:
        await self.lost.wait()

    async def release(self) -> None:
        assert self.controller is not None
        self.workers_at_release = self.controller.workers


class PlayedCluster(Cluster):
    def __init__(self) -> None:
        pass


class PlayedController(Controller):
    """Counts the workers that run."""

    def __init__(self) -> None:
        super().__init__(PlayedCluster(), Store(), Metrics(), TRAINER_IMAGE)
        self.workers = 0

    async def run_worker(self) -> None:
        self.workers += 1
        try:
            await super().run_worker()
        finally:
            self.workers -= 1


class Scene:
    def __init__(self) -> None:
        self.operator = Operator(Settings(TRAINER_IMAGE, reconcile_workers=3))
        self.election, self.controller = PlayedElection(), PlayedController()
        self.election.controller = self.controller
        self.elections = 0
        self.work = asyncio.ensure_future(self.operator._work(self.controller, self._next_election))

    def _next_election(self) -> PlayedElection:
        self.elections += 1
        return self.election

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_only_a_leader_works_and_who_lost_its_lead_stands_by_again() -> None:
    s = Scene()
    await s.settle()
    assert s.controller.workers == 0, "it stands by"
    s.election.won.set()
    await s.settle()
    assert s.controller.workers == 3
    s.election.won.clear()
    s.election.lost.set()
    await s.settle()
    assert (s.controller.workers, s.elections) == (0, 2)
    assert not s.operator.restart.is_set()
    s.controller.store.put_training(training())
    s.election.lost.clear()
    s.election.won.set()
    await s.settle()
    assert s.controller.workers == 3
    s.work.cancel()
    await asyncio.gather(s.work, return_exceptions=True)


async def test_a_clean_stop_releases_the_lease_after_the_last_work() -> None:
    s = Scene()
    s.election.won.set()
    await s.settle()
    s.work.cancel()
    await asyncio.gather(s.work, return_exceptions=True)
    assert s.election.workers_at_release == 0
    assert not s.operator.restart.is_set()


async def test_without_an_election_it_works_at_once() -> None:
    s = Scene()
    alone = asyncio.ensure_future(s.operator._work(s.controller, None))
    await s.settle()
    assert s.controller.workers == 3
    alone.cancel()
    s.work.cancel()
    await asyncio.gather(alone, s.work, return_exceptions=True)
