"""What a training costs is counted once, whatever the operator goes through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputraining_operator.accounting import account, attempt_energy_joules, attempt_gpu_seconds, lost_gpu_seconds
from gputraining_operator.api import Json
from gputraining_operator.progress import GpuSample, ProgressRecord
from gputraining_operator.spec import parse_spec
from tests.unit.operator.builders import at, ended_pod, gone_pod, running_pod, unschedulable_pod

SPEC = parse_spec({"workers": 2, "gpusPerWorker": 4, "training": {}})


def test_gpus_are_held_from_being_placed_until_the_container_ends() -> None:
    pods = [replace(running_pod(0), scheduled=at(10)), replace(ended_pod(1, ended=40), scheduled=at(20))]
    assert attempt_gpu_seconds(SPEC, pods, at(60)) == 4 * (50 + 20)
    assert attempt_gpu_seconds(SPEC, [unschedulable_pod(0, "x")], at(60)) == 0
    assert attempt_gpu_seconds(SPEC, [gone_pod(replace(running_pod(0), scheduled=at(10)))], at(60)) == 200


def test_energy_is_the_sum_over_all_devices() -> None:
    def record(*joules: float | None) -> ProgressRecord:
        gpus = tuple(GpuSample(f"GPU-{joule}", energy_joules=joule) for joule in joules)
        return ProgressRecord("Training", at(0), gpus=gpus)

    assert attempt_energy_joules({0: record(10.4, 20.4), 1: record(5.0)}) == 36
    assert attempt_energy_joules({0: record(None)}) is None
    assert attempt_energy_joules({0: record()}) is None


@pytest.mark.parametrize(("saved", "lost"), [(None, 400), (10, 320), (60, 0), (-5, 400)])
def test_work_since_the_last_checkpoint_is_lost(saved: float | None, lost: int) -> None:
    assert lost_gpu_seconds(SPEC, at(0), at(50), None if saved is None else at(saved)) == lost


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=5), min_size=1, max_size=5))
def test_every_share_is_counted_once(attempts: list[list[int]]) -> None:
    totals: Json | None = None
    for shares in attempts:
        entry: Json | None = None
        for share in shares:
            totals = account(totals, entry, share, None)
            entry = {"gpuSeconds": max(share, (entry or {}).get("gpuSeconds", 0))}
    assert totals == {"gpuSeconds": sum(max(shares) for shares in attempts)}


def test_other_totals_stay() -> None:
    totals = account({"lostGpuSeconds": 7, "gpuSeconds": 10, "energyJoules": 3}, {"gpuSeconds": 4}, 9, 5)
    assert totals == {"lostGpuSeconds": 7, "gpuSeconds": 15, "energyJoules": 8}
