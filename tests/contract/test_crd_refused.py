"""What the API server refuses: each rule of the CRD, with the field it names and the text it gives."""

from __future__ import annotations

from typing import Any

import pytest

from hack.gen_api_docs import IMMUTABLE, rule_in_words
from tests.contract.kube import Json, Refused, Trainings, load_crd, training

pytestmark = pytest.mark.cluster

# (spec, field that the error names, part of its text); the spec gets `training: {}` unless it has training or command,
# or NEITHER says otherwise.
NEITHER: Json = {"training": None}


def _volume(**fields: Any) -> Json:
    return {"volumes": [{"name": "v", "mountPath": "/v", "emptyDir": {}} | fields]}


def _env(**fields: Any) -> Json:
    return {"env": [{"name": "FIRST", "value": "1"}, fields]}


def _tolerations(**fields: Any) -> Json:
    return {"scheduling": {"tolerations": [fields]}}


def _limits(**limits: Any) -> Json:
    return {"resources": {"limits": limits}}


Case = tuple[Json, str, str]

PROGRAM: list[Case] = [
    (
        NEITHER,
        "spec",
        'set spec.training (built-in trainer; "training: {}" trains a small CNN on digits) or spec.command',
    ),
    (
        {"training": {}, "command": ["python"]},
        "spec",
        "set either spec.training (built-in trainer) or spec.command (your own), not both",
    ),
    ({"args": ["-x"]}, "spec.args", "args are handed to spec.command; set it, or remove args"),
    ({"workingDir": "/w"}, "spec.workingDir", "workingDir is where spec.command starts"),
    ({"command": []}, "spec.command", "should have at least 1 items"),
    ({"command": ["x"] * 65}, "spec.command", "must have at most 64 items"),
    ({"command": ["x"], "workingDir": "w"}, "spec.workingDir", 'must be an absolute path without ".."'),
    ({"image": ""}, "spec.image", "should be at least 1 chars long"),
    ({"image": "a b"}, "spec.image", "should match"),
    ({"imagePullPolicy": "Sometimes"}, "spec.imagePullPolicy", 'supported values: "Always", "IfNotPresent", "Never"'),
]
SIZES: list[Case] = [
    ({"workers": 0}, "spec.workers", "greater than or equal to 1"),
    ({"workers": 513}, "spec.workers", "less than or equal to 512"),
    ({"workers": "two"}, "spec.workers", "must be of type integer"),
    ({"gpusPerWorker": -1}, "spec.gpusPerWorker", "greater than or equal to 0"),
    ({"gpusPerWorker": 17}, "spec.gpusPerWorker", "less than or equal to 16"),
    ({"gpuResourceName": "gpu"}, "spec.gpuResourceName", "must be a qualified resource name such as nvidia.com/gpu"),
    ({"gpuResourceName": "Nvidia.com/gpu"}, "spec.gpuResourceName", "must be a qualified resource name"),
    (
        {"gpuResourceName": "nvidia.com/mig-1g.10gb", "gpusPerWorker": 2},
        "spec.gpusPerWorker",
        "a MIG device (nvidia.com/mig-1g.10gb) serves one process: set gpusPerWorker to 1",
    ),
    ({"gpuResourceName": "nvidia.com/mig-1g.10gb", "gpusPerWorker": 0}, "spec.gpusPerWorker", "set gpusPerWorker to 1"),
    ({"monitoring": {"intervalSeconds": 0}}, "spec.monitoring.intervalSeconds", "greater than or equal to 1"),
    ({"monitoring": {"intervalSeconds": 3601}}, "spec.monitoring.intervalSeconds", "less than or equal to 3600"),
    ({"runPolicy": {"activeDeadlineSeconds": 0}}, "spec.runPolicy.activeDeadlineSeconds", "greater than or equal to 1"),
    (
        {"runPolicy": {"ttlSecondsAfterFinished": -1}},
        "spec.runPolicy.ttlSecondsAfterFinished",
        "greater than or equal to 0",
    ),
]
TRAINING: list[Case] = [
    (
        {"training": {"precision": "fp8"}},
        "spec.training.precision",
        'Unsupported value: "fp8": supported values: "Auto", "FP32", "FP16", "BF16"',
    ),
    ({"training": {"model": "vgg"}}, "spec.training.model", 'supported values: "smallcnn", "resnet18"'),
    (
        {"training": {"dataset": {"name": "imagenet"}}},
        "spec.training.dataset.name",
        'supported values: "digits", "mnist"',
    ),
    *(
        (
            {"training": {"dataset": {"name": name}}},
            "spec.training.dataset.path",
            f"{name} is read from files: set path to their folder inside the pod, for example /data/{name}",
        )
        for name in ("mnist", "cifar10", "imagefolder")
    ),
    (
        {"training": {"dataset": {"path": "/data/cifar10"}}},
        "spec.training.dataset.path",
        "digits reads no files; remove path, or set name to mnist, cifar10 or imagefolder",
    ),
    (
        {"training": {"dataset": {"name": "imagefolder", "path": "/d", "download": True}}},
        "spec.training.dataset.download",
        "imagefolder cannot be downloaded (only mnist and cifar10 can); remove download",
    ),
    (
        {"training": {"dataset": {"name": "mnist", "path": "data"}}},
        "spec.training.dataset.path",
        "must be an absolute path",
    ),
    ({"training": {"dataset": {"name": "mnist", "path": "/d/../e"}}}, "spec.training.dataset.path", 'without ".."'),
    ({"training": {"epochs": 0}}, "spec.training.epochs", "greater than or equal to 1"),
    ({"training": {"batchSize": 0}}, "spec.training.batchSize", "greater than or equal to 1"),
    (
        {"training": {"gradientAccumulationSteps": 0}},
        "spec.training.gradientAccumulationSteps",
        "greater than or equal to 1",
    ),
    ({"training": {"seed": -1}}, "spec.training.seed", "greater than or equal to 0"),
    ({"training": {"seed": 2**32}}, "spec.training.seed", "less than or equal to 4294967295"),
    ({"training": {"dataLoaderWorkers": 65}}, "spec.training.dataLoaderWorkers", "less than or equal to 64"),
    ({"training": {"outputPath": "out"}}, "spec.training.outputPath", "for example /output"),
    ({"training": {"outputPath": "/out/"}}, "spec.training.outputPath", 'a "/" at the end'),
    ({"training": {"learningRate": 0.1}}, "spec.training.learningRate", "must be of type string"),
    *(
        (
            {"training": {"learningRate": value}},
            "spec.training.learningRate",
            'must be a decimal in quotes, greater than 0 and at most 100, for example "0.001" or "1e-3"',
        )
        for value in ("0", "-1", "abc", "1e", ".5", "101", "1e99", "nan", "0,1", " 1")
    ),
    ({"training": {"weightDecay": "-0.1"}}, "spec.training.weightDecay", "must be a decimal in quotes from 0 to 100"),
]
ENVIRONMENT: list[Case] = [
    *(
        (_env(name=name, value="x"), "spec.env[1].name", f'"{name}": is set by the operator; remove it')
        for name in (
            *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
            *("ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_X"),
            *("TORCHELASTIC_RUN_ID", "GPUTRAINING_NAME"),
        )
    ),
    *(
        (
            _env(name=name, value="x"),
            "spec.env",
            f'"{name}" is set by spec.training.{field}: set that field, and remove',
        )
        for name, field in {
            "MODEL": "model",
            "DATASET_TYPE": "dataset.name",
            "DATASET_PATH": "dataset.path",
            "DATASET_DOWNLOAD": "dataset.download",
            "EPOCHS": "epochs",
            "BATCH_SIZE": "batchSize",
            "LEARNING_RATE": "learningRate",
            "WEIGHT_DECAY": "weightDecay",
            "MIXED_PRECISION": "precision",
            "GRADIENT_ACCUMULATION_STEPS": "gradientAccumulationSteps",
            "SEED": "seed",
            "DATA_LOADER_WORKERS": "dataLoaderWorkers",
            "OUTPUT_PATH": "outputPath",
        }.items()
    ),
    (_env(name="A=B", value="x"), "spec.env[1].name", 'must consist of letters, digits, "_", "-" and "."'),
    (_env(name="1A", value="x"), "spec.env[1].name", "not start with a digit"),
    (_env(name="FIRST", value="2"), "spec.env[1]", "Duplicate value"),
    (_env(name="A"), "spec.env[1]", "set exactly one of value and valueFrom"),
    (
        _env(name="A", value="x", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "spec.env[1]",
        "set exactly one of value and valueFrom",
    ),
    (
        _env(name="A", valueFrom={}),
        "spec.env[1].valueFrom",
        "set exactly one of secretKeyRef, configMapKeyRef and fieldRef",
    ),
    (
        _env(name="A", valueFrom={"fieldRef": {"fieldPath": "spec.x"}}),
        "spec.env[1].valueFrom.fieldRef.fieldPath",
        "match",
    ),
    (_env(name="A", valueFrom={"secretKeyRef": {"name": "s"}}), "spec.env[1].valueFrom.secretKeyRef.key", "Required"),
    ({"env": [{"name": f"A{i}", "value": ""} for i in range(257)]}, "spec.env", "must have at most 256 items"),
    (_env(name="A", value="x" * 32769), "spec.env[1].value", "may not be more than 32768 bytes"),
    ({"envFrom": [{"prefix": "A"}]}, "spec.envFrom[0]", "set exactly one of configMapRef and secretRef"),
    (
        {"envFrom": [{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]},
        "spec.envFrom[0]",
        "set exactly one of configMapRef and secretRef",
    ),
]
RESOURCES: list[Case] = [
    *(
        (
            _limits(**{name: 1}),
            "spec.resources.limits",
            f'"{name}" is a GPU: remove it and set spec.gpusPerWorker (and spec.gpuResourceName)',
        )
        for name in (
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.5gb",
            "amd.com/gpu",
            "gpu.intel.com/i915",
        )
    ),
    (
        {"gpuResourceName": "example.com/npu"} | _limits(**{"example.com/npu": 1}),
        "spec.resources.limits",
        '"example.com/npu" is requested by spec.gpusPerWorker; remove it here',
    ),
    (
        {"resources": {"requests": {"nvidia.com/gpu": 1}}},
        "spec.resources.requests",
        '"nvidia.com/gpu" does not belong here: requests takes cpu, memory and ephemeral-storage',
    ),
    (_limits(gpu=1), "spec.resources.limits", '"gpu" is no resource: use cpu, memory'),
    (_limits(cpu="-1"), "spec.resources.limits.cpu", "should match"),
    (_limits(memory="16GB"), "spec.resources.limits.memory", "should match"),
    (
        {"resources": {"requests": {"cpu": "2001m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "1Gi"}}},
        "spec.resources.requests",
        "cpu is more than limits allow: lower the request or raise the limit",
    ),
    (
        {"sharedMemory": {"sizeLimit": "2Gi"}} | _limits(memory="2047Mi"),
        "spec.resources.limits",
        "memory (2047Mi) is less than spec.sharedMemory.sizeLimit (2Gi), which counts against it: raise limits.memory",
    ),
    (_limits(memory=1000), "spec.resources.limits", "memory (1000) is less than spec.sharedMemory.sizeLimit (1Gi)"),
    ({"sharedMemory": {"sizeLimit": "0"}}, "spec.sharedMemory.sizeLimit", "must be more than 0, for example 1Gi"),
    ({"sharedMemory": {"sizeLimit": "lots"}}, "spec.sharedMemory.sizeLimit", "should match"),
]
VOLUMES: list[Case] = [
    (
        {"volumes": [{"name": "v", "mountPath": "/v"}]},
        "spec.volumes[0]",
        "set exactly one of persistentVolumeClaim, configMap",
    ),
    (
        _volume(secret="s"),
        "spec.volumes[0]",
        "set exactly one of persistentVolumeClaim, configMap, secret and emptyDir",
    ),
    ({"volumes": [{"name": "v", "emptyDir": {}}]}, "spec.volumes[0].mountPath", "Required value"),
    (_volume(name="V"), "spec.volumes[0].name", "must consist of lower-case letters"),
    (
        _volume(name="gputraining-shm"),
        "spec.volumes[0].name",
        'names that start with "gputraining-" are the operator\'s own; choose another',
    ),
    *(
        (_volume(mountPath=path), "spec.volumes[0].mountPath", "must be an absolute path")
        for path in ("data", "/", "/data/", "/a//b", "/a:b", "/a/..", "/../a", "/a/./b")
    ),
    *(
        (
            _volume(mountPath=path),
            "spec.volumes[0].mountPath",
            "/dev/shm is made by the operator; set spec.sharedMemory.sizeLimit",
        )
        for path in ("/dev/shm", "/dev/shm/x")
    ),
    (
        {"volumes": [{"name": name, "mountPath": "/data", "emptyDir": {}} for name in ("a", "b")]},
        "spec.volumes",
        "mountPath /data is used more than once; give each volume its own",
    ),
    (
        {"volumes": [{"name": "a", "mountPath": path, "emptyDir": {}} for path in ("/a", "/b")]},
        "spec.volumes[1]",
        "Duplicate value",
    ),
    (_volume(subPath="/x"), "spec.volumes[0].subPath", 'must be a relative path without ".."'),
    (_volume(subPath="x/../../y"), "spec.volumes[0].subPath", 'must be a relative path without ".."'),
    (_volume(emptyDir={"medium": "Disk"}), "spec.volumes[0].emptyDir.medium", 'supported values: "Memory"'),
    (
        {"volumes": [{"name": f"v{i}", "mountPath": f"/v{i}", "emptyDir": {}} for i in range(33)]},
        "spec.volumes",
        "must have at most 32 items",
    ),
]
SCHEDULING: list[Case] = [
    (_tolerations(value="x"), "spec.scheduling.tolerations[0].operator", "must be Exists when key is not set"),
    (
        _tolerations(key="k", operator="Exists", value="x"),
        "spec.scheduling.tolerations[0].value",
        "must not be set with operator Exists; remove it or use operator: Equal",
    ),
    (
        _tolerations(key="k", effect="NoSchedule", tolerationSeconds=1),
        "spec.scheduling.tolerations[0].effect",
        "must be NoExecute when tolerationSeconds is set",
    ),
    (_tolerations(key="k", effect="Never"), "spec.scheduling.tolerations[0].effect", "supported values"),
    (
        {"scheduling": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}},
        "spec.scheduling.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
        "Required value",
    ),
]


CASES = [*PROGRAM, *SIZES, *TRAINING, *ENVIRONMENT, *RESOURCES, *VOLUMES, *SCHEDULING]


def _label(value: Any) -> str:
    return str(value)[:60] if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    CASES,
    ids=_label,
)
def test_refused(dry_trainings: Trainings, spec: Json, field: str, text: str) -> None:
    if spec is NEITHER:
        spec = {}
    elif "training" not in spec and "command" not in spec:
        spec = {"training": {}} | spec
    causes = dry_trainings.refused(training(spec))
    matching = [cause for cause in causes if cause.field == field and text in cause.message]
    assert matching, "\n".join(f"{cause.field}: {cause.message}" for cause in causes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "x" * 51,
            "must have at most 50 characters: names of pods and services are made from it; choose a shorter one",
        ),
        ("1st", 'must be a DNS label: lower-case letters, digits and "-", first a letter'),
        ("a.b", "must be a DNS label"),
        ("Digits", "a lowercase RFC 1123 subdomain"),
    ],
)
def test_names(dry_trainings: Trainings, name: str, text: str) -> None:
    causes = dry_trainings.refused(training({"training": {}}, name))
    assert any(cause.field == "metadata.name" and text in cause.message for cause in causes), causes


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        ({"replicas": 2}, "spec.replicas"),
        ({"training": {"lr": "0.1"}}, "spec.training.lr"),
        ({"runPolicy": {"suspend": True}}, "spec.runPolicy.suspend"),
        (_volume(hostPath={"path": "/"}), "spec.volumes[0].hostPath"),
        ({"scheduling": {"hostNetwork": True}}, "spec.scheduling.hostNetwork"),
    ],
)
def test_unknown_fields(dry_trainings: Trainings, spec: Json, unknown: str) -> None:
    with pytest.raises(Refused, match="unknown field") as refused:
        dry_trainings.create(training({"training": {}} | spec))
    assert f'unknown field "{unknown}"' in refused.value.message


