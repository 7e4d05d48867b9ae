"""Leader election by a Lease: of several replicas one acts, the others watch and wait.

What must never be wrong is the order of two moments: a leader stops before anybody else may take over. The holder
counts from when it *sent* its last renewal, the others from when they *saw* it, which is later; and it gives up earlier
than they take over. Only durations on everybody's own monotonic clock are compared; times in the Lease are for people.

The election saves double work; correctness does not hang on it. A process that was frozen while it led can have one
last request on its way, which meets the API's own guards: names, uids and resourceVersions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Protocol

from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError

logger = logging.getLogger(__name__)

_JITTER: Final = 0.2


@dataclass(frozen=True)
class Terms:
    """Durations in seconds.

    Attributes:
        duration: after this time without a renewal seen, others take over.
        renew_deadline: after this time without a renewal, the leader stops leading; less than ``duration``.
        retry: time between two tries to take or to renew.
    """

    duration: int = 15
    renew_deadline: float = 10
    retry: float = 2

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError(f"terms of a lease: {self}; allowed is 0 < retry < renew_deadline < duration")


class Step(Enum):
    """What a candidate does next."""

    READ = "read the lease"
    CREATE = "create it in our name"
    TAKE = "write our name into it"
    WAIT = "somebody else holds it"
    LOST = "we led and must stop"


@dataclass(frozen=True)
class Seen:
    """A Lease as it was read or written last; body None means that there is none."""

    body: Json | None

    @property
    def holder(self) -> str:
        """Identity of its holder, empty when it is free."""
        return str(self._spec.get("holderIdentity") or "")

    @property
    def renewal(self) -> object:
        """Changes whenever the holder renews or another takes over; only compared."""
        return self.holder, self._spec.get("renewTime"), self._spec.get("leaseTransitions")

    @property
    def duration(self) -> float:
        """Seconds for which its holder asks to be left alone, 0 if it does not say."""
        return float(self._spec.get("leaseDurationSeconds") or 0)

    @property
    def _spec(self) -> Json:
        return (self.body or {}).get("spec") or {}


class Candidate:
    """The rules of the election for one replica. Pure: times on its own monotonic clock in, steps out."""

    def __init__(self, identity: str, terms: Terms) -> None:
        self.identity = identity
        self.terms = terms
        self._seen: Seen | None = None
        self._changed_at = 0.0
        self._renewed_at: float | None = None
        self._others = False

    @property
    def elected(self) -> bool:
        """Whether it has ever led."""
        return self._renewed_at is not None

    def leads(self, now: float) -> bool:
        """Whether this replica may act."""
        return self._renewed_at is not None and now < self.leads_until

    @property
    def leads_until(self) -> float:
        """When it stops leading unless it renews."""
        return (self._renewed_at or 0.0) + self.terms.renew_deadline

    def saw(self, seen: Seen, now: float) -> None:
        """The lease was read."""
        if self._seen is None or seen.renewal != self._seen.renewal:
            self._changed_at = now
        self._others = self._others or seen.holder not in ("", self.identity)
        self._seen = seen

    def wrote(self, seen: Seen, sent: float) -> None:
        """Our own write was acknowledged; ``sent`` is the moment before it was sent."""
        self._seen, self._changed_at, self._renewed_at = seen, sent, sent

    def refused(self) -> None:
        """Our write met a newer lease: what we know of it is out of date."""
        self._seen = None

    def resign(self) -> None:
        """It leads no more, and never again."""
        self._renewed_at = float("-inf")

    def step(self, now: float) -> Step:
        """What to do now."""
        if self.elected and now >= self.leads_until:
            return Step.LOST
        if self._seen is None:
            return Step.READ
        expired = now - self._changed_at >= self._patience
        if self._seen.body is None:
            # Somebody deleted it, and whom we saw leading may still do so.
            return Step.CREATE if self.elected or expired or not self._others else Step.WAIT
        if self.elected:
            return Step.TAKE if self._seen.holder == self.identity else Step.LOST
        return Step.TAKE if expired or self._seen.holder in ("", self.identity) else Step.WAIT

    @property
    def _patience(self) -> float:
        # The holder may be of another version with longer terms.
        return max(self.terms.duration, self._seen.duration if self._seen else 0)

    def body(self, name: str, namespace: str, wall_time: datetime, *, release: bool = False) -> Json:
        """The Lease to write: the one that was seen, so that its resourceVersion guards it, in our name or free."""
        now = wall_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (self._seen.body if self._seen else None) or {}
        spec = dict(old.get("spec") or {})
        mine = spec.get("holderIdentity") == self.identity
        if not mine:
            transitions = spec.get("leaseTransitions", -1) + 1
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        spec |= {
            "holderIdentity": "" if release else self.identity,
            # A free lease is nobody's: the API takes no 0 here.
            "leaseDurationSeconds": 1 if release else self.terms.duration,
            "renewTime": now,
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": old.get("metadata") or {"name": name, "namespace": namespace},
            "spec": spec,
        }


class Leases(Protocol):
    """The part of the API that an election needs; see `cluster.Cluster`."""

    async def get_lease(self, namespace: str, name: str) -> Json | None: ...
    async def create_lease(self, body: Json) -> Json: ...
    async def update_lease(self, body: Json) -> Json: ...


class Election:
    """Takes part in the election for one Lease."""

    def __init__(
        self,
        leases: Leases,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._namespace = namespace
        self._name = name
        self._candidate = Candidate(identity, terms or Terms())
        self._monotonic = monotonic
        self._other = ""

    def leads(self) -> bool:
        """Whether this replica may act at this very moment."""
        return self._candidate.leads(self._monotonic())

    async def acquire(self) -> None:
        """Wait until this replica leads."""
        while not self._candidate.elected:
            await self._try(self._candidate.terms.renew_deadline / 2)
            if not self._candidate.elected:
                await self._pause()
        logger.info("lease %s/%s: %s leads", self._namespace, self._name, self._candidate.identity)

    async def keep(self) -> None:
        """Renew while this replica leads; return as soon as it does no more."""
        candidate = self._candidate
        while candidate.step(self._monotonic()) is not Step.LOST:
            left = candidate.leads_until - self._monotonic()
            await self._try(min(left, candidate.terms.renew_deadline / 2))
            if candidate.step(self._monotonic()) is not Step.LOST:
                await self._pause(candidate.leads_until - self._monotonic())
        logger.error("lease %s/%s: lost; %s stops leading", self._namespace, self._name, candidate.identity)

    async def release(self) -> None:
        """Free the lease, if this replica holds it, so that another leads at once; nothing acts any more."""
        candidate = self._candidate
        if not self.leads():
            return
        candidate.resign()
        try:
            async with asyncio.timeout(candidate.terms.retry):
                # Read it anew: a renewal that was interrupted may have arrived.
                candidate.saw(
                    seen := Seen(await self._leases.get_lease(self._namespace, self._name)), self._monotonic()
                )
                if seen.holder == candidate.identity:
                    body = candidate.body(self._name, self._namespace, datetime.now(UTC), release=True)
                    await self._leases.update_lease(body)
            logger.info("lease %s/%s: released", self._namespace, self._name)
        except (ApiError, TimeoutError) as error:
            logger.warning("lease %s/%s: not released, it runs out: %s", self._namespace, self._name, error)

    async def _try(self, seconds: float) -> None:
        """One round: read it if need be, and write it if it is to be ours."""
        try:
            async with asyncio.timeout(seconds):
                await self._round()
        except (ApiError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            logger.info("lease %s/%s: %s; trying again", self._namespace, self._name, text)
        except Exception:
            logger.exception("lease %s/%s: failed; trying again", self._namespace, self._name)

    async def _round(self) -> None:
        candidate = self._candidate
        step = candidate.step(self._monotonic())
        # A leader knows its lease, and a write tells if it is out of date; anybody else has to look.
        if step is not Step.TAKE or not self.leads():
            body = await self._leases.get_lease(self._namespace, self._name)
            candidate.saw(seen := Seen(body), self._monotonic())
            self._tell(seen.holder)
            step = candidate.step(self._monotonic())
        if step not in (Step.CREATE, Step.TAKE):
            return
        wanted = candidate.body(self._name, self._namespace, datetime.now(UTC))
        sent = self._monotonic()
        try:
            write = self._leases.create_lease if step is Step.CREATE else self._leases.update_lease
            candidate.wrote(Seen(await write(wanted)), sent)
        except ApiError as error:
            if error.status in (404, 409):
                candidate.refused()
            raise

    def _tell(self, holder: str) -> None:
        if holder not in ("", self._other, self._candidate.identity):
            logger.info("lease %s/%s: %s leads, standing by", self._namespace, self._name, holder)
        self._other = holder

    async def _pause(self, at_most: float = float("inf")) -> None:
        # Jitter keeps replicas from trying in step; it decides nothing.
        seconds = self._candidate.terms.retry * (1 + random.uniform(-_JITTER, _JITTER))
        await asyncio.sleep(max(0.0, min(seconds, at_most)))
