"""The status subresource: everything that the operator writes is kept, and `kubectl get` shows it as promised."""

from __future__ import annotations

import pytest

from tests.contract.kube import NOBODY, Json, Refused, Trainings, load_crd, training

pytestmark = pytest.mark.cluster

STATUS: Json = {
    "observedGeneration": 1,
    "phase": "Running",
    "message": "epoch 13 of 30, loss 0.412, 2,310 samples/s",
    "attempt": 1,
    "attempts": [
        {
            "number": 1,
            "startTime": "2026-11-21T09:58:00Z",
            "endTime": "2026-11-21T09:59:00Z",
            "reason": "OutOfMemory",
            "message": "worker 1: CUDA out of memory",
            "exitCode": 137,
            "log": "Traceback (most recent call last): ...",
            "worker": 1,
            "node": "gpu-7",
            "lastStep": 120,
            "restoredStep": 100,
            "countsAgainstBackoffLimit": True,
            "batchSize": 64,
            "gradientAccumulationSteps": 1,
            "gpuSeconds": 120,
            "energyJoules": 36000,
        },
        {"number": 2, "startTime": "2026-11-21T10:00:00Z"},
    ],
    "countedFailures": 1,
    "nextAttemptTime": "2026-11-21T10:00:00Z",
    "suspendedSeconds": 0,
    "training": {"batchSize": 32, "gradientAccumulationSteps": 2},
    "accounting": {"gpuSeconds": 1200, "lostGpuSeconds": 40, "energyJoules": 360000},
    "jobName": "t-1",
    "startTime": "2026-11-21T10:00:04Z",
    "completionTime": "2026-11-21T10:14:06Z",
    "workers": {"desired": 2, "ready": 2, "failed": 0},
    "progress": {
        "percent": 43,
        "epoch": 13,
        "totalEpochs": 30,
        "step": 1270,
        "totalSteps": 2940,
        "estimatedRemainingSeconds": 370,
        "samplesPerSecond": "2310",
        "metrics": [
            {"name": "loss", "value": "0.412"},
            {"name": "accuracy", "value": "0.871"},
            {"name": "learningRate", "value": "0.0017"},
        ],
        "restoredStep": 100,
        "lastCheckpoint": {"step": 1200, "time": "2026-11-21T10:04:30Z"},
        "checkpointError": "No space left on device",
        "lastStepTime": "2026-11-21T10:04:58Z",
        "lastUpdateTime": "2026-11-21T10:04:58Z",
    },
    "gpu": {
        "source": "NVML",
        "model": "NVIDIA A100-SXM4-80GB",
        "count": 2,
        "utilizationPercent": 91,
        "memoryUsedBytes": 61203283968,
        "memoryTotalBytes": 171798691840,
        "powerWatts": 702,
        "maxTemperatureCelsius": 64,
        "energyJoules": 240000,
        "uncorrectedEccErrors": 1,
        "xids": [79, 48],
        "lastSampleTime": "2026-11-21T10:04:58Z",
        "errors": ["GPU-5d3b: GPU is lost"],
    },
    "outputPath": "models:/trained-model.pth",
    "summary": {
        "progress": "43%",
        "workers": "2/2",
        "eta": "6m10s",
        "epoch": "13/30",
        "step": "1270/2940",
        "loss": "0.412",
        "throughput": "2310/s",
    },
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-11-21T10:00:04Z",
            "observedGeneration": 1,
        }
        for kind, status, reason in (
            ("Accepted", "True", "Rendered"),
            ("Running", "True", "AllWorkersReady"),
            ("Suspended", "False", "Resumed"),
            ("ProgressStalled", "False", "StepsAdvance"),
            ("GpuUnderutilized", "False", "GpuBusy"),
            ("GpuUnhealthy", "True", "GpuFault"),
            ("StragglerDetected", "False", "WorkersInStep"),
            ("Complete", "False", "Training"),
            ("Failed", "False", "Training"),
        )
    ],
}


@pytest.fixture
def stored(trainings: Trainings) -> Trainings:
    """A namespace with the GpuTraining "t" in it."""
    trainings.create(training({"training": {}, "scheduling": {"schedulerName": NOBODY}}), store=True)
    return trainings


