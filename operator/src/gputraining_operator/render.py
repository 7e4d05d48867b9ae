"""GpuTraining -> PyTorchJob. Pure and deterministic: the same input gives the same bytes (golden files in the tests).

Nothing else in the operator knows how a PyTorchJob looks, so that another backend can come beside it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from gputraining_operator.api import (
    API_VERSION,
    CONTAINER,
    JOB_API_VERSION,
    JOB_KIND,
    KIND,
    LABEL_ATTEMPT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGER,
    PROGRESS_PORT,
    RENDEZVOUS_PORT,
    Json,
)
from gputraining_operator.spec import BatchPlan, BuiltInTraining, GpuTraining, Spec

SHM_VOLUME: Final = "gputraining-shm"
USER_ID: Final = 1000
"""Uid and gid of the trainer: Pod Security ``restricted`` forbids root, and volumes want a known group."""

LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Kueue takes the workloads that carry it, and starts them when the queue has room."""

NODE_LOSS_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NODE_LOSS_SECONDS: Final = 30
"""How long pods stay on a node that does not answer. Kubernetes' default of 300 would hold the others up as long."""

TRAINER_COMMAND: Final = ("python3", "-m", "gputraining_trainer")


def job_name(training_name: str, attempt: int) -> str:
    """Name of the PyTorchJob of one attempt."""
    return f"{training_name}-{attempt}"


def render_job(training: GpuTraining, attempt: int, trainer_image: str, batch: BatchPlan | None = None) -> Json:
    """Render the PyTorchJob of one attempt.

    Args:
        training: what the user applied.
        attempt: number of the attempt, from 1.
        trainer_image: image for trainings that name none.
        batch: batch of the built-in trainer where an earlier attempt ran out of memory; None is the spec's.
    """
    spec = training.spec
    queue = spec.scheduling.queue_name
    labels = {LABEL_NAME: training.name, LABEL_ATTEMPT: str(attempt), LABEL_MANAGED_BY: MANAGER}
    template = {
        # A sidecar would outlive the trainer and keep the job from ending.
        "metadata": {"labels": labels, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": _pod_spec(training, attempt, trainer_image, batch),
    }
    replicas = {"Master": _replica(1, template)}
    if spec.workers > 1:
        replicas["Worker"] = _replica(spec.workers - 1, template)
    return {
        "apiVersion": JOB_API_VERSION,
        "kind": JOB_KIND,
        "metadata": {
            "name": job_name(training.name, attempt),
            "namespace": training.namespace,
            "labels": labels | ({LABEL_QUEUE: queue} if queue else {}),
            "ownerReferences": [_owner(training)],
        },
        "spec": {
            # A string, and never "auto", which counts the host's CPUs when there is no GPU.
            "nprocPerNode": str(processes_per_worker(spec)),
            # backoffLimit, activeDeadlineSeconds and TTL are the operator's: the training-operator's own do not hold.
            # Kueue lifts the suspension when it admits the job; nobody else touches it.
            "runPolicy": {"cleanPodPolicy": "Running"} | ({"suspend": True} if queue else {}),
            "pytorchReplicaSpecs": replicas,
        },
    }


def processes_per_worker(spec: Spec) -> int:
    """Number of training processes in each pod: one per GPU, one on CPU."""
    return max(1, spec.gpus_per_worker)


def _owner(training: GpuTraining) -> Json:
    # Without blockOwnerDeletion: it would need the right to update finalizers, and nothing here waits for children.
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": training.name,
        "uid": training.uid,
        "controller": True,
    }


def _replica(count: int, template: Json) -> Json:
    # Never: a master that restarts alone leaves the others hanging. Only a whole new attempt is a restart.
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def _pod_spec(training: GpuTraining, attempt: int, trainer_image: str, batch: BatchPlan | None) -> Json:
    spec = training.spec
    scheduling = spec.scheduling
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            # Walking through a data set of millions of files at each start would take minutes.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
        "containers": [_container(training, attempt, trainer_image, batch)],
        "volumes": [
            {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": spec.shared_memory_size_limit}},
            *({"name": volume.name, **volume.source} for volume in spec.volumes),
        ],
    }
    optional: Json = {
        "imagePullSecrets": list(spec.image_pull_secrets),
        "nodeSelector": scheduling.node_selector,
        "tolerations": [*scheduling.tolerations, *_node_loss_tolerations(scheduling.tolerations)],
        "affinity": scheduling.affinity or _default_affinity(training),
        "priorityClassName": scheduling.priority_class_name,
        "schedulerName": scheduling.scheduler_name,
    }
    return pod | {key: value for key, value in optional.items() if value}


