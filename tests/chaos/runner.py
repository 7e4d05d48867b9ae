"""Runs one scenario on the real cluster and says what is wrong with how it went."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack

from tests.chaos.run import EPOCHS, NAME, Run
from tests.chaos.scenario import Result, Scenario
from tests.contract.kube import Json, KubeApi
from tests.e2e import faults
from tests.e2e.world import TERMINAL, World, conditions, resumable

LEAST_ACCURACY = 0.9


def run_scenario(scenario: Scenario, kube: KubeApi, rng: random.Random, model: str | None) -> Result:
    """Carries a scenario out from an empty namespace to its end. `model`: digest of an undisturbed training's model."""
    begin = time.monotonic()
    problems: list[str] = []
    run: Run | None = None
    status: Json = {}
    lost: int | None = None
    try:
        with World.temporary(kube, "chaos") as world, ExitStack() as undo:
            run = Run(world, rng, undo)
            follow(scenario, run)
            if scenario.expected.phase:
                status = run.status()
                lost = run.lost_steps() if scenario.expected.phase == "Complete" else None
                problems += judge(scenario, run, status, lost, model)
    except Exception as error:  # noqa: BLE001 - a scenario that cannot be carried out is wrong, the others go on
        problems.append(f"{type(error).__name__}: {error}" if str(error) else traceback.format_exc(limit=-1))
    problems += rest(kube)
    return Result(
        scenario=scenario.name,
        fault=scenario.fault,
        attempts=len(status.get("attempts", [])),
        lost_steps=lost,
        to_next_step=run.to_next_step if run else None,
        wall=time.monotonic() - begin,
        problems=tuple(problems),
    )


def follow(scenario: Scenario, run: Run) -> None:
    """Applies the training, strikes it, and waits for its end. Raises AssertionError when that does not come."""
    run.world.claim()
    scenario.prepare(run)
    run.start(**scenario.spec)
    if scenario.inject is not None:
        run.reach(*scenario.when)
        scenario.inject(run)
    expected = scenario.expected
    if not expected.phase:
        return
    if scenario.inject is not None and not expected.ended:
        run.wait_advance()
    run.wait("it ends", lambda: run.phase() in TERMINAL, scenario.seconds)
    if scenario.inject is not None and expected.ended:
        run.find_next_step()


def judge(scenario: Scenario, run: Run, status: Json, lost: int | None, model: str | None) -> Iterator[str]:
    """What is not as it must be."""
    expected, attempts = scenario.expected, status.get("attempts", [])
    if status["phase"] != expected.phase:
        yield f"{status['phase']} instead of {expected.phase}: {status.get('message')}"
    ended = tuple(attempt.get("reason") for attempt in attempts[:-1])
    fits = len(ended) == len(expected.ended)
    if not fits or any(reason not in words.split(" or ") for reason, words in zip(ended, expected.ended, strict=True)):
        yield f"attempts ended as {list(ended)} instead of {list(expected.ended)}"
    if expected.says not in status.get("message", ""):
        yield f"the message does not say {expected.says}: {status.get('message')}"
    posted = {event["reason"] for event in run.world.events(NAME)}
    if missing := set(expected.events) - posted:
        yield f"no event {', '.join(sorted(missing))}"
    if expected.phase == "Complete":
        yield from judge_complete(scenario, run, status, lost, model)
    elif (reason := conditions(status).get("Failed", ("", ""))[1]) != expected.failed:
        yield f"failed as {reason} instead of {expected.failed}"
    yield from scenario.check(run)


def judge_complete(scenario: Scenario, run: Run, status: Json, lost: int | None, model: str | None) -> Iterator[str]:
    """What is not as it must be of a training that came to its end."""
    expected = scenario.expected
    if (counted := status.get("countedFailures", 0)) != expected.counted:
        yield f"{counted} failures counted instead of {expected.counted}"
    if lost is not None and lost > expected.max_lost:
        yield f"{lost} steps lost, at most {expected.max_lost} allowed"
    figures = {metric["name"]: metric["value"] for metric in status.get("progress", {}).get("metrics", [])}
    if float(figures.get("accuracy", "0")) < LEAST_ACCURACY:
        yield f"accuracy {figures.get('accuracy')}"
    if expected.same_model and run.model_digest() != model:
        yield "the model differs from that of an undisturbed training"


def rest(kube: KubeApi) -> Iterator[str]:
    """Waits until nothing trains any more and both operators are well, so that the next scenario has the machine."""
    try:
        kube.wait("our operator is well", lambda: faults.operator_is_well(kube), 90)
        trainings = {"labelSelector": "gputraining.dev/name"}
        kube.wait("no worker is left", lambda: not kube.request("GET", "/api/v1/pods", query=trainings)["items"], 120)
    except AssertionError as error:
        yield str(error)


def undisturbed(kube: KubeApi) -> tuple[str, float]:
    """Digest of the model of a training that nothing disturbs, and how long that took in seconds."""
    begin = time.monotonic()
    with World.temporary(kube, "chaos") as world, ExitStack() as undo:
        run = Run(world, random.Random(0), undo)
        world.claim()
        world.train(NAME, **resumable(EPOCHS))
        run.wait_phase("Complete", seconds=180)
        return run.model_digest(), time.monotonic() - begin
