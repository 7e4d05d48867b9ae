"""What goes away and comes back: our operator, the training-operator, the API server."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from tests.contract.kube import Json, KubeApi
from tests.e2e.world import OPERATOR_NAMESPACE, World, conditions

KILLS = 10


def operator_pods(kube: KubeApi) -> list[Json]:
    query = {"labelSelector": "app.kubernetes.io/name=gputraining"}
    pods: list[Json] = kube.request("GET", f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods", query=query)["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def training_operator(command: str) -> None:
    subprocess.run([sys.executable, "-m", "hack", "training-operator", command], check=True, capture_output=True)


def is_replaced(kube: KubeApi, uid: str) -> bool:
    """Whether another pod than the one of this uid is the operator, and ready."""
    pods = operator_pods(kube)
    ready = [c["status"] for pod in pods for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
    return ready == ["True"] and all(pod["metadata"]["uid"] != uid for pod in pods)


def test_the_operator_may_die_ten_times_in_one_training(world: World) -> None:
    world.train("steady", workers=2, gpusPerWorker=0, training={"epochs": 100, "batchSize": 32})
    world.wait("it makes progress", lambda: world.status("steady").get("progress", {}).get("step", 0) > 0)
    before = {pod["metadata"]["uid"] for pod in world.pods("steady")}
    (job,) = world.jobs()
    for _ in range(KILLS):
        (pod,) = operator_pods(world.kube)
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod['metadata']['name']}"
        world.kube.request("DELETE", path, query={"gracePeriodSeconds": "0"})
        world.wait("another operator is ready", partial(is_replaced, world.kube, pod["metadata"]["uid"]))
    assert {pod["metadata"]["uid"] for pod in world.pods("steady")} == before, "the pods were left alone"
    status = world.wait_phase("steady", "Complete", seconds=300)
    assert [found["metadata"]["uid"] for found in world.jobs()] == [job["metadata"]["uid"]]
    assert status["progress"]["percent"] == 100
    assert [event["reason"] for event in world.events("steady") if event["type"] == "Normal"] == [
        "AttemptStarted",
        "Running",
        "Complete",
    ]


def test_it_ended_while_the_operator_was_away(world: World, kube: KubeApi) -> None:
    world.script("quick", "import time; time.sleep(8)")
    world.wait_phase("quick", "Running")
    deployment = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/gputraining-operator"
    scale = "application/merge-patch+json"
    kube.request("PATCH", deployment, {"spec": {"replicas": 0}}, content_type=scale)
    try:
        world.wait("the operator is away", lambda: not operator_pods(kube))
        world.wait("the pod ended", lambda: world.pods("quick")[0]["status"]["phase"] == "Succeeded")
        assert world.status("quick")["phase"] == "Running"
    finally:
        kube.request("PATCH", deployment, {"spec": {"replicas": 1}}, content_type=scale)
    world.wait_phase("quick", "Complete")


@pytest.mark.skipif("bool(__import__('os').environ.get('E2E_USE_EXISTING_CLUSTER'))", reason="pauses a node of kind")
def test_the_api_server_may_go_away(world: World, kube: KubeApi) -> None:
    world.train("onwards", workers=1, gpusPerWorker=0, training={"epochs": 40, "batchSize": 32})
    world.wait("it makes progress", lambda: world.status("onwards").get("progress", {}).get("step", 0) > 0)
    (before,) = operator_pods(kube)
    node = "gputraining-demo-control-plane"
    subprocess.run(["docker", "pause", node], check=True, capture_output=True)
    try:
        # Long enough for every request in flight to time out (5 s to connect) and for several retries.
        subprocess.run(["docker", "wait", node], timeout=15, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        pass
    finally:
        subprocess.run(["docker", "unpause", node], check=True, capture_output=True)
    world.wait_phase("onwards", "Complete", seconds=300)
    (after,) = operator_pods(kube)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    restarts = [status["restartCount"] for status in after["status"]["containerStatuses"]]
    assert restarts == [status["restartCount"] for status in before["status"]["containerStatuses"]], "no restart needed"


def test_the_training_operator_may_come_later(world: World) -> None:
    training_operator("uninstall")
    try:
        world.script("patient", "pass")
        message = world.wait_message("patient", "training-operator is not installed")
        assert "the kind PyTorchJob is unknown" in message
        assert conditions(world.status("patient"))["Accepted"] == ("False", "TrainingOperatorMissing")
    finally:
        training_operator("install")
    status = world.wait_phase("patient", "Complete")
    assert conditions(status)["Accepted"] == ("True", "Rendered")
