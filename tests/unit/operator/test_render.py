"""The rendered PyTorchJob: golden files for whole manifests, and the traps of PyTorchJob v1.9 one by one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from gputraining_operator.api import Json
from gputraining_operator.render import render_job
from gputraining_operator.spec import BatchPlan
from tests.unit.operator.builders import TRAINER_IMAGE, training

GOLDEN = Path(__file__).parent / "golden"

SPECS: dict[str, Json] = {
    "checkpointed-in-a-queue": {
        "workers": 2,
        "training": {"model": "resnet18", "dataset": {"name": "synthetic"}, "onOutOfMemory": "ReduceBatchSize"},
        "volumes": [{"name": "work", "mountPath": "/team", "subPath": "vision", "persistentVolumeClaim": "team"}],
        "checkpoint": {"volume": "work", "path": "run-7", "intervalSeconds": 60, "intervalSteps": 500, "retain": 3},
        "terminationGracePeriodSeconds": 120,
        "scheduling": {"queueName": "research"},
    },
    "digits-on-cpu": {
        "workers": 2,
        "gpusPerWorker": 0,
        "training": {"epochs": 20, "batchSize": 32, "learningRate": "0.003"},
        "volumes": [{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "digits-out"}],
    },
    "resnet-on-gpus": {
        "workers": 2,
        "gpusPerWorker": 4,
        "image": "registry.example/team/trainer:7",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "pull"}],
        "training": {"model": "resnet18", "dataset": {"name": "cifar10", "path": "/data/cifar10"}, "precision": "BF16"},
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "8", "memory": "16Gi"}},
        "sharedMemory": {"sizeLimit": "2Gi"},
        "volumes": [
            {"name": "data", "mountPath": "/data", "readOnly": True, "persistentVolumeClaim": "cifar"},
            {"name": "out", "mountPath": "/output", "subPath": "run-7", "persistentVolumeClaim": "models"},
        ],
        "scheduling": {
            "nodeSelector": {"accelerator": "a100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priorityClassName": "research",
            "schedulerName": "gang-scheduler",
        },
    },
    "own-script-on-mig": {
        "gpuResourceName": "nvidia.com/mig-1g.10gb",
        "image": "registry.example/team/script:1",
        "command": ["python", "train.py"],
        "args": ["--lr", "0.1"],
        "workingDir": "/app",
        "envFrom": [{"secretRef": {"name": "wandb"}}],
        "volumes": [
            {"name": "cfg", "mountPath": "/etc/train", "configMap": "train-config"},
            {"name": "key", "mountPath": "/etc/key", "secret": "key"},
            {"name": "tmp", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "5Gi"}},
        ],
    },
}


@pytest.mark.parametrize("name", SPECS)
def test_golden(name: str) -> None:
    """Refresh with UPDATE_GOLDEN=1 after looking at the difference."""
    job = render_job(training(SPECS[name]), 1, TRAINER_IMAGE)
    text = yaml.dump(job, Dumper=PlainDumper, sort_keys=False)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


class PlainDumper(yaml.SafeDumper):
    """Writes repeated parts out, as the API server would see them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def container(spec: Json, role: str = "Master") -> Json:
    job = render_job(training(spec), 1, TRAINER_IMAGE)
    found: Json = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"][0]
    return found


def test_one_worker_has_no_worker_replicas() -> None:
    job = render_job(training({"workers": 1, "training": {}}), 1, TRAINER_IMAGE)
    assert set(job["spec"]["pytorchReplicaSpecs"]) == {"Master"}


@pytest.mark.parametrize(("gpus", "processes"), [(0, "1"), (1, "1"), (4, "4")])
def test_processes_are_a_number_never_auto(gpus: int, processes: str) -> None:
    job = render_job(training({"gpusPerWorker": gpus, "training": {}}), 1, TRAINER_IMAGE)
    assert job["spec"]["nprocPerNode"] == processes


def test_no_gpu_resource_on_cpu() -> None:
    assert container({"gpusPerWorker": 0, "training": {}})["resources"] == {}


