"""Contract tests run against a real API server with the CRD of this working tree."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.contract.kube import API_VERSION, KubeApi, Trainings, load_crd


@pytest.fixture(scope="session")
def kube() -> KubeApi:
    """The test cluster's API server, with our CRD established in this tree's version."""
    api = KubeApi()
    crd = load_crd()
    # Marked as the release's own: a later `helm install` refuses to take over a CRD that is not.
    crd["metadata"] |= {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {
            "meta.helm.sh/release-name": "gputraining",
            "meta.helm.sh/release-namespace": "gputraining-system",
            "helm.sh/resource-policy": "keep",
        },
    }
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    api.apply(path, crd)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def served() -> bool:
        conditions = {condition["type"]: condition for condition in api.request("GET", path)["status"]["conditions"]}
        # Reported only when the schema is wrong: fields would silently be dropped.
        assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]["message"]
        if conditions.get("Established", {}).get("status") != "True":
            return False
        # An older version of the CRD is established as well: wait until this one is published.
        published = api.request("GET", f"/openapi/v3/apis/{API_VERSION}")["components"]["schemas"]
        return bool(published["dev.gputraining.v1alpha1.GpuTraining"]["properties"]["spec"] == schema)

    api.wait("this CRD is served", served)
    return api


def _fresh_namespace(kube: KubeApi) -> Iterator[str]:
    name = f"contract-{secrets.token_hex(4)}"
    kube.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(kube: KubeApi) -> Iterator[str]:
    """A fresh namespace, deleted (without waiting) afterwards."""
    yield from _fresh_namespace(kube)


@pytest.fixture
def trainings(kube: KubeApi, namespace: str) -> Trainings:
    """GpuTrainings of a fresh namespace."""
    return Trainings(kube, namespace)


@pytest.fixture(scope="session")
def dry_trainings(kube: KubeApi) -> Iterator[Trainings]:
    """GpuTrainings of a namespace that all tests share: for dry runs only, nothing is ever stored there."""
    for name in _fresh_namespace(kube):
        yield Trainings(kube, name)
