"""The operator's own client against a real API server: what its callers rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from gputraining_operator import cluster as cluster_module
from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import render_event
from gputraining_operator.events import EventToPost
from gputraining_operator.lease import Election, Terms
from gputraining_operator.render import render_job
from gputraining_operator.spec import GpuTraining, parse_training
from tests.contract.kube import NOBODY, KubeApi, Trainings, is_gone, training
from tests.unit.operator.builders import at

SPEC: Json = {"command": ["true"], "gpusPerWorker": 0, "scheduling": {"schedulerName": NOBODY}}


@pytest.fixture
async def requests() -> list[tuple[str, str, int]]:
    """What the client told its observer."""
    return []


@pytest.fixture
async def cluster(kube: KubeApi, requests: list[tuple[str, str, int]]) -> AsyncIterator[Cluster]:
    """The operator's client, with the credentials of the kubeconfig."""
    configuration = Configuration()
    await config.load_kube_config(context=kube.context, client_configuration=configuration)
    client = Cluster(ApiClient(configuration=configuration), (), lambda *seen: requests.append(seen))
    yield client
    await client.close()


@pytest.fixture
def stored(trainings: Trainings) -> GpuTraining:
    """A GpuTraining that exists; its pods are scheduled by nobody."""
    return parse_training(trainings.create(training(SPEC), store=True))


