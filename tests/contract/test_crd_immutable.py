"""What of a stored GpuTraining can change: monitoring and runPolicy, nothing else; each refusal names its field."""

from __future__ import annotations

import pytest

from tests.contract.kube import NOBODY, Json, Refused, Trainings, load_crd, training
from tests.contract.test_crd_accepted import DEFAULTS

pytestmark = pytest.mark.cluster

STORED: Json = {
    "workers": 2,
    "gpusPerWorker": 0,
    "image": "example/trainer:1",
    "training": {"dataset": {"name": "mnist", "path": "/data"}},
    "env": [{"name": "A", "value": "1"}],
    "volumes": [
        {"name": "data", "mountPath": "/data", "emptyDir": {}},
        {"name": "work", "mountPath": "/work", "persistentVolumeClaim": "work"},
    ],
    "resources": {"limits": {"cpu": 2}},
    "checkpoint": {"volume": "work", "intervalSteps": 100},
    "scheduling": {"schedulerName": NOBODY},
}
MESSAGE = "is immutable (only monitoring and runPolicy can change): delete the GpuTraining and apply it again"


@pytest.fixture
def stored(trainings: Trainings) -> Trainings:
    """A namespace with the GpuTrainings "t" (training) and "c" (command) in it."""
    trainings.create(training(STORED), store=True)
    command = {"command": ["python3"], "args": ["-V"], "workingDir": "/w", "scheduling": {"schedulerName": NOBODY}}
    trainings.create(training(command, "c"), store=True)
    return trainings


# path of the refusal, patch of the spec; the patches cover changing, adding and removing (null) a field.
CHANGES: list[tuple[str, Json]] = [
    ("spec.workers", {"workers": 3}),
    ("spec.workers", {"workers": None}),  # back to the default 1
    ("spec.gpusPerWorker", {"gpusPerWorker": 1}),
    ("spec.gpuResourceName", {"gpuResourceName": "amd.com/gpu"}),
    ("spec.image", {"image": "example/trainer:2"}),
    ("spec.image", {"image": None}),
    ("spec.imagePullPolicy", {"imagePullPolicy": "Always"}),
    ("spec.imagePullSecrets", {"imagePullSecrets": [{"name": "x"}]}),
    ("spec.training.model", {"training": {"model": "resnet18"}}),
    ("spec.training.dataset.name", {"training": {"dataset": {"name": "cifar10"}}}),
    ("spec.training.dataset.path", {"training": {"dataset": {"path": "/other"}}}),
    ("spec.training.dataset.path", {"training": {"dataset": {"path": None, "name": "digits"}}}),
    ("spec.training.dataset.download", {"training": {"dataset": {"download": True}}}),
    ("spec.training.epochs", {"training": {"epochs": 11}}),
    ("spec.training.batchSize", {"training": {"batchSize": 1}}),
    ("spec.training.learningRate", {"training": {"learningRate": "0.0010"}}),
    ("spec.training.weightDecay", {"training": {"weightDecay": "0"}}),
    ("spec.training.precision", {"training": {"precision": "FP32"}}),
    ("spec.training.gradientAccumulationSteps", {"training": {"gradientAccumulationSteps": 2}}),
    ("spec.training.seed", {"training": {"seed": 1}}),
    ("spec.training.dataLoaderWorkers", {"training": {"dataLoaderWorkers": 1}}),
    ("spec.training.outputPath", {"training": {"outputPath": "/o"}}),
    ("spec.training.onOutOfMemory", {"training": {"onOutOfMemory": "ReduceBatchSize"}}),
    ("spec.training", {"training": None, "command": ["x"]}),
    ("spec.command", {"training": None, "command": ["x"]}),
    ("spec.env", {"env": []}),
    ("spec.env", {"env": [{"name": "A", "value": "2"}]}),
    ("spec.envFrom", {"envFrom": [{"secretRef": {"name": "x"}}]}),
    ("spec.resources", {"resources": {"limits": {"cpu": 3}}}),
    ("spec.resources", {"resources": None}),
    ("spec.sharedMemory.sizeLimit", {"sharedMemory": {"sizeLimit": "2Gi"}}),
    ("spec.volumes", {"volumes": None}),
    ("spec.checkpoint", {"checkpoint": None}),
    ("spec.checkpoint", {"checkpoint": {"volume": "other"}}),
    ("spec.checkpoint", {"checkpoint": {"path": "elsewhere"}}),
    ("spec.checkpoint", {"checkpoint": {"intervalSeconds": 60}}),
    ("spec.checkpoint", {"checkpoint": {"intervalSteps": None}}),
    ("spec.checkpoint", {"checkpoint": {"retain": 3}}),
    ("spec.checkpoint", {"checkpoint": {"resume": "Never"}}),
    ("spec.terminationGracePeriodSeconds", {"terminationGracePeriodSeconds": 60}),
    ("spec.scheduling", {"scheduling": {"queueName": "research"}}),
    ("spec.volumes", {"volumes": [{"name": "data", "mountPath": "/data", "emptyDir": {"medium": "Memory"}}]}),
    ("spec.scheduling", {"scheduling": {"nodeSelector": {"a": "b"}}}),
]


