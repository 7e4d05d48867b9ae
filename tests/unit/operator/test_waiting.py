"""Why a training waits, in plain words."""

from __future__ import annotations

from typing import Any

from gputraining_operator.api import Reason
from gputraining_operator.capacity import parse_capacity
from gputraining_operator.observed import PodView, parse_pod
from gputraining_operator.spec import parse_spec
from gputraining_operator.waiting import Waiting, explain_waiting, image_is_missing
from tests.unit.operator.builders import at, job, pod_body, running_pod, starting_pod, stuck_pod, unschedulable_pod

SPEC = parse_spec({"workers": 2, "training": {}})
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def explain(*pods: PodView, suspended: bool = False, **facts: Any) -> Waiting:
    return explain_waiting(
        facts.get("spec", SPEC),
        job(suspended=suspended),
        pods,
        facts.get("capacity"),
        facts.get("job_warning"),
        facts.get("pod_warning"),
        facts.get("now", at(80)),
    )


def test_image_that_cannot_be_pulled() -> None:
    waiting = explain(stuck_pod(0, "ImagePullBackOff", 'Back-off pulling image "x:1": not found'), starting_pod(1))
    assert waiting == Waiting(
        Reason.IMAGE_PULL_FAILED,
        "cannot pull the image ghcr.io/gputraining/trainer:0.1.0 on node node-a (for 1m20s): "
        'Back-off pulling image "x:1": not found; check the name, the tag and imagePullSecrets',
    )


def test_image_of_the_init_container_counts_too() -> None:
    init = {"name": "init-pytorch", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}
    main = {"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}
    body = pod_body(1, node="node-b", status={"initContainerStatuses": [init], "containerStatuses": [main]})
    assert explain(starting_pod(0), parse_pod(body)).reason == Reason.IMAGE_PULL_FAILED


def test_missing_secret() -> None:
    waiting = explain(starting_pod(0), stuck_pod(1, "CreateContainerConfigError", 'secret "wandb" not found'))
    assert waiting.message == 'worker 1 cannot start on node node-a: secret "wandb" not found'


def test_gpu_shortage_with_and_without_a_look_at_the_nodes() -> None:
    pods = (unschedulable_pod(0, NO_GPU), unschedulable_pod(1, NO_GPU))
    assert explain(*pods) == Waiting(
        Reason.INSUFFICIENT_GPUS, "workers 0, 1 cannot be placed: 3 nodes with too little nvidia.com/gpu"
    )
    assert "no node of this cluster offers it" in explain(*pods, capacity=parse_capacity([], [])).message


def test_a_first_no_of_the_scheduler_is_no_alarm() -> None:
    waiting = explain(unschedulable_pod(0, NO_GPU), starting_pod(1), now=at(4))
    assert waiting == Waiting(Reason.SCHEDULING, "worker 0 cannot be placed: 3 nodes with too little nvidia.com/gpu")


def test_other_reasons_of_the_scheduler() -> None:
    waiting = explain(starting_pod(0), unschedulable_pod(1, "0/3 nodes are available: 3 Insufficient memory."))
    assert waiting == Waiting(Reason.UNSCHEDULABLE, "worker 1 cannot be placed: 3 nodes with too little memory")


def test_missing_pods() -> None:
    assert explain().message == "waiting for the training-operator to create 2 of 2 pods"
    refused = explain(starting_pod(0), job_warning="pods is forbidden: violates PodSecurity\nmore")
    assert refused == Waiting(
        Reason.POD_CREATION_FAILED, "pods cannot be created: pods is forbidden: violates PodSecurity"
    )


def test_starting_containers_and_waiting_for_the_master() -> None:
    assert explain(starting_pod(0), starting_pod(1, "node-b")).message == (
        "workers 0, 1 starting on node-a, node-b: pulling the image, mounting volumes (1m20s)"
    )
    init = {"name": "init-pytorch", "state": {"running": {}}}
    worker = parse_pod(pod_body(1, node="node-b", status={"initContainerStatuses": [init]}))
    master = pod_body(0, phase="Running", node="node-a")
    master["status"]["containerStatuses"] = [
        {"name": "pytorch", "state": {"running": {"startedAt": "2026-11-21T10:00:00Z"}}}
    ]
    waiting = explain(parse_pod(master), worker)
    assert waiting == Waiting(Reason.WAITING_FOR_MASTER, "worker 1 waiting for the address of worker 0 (1m20s)")


def test_a_volume_that_cannot_be_mounted() -> None:
    warning = 'MountVolume.SetUp failed for volume "settings": configmap "tokenizer" not found'
    waiting = explain(running_pod(0), starting_pod(1), pod_warning=warning)
    assert waiting == Waiting(Reason.VOLUME_FAILED, f"worker 1 cannot start on node node-a: {warning}")
    assert explain(running_pod(0), starting_pod(1), pod_warning=warning, now=at(9)).reason == Reason.STARTING_CONTAINERS


def test_suspended_by_a_queue() -> None:
    assert explain(suspended=True) == Waiting(Reason.QUEUED, "the PyTorchJob is suspended by somebody")
    queued = parse_spec({"training": {}, "scheduling": {"queueName": "team-a"}})
    assert explain(suspended=True, spec=queued).message == "waiting for Kueue to admit it in queue team-a"


def test_an_image_is_missing_only_when_the_registry_says_so_for_some_time() -> None:
    gone = stuck_pod(0, "ImagePullBackOff", "Back-off pulling image: x:1: not found")
    assert image_is_missing([gone], at(119)) is None
    assert "cannot pull the image" in (image_is_missing([gone], at(120)) or "")
    assert image_is_missing([stuck_pod(0, "ErrImagePull", "i/o timeout")], at(9000)) is None
    assert image_is_missing([stuck_pod(0, "InvalidImageName", "x y")], at(1)) is not None
