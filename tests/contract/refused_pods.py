"""Specs that the API server refuses for how their pods would be: resources, volumes, names, checkpoints, placement."""

from __future__ import annotations

from typing import Any

from tests.contract.kube import Json
from tests.contract.refused_programs import Case, env


def volume(**fields: Any) -> Json:
    return {"volumes": [{"name": "v", "mountPath": "/v", "emptyDir": {}} | fields]}


def tolerations(**fields: Any) -> Json:
    return {"scheduling": {"tolerations": [fields]}}


def limits(**limits: Any) -> Json:
    return {"resources": {"limits": limits}}


RESOURCES: list[Case] = [
    *(
        (
            limits(**{name: 1}),
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
        {"gpuResourceName": "example.com/npu"} | limits(**{"example.com/npu": 1}),
        "spec.resources.limits",
        '"example.com/npu" is requested by spec.gpusPerWorker; remove it here',
    ),
    (
        {"resources": {"requests": {"nvidia.com/gpu": 1}}},
        "spec.resources.requests",
        '"nvidia.com/gpu" does not belong here: requests takes cpu, memory and ephemeral-storage',
    ),
    (limits(gpu=1), "spec.resources.limits", '"gpu" is no resource: use cpu, memory'),
    (limits(cpu="-1"), "spec.resources.limits.cpu", "should match"),
    (limits(memory="16GB"), "spec.resources.limits.memory", "should match"),
    (
        {"resources": {"requests": {"cpu": "2001m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "1Gi"}}},
        "spec.resources.requests",
        "cpu is more than limits allow: lower the request or raise the limit",
    ),
    (
        {"sharedMemory": {"sizeLimit": "2Gi"}} | limits(memory="2047Mi"),
        "spec.resources.limits",
        "memory (2047Mi) is less than spec.sharedMemory.sizeLimit (2Gi), which counts against it: raise limits.memory",
    ),
    (limits(memory=1000), "spec.resources.limits", "memory (1000) is less than spec.sharedMemory.sizeLimit (1Gi)"),
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
        volume(secret="s"),
        "spec.volumes[0]",
        "set exactly one of persistentVolumeClaim, configMap, secret and emptyDir",
    ),
    ({"volumes": [{"name": "v", "emptyDir": {}}]}, "spec.volumes[0].mountPath", "Required value"),
    (volume(name="V"), "spec.volumes[0].name", "must consist of lower-case letters"),
    (
        volume(name="gputraining-shm"),
        "spec.volumes[0].name",
        'names that start with "gputraining-" are the operator\'s own; choose another',
    ),
    *(
        (volume(mountPath=path), "spec.volumes[0].mountPath", "must be an absolute path")
        for path in ("data", "/", "/data/", "/a//b", "/a:b", "/a/..", "/../a", "/a/./b")
    ),
    *(
        (
            volume(mountPath=path),
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
    (volume(subPath="/x"), "spec.volumes[0].subPath", 'must be a relative path without ".."'),
    (volume(subPath="x/../../y"), "spec.volumes[0].subPath", 'must be a relative path without ".."'),
    (volume(emptyDir={"medium": "Disk"}), "spec.volumes[0].emptyDir.medium", 'supported values: "Memory"'),
    (
        {"volumes": [{"name": f"v{i}", "mountPath": f"/v{i}", "emptyDir": {}} for i in range(33)]},
        "spec.volumes",
        "must have at most 32 items",
    ),
]
NAMES: list[Case] = [
    *(
        (volume(**{source: "My_Claim"}), f"spec.volumes[0].{source}", "is not a name that Kubernetes allows")
        for source in ("persistentVolumeClaim", "configMap", "secret")
    ),
    ({"imagePullSecrets": [{"name": "a/b"}]}, "spec.imagePullSecrets[0].name", "is not a name that Kubernetes allows"),
    (
        env(name="A", valueFrom={"secretKeyRef": {"name": "Hub", "key": "k"}}),
        "spec.env[1].valueFrom.secretKeyRef.name",
        "is not a name that Kubernetes allows",
    ),
    (
        {"envFrom": [{"configMapRef": {"name": "-a"}}]},
        "spec.envFrom[0].configMapRef.name",
        "is not a name that Kubernetes allows",
    ),
    ({"scheduling": {"queueName": "Team_A"}}, "spec.scheduling.queueName", "is not a name that Kubernetes allows"),
    ({"scheduling": {"queueName": "q" * 64}}, "spec.scheduling.queueName", "may not be more than 63 bytes"),
]


def checkpoint(**fields: Any) -> Json:
    claim = {"name": "out", "mountPath": "/output", "persistentVolumeClaim": "out"}
    volumes = [claim, {"name": "tmp", "mountPath": "/tmp", "emptyDir": {}}]
    return {"volumes": volumes, "checkpoint": {"volume": "out"} | fields}


CHECKPOINT: list[Case] = [
    ({"checkpoint": {}}, "spec.checkpoint.volume", "Required value"),
    *(
        (spec, "spec.checkpoint.volume", '"x" is no entry of spec.volumes: add it there with a persistentVolumeClaim')
        for spec in ({"checkpoint": {"volume": "x"}}, checkpoint(volume="x"))
    ),
    (
        checkpoint(volume="tmp"),
        "spec.checkpoint.volume",
        '"tmp" does not outlive the workers: name a volume with a persistentVolumeClaim',
    ),
    (
        {
            "volumes": [{"name": "out", "mountPath": "/o", "persistentVolumeClaim": "out", "readOnly": True}],
            "checkpoint": {"volume": "out"},
        },
        "spec.checkpoint.volume",
        '"out" is mounted readOnly, and checkpoints are written there: remove readOnly, or name another volume',
    ),
    *(
        (
            checkpoint(path=path),
            "spec.checkpoint.path",
            'must be a relative path in the volume without "..", ":" or a "/" at the start or end',
        )
        for path in ("/a", "a/", "..", ".", "a/../b", "a/./b", "a//b", "a:b")
    ),
    (checkpoint(intervalSeconds=0), "spec.checkpoint.intervalSeconds", "greater than or equal to 1"),
    (checkpoint(intervalSeconds=86401), "spec.checkpoint.intervalSeconds", "less than or equal to 86400"),
    (checkpoint(intervalSteps=0), "spec.checkpoint.intervalSteps", "greater than or equal to 1"),
    (checkpoint(retain=1), "spec.checkpoint.retain", "greater than or equal to 2"),
    (checkpoint(retain=101), "spec.checkpoint.retain", "less than or equal to 100"),
    (checkpoint(resume="Always"), "spec.checkpoint.resume", 'supported values: "IfAvailable", "Never", "Required"'),
]
SCHEDULING: list[Case] = [
    (tolerations(value="x"), "spec.scheduling.tolerations[0].operator", "must be Exists when key is not set"),
    (
        tolerations(key="k", operator="Exists", value="x"),
        "spec.scheduling.tolerations[0].value",
        "must not be set with operator Exists; remove it or use operator: Equal",
    ),
    (
        tolerations(key="k", effect="NoSchedule", tolerationSeconds=1),
        "spec.scheduling.tolerations[0].effect",
        "must be NoExecute when tolerationSeconds is set",
    ),
    (tolerations(key="k", effect="Never"), "spec.scheduling.tolerations[0].effect", "supported values"),
    (
        {"scheduling": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}},
        "spec.scheduling.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
        "Required value",
    ),
]
