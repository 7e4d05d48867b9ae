"""What goes away and comes back: our operator, the training-operator, the API server."""

from __future__ import annotations

import subprocess
from functools import partial

from tests.contract.kube import KubeApi
from tests.e2e import faults
from tests.e2e.world import World, conditions

KILLS = 10


def is_replaced(kube: KubeApi, uids: set[str]) -> bool:
    """Whether other pods than these are the operator, and all ready."""
    return faults.operator_is_well(kube) and uids.isdisjoint(uids_of(kube))


def uids_of(kube: KubeApi) -> set[str]:
    """Uids of the operator's pods."""
    return {pod["metadata"]["uid"] for pod in faults.operator_pods(kube)}


def restarts(kube: KubeApi) -> list[tuple[str, int]]:
    """How often the containers of the operator's pods have started again."""
    pods = faults.operator_pods(kube)
    return sorted(
        (pod["metadata"]["uid"], s["restartCount"]) for pod in pods for s in pod["status"]["containerStatuses"]
    )


def test_the_operator_may_die_ten_times_in_one_training(world: World) -> None:
    world.train("steady", workers=2, gpusPerWorker=0, training={"epochs": 100, "batchSize": 32})
    world.wait("it makes progress", lambda: world.status("steady").get("progress", {}).get("step", 0) > 0)
    before = {pod["metadata"]["uid"] for pod in world.pods("steady")}
    (job,) = world.jobs()
    for _ in range(KILLS):
        uids = uids_of(world.kube)
        faults.kill_operator(world.kube)
        world.wait("another operator is ready", partial(is_replaced, world.kube, uids))
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
    with faults.operator_away(kube):
        world.wait("the pod ended", lambda: world.pods("quick")[0]["status"]["phase"] == "Succeeded")
        assert world.status("quick")["phase"] == "Running"
    world.wait_phase("quick", "Complete")


@faults.needs_kind
def test_the_api_server_may_go_away(world: World, kube: KubeApi) -> None:
    world.train("onwards", workers=1, gpusPerWorker=0, training={"epochs": 40, "batchSize": 32})
    world.wait("it makes progress", lambda: world.status("onwards").get("progress", {}).get("step", 0) > 0)
    before = restarts(kube)
    faults.pause(faults.CONTROL_PLANE)
    try:
        # Long enough for every request in flight to time out (5 s to connect) and for several retries.
        subprocess.run(["docker", "wait", faults.CONTROL_PLANE], timeout=15, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        pass
    finally:
        faults.unpause(faults.CONTROL_PLANE)
    world.wait_phase("onwards", "Complete", seconds=300)
    assert restarts(kube) == before, "no restart needed"


def test_the_training_operator_may_come_later(world: World) -> None:
    faults.training_operator("uninstall")
    try:
        world.script("patient", "pass")
        message = world.wait_message("patient", "training-operator is not installed")
        assert "the kind PyTorchJob is unknown" in message
        assert conditions(world.status("patient"))["Accepted"] == ("False", "TrainingOperatorMissing")
    finally:
        faults.training_operator("install")
    status = world.wait_phase("patient", "Complete")
    assert conditions(status)["Accepted"] == ("True", "Rendered")
