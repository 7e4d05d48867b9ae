"""Leader election: the rules one by one, and replicas against a played API server whose network does its worst.

Hours pass in moments: the event loop's clock jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError
from gputraining_operator.lease import Candidate, Election, Seen, Step, Terms

TERMS = Terms(duration=15, renew_deadline=10, retry=2)
WALL = datetime(2026, 11, 21, tzinfo=UTC)


def lease(holder: str, renewed: int = 0, version: int = 1) -> Seen:
    spec = {"holderIdentity": holder, "renewTime": f"r{renewed}", "leaseDurationSeconds": 15, "leaseTransitions": 3}
    return Seen({"metadata": {"name": "l", "namespace": "n", "resourceVersion": str(version)}, "spec": spec})


def candidate(seen: Seen | None = None, now: float = 0) -> Candidate:
    made = Candidate("me", TERMS)
    if seen:
        made.saw(seen, now)
    return made


def leader(sent: float = 100) -> Candidate:
    made = candidate(Seen(None), sent)
    made.wrote(lease("me"), sent)
    return made


@pytest.mark.parametrize("terms", [(10, 10, 2), (15, 10, 10), (15, 10, 0)])
def test_terms_that_cannot_hold_are_refused(terms: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="allowed is 0 < retry < renew_deadline < duration"):
        Terms(*terms)


def test_it_looks_before_it_acts() -> None:
    assert candidate().step(0) is Step.READ


@pytest.mark.parametrize("seen", [lease(""), lease("me")], ids=["free", "ours, from before a restart"])
def test_a_free_lease_is_taken_at_once(seen: Seen) -> None:
    assert candidate(seen).step(0) is Step.TAKE


def test_no_lease_is_created_at_once() -> None:
    assert candidate(Seen(None)).step(0) is Step.CREATE


def test_expiry_counts_from_when_a_renewal_was_seen_not_from_what_the_holder_says() -> None:
    waiting = candidate(lease("other", renewed=1), now=50)
    assert waiting.step(64.9) is Step.WAIT
    waiting.saw(lease("other", renewed=2), 64.9)
    waiting.saw(lease("other", renewed=2, version=9), 70)  # somebody put a label on it
    assert waiting.step(79.8) is Step.WAIT
    assert waiting.step(79.9) is Step.TAKE


def test_a_holder_with_longer_terms_is_left_alone_for_longer() -> None:
    seen = lease("other")
    assert seen.body is not None
    seen.body["spec"]["leaseDurationSeconds"] = 60
    assert candidate(seen).step(59.9) is Step.WAIT
    assert candidate(seen).step(60) is Step.TAKE


def test_a_leader_counts_from_when_it_sent_its_renewal_and_stops_before_others_take_over() -> None:
    leading = leader(sent=100)
    assert leading.leads(109.9)
    assert not leading.leads(110)
    assert leading.step(110) is Step.LOST


def test_a_leader_that_finds_another_name_has_lost() -> None:
    leading = leader()
    leading.refused()
    assert leading.step(101) is Step.READ
    leading.saw(lease("other"), 101)
    assert leading.step(101) is Step.LOST


def test_a_lease_that_somebody_deleted_is_made_again_by_its_leader_while_others_hold_back() -> None:
    leading, waiting = leader(), candidate(lease("me-of-the-other"), now=100)
    leading.saw(Seen(None), 101)
    waiting.saw(Seen(None), 101)
    assert leading.step(101) is Step.CREATE
    assert waiting.step(115.9) is Step.WAIT
    assert waiting.step(116) is Step.CREATE


def test_what_is_written() -> None:
    taken = candidate(lease("other", version=7)).body("l", "n", WALL)
    assert taken["metadata"]["resourceVersion"] == "7", "so that only what was seen is replaced"
    assert taken["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-11-21T00:00:00.000000Z",
        "renewTime": "2026-11-21T00:00:00.000000Z",
        "leaseTransitions": 4,
    }
    renewed = candidate(Seen(taken)).body("l", "n", WALL.replace(hour=1))["spec"]
    assert (renewed["acquireTime"], renewed["leaseTransitions"]) == ("2026-11-21T00:00:00.000000Z", 4)
    assert renewed["renewTime"] == "2026-11-21T01:00:00.000000Z"
    assert candidate(Seen(taken)).body("l", "n", WALL, release=True)["spec"]["holderIdentity"] == ""
    assert candidate(Seen(None)).body("l", "n", WALL)["metadata"] == {"name": "l", "namespace": "n"}


# Several replicas


class JumpingSelector(selectors.SelectSelector):
    """Never waits: the loop's clock jumps by as long as it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen any more"
        self.now += max(0.0, timeout)
        return super().select(0)


