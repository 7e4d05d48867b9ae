"""End-to-end tests: a real cluster with the training-operator and this operator, as `make cluster` leaves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.conftest import kube  # noqa: F401 (a fixture)
from tests.contract.kube import KubeApi
from tests.e2e.world import OPERATOR_NAMESPACE, World, lacks_shared_storage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need a cluster."""
    for item in items:
        if item.path.is_relative_to(__file__.rsplit("/", 1)[0]):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def world(kube: KubeApi) -> Iterator[World]:  # noqa: F811
    """A fresh namespace that enforces Pod Security `restricted`; deleted afterwards."""
    with World.temporary(kube) as world:
        yield world


@pytest.fixture(scope="session")
def shared_storage() -> None:
    """Skips what needs volumes that all nodes can write to where there are none."""
    if reason := lacks_shared_storage():
        pytest.skip(reason)


@pytest.fixture
def gpu_nodes(kube: KubeApi) -> Iterator[list[str]]:  # noqa: F811
    """The two workers offer one `nvidia.com/gpu` each, as if a device plugin said so."""
    nodes = [
        node["metadata"]["name"]
        for node in kube.request("GET", "/api/v1/nodes")["items"]
        if "node-role.kubernetes.io/control-plane" not in node["metadata"]["labels"]
    ][:2]
    assert len(nodes) == 2, "the tests need two worker nodes"
    for node in nodes:
        _offer_gpu(kube, node, offered=True)
    yield nodes
    for node in nodes:
        _offer_gpu(kube, node, offered=False)


def _offer_gpu(kube: KubeApi, node: str, *, offered: bool) -> None:  # noqa: F811
    path = f"/api/v1/nodes/{node}"
    amounts = {"nvidia.com/gpu": "1" if offered else None}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    kube.request("PATCH", f"{path}/status", patch, content_type="application/merge-patch+json")
    kube.wait(
        f"{node} offers {'a' if offered else 'no'} GPU",
        lambda: ("nvidia.com/gpu" in kube.request("GET", path)["status"]["allocatable"]) == offered,
    )


@pytest.fixture(scope="session", autouse=True)
def operators_are_installed(kube: KubeApi) -> None:  # noqa: F811
    """Says what to do instead of failing in every test."""
    path = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/gputraining-operator"
    status = kube.request("GET", path).get("status", {})
    assert status.get("availableReplicas"), "the operator does not run: `make cluster` installs it"
