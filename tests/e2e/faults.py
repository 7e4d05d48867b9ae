"""Faults from outside: what kernels, people, nodes and clusters do to a training. None asks the product for help.

Those that touch a node need kind, whose nodes are containers of this machine.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from hack import kindcluster
from hack.gotools import tool
from tests.contract.kube import Json, KubeApi
from tests.e2e.world import OPERATOR_NAMESPACE, World

needs_kind = pytest.mark.skipif(kindcluster.existing(), reason="works on the nodes of kind, from outside of Kubernetes")

CONTROL_PLANE = kindcluster.NODES[0]
TRAINING_OPERATOR_NAMESPACE = "kubeflow"
_MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
_MANIFEST_AWAY = "/etc/kubernetes/kube-apiserver.yaml.away"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/gputraining-operator"
_OPERATOR = "app.kubernetes.io/name=gputraining"
_MERGE = "application/merge-patch+json"


# Nodes


def on_node(node: str, *command: str, seconds: float = 60) -> str:
    """Output of a command run as root of a node. Raises CalledProcessError when it fails."""
    done = subprocess.run(
        ["docker", "exec", node, *command], capture_output=True, text=True, timeout=seconds, check=True
    )
    return done.stdout


def pause(node: str) -> None:
    """Freezes a node with all that runs on it, as if its cable were pulled and its power cut."""
    subprocess.run(["docker", "pause", node], capture_output=True, timeout=60, check=True)


def unpause(node: str) -> None:
    """Lets a node go on; nothing happens to one that does."""
    subprocess.run(["docker", "unpause", node], capture_output=True, timeout=60, check=False)


def restart_kubelet(node: str) -> None:
    """What a node's upgrade does; pods live on."""
    on_node(node, "systemctl", "restart", "kubelet")


def drain(kube: KubeApi, node: str) -> None:
    """What an administrator does before maintenance: no new pods, and every pod evicted."""
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"]
    _kubectl(kube, "drain", node, *options)


def uncordon(kube: KubeApi, node: str) -> None:
    """Pods may come to the node again."""
    _kubectl(kube, "uncordon", node)


