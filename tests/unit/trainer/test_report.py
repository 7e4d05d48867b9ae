"""Every record that can come out fits the contract."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputraining_trainer.meter import Rate
from gputraining_trainer.report import CheckpointNote, Failure, GpuReading, Progress, Report, State, process_age
from gputraining_trainer.termination import MAX_BYTES, encode_final
from tests.unit.trainer.conftest import Check

ERROR_TYPES = (
    "InvalidConfig",
    "DatasetNotFound",
    "OutOfMemory",
    "NonFiniteLoss",
    "PeerLost",
    "UserCodeError",
    "CheckpointNotFound",
    "NcclError",
)
counts = st.none() | st.integers(0, 2**53 - 1)
positive = st.none() | st.integers(1, 2**53 - 1)
numbers = st.none() | st.floats()
moments = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
texts = st.text(st.characters(), max_size=5000)

gpus = st.builds(
    GpuReading,
    uuid=st.text(max_size=200),
    time=moments,
    model=st.none() | st.text(max_size=200),
    utilization_percent=numbers,
    memory_used_bytes=counts,
    memory_total_bytes=counts,
    power_watts=numbers,
    temperature_celsius=numbers,
    energy_joules=numbers,
    uncorrected_ecc_errors=counts,
    xid=counts,
    error=st.none() | st.text(max_size=400),
)
progresses = st.builds(
    Progress,
    state=st.sampled_from(State),
    epoch=counts,
    total_epochs=positive,
    step=counts,
    total_steps=positive,
    restored_step=counts,
    checkpoint=st.none() | st.builds(CheckpointNote, counts, st.none() | moments, st.none() | texts),
    local_step_seconds=numbers,
    remaining_seconds=numbers,
    samples_per_second=numbers,
    metrics=st.dictionaries(st.text(max_size=70) | st.from_regex(r"\A[a-z]{1,70}\Z"), st.floats(), max_size=40),
    model_path=st.none() | st.text(max_size=600),
    duration_seconds=numbers,
    failure=st.none() | st.builds(Failure, st.sampled_from(ERROR_TYPES), texts, texts),
)


@given(progress=progresses, readings=st.lists(gpus, max_size=20), world=st.integers(1, 10**6))
def test_any_report_makes_a_record_of_the_contract(
    check_record: Check, progress: Progress, readings: list[GpuReading], world: int
) -> None:
    report = Report(rank=world - 1, world_size=world)
    report.progress, report.gpus = progress, tuple(readings)
    record = report.record()
    check_record(record)

    final = encode_final(record)
    assert len(final) <= MAX_BYTES
    kept = json.loads(final.decode("utf-8"))
    check_record(kept)
    assert kept["state"] == record["state"]
    assert kept.get("step") == record.get("step")
    assert kept.get("error", {}).get("type") == record.get("error", {}).get("type")


def test_values_that_json_lacks_are_spelled_out(check_record: Check) -> None:
    report = Report()
    report.update(metrics={"loss": float("nan"), "up": float("inf"), "down": float("-inf"), "fine": 0.5})
    record = report.record()
    check_record(record)
    assert record["metrics"] == {"loss": "NaN", "up": "Infinity", "down": "-Infinity", "fine": 0.5}


def test_metrics_are_merged_and_the_rest_replaced() -> None:
    report = Report()
    report.update(metrics={"loss": 1.0, "accuracy": 0.5}, step=1)
    report.update(metrics={"loss": 0.9}, step=2)
    record = report.record()
    assert record["metrics"] == {"loss": 0.9, "accuracy": 0.5}
    assert record["step"] == 2


def test_what_is_not_known_is_absent() -> None:
    record = Report(rank=1, world_size=2).record()
    assert {key: value for key, value in record.items() if key != "time"} == {
        "version": 1,
        "state": "Starting",
        "rank": 1,
        "worldSize": 2,
    }


def test_the_result_is_told_only_when_complete() -> None:
    report = Report()
    changes: dict[str, Any] = {"model_path": "/output/trained-model.pth", "duration_seconds": 2.0}
    report.update(state=State.SAVING, **changes)
    assert "result" not in report.record()
    report.update(state=State.COMPLETE)
    assert report.record()["result"] == {"modelPath": "/output/trained-model.pth", "durationSeconds": 2.0}


def test_an_error_is_one_line() -> None:
    report = Report()
    report.update(state=State.FAILED, failure=Failure("UserCodeError", "first\nsecond\t third", "trace\nback"))
    assert report.record()["error"] == {
        "type": "UserCodeError",
        "message": "first second third",
        "traceback": "trace\nback",
    }


def test_rate_forgets_the_old() -> None:
    rate = Rate(fade_seconds=10.0)
    assert rate.per_second is None
    rate.add(100, 1.0)
    assert rate.per_second == pytest.approx(100)
    for _ in range(100):
        rate.add(10, 1.0)
    assert rate.per_second == pytest.approx(10, rel=0.01)


def test_process_age_counts_from_the_kernels_start() -> None:
    first = process_age()
    assert first > 0
    deadline = time.monotonic() + 10
    while process_age() <= first and time.monotonic() < deadline:
        pass
    assert process_age() > first