async def refusal(call: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


def status(**more: Any) -> Json:
    workers = {"desired": 1, "ready": 0, "failed": 0}
    return {"phase": "Pending", "workers": workers, "message": "from a test"} | more


async def test_a_status_is_replaced_as_a_whole(cluster: Cluster, stored: GpuTraining) -> None:
    assert (await write(cluster, stored, status(attempt=1)))["status"] == status(attempt=1)
    assert (await write(cluster, stored, status()))["status"] == status(), "what is not said any more goes away"


async def test_a_status_decided_on_an_older_state_is_refused(cluster: Cluster, stored: GpuTraining) -> None:
    before = await newest(cluster, stored)
    await write(cluster, stored, status())
    error = await refusal(cluster.apply_status(stored.namespace, stored.name, before, status(attempt=2)))
    assert (error.status, error.reason) == (409, "Conflict")


async def test_a_status_of_a_training_that_is_gone_is_refused(cluster: Cluster, stored: GpuTraining) -> None:
    await cluster.delete_training(stored.namespace, stored.name, stored.uid)
    error = await refusal(cluster.apply_status(stored.namespace, stored.name, stored.resource_version, status()))
    assert error.status == 404


async def newest(cluster: Cluster, stored: GpuTraining) -> int:
    listed, _ = await cluster.list_trainings()
    return next(version_of(body) for body in listed if body["metadata"]["uid"] == stored.uid)


async def write(cluster: Cluster, stored: GpuTraining, wanted: Json) -> Json:
    """Writes a status as the controller does: an operator in the cluster may write in between, then it is our turn."""
    while True:
        try:
            return await cluster.apply_status(stored.namespace, stored.name, await newest(cluster, stored), wanted)
        except ApiError as error:
            if error.status != 409:
                raise


def version_of(body: Json) -> int:
    return int(body["metadata"]["resourceVersion"])


async def test_a_job_is_created_once(cluster: Cluster, stored: GpuTraining, kube: KubeApi) -> None:
    job = render_job(stored, 7, "localhost/none:1")
    created = await cluster.create_job(job)
    assert (await refusal(cluster.create_job(job))).reason == "AlreadyExists"
    again = await cluster.get_job(stored.namespace, f"{stored.name}-7")
    assert again["metadata"]["uid"] == created["metadata"]["uid"]
    listed, version = await cluster.list_jobs()
    assert created["metadata"]["uid"] in {item["metadata"]["uid"] for item in listed}
    assert version > 0

    await cluster.delete_job(stored.namespace, f"{stored.name}-7", "another-uid", foreground=True)
    assert (await cluster.get_job(stored.namespace, f"{stored.name}-7"))["metadata"].get("deletionTimestamp") is None
    await cluster.delete_job(stored.namespace, f"{stored.name}-7", created["metadata"]["uid"], foreground=True)
    path = f"/apis/kubeflow.org/v1/namespaces/{stored.namespace}/pytorchjobs/{stored.name}-7"
    kube.wait("the job is gone", lambda: is_gone(kube, path))
    await cluster.delete_job(stored.namespace, f"{stored.name}-7", created["metadata"]["uid"], foreground=True)


async def test_an_invalid_job_is_refused_with_a_status_that_means_for_good(
    cluster: Cluster, stored: GpuTraining
) -> None:
    job = render_job(stored, 1, "localhost/none:1")
    job["metadata"]["name"] = f"{stored.name}-8"
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "x"
    assert (await refusal(cluster.create_job(job))).status in (400, 422)


async def test_the_same_event_is_posted_once(cluster: Cluster, stored: GpuTraining, kube: KubeApi) -> None:
    event = render_event(stored, EventToPost("Normal", "Tested", "by a contract test"), 1, at(0))
    await cluster.create_event(stored.namespace, event)
    await cluster.create_event(stored.namespace, event)
    query = {"fieldSelector": "reason=Tested"}
    items = kube.request("GET", f"/api/v1/namespaces/{stored.namespace}/events", query=query)["items"]
    assert [item["message"] for item in items] == ["by a contract test"]


async def test_long_listings_come_whole(
    cluster: Cluster, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        trainings.create(training(SPEC, f"t{i}"), store=True)
    monkeypatch.setattr(cluster_module, "_PAGE", 2)
    listed, version = await cluster.list_trainings()
    names = {item["metadata"]["name"] for item in listed if item["metadata"]["namespace"] == trainings.namespace}
    assert names == {f"t{i}" for i in range(5)}
    assert version > 0


async def test_requests_are_counted_and_an_absent_server_is_told(
    cluster: Cluster, requests: list[tuple[str, str, int]], unused_tcp_port: int
) -> None:
    await cluster.list_nodes()
    assert requests == [("GET", "nodes", 200)]
    configuration = Configuration()
    configuration.host = f"https://127.0.0.1:{unused_tcp_port}"
    nowhere = Cluster(ApiClient(configuration=configuration))
    error = await refusal(nowhere.list_nodes())
    await nowhere.close()
    assert error.status == 0
    assert str(error).startswith("the API server cannot be reached")


async def test_a_lease_is_written_only_as_it_was_read(cluster: Cluster, namespace: str) -> None:
    assert await cluster.get_lease(namespace, "l") is None
    created = await cluster.create_lease(lease_body(namespace, "a"))
    assert (await refusal(cluster.create_lease(lease_body(namespace, "b")))).reason == "AlreadyExists"
    renewed = created | {"spec": created["spec"] | {"holderIdentity": "b"}}
    await cluster.update_lease(renewed)
    assert (await refusal(cluster.update_lease(renewed))).reason == "Conflict"
    now = await cluster.get_lease(namespace, "l")
    assert now is not None
    assert now["spec"]["holderIdentity"] == "b"


def lease_body(namespace: str, holder: str) -> Json:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    meta = {"name": "l", "namespace": namespace}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


async def test_two_replicas_agree_on_one_and_take_over_from_each_other(cluster: Cluster, namespace: str) -> None:
    terms = Terms(duration=4, renew_deadline=2, retry=0.2)
    first, second, third = (Election(cluster, namespace, "l", name, terms) for name in ("a", "b", "c"))
    await first.acquire()
    keeping, waiting = asyncio.ensure_future(first.keep()), asyncio.ensure_future(second.acquire())
    done, _ = await asyncio.wait([keeping, waiting], timeout=6)
    assert not done, "longer than the lease lasts: it is renewed, and left alone"
    assert (first.leads(), second.leads()) == (True, False)
    keeping.cancel()  # as a crash: nothing is released
    await waiting
    assert (first.leads(), second.leads()) == (False, True)
    await second.release()
    async with asyncio.timeout(3):
        await third.acquire()
    assert (second.leads(), third.leads()) == (False, True)
    await third.release()
