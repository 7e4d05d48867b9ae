"""Runs the steps that lead to a goal, with progress on the screen."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hack import facts, images, plan
from hack.console import Display
from hack.paths import cache_dir, logs_dir
from hack.steps import Outcome, only_for, run_steps


def bring_up(*goals: str, display: Display | None = None, table: bool = True) -> list[Outcome]:
    """Reaches the goals (keys of plan.goals) and all that they need. Raises StepFailedError or UserError."""
    if display is None:
        with Display() as own:
            outcomes = bring_up(*goals, display=own, table=False)
            if table:
                own.where_the_time_went(outcomes)
            return outcomes
    with _alone(display):
        return _reach(goals, display)


@contextmanager
def _alone(display: Display) -> Iterator[None]:
    """One run at a time on one cache: two would make the same cluster twice."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            display.line("… waiting for another run on this machine to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _reach(goals: Sequence[str], display: Display) -> list[Outcome]:
    way = facts.decide(facts.observe())
    display.line(f"  by way of: {way.value}")
    all_steps = plan.steps(way, images.current(way))
    names = {step.name for step in all_steps}
    wanted = [name for goal in goals for name in plan.goals(way)[goal] if name in names]
    outcomes = run_steps(only_for(all_steps, wanted), display, logs_dir())
    display.summary()
    return outcomes