def is_ready(kube: KubeApi, node: str) -> bool:
    """Whether the API server takes the node for alive."""
    conditions = kube.request("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@contextlib.contextmanager
def api_server_away(kube: KubeApi) -> Iterator[None]:
    """No API server for the length of the block: its static pod's manifest is moved out of the kubelet's sight."""
    on_node(CONTROL_PLANE, "mv", _MANIFEST, _MANIFEST_AWAY)
    try:
        kube.wait("the API server is away", lambda: not answers(kube), 60)
        yield
    finally:
        on_node(CONTROL_PLANE, "mv", _MANIFEST_AWAY, _MANIFEST)
        kube.wait("the API server is back", lambda: answers(kube), 120)


def answers(kube: KubeApi) -> bool:
    """Whether the API server says that it is ready."""
    base = [tool("kubectl"), *(["--context", kube.context] if kube.context else [])]
    asked = [*base, "get", "--raw", "/readyz", "--request-timeout=2s"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


# Pods


def kill(pod: Json, signal: str = "SIGKILL") -> None:
    """kill -9 of the container's first process, from its node."""
    (container,) = pod["status"]["containerStatuses"]
    task = container["containerID"].removeprefix("containerd://")
    on_node(pod["spec"]["nodeName"], "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", signal, task)


def delete_pod(kube: KubeApi, pod: Json, grace_seconds: int | None = None) -> None:
    """Deletes a pod; it gets its own grace period unless another is given."""
    query = {} if grace_seconds is None else {"gracePeriodSeconds": str(grace_seconds)}
    kube.request("DELETE", _pod_path(pod), query=query)


def evict(kube: KubeApi, pod: Json) -> None:
    """The eviction API, as `kubectl drain` and the cluster autoscaler use it."""
    meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    kube.request("POST", f"{_pod_path(pod)}/eviction", body)


# Operators


def operator_pods(kube: KubeApi) -> list[Json]:
    """Our operator's pods that are not on their way out."""
    return _pods(kube, OPERATOR_NAMESPACE, _OPERATOR)


def operator_is_well(kube: KubeApi) -> bool:
    """Whether all wanted replicas of our operator are ready."""
    deployment = kube.request("GET", _DEPLOYMENT)
    pods = operator_pods(kube)
    return len(pods) == deployment["spec"]["replicas"] and all(pod_is_ready(pod) for pod in pods)


def kill_operator(kube: KubeApi) -> None:
    """All replicas of our operator at once, without a grace period."""
    for pod in operator_pods(kube):
        delete_pod(kube, pod, grace_seconds=0)


@contextlib.contextmanager
def operator_away(kube: KubeApi) -> Iterator[None]:
    """None of our operator runs for the length of the block."""
    replicas = kube.request("GET", _DEPLOYMENT)["spec"]["replicas"]
    kube.request("PATCH", _DEPLOYMENT, {"spec": {"replicas": 0}}, content_type=_MERGE)
    try:
        kube.wait("the operator is away", lambda: not _pods(kube, OPERATOR_NAMESPACE, _OPERATOR, ending=True))
        yield
    finally:
        kube.request("PATCH", _DEPLOYMENT, {"spec": {"replicas": replicas}}, content_type=_MERGE)
        kube.wait("the operator is back", lambda: operator_is_well(kube), 120)


def training_operator_pods(kube: KubeApi) -> list[Json]:
    """The Kubeflow training-operator's pods."""
    return _pods(kube, TRAINING_OPERATOR_NAMESPACE, "control-plane=kubeflow-training-operator")


def training_operator(command: str) -> None:
    """Installs or uninstalls the training-operator."""
    subprocess.run([sys.executable, "-m", "hack", "training-operator", command], check=True, capture_output=True)


def pod_is_ready(pod: Json) -> bool:
    """Whether a pod says that it is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


# Files of a volume, seen from a node


def volume_folder(world: World, claim: str) -> PurePosixPath:
    """Where a claim's files lie on every node of kind."""
    volume = world.kube.request("GET", world.path(f"persistentvolumeclaims/{claim}"))["spec"]["volumeName"]
    spec = world.kube.request("GET", f"/api/v1/persistentvolumes/{volume}")["spec"]
    return PurePosixPath((spec.get("hostPath") or spec["local"])["path"])


def checkpoints(node: str, folder: PurePosixPath) -> list[PurePosixPath]:
    """The complete checkpoints below a folder, by step."""
    found = on_node(node, "find", str(folder), "-path", "*/step-*/manifest.json").splitlines()
    return sorted(PurePosixPath(manifest).parent for manifest in found)


def truncate(node: str, file: PurePosixPath, size: int) -> None:
    """Cuts a file off after so many bytes."""
    on_node(node, "truncate", "--size", str(size), str(file))


def size_of(node: str, file: PurePosixPath) -> int:
    """Bytes of a file."""
    return int(on_node(node, "stat", "--format", "%s", str(file)))


def digest(node: str, file: PurePosixPath) -> str:
    """SHA-256 of a file."""
    return on_node(node, "sha256sum", str(file)).split()[0]


def _pods(kube: KubeApi, namespace: str, labels: str, *, ending: bool = False) -> list[Json]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    pods: list[Json] = kube.request("GET", path, query={"labelSelector": labels})["items"]
    return [pod for pod in pods if ending or "deletionTimestamp" not in pod["metadata"]]


def _pod_path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _kubectl(kube: KubeApi, *arguments: str) -> str:
    context = ["--context", kube.context] if kube.context else []
    return subprocess.run([tool("kubectl"), *context, *arguments], capture_output=True, text=True, check=True).stdout
