"""When checkpoints are taken, what is in them, and what comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gputraining_trainer import checkpointing
from gputraining_trainer.checkpoint import Folder, read_manifest
from gputraining_trainer.checkpointing import Checkpoints
from gputraining_trainer.config import CheckpointConfig, Config, Process
from gputraining_trainer.failures import Preempted, Terminated
from gputraining_trainer.parallel import Control, Group
from gputraining_trainer.report import Report
from gputraining_trainer.signals import Stop
from gputraining_trainer.state import Position, Trained, load_state, restore

CPU = torch.device("cpu")
ALONE = Group(Process(), CPU)
TOTAL = 40


class LateControl(Control):
    """One process that hears of everything a step later, as several do."""

    delay = 1

    def __init__(self) -> None:
        super().__init__(Process())
        self._before: tuple[bool, ...] = (False, False)

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        agreed, self._before = self._before, flags
        return agreed


def trained(scaled: bool = False) -> Trained:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    return Trained(module, optimizer, torch.amp.GradScaler("cpu", enabled=scaled))


def step(state: Trained, seed: int = 1) -> None:
    state.module(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()


def make(folder: Path, late: bool = False, report: Report | None = None, **settings: Any) -> Checkpoints:
    checkpoint = CheckpointConfig(folder, **settings)
    stop = Stop(30.0, lambda: None)
    made = Checkpoints(Config(checkpoint=checkpoint), checkpoint, {}, ALONE, stop, report or Report())
    if late:
        made._control = LateControl()
    made.begin()
    return made


def drive(checkpoints: Checkpoints, steps: int, state: Trained | None = None) -> None:
    state = state or trained()
    for number in range(1, steps + 1):
        step(state, number)
        checkpoints.after_step(
            Position(number, 1, 8 * number, number, total_steps=TOTAL), state, lambda: torch.ones(())
        )
        checkpoints.wait()


def steps_in(folder: Path) -> list[int]:
    return sorted(read_manifest(path).step for path in folder.glob("step-*"))


@pytest.mark.parametrize("late", [False, True])
def test_steps_that_are_asked_for_and_the_last_one(tmp_path: Path, late: bool) -> None:
    drive(make(tmp_path, late, interval_steps=15, retain=9), TOTAL)
    assert steps_in(tmp_path) == [15, 30, 40]


@pytest.mark.parametrize(("late", "expected"), [(False, [1, 2, 3, 4, 5, 6]), (True, [2, 4, 6])])
def test_a_checkpoint_that_is_asked_for_is_taken_once(tmp_path: Path, late: bool, expected: list[int]) -> None:
    drive(make(tmp_path, late, interval_seconds=0.0, retain=9), 6)  # always due
    assert steps_in(tmp_path) == expected


@pytest.mark.parametrize(("late", "every"), [(True, 39), (True, 13), (False, 39)])
def test_the_last_step_has_a_checkpoint_whatever_came_just_before(tmp_path: Path, late: bool, every: int) -> None:
    drive(make(tmp_path, late, interval_steps=every, retain=9), TOTAL)
    assert steps_in(tmp_path)[-1] == TOTAL


def test_a_multiple_that_came_while_one_was_being_written_is_made_up_for(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, interval_steps=10, retain=9)
    checkpoints._last_step = 9
    checkpoints._writing = threading.Thread()  # one is being written ...
    assert not checkpoints._ask(Position(10, total_steps=TOTAL))
    checkpoints._writing = None
    assert checkpoints._ask(Position(11, total_steps=TOTAL))


def test_no_memory_for_the_copy_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    report = Report()
    checkpoints = make(tmp_path, report=report, interval_steps=2)
    monkeypatch.setattr(checkpoints._snapshot, "take", full)
    drive(checkpoints, 3)
    assert report.progress.checkpoint is not None
    assert "its copy does not fit into memory" in (report.progress.checkpoint.error or "")


def test_a_superseded_attempt_ends(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, interval_steps=2)
    Folder(tmp_path, "local", attempt=2).claim()
    with pytest.raises(Terminated):
        drive(checkpoints, 9)
    with pytest.raises(Terminated):
        checkpoints.check_current()


def test_while_one_is_being_written_no_other_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    save: Callable[..., None] = torch.save

    def slow(*arguments: Any) -> None:
        written.wait(60)
        save(*arguments)

    monkeypatch.setattr(torch, "save", slow)
    checkpoints, state = make(tmp_path, interval_steps=2, retain=9), trained()
    kept = []
    for number in range(1, 7):
        step(state, number)
        if number == 2:
            kept = [parameter.detach().clone() for parameter in state.module.parameters()]
        checkpoints.after_step(Position(number, 1, 8, number, total_steps=TOTAL), state, lambda: torch.ones(()))
    written.set()
    checkpoints.wait()
    assert steps_in(tmp_path) == [2]
    model = load_state(tmp_path / "step-0000000002")["model"]
    assert all(torch.equal(model[name], value) for name, value in zip(("0.weight", "0.bias"), kept, strict=False))


@pytest.mark.parametrize("scaled", [False, True])
def test_everything_comes_back(tmp_path: Path, scaled: bool) -> None:
    state, report = trained(scaled), Report()
    if scaled:
        state.scaler.scale(torch.ones(()))
    report.update(metrics={"accuracy": 0.5})
    drive(make(tmp_path, report=report, interval_steps=4), 4, state)
    assert report.progress.checkpoint is not None
    assert report.progress.checkpoint.step == 4

    fresh, report = trained(scaled), Report()
    if scaled:
        fresh.scaler.scale(torch.ones(()))
        fresh.scaler.update(2.0)
    position = make(tmp_path, report=report).resume(fresh, lambda _: False)
    assert position == Position(4, 1, 32, 4, epoch_loss=0.25, total_steps=TOTAL)
    assert (report.progress.restored_step, report.progress.metrics) == (4, {"accuracy": 0.5})
    step(state, 9)
    step(fresh, 9)
    left, right = state.module.state_dict(), fresh.module.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert fresh.scaler.state_dict() == state.scaler.state_dict()


def test_batch_norm_comes_back_to_each_rank_or_as_the_mean(tmp_path: Path) -> None:
    drive(make(tmp_path, interval_steps=1), 1)
    state = load_state(tmp_path / "step-0000000001")
    one = state["buffers"][0]
    state |= {"world_size": 2, "buffers": torch.stack([one, one + 2])}
    for process, expected in ((Process(1, 0, 2), one + 2), (Process(), one + 1)):
        fresh = trained()
        restore(state, fresh, Group(process, CPU))
        assert torch.allclose(torch.cat([buffer for buffer in fresh.module.buffers() if buffer.ndim]), expected)


@pytest.mark.parametrize("what", ["loss", "weights"])
def test_what_is_not_finite_is_not_kept(tmp_path: Path, what: str) -> None:
    report, state = Report(), trained()
    if what == "weights":
        with torch.no_grad():
            next(state.module.parameters())[0] = torch.inf
    checkpoints = make(tmp_path, report=report, interval_steps=1)
    loss = torch.tensor(torch.nan if what == "loss" else 1.0)
    checkpoints.after_step(Position(1, 1, 8, 1, total_steps=TOTAL), state, lambda: loss)
    checkpoints.wait()
    assert steps_in(tmp_path) == []
    assert report.progress.checkpoint is not None
    assert "not finite" in (report.progress.checkpoint.error or "")


def test_a_stop_ends_with_a_checkpoint_or_says_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = make(tmp_path)
    checkpoints._stop.request()
    with pytest.raises(Preempted, match="stopped at step 1"):
        drive(checkpoints, 2)
    assert steps_in(tmp_path) == [1]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "write", full)
    report = Report()
    checkpoints = make(tmp_path, report=report)
    checkpoints._stop.request()
    with pytest.raises(Terminated):
        drive(checkpoints, 2)
    assert report.progress.checkpoint is not None
    assert report.progress.checkpoint.error == (
        f"step 1: {tmp_path}: No space left on device; fix: a larger checkpoint.volume, or a smaller checkpoint.retain"
    )


def test_a_process_that_cannot_see_what_rank_0_chose_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "VISIBLE_SECONDS", 0.0)
    checkpoints = make(tmp_path)
    monkeypatch.setattr(checkpoints, "_group", replace(ALONE, process=Process(1, 0, 2)))
    monkeypatch.setattr(checkpoints._control, "from_main", lambda _: ("step-0000000007", None))
    with pytest.raises(Exception, match=r"^rank 1: .*/step-0000000007, which rank 0 resumes from, cannot be used here"):
        checkpoints.resume(trained(), lambda _: False)
