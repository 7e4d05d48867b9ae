"""The progress contract: the parser agrees with the schema on everything, and folding adds up."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from gputraining_operator.progress import (
    MAX_BODY_BYTES,
    GpuSample,
    ProgressError,
    ProgressRecord,
    fold_gpus,
    leading_record,
    parse_record,
)
from tests.unit.operator.builders import START, at

SCHEMA = json.loads((Path(__file__).parents[3] / "crds" / "progress.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=FormatChecker())

MINIMAL = {"version": 1, "state": "Training", "time": "2026-11-21T10:00:00Z"}
FULL = MINIMAL | {
    "rank": 0,
    "worldSize": 2,
    "epoch": 3,
    "totalEpochs": 20,
    "step": 120,
    "totalSteps": 900,
    "estimatedRemainingSeconds": 12.5,
    "samplesPerSecond": 1940.25,
    "metrics": {"loss": 0.412, "accuracy": 0.97, "perplexity": "Infinity"},
    "gpus": [
        {
            "uuid": "GPU-1",
            "model": "A100",
            "utilizationPercent": 91,
            "memoryUsedBytes": 1,
            "time": "2026-11-21T10:00:00Z",
        }
    ],
    "result": {"modelPath": "/output/trained-model.pth", "durationSeconds": 48.1},
    "error": {"type": "OutOfMemory", "message": "CUDA out of memory", "traceback": "Traceback ..."},
}


def test_full_record() -> None:
    record = parse_record(json.dumps(FULL))
    assert record.step == 120
    assert record.time == START
    assert record.metrics == (("loss", 0.412), ("accuracy", 0.97), ("perplexity", math.inf))
    assert record.gpus[0].utilization_percent == 91
    assert record.model_path == "/output/trained-model.pth"
    assert record.error is not None
    assert record.error.type == "OutOfMemory"


def test_unknown_properties_are_ignored() -> None:
    assert parse_record(json.dumps(MINIMAL | {"new": [1, 2]})) == parse_record(json.dumps(MINIMAL))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version: must be 1"),
        ({"version": True}, "version: must be 1"),
        ({"state": "Dancing"}, "state: must be one of Complete"),
        ({"time": "yesterday"}, "time: must be an RFC 3339 time"),
        ({"step": -1}, "step: must be a whole number"),
        ({"step": True}, "step: must be a whole number"),
        ({"step": 2**53}, "step: must be a whole number"),
        ({"samplesPerSecond": "fast"}, "samplesPerSecond: must be a number"),
        ({"metrics": {"loss": None}}, "metrics.loss: must be a number"),
        ({"metrics": {"a b": 1}}, "metrics: a name must match"),
        ({"metrics": {f"m{i}": 1 for i in range(33)}}, "metrics: must have at most 32"),
        ({"gpus": [{"model": "A100"}]}, "gpus[0].uuid: must be given"),
        ({"gpus": [{"uuid": "x", "utilizationPercent": 101}]}, "gpus[0].utilizationPercent: must be a number"),
        ({"gpus": [{"uuid": "x"}] * 17}, "gpus: must be a list of at most 16"),
        ({"error": {"type": "Boredom", "message": "x"}}, "error.type: must be one of"),
        ({"result": []}, "result: must be an object"),
    ],
)
def test_wrong_values_name_their_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgressError) as caught:
        parse_record(json.dumps(MINIMAL | change))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b"\xff\xfe\x00", b"[" * 50_000])
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(ProgressError):
        parse_record(body)


def test_large_body_is_refused() -> None:
    with pytest.raises(ProgressError, match="more than 65536 bytes"):
        parse_record(b" " * (MAX_BODY_BYTES + 1))


def texts_up_to(limit: int) -> st.SearchStrategy[str]:
    """Short ones, and those around the limit."""
    return st.text(max_size=4) | st.sampled_from(["x" * limit, "x" * (limit + 1)])


NUMBERS = st.one_of(st.integers(-3, 2**53 + 3), st.floats(-10, 1e16), st.booleans(), st.text(max_size=3), st.none())
TIMES = st.sampled_from(["2026-11-21T10:00:00Z", "2026-11-21T10:00:00.25+01:00", 7, None])
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from([1, 2, "1", None]) | st.just(1),
        "state": st.sampled_from(["Training", "Failed", "Asleep", 3]) | st.just("Training"),
        "time": TIMES,
        "rank": NUMBERS,
        "worldSize": NUMBERS,
        "step": NUMBERS,
        "totalSteps": NUMBERS,
        "restoredStep": NUMBERS,
        "localStepSeconds": NUMBERS,
        "checkpoint": st.fixed_dictionaries(
            {}, optional={"step": NUMBERS, "time": TIMES, "error": texts_up_to(512) | st.none()}
        )
        | st.none(),
        "estimatedRemainingSeconds": NUMBERS,
        "samplesPerSecond": NUMBERS,
        "metrics": st.dictionaries(
            st.text("aZ0_./- é", max_size=70), NUMBERS | st.sampled_from(["NaN", "Infinity", "inf"]), max_size=4
        )
        | st.just([]),
        "gpus": st.lists(
            st.fixed_dictionaries(
                {}, optional={"uuid": texts_up_to(128), "utilizationPercent": NUMBERS, "memoryUsedBytes": NUMBERS,
                              "temperatureCelsius": NUMBERS, "energyJoules": NUMBERS,
                              "uncorrectedEccErrors": NUMBERS, "xid": NUMBERS, "time": TIMES,
                              "error": texts_up_to(256)}
            ) | st.none(),
            max_size=17,
        ),
        "result": st.fixed_dictionaries({}, optional={"modelPath": st.text(max_size=3) | st.none()}) | st.none(),
        "error": st.fixed_dictionaries(
            {}, optional={"type": st.sampled_from(["NcclError", "x"]), "message": st.text(max_size=4) | st.none()}
        ),
    },
)  # fmt: skip


@given(RECORDS)
def test_parser_accepts_exactly_what_the_schema_accepts(value: dict[str, Any]) -> None:
    value = MINIMAL | value
    try:
        parse_record(json.dumps(value))
        accepted = True
    except ProgressError:
        accepted = False
    assert accepted == VALIDATOR.is_valid(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    with contextlib.suppress(ProgressError):
        parse_record(json.dumps(value))


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    with contextlib.suppress(ProgressError):
        parse_record(body)


def record(*gpus: GpuSample, step: int = 0) -> ProgressRecord:
    return ProgressRecord("Training", START, step=step, gpus=gpus)


def gpu(uuid: str, used: int, temperature: float | None = None, time: datetime = START, **more: Any) -> GpuSample:
    return GpuSample(
        uuid, model="A100", utilization_percent=used, temperature_celsius=temperature, power_watts=300,
        memory_used_bytes=10, memory_total_bytes=80, time=time, **more,
    )  # fmt: skip


def test_fold_sums_means_and_maxima() -> None:
    folded = fold_gpus([record(gpu("a", 80, 60), gpu("b", 100, 64)), record(gpu("c", 60, None, at(-2)))])
    assert folded is not None
    assert (folded.count, folded.model, folded.utilization_percent) == (3, "A100", 80)
    assert (folded.memory_used_bytes, folded.memory_total_bytes, folded.power_watts) == (30, 240, 900)
    assert (folded.max_temperature_celsius, folded.last_sample) == (64, at(-2))


def test_fold_adds_energy_and_errors_and_lists_each_error_code_once() -> None:
    used: Any = {"energy_joules": 1.5, "uncorrected_ecc_errors": 2}
    folded = fold_gpus(
        [record(gpu("a", 80, **used, xid=79), gpu("b", 80, xid=79)), record(gpu("c", 80, **used, xid=48))]
    )
    assert folded is not None
    assert (folded.energy_joules, folded.uncorrected_ecc_errors, folded.xids) == (3.0, 4, (48, 79))


def test_fold_counts_a_shared_gpu_once() -> None:
    folded = fold_gpus([record(gpu("a", 50)), record(gpu("a", 50))])
    assert folded is not None
    assert folded.count == 1


def test_fold_without_gpus_is_none() -> None:
    assert fold_gpus([record()]) is None


def test_fold_leaves_out_what_no_device_tells() -> None:
    folded = fold_gpus([record(GpuSample("a", error="GPU is lost"))])
    assert folded is not None
    assert folded.utilization_percent is None
    assert folded.power_watts is None
    assert folded.errors == ("a: GPU is lost",)


def test_lowest_rank_speaks_for_the_job() -> None:
    assert leading_record({1: record(step=9), 0: record(step=8)}) == record(step=8)
    assert leading_record({}) is None
