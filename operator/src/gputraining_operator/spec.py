"""The parsed custom resource: frozen dataclasses with the CRD's defaults.

The API server has validated the object against the CRD (types, ranges, CEL), so parsing only gives it names and
defaults. What Kubernetes itself defines (env, tolerations, affinity ...) is passed through as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from gputraining_operator.api import Json
from gputraining_operator.times import parse_time


@dataclass(frozen=True)
class Dataset:
    """Data of the built-in trainer."""

    name: str = "digits"
    path: str | None = None
    download: bool = False


@dataclass(frozen=True)
class BuiltInTraining:
    """Settings of the built-in trainer. Decimal numbers stay strings: the API has no floats."""

    model: str = "smallcnn"
    dataset: Dataset = Dataset()
    epochs: int = 10
    batch_size: int = 64
    learning_rate: str = "0.001"
    weight_decay: str = "0.01"
    precision: str = "Auto"
    gradient_accumulation_steps: int = 1
    seed: int = 0
    data_loader_workers: int = 0
    output_path: str = "/output"
    on_out_of_memory: str = "Fail"


@dataclass(frozen=True)
class BatchPlan:
    """The batch of one attempt, where it is not the spec's: smaller batches, more of them in a step."""

    batch_size: int
    gradient_accumulation_steps: int


@dataclass(frozen=True)
class Checkpoint:
    """Where and when the trainer writes checkpoints. ``path`` is inside the volume; None is the default path."""

    volume: str
    path: str | None = None
    interval_seconds: int = 300
    interval_steps: int | None = None
    retain: int = 2
    resume: str = "IfAvailable"


@dataclass(frozen=True)
class Volume:
    """A volume and where it is mounted; ``source`` is the pod's volume source, ready to render."""

    name: str
    mount_path: str
    source: Json
    read_only: bool = False
    sub_path: str | None = None

    @property
    def claim(self) -> str | None:
        """Name of the PersistentVolumeClaim, or None for another source."""
        claim: Json | None = self.source.get("persistentVolumeClaim")
        return claim["claimName"] if claim else None

    @property
    def is_lasting(self) -> bool:
        """Whether what is written there outlives the pod."""
        return self.claim is not None


@dataclass(frozen=True)
class Scheduling:
    """Where the pods may run."""

    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    affinity: Json | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    queue_name: str | None = None


@dataclass(frozen=True)
class RunPolicy:
    """Suspension, and limits by number and by the clock."""

    suspend: bool = False
    backoff_limit: int = 3
    active_deadline_seconds: int | None = None
    pending_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True)
class Monitoring:
    """How a training is watched."""

    interval_seconds: int = 10
    stalled_after_seconds: int = 600
    on_stall: str = "Report"
    idle_gpu_percent: int = 10
    idle_gpu_after_seconds: int = 300


@dataclass(frozen=True)
class Spec:
    """What the user asked for."""

    workers: int = 1
    gpus_per_worker: int = 1
    gpu_resource_name: str = "nvidia.com/gpu"
    image: str | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[Json, ...] = ()
    training: BuiltInTraining | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str | None = None
    env: tuple[Json, ...] = ()
    env_from: tuple[Json, ...] = ()
    resources: Json = field(default_factory=dict)
    shared_memory_size_limit: str = "1Gi"
    volumes: tuple[Volume, ...] = ()
    scheduling: Scheduling = Scheduling()
    run_policy: RunPolicy = RunPolicy()
    monitoring: Monitoring = Monitoring()
    checkpoint: Checkpoint | None = None
    termination_grace_period_seconds: int = 30


@dataclass(frozen=True)
class GpuTraining:
    """One GpuTraining: who it is, what it wants and the status last seen."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: int
    created: datetime
    deleting: bool
    spec: Spec
    status: Json


def parse_training(body: Json) -> GpuTraining:
    """Parse a GpuTraining as the API server gives it."""
    meta = body["metadata"]
    return GpuTraining(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 1),
        resource_version=int(meta.get("resourceVersion") or 0),
        created=parse_time(meta["creationTimestamp"]),
        deleting="deletionTimestamp" in meta,
        spec=parse_spec(body.get("spec") or {}),
        status=body.get("status") or {},
    )


def parse_spec(spec: Json) -> Spec:
    """Parse ``.spec``; absent fields get the CRD's defaults."""
    scheduling = spec.get("scheduling") or {}
    return Spec(
        workers=spec.get("workers", 1),
        gpus_per_worker=spec.get("gpusPerWorker", 1),
        gpu_resource_name=spec.get("gpuResourceName", "nvidia.com/gpu"),
        image=spec.get("image"),
        image_pull_policy=spec.get("imagePullPolicy"),
        image_pull_secrets=tuple(spec.get("imagePullSecrets") or ()),
        training=_training(spec["training"]) if "training" in spec else None,
        command=tuple(spec.get("command") or ()),
        args=tuple(spec.get("args") or ()),
        working_dir=spec.get("workingDir"),
        env=tuple(spec.get("env") or ()),
        env_from=tuple(spec.get("envFrom") or ()),
        resources=spec.get("resources") or {},
        shared_memory_size_limit=str((spec.get("sharedMemory") or {}).get("sizeLimit", "1Gi")),
        volumes=tuple(_volume(v) for v in spec.get("volumes") or ()),
        scheduling=Scheduling(
            node_selector=scheduling.get("nodeSelector") or {},
            tolerations=tuple(scheduling.get("tolerations") or ()),
            affinity=scheduling.get("affinity"),
            priority_class_name=scheduling.get("priorityClassName"),
            scheduler_name=scheduling.get("schedulerName"),
            queue_name=scheduling.get("queueName"),
        ),
        run_policy=RunPolicy(**_known(RunPolicy, spec.get("runPolicy") or {})),
        monitoring=Monitoring(**_known(Monitoring, spec.get("monitoring") or {})),
        checkpoint=Checkpoint(**_known(Checkpoint, spec["checkpoint"])) if spec.get("checkpoint") else None,
        termination_grace_period_seconds=spec.get("terminationGracePeriodSeconds", 30),
    )


def _training(training: Json) -> BuiltInTraining:
    # A newer CRD may know more than this operator, after a rollback for example: that is no reason to fail.
    dataset = _known(Dataset, training.get("dataset") or {})
    values = _known(BuiltInTraining, {key: value for key, value in training.items() if key != "dataset"})
    return BuiltInTraining(dataset=Dataset(**dataset), **values)


def _volume(volume: Json) -> Volume:
    name = volume["name"]
    source: Json
    if "persistentVolumeClaim" in volume:
        source = {"persistentVolumeClaim": {"claimName": volume["persistentVolumeClaim"]}}
    elif "configMap" in volume:
        source = {"configMap": {"name": volume["configMap"]}}
    elif "secret" in volume:
        source = {"secret": {"secretName": volume["secret"]}}
    else:
        source = {"emptyDir": volume.get("emptyDir") or {}}
    return Volume(
        name=name,
        mount_path=volume["mountPath"],
        source=source,
        read_only=volume.get("readOnly", False),
        sub_path=volume.get("subPath"),
    )


def _known(kind: type[Any], values: Json) -> Json:
    names = {field.name for field in fields(kind)}
    return {name: value for key, value in values.items() if (name := _snake(key)) in names}


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
