"""A graph of idempotent steps, run concurrently. Knows nothing of what the steps do nor of how progress is shown."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hack.shell import Context, Processes


def _never() -> str | None:
    return None


@dataclass(frozen=True)
class Step:
    """One thing to bring about.

    what: shown while it runs. usual: seconds it usually takes, cold. done: a detail to show when there is nothing
    to do, else None; it looks at the world, not at a record of earlier runs. run: does it, returns the detail.
    slot: steps of one slot run one after another (two Go builds at once only fight for the cores).
    advice: what the user can do when it fails.
    """

    name: str
    what: str
    run: Callable[[Context], str]
    usual: float = 1
    needs: tuple[str, ...] = ()
    done: Callable[[], str | None] = _never
    slot: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a step ended: fresh is False when there was nothing to do."""

    step: Step
    detail: str
    seconds: float
    fresh: bool


class StepFailedError(Exception):
    """A step failed; `log` holds what its programs said."""

    def __init__(self, step: Step, cause: BaseException, log: Path) -> None:
        super().__init__(f"{step.name}: {cause}")
        self.step, self.cause, self.log = step, cause, log


class Listener(Protocol):
    """Who is told about progress; calls come one at a time."""

    def started(self, step: Step) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


def ordered(steps: Iterable[Step]) -> list[Step]:
    """The steps in an order in which each comes after what it needs, else in the order given.

    Raises ValueError for a name given twice, a need that no step meets, and a cycle.
    """
    waiting = list(steps)
    names = [step.name for step in waiting]
    if len(set(names)) != len(names):
        raise ValueError(f"steps named twice: {sorted({name for name in names if names.count(name) > 1})}")
    for step in waiting:
        if missing := [need for need in step.needs if need not in names]:
            raise ValueError(f"step {step.name} needs {missing}, which no step provides")
    result: list[Step] = []
    placed: set[str] = set()
    while waiting:
        ready = [step for step in waiting if placed.issuperset(step.needs)]
        if not ready:
            raise ValueError(f"steps wait for each other: {sorted(step.name for step in waiting)}")
        result += ready
        placed |= {step.name for step in ready}
        waiting = [step for step in waiting if step.name not in placed]
    return result


def only_for(steps: Sequence[Step], wanted: Iterable[str]) -> list[Step]:
    """The wanted steps and everything that they need, directly or not."""
    by_name = {step.name: step for step in steps}
    keep: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name not in keep:
            keep.add(name)
            todo += by_name[name].needs
    return [step for step in steps if step.name in keep]


@dataclass
class _State:
    waiting: list[Step]
    running: dict[Future[Outcome], Step] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    busy_slots: set[str] = field(default_factory=set)

    def startable(self) -> list[Step]:
        """Steps that may start now; at most one of each slot."""
        chosen: list[Step] = []
        slots = set(self.busy_slots)
        for step in self.waiting:
            if self.finished.issuperset(step.needs) and step.slot not in slots:
                chosen.append(step)
                if step.slot:
                    slots.add(step.slot)
        return chosen


def run_steps(steps: Iterable[Step], listener: Listener, logs: Path, threads: int = 8) -> list[Outcome]:
    """Runs the graph; returns the outcomes in order of completion.

    The first failure stops what else runs and is raised as StepFailedError. KeyboardInterrupt stops all likewise.
    """
    state = _State(waiting=ordered(steps))
    processes = Processes()
    tell = threading.Lock()

    def execute(step: Step) -> Outcome:
        begin = time.monotonic()
        detail = step.done()
        if detail is None:
            with tell:
                listener.started(step)
            detail, fresh = step.run(Context(logs / f"{step.name}.log", processes)), True
        else:
            fresh = False
        return Outcome(step, detail, time.monotonic() - begin, fresh)

    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            while state.waiting or state.running:
                for step in state.startable():
                    state.waiting.remove(step)
                    if step.slot:
                        state.busy_slots.add(step.slot)
                    state.running[pool.submit(execute, step)] = step
                done, _ = wait(state.running, return_when=FIRST_COMPLETED)
                for future in done:
                    step = state.running.pop(future)
                    state.busy_slots.discard(step.slot)
                    if error := future.exception():
                        raise StepFailedError(step, error, logs / f"{step.name}.log") from error
                    outcome = future.result()
                    state.finished.add(step.name)
                    outcomes.append(outcome)
                    with tell:
                        listener.ended(outcome)
        except BaseException:
            processes.stop()
            raise
    return outcomes
