"""Building blocks of the status."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputraining_operator.api import Json
from gputraining_operator.progress import GpuSample, ProgressRecord
from gputraining_operator.spec import parse_spec
from gputraining_operator.status import (
    ConditionUpdate,
    gpu_status,
    output_is_lasting,
    output_location,
    progress_status,
    round_eta,
    running_message,
    set_conditions,
    significant,
    summary,
)
from gputraining_operator.times import format_duration, format_time, parse_time
from tests.unit.operator.builders import START, at


def test_transition_time_moves_only_when_the_status_flips() -> None:
    first = set_conditions([], [ConditionUpdate("Running", False, "Unschedulable", "x")], 1, at(0))
    same = set_conditions(first, [ConditionUpdate("Running", False, "StartingContainers", "y")], 1, at(5))
    flipped = set_conditions(same, [ConditionUpdate("Running", True, "AllWorkersReady")], 1, at(9))
    times = [conditions[0]["lastTransitionTime"] for conditions in (first, same, flipped)]
    assert times == [format_time(at(0)), format_time(at(0)), format_time(at(9))]
    assert same[0]["reason"] == "StartingContainers"


def record(step: int, seconds: float = 0, **more: object) -> ProgressRecord:
    return ProgressRecord("Training", at(seconds), step=step, total_steps=200, **more)  # type: ignore[arg-type]


def test_progress_is_rounded_and_complete() -> None:
    progress = progress_status(
        None,
        {0: record(87, 3, epoch=9, total_epochs=20, samples_per_second=1943.7, estimated_remaining_seconds=372.2,
                   metrics=(("loss", 0.412345), ("accuracy", 0.9)))},
    )  # fmt: skip
    assert progress == {
        "percent": 43,
        "epoch": 9,
        "totalEpochs": 20,
        "step": 87,
        "totalSteps": 200,
        "estimatedRemainingSeconds": 375,
        "samplesPerSecond": "1940",
        "metrics": [{"name": "loss", "value": "0.4123"}, {"name": "accuracy", "value": "0.9"}],
        "lastStepTime": format_time(at(3)),
        "lastUpdateTime": format_time(at(3)),
    }


def test_progress_never_goes_back_and_ends_at_100_only_when_complete() -> None:
    old = progress_status(None, {0: record(120, 10)})
    assert progress_status(old, {0: record(60, 5)}) == old
    assert progress_status(old, {}) == old
    almost = progress_status(old, {0: record(200, 20)})
    assert almost is not None
    assert almost["percent"] == 99
    done = progress_status(old, {0: record(200, 20)}, complete=True)
    assert done is not None
    assert done["percent"] == 100


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50))))
def test_percent_is_monotonic(records: list[tuple[int, int]]) -> None:
    progress: Json | None = None
    for step, seconds in records:
        before = (progress or {}).get("percent", 0)
        progress = progress_status(progress, {0: record(step, seconds)})
        assert (progress or {}).get("percent", 0) >= before


def test_gpu_figures_are_absent_on_cpu_and_where_no_device_tells() -> None:
    assert gpu_status({0: record(1)}) is None
    status = gpu_status({0: record(1, gpus=(GpuSample("a", "T4", memory_used_bytes=3 * 2**20 + 5, time=START),))})
    assert status == {
        "source": "NVML",
        "model": "T4",
        "count": 1,
        "memoryUsedBytes": 3 * 2**20,
        "lastSampleTime": format_time(START),
    }


def test_summary_and_message() -> None:
    progress: Json = {"percent": 43, "epoch": 13, "totalEpochs": 30, "step": 1270, "totalSteps": 2940,
                      "estimatedRemainingSeconds": 370, "samplesPerSecond": "2310", "lastUpdateTime": "x",
                      "metrics": [{"name": "loss", "value": "0.412"}]}  # fmt: skip
    assert summary({"ready": 2, "desired": 2}, progress) == {
        "progress": "43%",
        "workers": "2/2",
        "eta": "6m10s",
        "epoch": "13/30",
        "step": "1270/2940",
        "loss": "0.412",
        "throughput": "2310/s",
    }
    assert running_message(progress, None, None) == "epoch 13 of 30, loss 0.412, 2,310 samples/s"
    assert summary({"ready": 0, "desired": 4}, None) == {"workers": "0/4"}
    assert running_message(None, None, "worker 0: nothing listens on port 9400") == (
        "running; no progress known yet (worker 0: nothing listens on port 9400)"
    )


@pytest.mark.parametrize(
    ("volumes", "model_path", "location"),
    [
        ([], None, "/output"),
        ([{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "models"}], None, "models:/"),
        (
            [{"name": "out", "mountPath": "/output", "subPath": "run-7", "persistentVolumeClaim": "models"}],
            "/output/trained-model.pth",
            "models:/run-7/trained-model.pth",
        ),
        ([{"name": "all", "mountPath": "/", "persistentVolumeClaim": "root"}], "/output/m.pth", "root:/output/m.pth"),
        ([{"name": "out", "mountPath": "/outputs", "persistentVolumeClaim": "other"}], None, "/output"),
        ([{"name": "out", "mountPath": "/output", "emptyDir": {}}], None, "/output"),
    ],
)
def test_output_location(volumes: list[Json], model_path: str | None, location: str) -> None:
    spec = parse_spec({"training": {}, "volumes": volumes})
    assert output_location(spec, model_path) == location
    assert output_is_lasting(spec) == any(
        "persistentVolumeClaim" in v and "/output".startswith(v["mountPath"]) for v in volumes
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1943.7, "1940"), (0.00123456, "0.001235"), (12.0, "12"), (1e-9, "1.000e-09"), (-2.5, "-2.5")],
)
def test_significant(value: float, text: str) -> None:
    assert significant(value, 3 if value > 100 else 4) == text


@given(st.floats(-1e300, 1e300) | st.sampled_from([math.inf, -math.inf, math.nan]))
def test_significant_can_always_be_read_back(value: float) -> None:
    text = significant(value, 4)
    back = float(text)
    assert math.isnan(back) if math.isnan(value) else back == value or math.isclose(back, value, rel_tol=1e-3)


@pytest.mark.parametrize(("seconds", "rounded"), [(7.2, 8), (372.2, 375), (1201, 1210), (7300, 7320)])
def test_round_eta(seconds: float, rounded: int) -> None:
    assert round_eta(seconds) == rounded


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (370, "6m10s"), (7440, "2h04m"), (90000, "1d01h")]
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_times_are_utc() -> None:
    assert parse_time("2026-11-21T12:00:00+02:00") == START
    assert parse_time("2026-11-21T10:00:00") == START
    assert format_time(parse_time("2026-11-21T12:00:00.75+02:00")) == "2026-11-21T10:00:00Z"
