"""Whatever the operator writes into a status has a place in the CRD: a field too many or a string too long would make
the API server refuse the whole status, and the training would look frozen.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from gputraining_operator.progress import parse_record
from gputraining_operator.status import gpu_status, progress_status, summary
from hack.gen_api_docs import CRD_FILE
from tests.unit.operator.test_reconcile_properties import COURSES, AnyCourse

Json = dict[str, Any]


def _strict(schema: Json) -> Json:
    """The structural schema as JSON schema; what the API server would refuse or prune is an error."""
    strict = copy.deepcopy(schema)
    if "properties" in strict:
        strict["additionalProperties"] = False
        strict["properties"] = {name: _strict(field) for name, field in strict["properties"].items()}
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    if strict.get("format") == "int64":
        strict.setdefault("maximum", 2**63 - 1)
    return strict


STATUS = _strict(
    yaml.safe_load(CRD_FILE.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
)
VALIDATOR = jsonschema.Draft202012Validator(STATUS, format_checker=jsonschema.FormatChecker())


class StatusFits(AnyCourse):
    """Every status of every course of events."""

    @invariant()
    def status_fits(self) -> None:
        if self.status is not None:
            VALIDATOR.validate(self.status)


TestStatusFits = StatusFits.TestCase
TestStatusFits.settings = COURSES

_time = st.just("2026-11-21T10:00:00Z")
_gpu = st.fixed_dictionaries(
    {"uuid": st.text(min_size=1, max_size=128)},
    optional={
        "model": st.text(max_size=128),
        "utilizationPercent": st.floats(0, 100),
        "memoryUsedBytes": st.integers(0, 2**53 - 1),
        "memoryTotalBytes": st.integers(0, 2**53 - 1),
        "powerWatts": st.floats(0, 1e15),
        "temperatureCelsius": st.floats(-100, 300),
        "energyJoules": st.floats(0, 1e15),
        "uncorrectedEccErrors": st.integers(0, 2**53 - 1),
        "xid": st.integers(0, 2**53 - 1),
        "time": _time,
        "error": st.text(max_size=256),
    },
)
_record = st.fixed_dictionaries(
    {"version": st.just(1), "state": st.sampled_from(["Training", "Complete"]), "time": _time},
    optional={
        "epoch": st.integers(0, 2**53 - 1),
        "totalEpochs": st.integers(1, 2**53 - 1),
        "step": st.integers(0, 2**53 - 1),
        "totalSteps": st.integers(1, 2**53 - 1),
        "restoredStep": st.integers(0, 2**53 - 1),
        "checkpoint": st.fixed_dictionaries(
            {}, optional={"step": st.integers(0, 2**53 - 1), "time": _time, "error": st.text(max_size=512)}
        ),
        "estimatedRemainingSeconds": st.floats(0, 1e15),
        "samplesPerSecond": st.floats(0, 1e15),
        "metrics": st.dictionaries(
            st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,62}", fullmatch=True),
            st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["NaN", "-Infinity"])),
            max_size=32,
        ),
        "gpus": st.lists(_gpu, max_size=16, unique_by=lambda gpu: str(gpu["uuid"])),
    },
)


@given(bodies=st.lists(_record, min_size=1, max_size=4))
def test_figures_of_any_records_fit(bodies: list[Json]) -> None:
    records = {rank: parse_record(json.dumps(body)) for rank, body in enumerate(bodies)}
    progress = progress_status(None, records)
    status = {
        "progress": progress,
        "gpu": gpu_status(records),
        "summary": summary({"desired": 512, "ready": 512, "failed": 0}, progress),
    }
    VALIDATOR.validate({key: value for key, value in status.items() if value is not None})


def test_figures_of_many_lying_pods_fit() -> None:
    gpus = [
        {
            "uuid": f"{index}".zfill(128),
            "model": f"{index}".zfill(128),
            "error": "x" * 256,
            "memoryUsedBytes": 2**53 - 1,
            "memoryTotalBytes": 2**53 - 1,
            "powerWatts": 1e15,
        }
        for index in range(1600)
    ]
    bodies = [
        {"version": 1, "state": "Training", "time": "2026-11-21T10:00:00Z", "gpus": gpus[start : start + 16]}
        for start in range(0, len(gpus), 16)
    ]
    VALIDATOR.validate({"gpu": gpu_status({rank: parse_record(json.dumps(body)) for rank, body in enumerate(bodies)})})
