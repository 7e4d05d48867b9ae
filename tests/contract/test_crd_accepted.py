"""What the API server accepts: defaults as documented, nothing pruned, and any valid spec at all."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from tests.contract.kube import EXAMPLES, NOBODY, REPOSITORY, Json, Trainings, training
from tests.contract.valid_specs import SPECS

pytestmark = pytest.mark.cluster

DEFAULTS: Json = {
    "workers": 1,
    "gpusPerWorker": 1,
    "gpuResourceName": "nvidia.com/gpu",
    "sharedMemory": {"sizeLimit": "1Gi"},
    "terminationGracePeriodSeconds": 30,
    "monitoring": {
        "intervalSeconds": 10,
        "stalledAfterSeconds": 600,
        "onStall": "Report",
        "idleGpuPercent": 10,
        "idleGpuAfterSeconds": 300,
    },
    "runPolicy": {"suspend": False, "backoffLimit": 3},
}
TRAINING_DEFAULTS: Json = {
    "model": "smallcnn",
    "dataset": {"name": "digits", "download": False},
    "epochs": 10,
    "batchSize": 64,
    "learningRate": "0.001",
    "weightDecay": "0.01",
    "precision": "Auto",
    "gradientAccumulationSteps": 1,
    "seed": 0,
    "dataLoaderWorkers": 0,
    "outputPath": "/output",
    "onOutOfMemory": "Fail",
}

_label_selector: Json = {
    "matchLabels": {"app": "db"},
    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
}
_pod_affinity_term: Json = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": _label_selector,
    "namespaces": ["other"],
    "namespaceSelector": _label_selector,
    "matchLabelKeys": ["gputraining.dev/name"],
    "mismatchLabelKeys": ["gputraining.dev/attempt"],
}
_pod_affinity: Json = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_pod_affinity_term],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": _pod_affinity_term}],
}
_node_term: Json = {
    "matchExpressions": [{"key": "gpu", "operator": "Exists"}, {"key": "cc", "operator": "Gt", "values": ["7"]}],
    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-3"]}],
}

# Every field of the spec that can stand beside `training`, with values that are not the defaults.
FULL: Json = {
    "workers": 4,
    "gpusPerWorker": 8,
    "gpuResourceName": "amd.com/gpu",
    "image": "registry.example:5000/team/trainer@sha256:" + "0" * 64,
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "training": {
        "model": "resnet50",
        "dataset": {"name": "cifar10", "path": "/data/cifar10", "download": True},
        "epochs": 30,
        "batchSize": 256,
        "learningRate": "3e-3",
        "weightDecay": "0",
        "precision": "BF16",
        "gradientAccumulationSteps": 4,
        "seed": 4294967295,
        "dataLoaderWorkers": 8,
        "outputPath": "/models/run-1",
        "onOutOfMemory": "ReduceBatchSize",
    },
    "env": [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "EMPTY", "value": ""},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}},
        {"name": "ZONE", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "zone", "optional": False}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['example.com/team']"}}},
    ],
    "envFrom": [
        {"prefix": "SITE_", "configMapRef": {"name": "site", "optional": True}},
        {"secretRef": {"name": "hub", "optional": False}},
    ],
    "resources": {
        "requests": {"cpu": "7500m", "memory": "32Gi", "ephemeral-storage": "10Gi"},
        "limits": {"cpu": 8, "memory": "64Gi", "ephemeral-storage": "20Gi", "hugepages-2Mi": "1Gi", "rdma/hca": 1},
    },
    "sharedMemory": {"sizeLimit": "16Gi"},
    "volumes": [
        {"name": "data", "mountPath": "/data", "readOnly": True, "subPath": "sets/v1", "persistentVolumeClaim": "d"},
        {"name": "ckpt", "mountPath": "/ckpt", "readOnly": False, "persistentVolumeClaim": "team-a.checkpoints"},
        {"name": "code", "mountPath": "/code", "readOnly": False, "configMap": "code"},
        {"name": "keys", "mountPath": "/keys", "readOnly": False, "secret": "keys"},
        {"name": "tmp", "mountPath": "/scratch", "readOnly": False, "emptyDir": {}},
        {"name": "ram", "mountPath": "/ram", "readOnly": False, "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
    ],
    "checkpoint": {
        "volume": "ckpt",
        "path": "runs/7",
        "intervalSeconds": 60,
        "intervalSteps": 500,
        "retain": 5,
        "resume": "Required",
    },
    "terminationGracePeriodSeconds": 120,
    "scheduling": {
        "queueName": "research",
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        "tolerations": [
            {"operator": "Exists"},
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoExecute", "tolerationSeconds": 60},
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_node_term]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": _node_term}],
            },
            "podAffinity": _pod_affinity,
            "podAntiAffinity": _pod_affinity,
        },
        "priorityClassName": "research",
        "schedulerName": "volcano",
    },
    "monitoring": {
        "intervalSeconds": 30,
        "stalledAfterSeconds": 10,
        "onStall": "Restart",
        "idleGpuPercent": 0,
        "idleGpuAfterSeconds": 10,
    },
    "runPolicy": {
        "suspend": True,
        "backoffLimit": 0,
        "activeDeadlineSeconds": 86400,
        "pendingDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 0,
    },
}


def test_shortest_spec_gets_the_documented_defaults(dry_trainings: Trainings) -> None:
    stored = dry_trainings.create(training({"training": {}}))
    assert stored["spec"] == DEFAULTS | {"training": TRAINING_DEFAULTS}


def test_defaults_of_a_command(dry_trainings: Trainings) -> None:
    stored = dry_trainings.create(training({"command": ["python3", "train.py"]}))
    assert stored["spec"] == DEFAULTS | {"command": ["python3", "train.py"]}


def test_defaults_of_checkpoints(dry_trainings: Trainings) -> None:
    volumes = [{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "out"}]
    stored = dry_trainings.create(training({"training": {}, "volumes": volumes, "checkpoint": {"volume": "out"}}))
    assert stored["spec"]["checkpoint"] == {
        "volume": "out",
        "intervalSeconds": 300,
        "retain": 2,
        "resume": "IfAvailable",
    }


def test_full_spec_is_stored_as_it_is(dry_trainings: Trainings) -> None:
    assert dry_trainings.create(training(FULL))["spec"] == FULL


def test_full_spec_of_a_command_is_stored_as_it_is(dry_trainings: Trainings) -> None:
    spec = {key: value for key, value in FULL.items() if key != "training"} | {
        "command": ["torchrun", "--nproc-per-node=8", "train.py"],
        "args": ["--epochs", "3"],
        "workingDir": "/workspace",
        # Reserved for spec.training only: a script of one's own may well be configured by these names.
        "env": [{"name": "EPOCHS", "value": "3"}, {"name": "MODEL", "value": "bert"}],
    }
    assert dry_trainings.create(training(spec))["spec"] == spec


def test_server_side_apply_twice_changes_nothing(trainings: Trainings) -> None:
    path = f"{trainings.path}/t"
    body = training({"training": {}, "scheduling": {"schedulerName": NOBODY}})
    first = trainings.api.apply(path, body)
    assert trainings.api.apply(path, body)["metadata"]["generation"] == first["metadata"]["generation"]


@pytest.mark.parametrize("name", ["a", "resnet-50-run-3", "x" * 50])
def test_names(dry_trainings: Trainings, name: str) -> None:
    assert dry_trainings.create(training({"training": {}}, name))["metadata"]["name"] == name


@pytest.mark.parametrize(
    "spec",
    [
        {"gpuResourceName": "nvidia.com/mig-1g.10gb", "gpusPerWorker": 1, "workers": 3},
        {"gpusPerWorker": 0, "sharedMemory": {"sizeLimit": "64Mi"}, "resources": {"limits": {"memory": "64Mi"}}},
        {"resources": {"requests": {"memory": 2147483648}, "limits": {"memory": "2Gi"}}},
        {"resources": {"requests": {"cpu": "1.5"}, "limits": {"cpu": "1500m", "nvidia.com/hostdev": 1}}},
        {"resources": {"requests": {"cpu": 4}}},
        {"volumes": [{"name": "shm2", "mountPath": "/dev/shm2", "emptyDir": {}}]},
        {"volumes": [{"name": "v", "mountPath": "/a..b/.hidden", "emptyDir": {}}]},
    ],
    ids=lambda spec: yaml.safe_dump(spec, default_flow_style=True).strip()[:60],
)
def test_borderline_specs(dry_trainings: Trainings, spec: Json) -> None:
    stored = dry_trainings.create(training({"training": {}} | spec))["spec"]
    assert {key: stored[key] for key in spec if key != "volumes"} == {k: v for k, v in spec.items() if k != "volumes"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_examples(dry_trainings: Trainings, file: Any) -> None:
    documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    kinds = [document["kind"] for document in documents]
    assert kinds.count("GpuTraining") == 1, f"{file.name} must hold one GpuTraining, has {kinds}"
    for document in documents:
        if document["kind"] == "GpuTraining":
            _assert_kept(document["spec"], dry_trainings.create(document)["spec"], "spec")
        else:
            # What the training needs beside it: claims and ConfigMaps, checked as strictly.
            resource = {"PersistentVolumeClaim": "persistentvolumeclaims", "ConfigMap": "configmaps"}[document["kind"]]
            path = f"/api/v1/namespaces/{dry_trainings.namespace}/{resource}/{document['metadata']['name']}"
            dry_trainings.api.apply(path, document, dry_run=True)


def test_readme(dry_trainings: Trainings) -> None:
    """The YAML of the README is accepted; its errors are the API server's own words."""
    readme = (REPOSITORY / "README.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if "kind: GpuTraining" in block]
    assert blocks
    for block in blocks:
        dry_trainings.create(yaml.safe_load(block))
    causes = dry_trainings.refused(
        training(
            {
                "gpusPerWorker": 2,
                "gpuResourceName": "nvidia.com/mig-1g.10gb",
                "training": {"dataset": {"name": "mnist"}},
                "env": [{"name": name, "value": "2"} for name in ("NCCL_DEBUG", "WORLD_SIZE", "EPOCHS")],
            }
        )
    )
    quoted = re.findall(r"^\* (spec\S*): (.*)$", readme, re.MULTILINE)
    assert set(quoted) == {(cause.field, cause.message) for cause in causes}


def test_there_are_examples() -> None:
    assert {file.name for file in EXAMPLES.glob("*.yaml")} >= {
        "checkpointed.yaml",
        "digits.yaml",
        "kueue.yaml",
        "mig.yaml",
        "own-script.yaml",
        "resnet-cifar.yaml",
    }


# --- any valid spec -----------------------------------------------------------------------------------------------


def _assert_kept(given_value: Any, stored: Any, path: str) -> None:
    """Everything that was given is stored unchanged; the API server may only add defaults."""
    if isinstance(given_value, dict):
        for key, value in given_value.items():
            assert key in stored, f"{path}.{key} was pruned"
            _assert_kept(value, stored[key], f"{path}.{key}")
    elif isinstance(given_value, list):
        assert len(given_value) == len(stored), path
        for index, value in enumerate(given_value):
            _assert_kept(value, stored[index], f"{path}[{index}]")
    else:
        assert given_value == stored, path


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=SPECS)
def test_any_valid_spec_is_accepted_and_kept(dry_trainings: Trainings, spec: Json) -> None:
    stored = dry_trainings.create(training(copy.deepcopy(spec)))["spec"]
    _assert_kept(spec, stored, "spec")
    for key, default in DEFAULTS.items():
        assert key in spec or stored[key] == default