@pytest.mark.parametrize(("field", "patch"), CHANGES, ids=lambda value: str(value)[:70])
def test_immutable(stored: Trainings, field: str, patch: Json) -> None:
    with pytest.raises(Refused) as refused:
        stored.merge("t", {"spec": patch})
    messages = {cause.field: cause.message for cause in refused.value.causes}
    assert MESSAGE in messages.get(field, ""), messages


@pytest.mark.parametrize("patch", [{"command": ["python"]}, {"args": None}, {"workingDir": None}], ids=str)
def test_immutable_command(stored: Trainings, patch: Json) -> None:
    with pytest.raises(Refused) as refused:
        stored.merge("c", {"spec": patch})
    (field,) = patch
    (cause,) = refused.value.causes
    assert cause.field == f"spec.{field}"
    assert MESSAGE in cause.message


def test_checkpoints_cannot_be_added(stored: Trainings) -> None:
    with pytest.raises(Refused) as refused:
        stored.merge("c", {"spec": {"checkpoint": {"volume": "v"}}})
    assert any(cause.field == "spec.checkpoint" and MESSAGE in cause.message for cause in refused.value.causes)


@pytest.mark.parametrize(
    "patch",
    [
        {"monitoring": {"intervalSeconds": 1}},
        {"monitoring": {"stalledAfterSeconds": 60, "onStall": "Restart"}},
        {"monitoring": {"idleGpuPercent": 0, "idleGpuAfterSeconds": 10}},
        {"monitoring": None},
        {"runPolicy": {"suspend": True}},
        {"runPolicy": {"backoffLimit": 0}},
        {"runPolicy": {"activeDeadlineSeconds": 60}},
        {"runPolicy": {"pendingDeadlineSeconds": 60}},
        {"runPolicy": {"ttlSecondsAfterFinished": 0}},
        {"runPolicy": {}},
    ],
    ids=str,
)
def test_mutable(stored: Trainings, patch: Json) -> None:
    (section,) = patch
    assert stored.merge("t", {"spec": patch})["spec"][section] == DEFAULTS[section] | (patch[section] or {})


def test_run_policy_goes_back_to_its_defaults(stored: Trainings) -> None:
    stored.merge("t", {"spec": {"runPolicy": {"activeDeadlineSeconds": 60, "suspend": True}}}, store=True)
    assert stored.merge("t", {"spec": {"runPolicy": None}})["spec"]["runPolicy"] == DEFAULTS["runPolicy"]


def test_metadata_can_change(stored: Trainings) -> None:
    changed = stored.merge("t", {"metadata": {"labels": {"team": "vision"}}})
    assert changed["metadata"]["labels"] == {"team": "vision"}


def test_every_field_of_the_spec_is_covered() -> None:
    """A new field must be put into the table above, or into the mutable ones."""
    properties = load_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    tested = {field.split(".")[1] for field, _ in CHANGES} | {"args", "workingDir"}
    assert set(properties) == tested | {"monitoring", "runPolicy"}
    tested_training = {field.split(".")[2] for field, _ in CHANGES if field.startswith("spec.training.")}
    assert set(properties["training"]["properties"]) == tested_training
