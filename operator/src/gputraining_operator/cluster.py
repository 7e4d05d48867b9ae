"""The only module that talks to the Kubernetes API: raw JSON over the asyncio client, one exception type."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from gputraining_operator.api import (
    API_VERSION,
    GROUP,
    JOB_GROUP,
    JOB_PLURAL,
    JOB_VERSION,
    KIND,
    LABEL_MANAGED_BY,
    MANAGER,
    PLURAL,
    VERSION,
    Json,
)

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, connect=5)
_PAGE: Final = 500
_OURS: Final = f"{LABEL_MANAGED_BY}={MANAGER}"
_CREATION_FAILURES: Final = ("FailedCreatePod", "FailedCreateService")
_VOLUME_FAILURES: Final = ("FailedMount", "FailedAttachVolume")


class ApiError(Exception):
    """The API server refused, failed, or gave no usable answer (status 0).

    Attributes:
        status: HTTP status, 0 without a usable answer.
        reason: the machine-readable reason of the answer, for example ``AlreadyExists``.
        message: what the API server says.
        retry_after: seconds to wait, if the API server names them.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


Observer = Callable[[str, str, int], None]
"""Told of each request: verb, resource, HTTP status."""


class Cluster:
    """Requests that the operator makes. All methods raise `ApiError`.

    Attributes:
        may_write: asked before each write but those of leases; a replica that does not lead changes nothing.
        serves_jobs: whether the API server knew the kind PyTorchJob when it was asked last.
    """

    def __init__(self, client: ApiClient, namespaces: tuple[str, ...] = (), observer: Observer | None = None) -> None:
        self._client = client
        self._namespaces = namespaces
        self._observe = observer or (lambda verb, resource, status: None)
        self.may_write: Callable[[], bool] = lambda: True
        self.serves_jobs = False

    @classmethod
    async def connect(cls, namespaces: tuple[str, ...], observer: Observer) -> Cluster:
        """Connect with the pod's service account, or with the kubeconfig outside a cluster."""
        configuration = Configuration()
        configuration.connection_pool_maxsize = 64
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(ApiClient(configuration=configuration), namespaces, observer)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def create_job(self, body: Json) -> Json:
        """Create a PyTorchJob. Creating is atomic: of two operators only one succeeds, and a foreign object of that
        name is never taken over (409 ``AlreadyExists``)."""
        path = _job_path(body["metadata"]["namespace"])
        return await self._request("POST", path, "pytorchjobs", body=body, query=[("fieldManager", MANAGER)])

    async def get_job(self, namespace: str, name: str) -> Json:
        """Read a PyTorchJob."""
        return await self._request("GET", f"{_job_path(namespace)}/{name}", "pytorchjobs")

    async def delete_job(self, namespace: str, name: str, uid: str, *, foreground: bool) -> None:
        """Delete a PyTorchJob and its pods; one that is gone already is no error.

        In the foreground the job stays until its pods are gone, so that its absence tells of theirs.
        """
        policy = "Foreground" if foreground else "Background"
        await self._delete(f"{_job_path(namespace)}/{name}", "pytorchjobs", uid, policy)

    async def delete_training(self, namespace: str, name: str, uid: str) -> None:
        """Delete a GpuTraining and what it owns; one that is gone already is no error."""
        await self._delete(f"{_training_path(namespace)}/{name}", "gputrainings", uid, "Background")

    async def apply_status(self, namespace: str, name: str, resource_version: int, status: Json) -> Json:
        """Make ``status`` the whole status of a GpuTraining, by server-side apply: fields left out go away.

        The resourceVersion is the one that the status was decided on: a decision about an older state, or about a
        deleted training of the same name, is refused (409 ``Conflict``). The API server ignores a uid here.
        """
        meta = {"name": name, "namespace": namespace, "resourceVersion": str(resource_version)}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        path = f"{_training_path(namespace)}/{name}/status"
        query = [("fieldManager", MANAGER), ("force", "true")]
        return await self._request(
            "PATCH", path, "gputrainings/status", body=body, query=query, content_type="application/apply-patch+yaml"
        )

    async def create_event(self, namespace: str, body: Json) -> None:
        """Post an event. Its name is made from what it says, so that it is posted once, also after a restart."""
        try:
            await self._request("POST", f"/api/v1/namespaces/{namespace}/events", "events", body=body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def list_trainings(self) -> tuple[list[Json], int]:
        """All GpuTrainings of the served namespaces, and the resourceVersion of the listing."""
        return await self._list_served(f"/apis/{GROUP}/{VERSION}", PLURAL, [])

    async def list_jobs(self) -> tuple[list[Json], int]:
        """All PyTorchJobs that we made; none when the cluster does not know the kind."""
        try:
            listing = await self._list_served(
                f"/apis/{JOB_GROUP}/{JOB_VERSION}", JOB_PLURAL, [("labelSelector", _OURS)]
            )
        except ApiError as error:
            if error.status == 404:
                self.serves_jobs = False
                return [], 0
            raise
        self.serves_jobs = True
        return listing

    async def list_pods(self) -> tuple[list[Json], int]:
        """All pods of our jobs."""
        return await self._list_served("/api/v1", "pods", [("labelSelector", _OURS)])

    async def list_nodes(self) -> list[Json]:
        """All nodes."""
        return (await self._list("/api/v1/nodes", "nodes", []))[0]

    async def list_running_pods(self) -> list[Json]:
        """All pods of the cluster that have not ended, ours and others'."""
        query = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")]
        return (await self._list("/api/v1/pods", "pods", query))[0]

    async def latest_warning(self, namespace: str, uid: str) -> str | None:
        """What the training-operator said last about a PyTorchJob whose pods or services it cannot make, or None."""
        failures = [event for event in await self._events(namespace, uid) if event.get("reason") in _CREATION_FAILURES]
        return failures[-1].get("message") if failures else None

    async def latest_pod_warning(self, namespace: str, uid: str) -> str | None:
        """What the kubelet says about a volume that it cannot mount into a pod, or None when it got further since."""
        events = await self._events(namespace, uid)
        return events[-1].get("message") if events and events[-1].get("reason") in _VOLUME_FAILURES else None

    async def get_lease(self, namespace: str, name: str) -> Json | None:
        """Read a Lease; None when there is none."""
        try:
            return await self._request("GET", f"{_lease_path(namespace)}/{name}", "leases")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create_lease(self, body: Json) -> Json:
        """Create a Lease; 409 ``AlreadyExists`` when somebody was faster."""
        return await self._request("POST", _lease_path(body["metadata"]["namespace"]), "leases", body=body)

    async def update_lease(self, body: Json) -> Json:
        """Replace a Lease; 409 ``Conflict`` when it is not any more as it was read (by resourceVersion)."""
        meta = body["metadata"]
        return await self._request("PUT", f"{_lease_path(meta['namespace'])}/{meta['name']}", "leases", body=body)

    async def _events(self, namespace: str, uid: str) -> list[Json]:
        """The events about an object, newest last."""
        query = [("fieldSelector", f"involvedObject.uid={uid}")]
        events, _ = await self._list(f"/api/v1/namespaces/{namespace}/events", "events", query)
        return sorted(events, key=_event_order)

    async def _list_served(self, prefix: str, plural: str, query: list[tuple[str, Any]]) -> tuple[list[Json], int]:
        if not self._namespaces:
            return await self._list(f"{prefix}/{plural}", plural, query)
        listings = [await self._list(f"{prefix}/namespaces/{ns}/{plural}", plural, query) for ns in self._namespaces]
        return [item for items, _ in listings for item in items], min(version for _, version in listings)

    async def _list(self, path: str, resource: str, query: list[tuple[str, Any]]) -> tuple[list[Json], int]:
        items: list[Json] = []
        version, token = 0, ""
        while True:
            page_query = [*query, ("limit", _PAGE), *([("continue", token)] if token else [])]
            page = await self._request("GET", path, resource, query=page_query)
            items += page.get("items") or []
            version = version or int(page["metadata"].get("resourceVersion") or 0)
            token = page["metadata"].get("continue") or ""
            if not token:
                return items, version

    async def _delete(self, path: str, resource: str, uid: str, policy: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": policy,
        }
        try:
            await self._request("DELETE", path, resource, body=body)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another object by that name
                raise

    async def _request(
        self,
        method: str,
        path: str,
        resource: str,
        *,
        body: Json | None = None,
        query: list[tuple[str, Any]] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        if method != "GET" and resource != "leases" and not self.may_write():
            raise ApiError(0, "NotLeading", "another replica leads, this one changes nothing")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        status = 0
        try:
            request = await self._client.param_serialize(
                method, path, query_params=query or [], header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            answer = await self._client.call_api(*request, _request_timeout=_TIMEOUT)
            data = await answer.read()
            status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"the API server cannot be reached: {error or type(error).__name__}"
            raise ApiError(0, "Unreachable", text) from error
        finally:
            self._observe(method, resource, status)
        if not 200 <= status < 300:
            raise _api_error(status, answer.getheaders(), data)
        try:
            decoded: Json = json.loads(data)
        except ValueError as error:
            raise ApiError(0, "Unreadable", f"the API server's answer is cut off or no JSON: {error}") from error
        return decoded


def _api_error(status: int, headers: Any, data: bytes) -> ApiError:
    try:
        answer: Json = json.loads(data)
        reason, message = answer.get("reason") or "", answer.get("message") or ""
    except (ValueError, AttributeError):
        reason, message = "Unknown", data[:200].decode(errors="replace").strip()
    retry_after = headers.get("Retry-After", "")
    return ApiError(status, reason, message, float(retry_after) if retry_after.isdigit() else None)


def _event_order(event: Json) -> tuple[str, int]:
    meta = event["metadata"]
    time = event.get("lastTimestamp") or event.get("eventTime") or meta["creationTimestamp"]
    return time, int(meta.get("resourceVersion") or 0)


def _job_path(namespace: str) -> str:
    return f"/apis/{JOB_GROUP}/{JOB_VERSION}/namespaces/{namespace}/{JOB_PLURAL}"


def _training_path(namespace: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"


def _lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
