"""What a training costs: no second is counted twice, and none is forgotten."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gputraining_operator.accounting import (
    account,
    attempt_energy_joules,
    attempt_gpu_seconds,
    attempt_share,
    lost_gpu_seconds,
)
from gputraining_operator.api import Json
from gputraining_operator.progress import GpuSample, ProgressRecord
from gputraining_operator.spec import parse_spec
from tests.unit.operator.builders import at, deleting_pod, ended_pod, gone_pod, running_pod, starting_pod

SPEC = parse_spec({"workers": 2, "gpusPerWorker": 4, "training": {}})
PLACED = replace(running_pod(0), scheduled=at(10))


def test_gpus_are_held_from_being_placed_until_the_container_ended() -> None:
    ended = replace(ended_pod(1, ended=40), scheduled=at(10))
    unplaced = replace(starting_pod(2), scheduled=None)
    assert attempt_gpu_seconds(SPEC, [PLACED, ended, unplaced], at(60)) == 4 * (50 + 30)


def test_a_pod_that_is_gone_counts_until_its_grace_was_over() -> None:
    assert attempt_gpu_seconds(SPEC, [gone_pod(deleting_pod(PLACED, until=30))], at(60)) == 4 * 20
    assert attempt_gpu_seconds(SPEC, [gone_pod(PLACED)], at(60)) == 4 * 50
    assert attempt_gpu_seconds(SPEC, [replace(ended_pod(0, ended=90), scheduled=at(10))], at(60)) == 4 * 50


def test_energy_is_that_of_all_devices_that_tell() -> None:
    def told(*joules: float | None) -> ProgressRecord:
        gpus = tuple(GpuSample(f"GPU-{value}", energy_joules=value) for value in joules)
        return ProgressRecord("Training", at(0), gpus=gpus)

    assert attempt_energy_joules({0: told(1.2, None), 1: told(2.4)}) == 4
    assert attempt_energy_joules({0: told(None)}) is None
    assert attempt_energy_joules({}) is None


def test_lost_is_what_was_done_since_the_last_checkpoint() -> None:
    assert lost_gpu_seconds(SPEC, at(0), at(100), at(90)) == 8 * 10
    assert lost_gpu_seconds(SPEC, at(0), at(100), None) == 8 * 100
    assert lost_gpu_seconds(SPEC, at(50), at(100), at(20)) == 8 * 50, "the checkpoint is of an earlier attempt"
    assert lost_gpu_seconds(SPEC, at(0), at(100), at(101)) == 0


def test_the_share_of_the_attempt_is_replaced() -> None:
    totals = {"gpuSeconds": 100, "lostGpuSeconds": 7, "energyJoules": 50}
    attempt = {"gpuSeconds": 40, "energyJoules": 50}
    assert account(totals, attempt, 60, None) == {"gpuSeconds": 120, "lostGpuSeconds": 7, "energyJoules": 50}
    assert account(None, None, 5, 9) == {"gpuSeconds": 5, "energyJoules": 9}


@given(st.lists(st.lists(st.tuples(st.integers(0, 10**9), st.none() | st.integers(0, 10**9))), max_size=4))
def test_totals_are_the_sum_of_the_greatest_shares(attempts: list[list[tuple[int, int | None]]]) -> None:
    totals: Json = {}
    expected = {"gpuSeconds": 0, "energyJoules": 0}
    for seen in attempts:
        share: Json | None = None
        for seconds, joules in seen:
            totals, share = account(totals, share, seconds, joules), attempt_share(share, seconds, joules)
        expected["gpuSeconds"] += max((seconds for seconds, _ in seen), default=0)
        expected["energyJoules"] += max((joules or 0 for _, joules in seen), default=0)
    assert totals.get("gpuSeconds", 0) == expected["gpuSeconds"]
    assert totals.get("energyJoules", 0) == expected["energyJoules"]
