"""What we render is taken by the real PyTorchJob API as it is: nothing refused, nothing dropped, nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from gputraining_operator.api import Json
from gputraining_operator.render import render_job
from gputraining_operator.spec import GpuTraining, parse_training
from tests.contract.kube import KubeApi, Trainings, training
from tests.unit.operator.test_render import SPECS

IMAGE = "ghcr.io/gputraining/trainer:0.1.0"

# The two-pod job that people write by hand today, from the usual tutorials.
CLASSIC_CONTAINER: Json = {
    "name": "pytorch",
    "image": "registry.example/team/pytorch-training:1",
    "imagePullPolicy": "IfNotPresent",
    "env": [
        {"name": "DATASET_TYPE", "value": "cifar10"},
        {"name": "EPOCHS", "value": "20"},
        {"name": "BATCH_SIZE", "value": "128"},
        {"name": "LEARNING_RATE", "value": "0.001"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
    ],
    "resources": {
        "requests": {"cpu": "4", "memory": "8Gi"},
        "limits": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"},
    },
    "shm": {"medium": "Memory", "sizeLimit": "2Gi"},
}
CLASSIC_AS_GPUTRAINING: Json = {
    "workers": 2,
    "gpusPerWorker": 1,
    "image": "registry.example/team/pytorch-training:1",
    "imagePullPolicy": "IfNotPresent",
    "training": {
        "dataset": {"name": "cifar10", "path": "/data"},
        "epochs": 20,
        "batchSize": 128,
        "learningRate": "0.001",
    },
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "8", "memory": "16Gi"}},
    "sharedMemory": {"sizeLimit": "2Gi"},
}


def admitted(trainings: Trainings, spec: Json) -> GpuTraining:
    """The training as the API server gives it to the operator, defaults and all."""
    return parse_training(trainings.create(training(spec, "digits")))


def served(kube: KubeApi, job: Json) -> Json:
    """The job as the API server would store it; unknown fields are refused."""
    namespace = job["metadata"]["namespace"]
    path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
    return kube.request("POST", path, job, query={"dryRun": "All", "fieldValidation": "Strict"})


def missing(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Paths of what was sent but is not stored the same; defaults that were added do not count."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [p for key in sent for p in missing(sent[key], stored.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [p for i, (a, b) in enumerate(zip(sent, stored, strict=True)) for p in missing(a, b, f"{path}[{i}]")]
    return [] if sent == stored else [f"{path}: {sent!r} became {stored!r}"]


@pytest.mark.parametrize("name", SPECS)
def test_rendered_jobs_are_stored_as_they_are(kube: KubeApi, dry_trainings: Trainings, name: str) -> None:
    job = render_job(admitted(dry_trainings, SPECS[name]), 1, IMAGE)
    assert missing(job, served(kube, job)) == []


def test_the_classic_job_is_reproduced_field_by_field(kube: KubeApi, dry_trainings: Trainings) -> None:
    job = served(kube, render_job(admitted(dry_trainings, CLASSIC_AS_GPUTRAINING), 1, IMAGE))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Master": 1, "Worker": 1}
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        for field in ("name", "image", "imagePullPolicy", "resources"):
            assert container[field] == CLASSIC_CONTAINER[field], field
        for variable in CLASSIC_CONTAINER["env"]:
            assert variable in container["env"]
        (shm,) = (mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm")
        assert next(v["emptyDir"] for v in pod["volumes"] if v["name"] == shm) == CLASSIC_CONTAINER["shm"]
