"""Stopped and gone on from: the same training as without the stop."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from gputraining_trainer.checkpoint import read_manifest
from tests.unit.trainer.conftest import Check, Launch
from tests.unit.trainer.launch import TrainerProcess, free_port, pair

DIGITS = {"EPOCHS": "12", "GPUTRAINING_UID": "one", "GPUTRAINING_NAME": "digits"}
"""132 steps with two processes, 264 with one."""


def start_pair(launch: Launch, place: Path | None = None, **settings: str) -> list[TrainerProcess]:
    port, more = free_port(), {"CHECKPOINT_PATH": str(place)} if place else {}
    return [launch(pair(port, rank, **DIGITS, **more, **settings)) for rank in (0, 1)]


def ended(workers: list[TrainerProcess]) -> list[int]:
    return [worker.wait() for worker in workers]


def logs(workers: list[TrainerProcess]) -> str:
    return "\n".join(worker.log() for worker in workers)


def weights(worker: TrainerProcess) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(worker.output / "trained-model.pth", weights_only=True)
    return state


def assert_same(left: TrainerProcess, right: TrainerProcess) -> None:
    """The two ended with the same weights, bit by bit, and the same loss."""
    one, other = weights(left), weights(right)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    losses = [worker.final()["metrics"]["loss"] for worker in (left, right)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def interrupted(workers: list[TrainerProcess], victim: TrainerProcess, check_record: Check) -> int:
    """Stop a training by SIGTERM to one worker; gives the step at which all stopped."""
    victim.wait_for_step(14)
    victim.process.send_signal(signal.SIGTERM)
    assert ended(workers) == [75] * len(workers), logs(workers)
    finals = [worker.final() for worker in workers]
    for final in finals:
        check_record(final)
        assert final["state"] == "Preempted"
        assert final["checkpoint"]["step"] == final["step"]
        assert "error" not in final
    assert len({final["step"] for final in finals}) == 1
    return int(finals[0]["step"])


def test_one_of_two_is_stopped_and_all_go_on_as_if_nothing_had_been(
    launch: Launch, check_record: Check, tmp_path: Path
) -> None:
    whole = start_pair(launch)
    assert ended(whole) == [0, 0], logs(whole)

    place = tmp_path / "checkpoints"
    first = start_pair(launch, place)
    step = interrupted(first, first[1], check_record)
    assert [path.name for path in place.glob("step-*")] == [f"step-{step:010d}"]

    second = start_pair(launch, place, GPUTRAINING_ATTEMPT="2")
    assert ended(second) == [0, 0], logs(second)
    for worker in second:
        final = worker.final()
        check_record(final)
        assert (final["restoredStep"], final["step"], final["totalSteps"]) == (step, 132, 132)
    assert f"resumed from {place}/step-{step:010d}: step {step}," in second[0].log()
    assert_same(second[0], whole[0])


def test_a_single_process_too_and_resume_at_the_end_only_saves(
    launch: Launch, check_record: Check, tmp_path: Path
) -> None:
    whole = launch({**DIGITS, "EPOCHS": "6"})
    assert whole.wait() == 0, whole.log()
    place = tmp_path / "checkpoints"
    settings = {**DIGITS, "EPOCHS": "6", "CHECKPOINT_PATH": str(place), "CHECKPOINT_INTERVAL_STEPS": "50"}
    first = launch(settings)
    step = interrupted([first], first, check_record)
    second = launch({**settings, "GPUTRAINING_ATTEMPT": "2", "CHECKPOINT_RESUME": "Never"})
    assert second.wait() == 0, second.log()
    assert second.final()["restoredStep"] == step
    assert_same(second, whole)

    # 132 steps in all: the last one has a checkpoint, too
    assert sorted(read_manifest(path).step for path in place.glob("step-*"))[-1] == 132
    last = launch({**settings, "GPUTRAINING_ATTEMPT": "3"})
    assert last.wait() == 0, last.log()
    assert (last.final()["restoredStep"], last.final()["step"]) == (132, 132)
    assert_same(last, whole)

    # For another training the same checkpoint is one of a finished training.
    other = {**settings, "GPUTRAINING_UID": "two"}
    anew = launch(other)
    assert anew.wait() == 0, anew.log()
    assert "restoredStep" not in anew.final()
    assert "is of training digits, which finished: training begins anew" in anew.log()
    assert_same(anew, whole)
    required = launch({**other, "GPUTRAINING_UID": "three", "CHECKPOINT_RESUME": "Required"})
    assert required.wait() == 67
    assert required.final()["error"]["type"] == "CheckpointNotFound"


def test_a_killed_peer_is_noticed_and_one_process_can_go_on_alone(
    launch: Launch, check_record: Check, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    workers = start_pair(launch, place, CHECKPOINT_INTERVAL_STEPS="5", CHECKPOINT_RETAIN="3")
    survivor, victim = workers
    survivor.wait_for_record(lambda record: record.get("checkpoint", {}).get("step", 0) >= 20, "a checkpoint")
    victim.process.kill()
    assert survivor.wait() == 1
    final = survivor.final()
    check_record(final)
    assert final["error"]["type"] == "PeerLost", survivor.log()

    found = sorted(read_manifest(path).step for path in place.glob("step-*"))
    assert len(found) == 3
    assert all(step % 5 == 0 for step in found)
    newest = place / f"step-{found[-1]:010d}" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])

    alone = launch({**DIGITS, "CHECKPOINT_PATH": str(place), "GPUTRAINING_ATTEMPT": "2"})
    assert alone.wait() == 0, alone.log()
    final = alone.final()
    check_record(final)
    assert final["restoredStep"] == found[-2]
    assert f"checkpoint {newest.parent} is skipped: its state.pt has " in alone.log()
    assert "1 processes go on where 2 stopped: the rest of epoch " in alone.log()
    assert final["step"] == final["totalSteps"]
    assert 132 < final["totalSteps"] < 264
    assert final["metrics"]["accuracy"] > 0.9


def test_torchrun_passes_on_the_stop_and_the_exit_code(launch: Launch, check_record: Check, tmp_path: Path) -> None:
    settings = {**DIGITS, "PET_NPROC_PER_NODE": "2", "CHECKPOINT_PATH": str(tmp_path / "checkpoints")}
    pod = launch(settings)
    step = interrupted([pod], pod, check_record)
    assert read_manifest(tmp_path / "checkpoints" / f"step-{step:010d}").step == step


def test_a_write_that_fails_is_told_and_training_goes_on(launch: Launch, check_record: Check, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    worker = launch({**DIGITS, "CHECKPOINT_PATH": str(place), "CHECKPOINT_INTERVAL_STEPS": "3", "EPOCHS": "100000"})
    worker.wait_for_record(lambda record: "step" in record.get("checkpoint", {}), "a checkpoint")
    place.rename(tmp_path / "elsewhere")  # at once, whatever is being written there
    place.touch()
    record = worker.wait_for_record(lambda record: "error" in record.get("checkpoint", {}), "the error")
    check_record(record)
    assert f"{place}: Not a directory" in record["checkpoint"]["error"]
    place.unlink()
    place.mkdir()
    worker.wait_for_record(lambda record: "error" not in record["checkpoint"], "the next checkpoint")


@pytest.mark.parametrize(
    ("settings", "code", "kind", "told"),
    [
        ({"CHECKPOINT_RESUME": "Required"}, 67, "CheckpointNotFound", "checkpoint.resume: got 'Required', but "),
        (
            {"CHECKPOINT_PATH": "/proc/checkpoints"},
            64,
            "InvalidConfig",
            "checkpoint.volume, checkpoint.path (CHECKPOINT_PATH): got '/proc/checkpoints' (",
        ),
    ],
)
def test_what_cannot_work_is_told_at_once(
    launch: Launch, check_record: Check, tmp_path: Path, settings: dict[str, str], code: int, kind: str, told: str
) -> None:
    worker = launch({**DIGITS, "CHECKPOINT_PATH": str(tmp_path / "checkpoints"), **settings})
    assert worker.wait() == code, worker.log()
    final: dict[str, Any] = worker.final()
    check_record(final)
    assert final["error"]["type"] == kind
    assert final["error"]["message"].startswith(told)
    assert json.loads(worker.final_path.read_text())["state"] == "Failed"