def play(story: Coroutine[Any, Any, None]) -> None:
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    # A moment later than asked for, so that rounding does not hold the clock.
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(story)
    finally:
        loop.close()


@dataclass
class Network:
    """A Lease on a server, and requests that are late, lost, or answered to nobody."""

    chance: random.Random
    body: Json | None = None
    version: int = 0
    trouble: float = 0.0
    slow: float = 0.1
    silent_for: set[str] = field(default_factory=set)

    def put(self, body: Json, *, create: bool) -> Json:
        known = (self.body or {}).get("metadata", {}).get("resourceVersion")
        if (self.body is not None) if create else (known != body["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "newer")
        self.version += 1
        metadata = body["metadata"] | {"resourceVersion": str(self.version)}
        self.body = {"metadata": metadata, "spec": dict(body["spec"])}
        return self.body


class Line:
    """One replica's connection to the API server."""

    def __init__(self, network: Network, identity: str) -> None:
        self.network, self.identity = network, identity

    async def _send(self, act: Callable[[], Json | None]) -> Json | None:
        network = self.network
        await asyncio.sleep(network.chance.uniform(0, network.slow))
        if self.identity in network.silent_for or network.chance.random() < network.trouble:
            await asyncio.sleep(60)  # lost on the way there
        answer = act()
        if network.chance.random() < network.trouble:
            await asyncio.sleep(60)  # done, but the answer is lost
        await asyncio.sleep(network.chance.uniform(0, network.slow))
        return answer

    async def get_lease(self, namespace: str, name: str) -> Json | None:
        return await self._send(lambda: self.network.body)

    async def create_lease(self, body: Json) -> Json:
        answer = await self._send(lambda: self.network.put(body, create=True))
        assert answer is not None
        return answer

    async def update_lease(self, body: Json) -> Json:
        answer = await self._send(lambda: self.network.put(body, create=False))
        assert answer is not None
        return answer


class Replica:
    """A process that takes part in the election, with a clock of its own that starts anywhere and is a bit off."""

    def __init__(self, network: Network, identity: str, rate: float = 1.0, offset: float = 0.0) -> None:
        self.identity = identity
        loop = asyncio.get_running_loop()
        self.election = Election(
            Line(network, identity), "n", "l", identity, TERMS, lambda: offset + rate * loop.time()
        )
        self.alive = True
        self.ends = 0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self.election.acquire()
        try:
            await self.election.keep()
            self.ends += 1
        finally:
            await self.election.release()

    @property
    def leads(self) -> bool:
        return self.alive and self.election.leads()

    async def crash(self) -> None:
        self.alive = False
        self.election.release = _nothing  # type: ignore[method-assign]  # it has no time for that
        await self.stop()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _nothing() -> None:
    pass


async def pass_time(seconds: float, replicas: list[Replica]) -> float:
    """Lets time pass, and watches; returns for how long somebody led at the end of it."""
    led = 0.0
    for _ in range(round(seconds * 10)):
        await asyncio.sleep(0.1)
        leading = [replica.identity for replica in replicas if replica.leads]
        assert len(leading) <= 1, f"both lead: {leading}"
        led = led + 0.1 if leading else 0.0
    return led


def test_a_slow_answer_does_not_prolong_the_lead() -> None:
    async def story() -> None:
        network = Network(random.Random(0), slow=0)
        replica = Replica(network, "a")
        await pass_time(1, [replica])
        network.slow = 2.4  # to the server, and as much back: within the time that a try has
        for _ in range(20):
            before = network.version
            while network.version == before:
                await pass_time(0.1, [replica])
            arrived = asyncio.get_running_loop().time()
            await pass_time(0.5, [replica])
            assert replica.election._candidate.leads_until <= arrived + TERMS.renew_deadline
        await replica.stop()

    play(story())


def test_of_two_replicas_one_leads_and_a_clean_stop_hands_over_at_once() -> None:
    async def story() -> None:
        network = Network(random.Random(1))
        replicas = [Replica(network, "a"), Replica(network, "b")]
        assert await pass_time(3600, replicas) > 3590
        first = next(replica for replica in replicas if replica.leads)
        await first.stop()
        assert not first.leads
        assert await pass_time(5, replicas) > 2
        for replica in replicas:
            await replica.stop()

    play(story())


def test_a_crash_or_a_cut_line_is_made_good_within_30_s() -> None:
    async def story() -> None:
        network = Network(random.Random(2))
        replicas = [Replica(network, "a"), Replica(network, "b"), Replica(network, "c")]
        await pass_time(60, replicas)
        first = next(replica for replica in replicas if replica.leads)
        await first.crash()
        assert await pass_time(30, replicas) > 1
        second = next(replica for replica in replicas if replica.leads)
        network.silent_for.add(second.identity)
        assert await pass_time(30, replicas) > 1
        assert second.ends == 1, "it noticed, and gave up"
        for replica in replicas:
            await replica.stop()

    play(story())


def test_a_restart_in_the_same_pod_goes_on_at_once() -> None:
    async def story() -> None:
        network = Network(random.Random(3))
        first = Replica(network, "a")
        await pass_time(60, [first])
        await first.crash()
        second = Replica(network, "a")
        assert await pass_time(2, [second]) > 1
        await second.stop()

    play(story())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    trouble=st.sampled_from([0.0, 0.1, 0.4]),
    slow=st.sampled_from([0.05, 3.0, 12.0]),
    rates=st.lists(st.floats(0.9, 1.1), min_size=2, max_size=3),
    acts=st.lists(st.sampled_from(["crash", "stop", "cut", "heal", "delete", "label", "wait"]), max_size=8),
)
def test_never_two_leaders_and_in_the_end_one(
    seed: int, trouble: float, slow: float, rates: list[float], acts: list[str]
) -> None:
    async def story() -> None:
        chance = random.Random(seed)
        network = Network(chance, trouble=trouble, slow=slow)
        count = len(rates)
        replicas = [Replica(network, f"r{i}", rate, chance.uniform(0, 1e6)) for i, rate in enumerate(rates)]
        for act in acts:
            await pass_time(chance.uniform(0, 40), replicas)
            index = chance.randrange(len(replicas))
            match act:
                case "crash" | "stop":
                    await (replicas[index].crash() if act == "crash" else replicas[index].stop())
                    replicas[index] = Replica(network, f"r{count}", rates[index], chance.uniform(0, 1e6))
                    count += 1
                case "cut":
                    network.silent_for.add(replicas[index].identity)
                case "heal":
                    network.silent_for.clear()
                case "delete":
                    # A replica that starts now cannot know that somebody leads: it must not be asked to.
                    if all(replica.election._candidate._others or replica.leads for replica in replicas):
                        network.body = None
                        await pass_time(30, replicas)
                case "label" if network.body:
                    network.version += 1
                    network.body = network.body | {
                        "metadata": network.body["metadata"] | {"resourceVersion": str(network.version)}
                    }
                case _:
                    pass
        network.trouble, network.slow = 0.0, 0.1
        network.silent_for.clear()
        for i, replica in enumerate(replicas):
            if replica.ends:  # its process would start anew
                replicas[i] = Replica(network, f"r{count + i}")
        await pass_time(90, replicas)
        for i, replica in enumerate(replicas):
            if replica.ends:
                replicas[i] = Replica(network, f"s{count + i}")
        assert await pass_time(30, replicas) > 1
        for replica in replicas:
            await replica.stop()

    play(story())