def _node_loss_tolerations(given: Sequence[Json]) -> list[Json]:
    """Tolerations that let pods leave a dead node soon, for the taints that the user's own say nothing about."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOSS_SECONDS}
        for key in NODE_LOSS_TAINTS
        if not any(_tolerates_no_execute(toleration, key) for toleration in given)
    ]


def _tolerates_no_execute(toleration: Json, key: str) -> bool:
    # Without a key it is for all taints, without an effect for all effects.
    return bool(toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute")


def _default_affinity(training: GpuTraining) -> Json | None:
    """On CPU workers had better not share a node's cores; with GPUs, sharing a node means the faster link."""
    if training.spec.gpus_per_worker or training.spec.workers == 1:
        return None
    same_training = {"matchLabels": {LABEL_NAME: training.name}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": same_training}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _container(training: GpuTraining, attempt: int, trainer_image: str, batch: BatchPlan | None) -> Json:
    spec = training.spec
    container: Json = {
        "name": CONTAINER,
        "image": spec.image or trainer_image,
        "command": list(spec.command or TRAINER_COMMAND),
        "env": [*_environment(training, attempt, batch), *spec.env],
        "ports": [
            {"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT},
            {"name": "progress", "containerPort": PROGRESS_PORT},
        ],
        "resources": _resources(spec),
        "volumeMounts": [
            {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
            *(_mount(volume.name, volume.mount_path, volume.read_only, volume.sub_path) for volume in spec.volumes),
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # A script that writes no termination message still leaves its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    optional: Json = {
        "args": list(spec.args),
        "workingDir": spec.working_dir,
        "envFrom": list(spec.env_from),
        "imagePullPolicy": spec.image_pull_policy,
    }
    return container | {key: value for key, value in optional.items() if value}


def _mount(name: str, path: str, read_only: bool, sub_path: str | None) -> Json:
    mount: Json = {"name": name, "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    if sub_path:
        mount["subPath"] = sub_path
    return mount


def _resources(spec: Spec) -> Json:
    """Requests and limits as given, the GPUs added as a limit (Kubernetes makes the request equal)."""
    resources: Json = {kind: dict(amounts) for kind, amounts in spec.resources.items() if amounts}
    if spec.gpus_per_worker:
        resources.setdefault("limits", {})[spec.gpu_resource_name] = str(spec.gpus_per_worker)
    return resources


def _environment(training: GpuTraining, attempt: int, batch: BatchPlan | None) -> list[Json]:
    spec = training.spec
    values: dict[str, str] = {
        "GPUTRAINING_UID": training.uid,
        "GPUTRAINING_NAME": training.name,
        "GPUTRAINING_ATTEMPT": str(attempt),
        "GPUTRAINING_PROGRESS_PORT": str(PROGRESS_PORT),
        "GPUTRAINING_GRACE_SECONDS": str(spec.termination_grace_period_seconds),
    }
    if spec.training:
        values |= trainer_environment(spec.training, batch)
    values |= checkpoint_environment(training)
    return [{"name": name, "value": value} for name, value in values.items()]


def checkpoint_environment(training: GpuTraining) -> dict[str, str]:
    """Where and when to write checkpoints, for the built-in trainer and for own scripts; empty without checkpoints."""
    checkpoint = training.spec.checkpoint
    if checkpoint is None:
        return {}
    # Admission has made sure that the volume exists. Its subPath is already behind the mountPath.
    mount_path = next(volume.mount_path for volume in training.spec.volumes if volume.name == checkpoint.volume)
    values = {
        "CHECKPOINT_PATH": posixpath.join(mount_path, checkpoint.path or f"checkpoints/{training.name}"),
        "CHECKPOINT_INTERVAL_SECONDS": str(checkpoint.interval_seconds),
        "CHECKPOINT_RETAIN": str(checkpoint.retain),
        "CHECKPOINT_RESUME": checkpoint.resume,
    }
    if checkpoint.interval_steps is not None:
        values["CHECKPOINT_INTERVAL_STEPS"] = str(checkpoint.interval_steps)
    return values


def trainer_environment(training: BuiltInTraining, batch: BatchPlan | None = None) -> dict[str, str]:
    """The typed settings as the trainer's environment, which is its only configuration; ``batch`` overrides theirs."""
    batch = batch or BatchPlan(training.batch_size, training.gradient_accumulation_steps)
    values = {
        "MODEL": training.model,
        "DATASET_TYPE": training.dataset.name,
        "DATASET_DOWNLOAD": "true" if training.dataset.download else "false",
        "EPOCHS": str(training.epochs),
        "BATCH_SIZE": str(batch.batch_size),
        "LEARNING_RATE": training.learning_rate,
        "WEIGHT_DECAY": training.weight_decay,
        "MIXED_PRECISION": training.precision,
        "GRADIENT_ACCUMULATION_STEPS": str(batch.gradient_accumulation_steps),
        "SEED": str(training.seed),
        "DATA_LOADER_WORKERS": str(training.data_loader_workers),
        "OUTPUT_PATH": training.output_path,
    }
    if training.dataset.path:
        values["DATASET_PATH"] = training.dataset.path
    return values