def test_full_status_is_kept(stored: Trainings) -> None:
    assert stored.merge_status("t", STATUS)["status"] == STATUS


def test_status_fields_of_the_schema_are_all_in_the_full_status() -> None:
    """The other direction: no field of the schema that nobody is known to write."""
    schema = load_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(schema) == set(STATUS)
    for section in ("workers", "progress", "gpu", "training", "accounting", "summary"):
        assert set(schema[section]["properties"]) == set(STATUS[section]), section
    assert set(schema["attempts"]["items"]["properties"]) == set(STATUS["attempts"][0])


@pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting", "Suspended", "Complete", "Failed"])
def test_phases(stored: Trainings, phase: str) -> None:
    assert stored.merge_status("t", {"phase": phase})["status"]["phase"] == phase


def _row(trainings: Trainings, status: Json) -> dict[str, tuple[object, int]]:
    """Column name -> (cell, priority), as `kubectl get` asks for them."""
    table = trainings.merge_status("t", status, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    return {name: (cell, priority) for (name, priority), cell in zip(columns, row["cells"], strict=True)}


def test_columns(stored: Trainings) -> None:
    row = _row(stored, STATUS)
    assert {name: cell for name, (cell, priority) in row.items() if priority == 0 and name != "Age"} == {
        "Name": "t",
        "Phase": "Running",
        "Progress": "43%",
        "Workers": "2/2",
        "GPU%": 91,
        "ETA": "6m10s",
        "Attempt": 1,
    }
    assert {name: cell for name, (cell, priority) in row.items() if priority > 0} == {
        "Epoch": "13/30",
        "Step": "1270/2940",
        "Loss": "0.412",
        "Throughput": "2310/s",
        "Message": STATUS["message"],
    }
    assert [name for name, (_, priority) in row.items() if priority == 0] == (
        ["Name", "Phase", "Progress", "Workers", "GPU%", "ETA", "Attempt", "Age"]
    )


def test_columns_are_empty_where_nothing_is_known(stored: Trainings) -> None:
    row = _row(stored, dict.fromkeys(STATUS) | {"phase": "Pending", "summary": {"workers": "0/4"}})
    assert {name: cell for name, (cell, _) in row.items() if cell is not None and name not in ("Name", "Age")} == {
        "Phase": "Pending",
        "Workers": "0/4",
    }


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"phase": "Sleeping"}, "status.phase"),
        ({"attempts": [{"number": 1}]}, "status.attempts[0].startTime"),
        ({"attempts": [{"number": 1, "startTime": "2026-11-21T10:00:00Z"}] * 2}, "status.attempts[1]"),
        (
            {"attempts": [{"number": n, "startTime": "2026-11-21T10:00:00Z"} for n in range(1, 12)]},
            "status.attempts",
        ),
        ({"gpu": {"xids": list(range(17))}}, "status.gpu.xids"),
        ({"progress": {"percent": 101}}, "status.progress.percent"),
        ({"gpu": {"utilizationPercent": 91.5}}, "status.gpu.utilizationPercent"),
        ({"message": "x" * 1025}, "status.message"),
        ({"conditions": [{"type": "Running", "status": "True"}]}, "status.conditions[0].reason"),
    ],
    ids=str,
)
def test_wrong_status_is_refused(stored: Trainings, status: Json, field: str) -> None:
    with pytest.raises(Refused) as refused:
        stored.merge_status("t", status)
    assert field in {cause.field for cause in refused.value.causes}


def test_status_cannot_be_set_with_the_spec(trainings: Trainings) -> None:
    body = training({"training": {}, "scheduling": {"schedulerName": NOBODY}}) | {"status": {"phase": "Complete"}}
    assert "status" not in trainings.create(body)


def test_names_of_the_resource(stored: Trainings) -> None:
    (resource,) = [
        entry
        for entry in stored.api.request("GET", "/apis/gputraining.dev/v1alpha1")["resources"]
        if entry["name"] == "gputrainings"
    ]
    assert (resource["kind"], resource["namespaced"]) == ("GpuTraining", True)
    assert resource["shortNames"] == ["gput"]
    assert resource["categories"] == ["all"]
