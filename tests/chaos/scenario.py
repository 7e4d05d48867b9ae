"""What a scenario is: a fault that comes from outside, and what must hold after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.run import Run
from tests.contract.kube import Json
from tests.e2e.world import INTERVAL_STEPS

IN_FLIGHT_STEPS: Final = 6
"""Steps that pass while a checkpoint is being written (0.1 s): a kill just then goes back to the one before."""

AT_MOST_ONE_INTERVAL: Final = INTERVAL_STEPS + IN_FLIGHT_STEPS
NONE_LOST: Final = 0


@dataclass(frozen=True)
class Expected:
    """What must hold in the end.

    ended: reasons of the attempts that were followed by another one, in order ("A or B"). max_lost: steps trained twice
    after any of them. says: text that the message contains. events: reasons that must have been posted.
    """

    phase: str = "Complete"
    ended: tuple[str, ...] = ()
    counted: int = 0
    max_lost: int = AT_MOST_ONE_INTERVAL
    failed: str = ""
    says: str = ""
    events: tuple[str, ...] = ()
    same_model: bool = True

    @property
    def attempts(self) -> int:
        """How many attempts there are in all."""
        return len(self.ended) + 1


def nothing(_: Run) -> None:
    """Nothing happens."""


def no_problems(_: Run) -> Iterable[str]:
    """All is said by what is expected of every scenario."""
    return ()


@dataclass(frozen=True)
class Scenario:
    """One line of the matrix.

    spec: what differs from a usual resumable training. prepare: before it is applied. inject: the fault, while it
    trains, at a random step between the two shares `when` of the whole; None where what is wrong is there from the
    start. check: what else must hold; gives what is wrong. seconds: how long the end may take.
    """

    name: str
    fault: str
    expected: Expected = Expected()
    inject: Callable[[Run], None] | None = None
    when: tuple[float, float] = (0.15, 0.55)
    spec: Json = field(default_factory=dict)
    prepare: Callable[[Run], None] = nothing
    check: Callable[[Run], Iterable[str]] = no_problems
    seconds: float = 240


@dataclass(frozen=True)
class Result:
    """How a scenario went; right when there are no problems. Times in seconds, None where nothing is to be measured."""

    scenario: str
    fault: str
    attempts: int
    lost_steps: int | None
    to_next_step: float | None
    wall: float
    problems: tuple[str, ...] = ()
