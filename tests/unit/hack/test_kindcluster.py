"""What is read from Docker and Kubernetes about the nodes."""

from typing import Any

from hack.kindcluster import NODES, Node, complete, normalized, parsed_node, routes, settled


def node(name: str, cidr: str, address: str) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]
    return {"metadata": {"name": name}, "spec": {"podCIDR": cidr}, "status": {"addresses": addresses}}


def test_each_node_gets_its_own_subnet_and_a_route_to_every_other() -> None:
    listed = [node("a", "10.244.0.0/24", "172.18.0.2"), node("b", "10.244.1.0/24", "172.18.0.3"),
              node("c", "10.244.2.0/24", "172.18.0.4")]  # fmt: skip
    found = routes(listed)
    assert found["b"] == ("10.244.1.0/24", [("10.244.0.0/24", "172.18.0.2"), ("10.244.2.0/24", "172.18.0.4")])
    assert routes([]) == {}


def nodes(image: str) -> list[Node]:
    return [Node(name, True, image, "2026-11-21T10:00:00Z") for name in NODES]


def test_a_half_made_cluster_and_one_of_another_image_are_not_complete() -> None:
    assert complete(nodes("kindest/node:v1@sha256:12"), "kindest/node:v1")
    assert not complete(nodes("kindest/node:v1")[:2], "kindest/node:v1")
    assert not complete(nodes("kindest/node:v0"), "kindest/node:v1")


def test_a_line_of_docker_inspect_is_a_node() -> None:
    line = "/gputraining-demo-worker\tfalse\tkindest/node:v1\t2026-11-21T10:00:04.123456789Z"
    assert parsed_node(line) == Node("gputraining-demo-worker", False, "kindest/node:v1", "2026-11-21T10:00:04Z")


def pod(started: str | None, ready: bool = True) -> dict[str, Any]:
    state = {"running": {"startedAt": started}} if started else {"waiting": {}}
    return {
        "metadata": {"namespace": "kube-system"},
        "spec": {"nodeName": NODES[1]},
        "status": {"containerStatuses": [{"ready": ready, "state": state}]},
    }


def test_pods_that_started_before_their_node_are_old_news() -> None:
    found = nodes("kindest/node:v1")
    assert settled(found, [pod("2026-11-21T10:00:00Z"), pod("2026-11-21T10:00:07Z")])
    assert not settled(found, [pod("2026-11-21T09:59:59Z")])
    assert not settled(found, [pod("2026-11-21T10:00:07Z", ready=False)])
    assert not settled(found, [pod(None)])
    assert not settled(found, [])


def test_references_are_compared_as_containerd_writes_them() -> None:
    assert normalized("debian:trixie-slim") == "docker.io/library/debian:trixie-slim"
    assert normalized("rancher/x:v1") == "docker.io/rancher/x:v1"
    assert normalized("localhost/gputraining/operator:a") == "localhost/gputraining/operator:a"
    assert normalized("ghcr.io/kubeflow/x:v1") == "ghcr.io/kubeflow/x:v1"
    assert normalized("registry:5000/x:v1") == "registry:5000/x:v1"
