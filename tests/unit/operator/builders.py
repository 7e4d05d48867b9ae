"""Objects as the API server gives them, for tests: small functions that build what a test needs and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gputraining_operator.api import LABEL_ATTEMPT, LABEL_MANAGED_BY, LABEL_NAME, MANAGER, Json
from gputraining_operator.observed import Disruption, JobView, PodView, parse_job, parse_pod
from gputraining_operator.spec import GpuTraining, parse_training
from gputraining_operator.times import format_time

START = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
TRAINER_IMAGE = "ghcr.io/gputraining/trainer:0.1.0"


def at(seconds: float) -> datetime:
    """A moment so many seconds after START."""
    return START + timedelta(seconds=seconds)


def training_body(spec: Json | None = None, status: Json | None = None, **meta: Any) -> Json:
    body: Json = {
        "apiVersion": "gputraining.dev/v1alpha1",
        "kind": "GpuTraining",
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "uid": "uid-training",
            "generation": 1,
            "resourceVersion": "10",
            "creationTimestamp": format_time(START),
        }
        | meta,
        "spec": {"training": {}} if spec is None else spec,
    }
    return body if status is None else body | {"status": status}


def training(spec: Json | None = None, status: Json | None = None, **meta: Any) -> GpuTraining:
    return parse_training(training_body(spec, status, **meta))


def job_body(
    *true_conditions: str, ended: datetime | None = None, attempt: int = 1, suspended: bool = False, **meta: Any
) -> Json:
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": format_time(ended or at(60)), "message": f"job {kind}"}
        for kind in true_conditions
    ]
    return {
        "metadata": {
            "name": f"digits-{attempt}",
            "namespace": "team-a",
            "uid": "uid-job" if attempt == 1 else f"uid-job-{attempt}",
            "resourceVersion": "11",
            "creationTimestamp": format_time(START),
            "labels": {LABEL_NAME: "digits", LABEL_ATTEMPT: str(attempt), LABEL_MANAGED_BY: MANAGER},
            "ownerReferences": [{"uid": "uid-training", "controller": True}],
        }
        | meta,
        "spec": {"runPolicy": {"suspend": suspended}},
        "status": {"conditions": conditions},
    }


def job(*true_conditions: str, ended: datetime | None = None, attempt: int = 1, **meta: Any) -> JobView:
    return parse_job(job_body(*true_conditions, ended=ended, attempt=attempt, **meta))


def pod_body(rank: int = 0, *, phase: str = "Pending", node: str | None = None, status: Json | None = None) -> Json:
    replica = ("master", 0) if rank == 0 else ("worker", rank - 1)
    return {
        "metadata": {
            "name": f"digits-1-{replica[0]}-{replica[1]}",
            "namespace": "team-a",
            "uid": f"uid-pod-{rank}",
            "resourceVersion": "12",
            "creationTimestamp": format_time(START),
            "labels": {
                LABEL_NAME: "digits",
                LABEL_MANAGED_BY: MANAGER,
                "training.kubeflow.org/replica-type": replica[0],
                "training.kubeflow.org/replica-index": str(replica[1]),
            },
            "ownerReferences": [{"uid": "uid-job", "controller": True}],
        },
        "spec": {"containers": [{"name": "pytorch", "image": TRAINER_IMAGE}]} | ({"nodeName": node} if node else {}),
        "status": {"phase": phase} | (status or {}),
    }


def unschedulable_pod(rank: int, message: str) -> PodView:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return parse_pod(pod_body(rank, status={"conditions": [condition]}))


def starting_pod(rank: int, node: str = "node-a") -> PodView:
    waiting = {"name": "pytorch", "state": {"waiting": {"reason": "ContainerCreating"}}}
    return parse_pod(pod_body(rank, node=node, status={"containerStatuses": [waiting]}))


def stuck_pod(rank: int, reason: str, message: str, node: str = "node-a") -> PodView:
    waiting = {"name": "pytorch", "state": {"waiting": {"reason": reason, "message": message}}}
    return parse_pod(pod_body(rank, node=node, status={"containerStatuses": [waiting]}))


def running_pod(rank: int, node: str = "node-a") -> PodView:
    running = {"name": "pytorch", "state": {"running": {"startedAt": format_time(at(5))}}}
    status = {"containerStatuses": [running], "podIP": f"10.0.0.{rank + 1}"}
    return parse_pod(pod_body(rank, phase="Running", node=node, status=status))


def deleting_pod(pod: PodView, until: float = 90, disruption: str | None = None) -> PodView:
    """The pod while it is being deleted: its grace ends ``until`` seconds after START."""
    cause = Disruption(disruption, "") if disruption else None
    return replace(pod, deleting=True, deletion_time=at(until), disruption=cause)


def gone_pod(pod: PodView) -> PodView:
    """The pod as it was seen last, now deleted."""
    return replace(pod, deleting=True, gone=True)


def ended_pod(rank: int, exit_code: int = 0, message: str = "", reason: str = "", ended: float = 60) -> PodView:
    terminated = {"exitCode": exit_code, "message": message, "reason": reason, "finishedAt": format_time(at(ended))}
    status = {"containerStatuses": [{"name": "pytorch", "state": {"terminated": terminated}}]}
    return parse_pod(pod_body(rank, phase="Failed" if exit_code else "Succeeded", node="node-a", status=status))
