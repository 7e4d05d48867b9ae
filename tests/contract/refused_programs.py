"""Specs that the API server refuses for what they train: program, sizes, settings and environment."""

from __future__ import annotations

from typing import Any

from tests.contract.kube import Json

Case = tuple[Json, str, str]
"""(spec, field that the error names, part of its text); the spec gets `training: {}` unless it has training or command,
or is NEITHER."""

NEITHER: Json = {"training": None}


def env(**fields: Any) -> Json:
    return {"env": [{"name": "FIRST", "value": "1"}, fields]}


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
    *(
        ({section: {field: value}}, f"spec.{section}.{field}", text)
        for section, field, value, text in (
            ("runPolicy", "backoffLimit", -1, "greater than or equal to 0"),
            ("runPolicy", "backoffLimit", 1001, "less than or equal to 1000"),
            ("runPolicy", "pendingDeadlineSeconds", 0, "greater than or equal to 1"),
            ("runPolicy", "suspend", "yes", "must be of type boolean"),
            ("monitoring", "stalledAfterSeconds", 9, "greater than or equal to 10"),
            ("monitoring", "onStall", "Kill", 'supported values: "Report", "Restart"'),
            ("monitoring", "idleGpuPercent", 101, "less than or equal to 100"),
            ("monitoring", "idleGpuAfterSeconds", 9, "greater than or equal to 10"),
        )
    ),
    ({"terminationGracePeriodSeconds": 0}, "spec.terminationGracePeriodSeconds", "greater than or equal to 1"),
    ({"terminationGracePeriodSeconds": 3601}, "spec.terminationGracePeriodSeconds", "less than or equal to 3600"),
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
    (
        {"training": {"onOutOfMemory": "Retry"}},
        "spec.training.onOutOfMemory",
        'supported values: "Fail", "ReduceBatchSize"',
    ),
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
        (env(name=name, value="x"), "spec.env[1].name", f'"{name}": is set by the operator; remove it')
        for name in (
            *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
            *("ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_X"),
            *("TORCHELASTIC_RUN_ID", "GPUTRAINING_NAME", "GPUTRAINING_UID", "GPUTRAINING_GRACE_SECONDS"),
        )
    ),
    *(
        (
            env(name=name, value="x"),
            "spec.env[1].name",
            f"is set by spec.checkpoint: set {field} there, and remove the variable",
        )
        for name, field in {
            "CHECKPOINT_PATH": "volume and path",
            "CHECKPOINT_INTERVAL_SECONDS": "intervalSeconds",
            "CHECKPOINT_INTERVAL_STEPS": "intervalSteps",
            "CHECKPOINT_RETAIN": "retain",
            "CHECKPOINT_RESUME": "resume",
        }.items()
    ),
    *(
        (
            env(name=name, value="x"),
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
    (env(name="A=B", value="x"), "spec.env[1].name", 'must consist of letters, digits, "_", "-" and "."'),
    (env(name="1A", value="x"), "spec.env[1].name", "not start with a digit"),
    (env(name="FIRST", value="2"), "spec.env[1]", "Duplicate value"),
    (env(name="A"), "spec.env[1]", "set exactly one of value and valueFrom"),
    (
        env(name="A", value="x", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "spec.env[1]",
        "set exactly one of value and valueFrom",
    ),
    (
        env(name="A", valueFrom={}),
        "spec.env[1].valueFrom",
        "set exactly one of secretKeyRef, configMapKeyRef and fieldRef",
    ),
    (
        env(name="A", valueFrom={"fieldRef": {"fieldPath": "spec.x"}}),
        "spec.env[1].valueFrom.fieldRef.fieldPath",
        "match",
    ),
    (env(name="A", valueFrom={"secretKeyRef": {"name": "s"}}), "spec.env[1].valueFrom.secretKeyRef.key", "Required"),
    ({"env": [{"name": f"A{i}", "value": ""} for i in range(257)]}, "spec.env", "must have at most 256 items"),
    (env(name="A", value="x" * 32769), "spec.env[1].value", "may not be more than 32768 bytes"),
    ({"envFrom": [{"prefix": "A"}]}, "spec.envFrom[0]", "set exactly one of configMapRef and secretRef"),
    (
        {"envFrom": [{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]},
        "spec.envFrom[0]",
        "set exactly one of configMapRef and secretRef",
    ),
]