def test_all_errors_come_at_once(dry_trainings: Trainings) -> None:
    """As a user sees it: several mistakes of different kinds are one answer."""
    causes = dry_trainings.refused(
        training(
            {
                "training": {"dataset": {"name": "mnist"}},
                "command": ["python"],
                "env": [{"name": "WORLD_SIZE", "value": "2"}],
                "volumes": [{"name": "v", "mountPath": "data", "emptyDir": {}}],
            }
        )
    )
    assert {cause.field for cause in causes} == {
        "spec",
        "spec.training.dataset.path",
        "spec.env[0].name",
        "spec.volumes[0].mountPath",
    }


def _rules(schema: Json) -> list[Json]:
    """The CEL rules of a schema and of everything below it."""
    below = [*schema.get("properties", {}).values(), *(schema[key] for key in ("items",) if key in schema)]
    return [*schema.get("x-kubernetes-validations", []), *(rule for node in below for rule in _rules(node))]


def test_every_rule_has_a_case() -> None:
    spec = load_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    messages = {rule_in_words(rule | {"fieldPath": ""}) for rule in _rules(spec)}
    for message in messages:
        # What of the message does not depend on the object, and is long enough to be this rule's own.
        constant = [part[:20] for part in message.split("…") if len(part) >= 20] or [message]
        tested = any(text in message or any(part in text for part in constant) for _, _, text in CASES)
        assert tested or IMMUTABLE in message, message
