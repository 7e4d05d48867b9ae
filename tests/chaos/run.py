"""One training under a fault: started, hit at a random step, followed to its end, and measured."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from hack.gotools import tool
from tests.contract.kube import Json, KubeApi
from tests.e2e import faults
from tests.e2e.world import INTERVAL_STEPS, SHARED, TERMINAL, World, resumable

NAME = "t"
FILES = faults.CONTROL_PLANE
"""The node where files are looked at and damaged: all see the same, and this one takes part in no training."""
EPOCHS = 45
STEPS = 22 * EPOCHS
FIRST_STEP = "first step done"


class Run:
    """One training of its own namespace. `undo` is carried out at the end, however it comes."""

    def __init__(self, world: World, rng: random.Random, undo: ExitStack) -> None:
        self.world = world
        self.kube: KubeApi = world.kube
        self.rng = rng
        self.undo = undo
        self.struck: datetime | None = None
        self.steps_at_strike: dict[int, int] = {}
        self.to_next_step: float | None = None

    def start(self, **overrides: Any) -> None:
        """Applies the training."""
        self.world.train(NAME, **(resumable(EPOCHS) | overrides))

    # What is seen of it

    def status(self) -> Json:
        """The status as it is now."""
        return self.world.status(NAME)

    def phase(self) -> str:
        """The phase as it is now; empty before the operator's first write."""
        return str(self.status().get("phase", ""))

    def record(self) -> Json:
        """What rank 0 says of itself now; empty when it does not answer."""
        return self.world.record(f"{self.status().get('jobName')}-master-0")

    def step(self) -> int:
        """The step that the training is at: as rank 0 says itself, else as the status has it."""
        return max(int(self.record().get("step", 0)), int(self.status().get("progress", {}).get("step", 0)))

    def checkpoint_step(self) -> int:
        """The step of the newest checkpoint that rank 0 knows of; 0 without one."""
        return int(self.record().get("checkpoint", {}).get("step", 0))

    def pod(self, rank: int) -> Json:
        """The pod of a rank."""
        return self.world.pod(NAME, rank)

    def node(self, rank: int) -> str:
        """The node of a rank."""
        return str(self.pod(rank)["spec"]["nodeName"])

    def reach(self, low: float, high: float) -> None:
        """Waits for a checkpoint, and for a random step between two shares of an undisturbed training."""
        step = max(self.rng.randint(int(low * STEPS), int(high * STEPS)), INTERVAL_STEPS + 1)

        def reached() -> bool:
            phase = self.phase()
            assert phase not in TERMINAL, f"{phase} before step {step}\n{self.world.tell()}"
            record = self.record()
            return record.get("step", 0) >= step and "step" in record.get("checkpoint", {})

        self.wait(f"it is at step {step} and has a checkpoint", reached)

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 120) -> Any:
        """Polls until a condition holds. Raises AssertionError."""
        return self.world.wait(what, condition, seconds)

    def wait_phase(self, *phases: str, seconds: float = 120) -> Json:
        """Waits for a phase; an end that was not asked for is an AssertionError."""
        return self.world.wait_phase(NAME, *phases, seconds=seconds)

    # What is done to it

    def strike(self, fault: Callable[..., object], *arguments: Any) -> None:
        """Carries a fault out, and remembers when and how far the training was."""
        number = int(self.status().get("attempt", 1))
        self.steps_at_strike[number] = self.step()
        self.mark()
        fault(*arguments)

    def mark(self) -> None:
        """The fault is now."""
        self.struck = datetime.now(UTC)

    def kill(self, rank: int) -> None:
        """kill -9 of a rank."""
        self.strike(faults.kill, self.pod(rank))

    def suspend(self) -> Json:
        """Suspends the training and waits until its pods are gone."""
        self.world.set_run_policy(NAME, suspend=True)
        return self.wait_phase("Suspended")

    def resume(self) -> None:
        """Ends the suspension."""
        self.mark()
        self.world.set_run_policy(NAME, suspend=False)

    def wait_next_attempt(self) -> None:
        """Waits until another attempt trains than the one that was struck."""
        struck = max(self.steps_at_strike, default=1)
        self.wait(
            f"an attempt after number {struck} trains",
            lambda: self.phase() == "Running" and int(self.status().get("attempt", 1)) > struck,
        )

    def wait_event(self, reason: str, seconds: float = 60) -> None:
        """Waits for an event about the training."""
        self.wait(
            f"there is an event {reason}",
            lambda: any(event["reason"] == reason for event in self.world.events(NAME)),
            seconds,
        )

    # Its files

    @property
    def folder(self) -> PurePosixPath:
        """Where its volume lies on every node."""
        return faults.volume_folder(self.world, SHARED)

    @property
    def checkpoints(self) -> PurePosixPath:
        """Where its checkpoints lie on every node."""
        return self.folder / "checkpoints" / NAME

    def model_digest(self) -> str:
        """SHA-256 of the model that it wrote."""
        return faults.digest(FILES, self.folder / "output" / "trained-model.pth")

    # Measures

    def lost_steps(self) -> int | None:
        """The most steps that an attempt had to train again; None when there was but one attempt."""
        attempts = self.status().get("attempts", [])
        lost = [
            max(before.get("lastStep", 0), self.steps_at_strike.get(before["number"], 0)) - after.get("restoredStep", 0)
            for before, after in pairwise(attempts)
        ]
        return max(lost, default=None)

    def advanced(self) -> None:
        """The first step after the strike has just been seen."""
        assert self.struck is not None, "something has happened to it"
        self.to_next_step = (datetime.now(UTC) - self.struck).total_seconds()

    def wait_advance(self, seconds: float = 120) -> None:
        """Waits until the attempt that was struck has done another step."""
        if self.to_next_step is None:
            before = max(self.steps_at_strike.values())
            self.wait(f"it goes on after step {before}", lambda: self.step() > before, seconds)
            self.advanced()

    def find_next_step(self) -> None:
        """From the last strike to the first step of the last attempt, by the time stamps of its log."""
        stamp = first_step(self.world, f"{self.status().get('jobName')}-master-0")
        if stamp is not None and self.struck is not None:
            self.to_next_step = (stamp - self.struck).total_seconds()


def first_step(world: World, pod_name: str) -> datetime | None:
    """When the container runtime saw the newest log line about a first step; None before."""
    context = ["--context", world.kube.context] if world.kube.context else []
    command = [tool("kubectl"), *context, "-n", world.namespace, "logs", "--timestamps", pod_name]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    stamps = [line.split(" ", 1)[0] for line in lines if FIRST_STEP in line]
    # Nanoseconds are more than Python reads.
    return datetime.fromisoformat(stamps[-1][:26] + "+00:00") if stamps else None


def pause_here(seconds: float) -> None:
    """Lets a fault last, or come at a moment of its own; nothing is waited for."""
    time.sleep(seconds)
