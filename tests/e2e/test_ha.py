"""Two replicas of the operator: the one that leads dies during a training, and the other goes on."""

from __future__ import annotations

from tests.contract.kube import Json, KubeApi
from tests.e2e import faults
from tests.e2e.world import OPERATOR_NAMESPACE, World

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/gputraining-operator"


def leader(kube: KubeApi) -> str:
    """Name of the pod that leads, empty when none does."""
    spec: Json = kube.request("GET", LEASE)["spec"]
    return str(spec.get("holderIdentity") or "")


def test_another_replica_takes_over_within_30_s(world: World, kube: KubeApi) -> None:
    assert len(faults.operator_pods(kube)) >= 2, "the chart's default is two replicas"
    world.train("steady", workers=2, gpusPerWorker=0, training={"epochs": 100, "batchSize": 32})
    world.wait("it makes progress", lambda: world.status("steady").get("progress", {}).get("step", 0) > 0)
    (job,) = world.jobs()
    workers = {pod["metadata"]["uid"] for pod in world.pods("steady")}

    former = leader(kube)
    (pod,) = [pod for pod in faults.operator_pods(kube) if pod["metadata"]["name"] == former]
    faults.delete_pod(kube, pod, grace_seconds=0)
    world.wait("another replica leads", lambda: leader(kube) not in ("", former), 30)
    step = world.status("steady").get("progress", {}).get("step", 0)
    world.wait("it tells of progress", lambda: world.status("steady").get("progress", {}).get("step", 0) > step, 30)

    assert {pod["metadata"]["uid"] for pod in world.pods("steady")} == workers, "the workers were left alone"
    world.wait_phase("steady", "Complete", seconds=300)
    assert [found["metadata"]["uid"] for found in world.jobs()] == [job["metadata"]["uid"]]
    reasons = [event["reason"] for event in world.events("steady") if event["type"] == "Normal"]
    assert reasons == ["AttemptStarted", "Running", "Complete"]
    world.wait("both replicas are well", lambda: faults.operator_is_well(kube), 120)