def test_gpus_join_the_given_limits_and_leave_the_spec_alone() -> None:
    spec = {"gpusPerWorker": 2, "training": {}, "resources": {"limits": {"cpu": "1"}}}
    assert container(spec)["resources"] == {"limits": {"cpu": "1", "nvidia.com/gpu": "2"}}
    assert spec["resources"] == {"limits": {"cpu": "1"}}


def affinity(**spec: object) -> object:
    job = render_job(training({"training": {}, "workers": 2} | spec), 1, TRAINER_IMAGE)
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"].get("affinity")


def test_workers_on_cpu_prefer_nodes_of_their_own_unless_told_otherwise() -> None:
    assert "podAntiAffinity" in str(affinity(gpusPerWorker=0))
    assert affinity(gpusPerWorker=1) is None
    assert affinity(gpusPerWorker=0, workers=2, scheduling={"affinity": {"nodeAffinity": {}}}) == {"nodeAffinity": {}}


def test_own_script_gets_no_trainer_environment() -> None:
    names = {variable["name"] for variable in container({"command": ["true"]})["env"]}
    assert names == {f"GPUTRAINING_{name}" for name in ("UID", "NAME", "ATTEMPT", "PROGRESS_PORT", "GRACE_SECONDS")}


def environment(spec: Json, batch: BatchPlan | None = None) -> dict[str, str]:
    job = render_job(training(spec), 2, TRAINER_IMAGE, batch)
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}


CLAIM: Json = {"name": "out", "mountPath": "/output", "persistentVolumeClaim": "out"}


@pytest.mark.parametrize("program", [{"training": {}}, {"command": ["true"]}], ids=str)
def test_checkpoint_variables(program: Json) -> None:
    values = environment(program | {"volumes": [CLAIM], "checkpoint": {"volume": "out"}})
    assert {name: value for name, value in values.items() if name.startswith("CHECKPOINT_")} == {
        "CHECKPOINT_PATH": "/output/checkpoints/digits",
        "CHECKPOINT_INTERVAL_SECONDS": "300",
        "CHECKPOINT_RETAIN": "2",
        "CHECKPOINT_RESUME": "IfAvailable",
    }


def test_the_batch_of_an_attempt_replaces_the_specs() -> None:
    spec: Json = {"training": {"batchSize": 64, "gradientAccumulationSteps": 2}}
    for batch, expected in ((None, ("64", "2")), (BatchPlan(32, 4), ("32", "4"))):
        values = environment(spec, batch)
        assert (values["BATCH_SIZE"], values["GRADIENT_ACCUMULATION_STEPS"]) == expected


NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [NOT_READY, UNREACHABLE]),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], [NOT_READY, UNREACHABLE]),
        ([{"operator": "Exists", "effect": "NoSchedule"}], [NOT_READY, UNREACHABLE]),
        ([{"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}], [UNREACHABLE]),
        ([{"key": UNREACHABLE, "operator": "Exists"}], [NOT_READY]),
        ([{"operator": "Exists"}], []),
    ],
    ids=str,
)
def test_pods_leave_a_dead_node_after_30_seconds_unless_told_otherwise(given: list[Json], added: list[str]) -> None:
    job = render_job(training({"training": {}, "scheduling": {"tolerations": given}}), 1, TRAINER_IMAGE)
    rendered = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"].get("tolerations", [])
    assert rendered[: len(given)] == given
    assert [(toleration["key"], toleration["tolerationSeconds"]) for toleration in rendered[len(given) :]] == [
        (key, 30) for key in added
    ]


def test_without_a_queue_nothing_is_suspended() -> None:
    job = render_job(training(), 1, TRAINER_IMAGE)
    assert "suspend" not in job["spec"]["runPolicy"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]


def test_nothing_of_the_training_operators_own_retry_and_deadline() -> None:
    spec = {"training": {}, "runPolicy": {"activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5}}
    job = render_job(training(spec), 1, TRAINER_IMAGE)
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running"}
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] == "Never"


def test_rendering_is_deterministic() -> None:
    one, two = (render_job(training(SPECS["resnet-on-gpus"]), 1, TRAINER_IMAGE) for _ in range(2))
    assert yaml.safe_dump(one, sort_keys=False) == yaml.safe_dump(two, sort_keys=False)
