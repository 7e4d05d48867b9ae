"""The Helm chart, rendered by the real helm and put before a real API server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.gotools import tool
from tests.contract.kube import REPOSITORY, Json, KubeApi, Refused, load_crd

pytestmark = pytest.mark.cluster

CHART = REPOSITORY / "charts" / "gputraining"
# Plural and API path of each kind that the chart makes; "" before the namespace for cluster-wide ones.
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
# helm knows no cluster here; the version is the one it would find.
KUBE_VERSION = "1.35.0"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs helm, which may fail."""
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def render(
    values: Json | None = None, namespace: str = "gputraining-system", release: str = "gputraining"
) -> list[Json]:
    """Objects of the rendered chart."""
    result = helm("template", release, str(CHART), "-n", namespace, "--kube-version", KUBE_VERSION, *_set(values or {}))
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def _set(values: Json) -> list[str]:
    return [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


def one(objects: list[Json], kind: str) -> Json:
    """The only object of a kind."""
    (found,) = [entry for entry in objects if entry["kind"] == kind]
    return found


def test_lint() -> None:
    result = helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout + result.stderr


def test_package_holds_the_crd(tmp_path: Path) -> None:
    result = helm("package", str(CHART), "--destination", str(tmp_path))
    assert result.returncode == 0, result.stderr
    (package,) = tmp_path.iterdir()
    rendered = helm("template", "gputraining", str(package), "--kube-version", KUBE_VERSION)
    assert "name: gputrainings.gputraining.dev" in rendered.stdout, rendered.stderr


def test_default_objects() -> None:
    names = {(entry["kind"], entry["metadata"]["name"]) for entry in render()}
    assert names == {
        ("ServiceAccount", "gputraining-operator"),
        ("CustomResourceDefinition", "gputrainings.gputraining.dev"),
        ("PodDisruptionBudget", "gputraining-operator"),
        ("Role", "gputraining-operator-lease"),
        ("RoleBinding", "gputraining-operator-lease"),
        ("ClusterRole", "gputraining-system:gputraining-operator"),
        ("ClusterRoleBinding", "gputraining-system:gputraining-operator"),
        ("Service", "gputraining-operator-metrics"),
        ("Deployment", "gputraining-operator"),
    }


def test_crd_is_unchanged_but_for_its_metadata() -> None:
    crd = one(render(), "CustomResourceDefinition")
    assert crd["spec"] == load_crd()["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in one(render({"crds.keep": False}), "CustomResourceDefinition")["metadata"]
    assert not [entry for entry in render({"crds.install": False}) if entry["kind"] == "CustomResourceDefinition"]


def test_namespaced_installation_has_nothing_cluster_wide() -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"], "crds.install": False})
    assert not [entry["kind"] for entry in objects if entry["kind"].startswith("Cluster")]
    for kind in ("Role", "RoleBinding"):
        namespaces = {entry["metadata"]["namespace"] for entry in objects if entry["kind"] == kind}
        assert namespaces == {"team-a", "team-b", "gputraining-system"}
    assert _environment(objects)["WATCH_NAMESPACES"] == "team-a,team-b"


def test_two_releases_share_no_name() -> None:
    def names(objects: list[Json]) -> set[tuple[str, str, str]]:
        return {
            (entry["kind"], entry["metadata"].get("namespace", ""), entry["metadata"]["name"])
            for entry in objects
            if entry["kind"] != "CustomResourceDefinition"
        }

    assert not names(render(namespace="a")) & names(render(namespace="b"))
    assert not names(render(release="blue")) & names(render(release="green"))


def test_no_right_beyond_need() -> None:
    rules = one(render(), "ClusterRole")["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert not [entry for entry in granted if "*" in entry]
    assert {resource for resource, verb in granted if verb not in ("get", "list", "watch")} == {
        "gputrainings",
        "gputrainings/status",
        "pytorchjobs",
        "events",
    }
    assert "secrets" not in {resource for resource, _ in granted}


def test_the_lease_is_the_only_one_that_the_operator_may_touch() -> None:
    objects = render({"fullnameOverride": "mine"}, namespace="here")
    role = one(objects, "Role")
    assert role["metadata"]["namespace"] == "here"
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]] == [
        (None, ["create"]),
        ([_environment(objects)["GPUTRAINING_LEASE_NAME"]], ["get", "update"]),
    ]


def test_replicas_stand_by_on_different_nodes_and_none_is_missing_in_an_upgrade() -> None:
    deployment = one(render(), "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    selector = {"matchLabels": deployment["selector"]["matchLabels"]}
    (preferred,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert preferred[0]["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    budget = one(render(), "PodDisruptionBudget")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": selector}
    assert not [entry for entry in render({"replicas": 1}) if entry["kind"] == "PodDisruptionBudget"]
    mine: Json = {"nodeAffinity": {}}
    assert one(render({"affinity": mine}), "Deployment")["spec"]["template"]["spec"]["affinity"] == mine


def _environment(objects: list[Json]) -> dict[str, str]:
    """Environment of the operator; what comes from a field of its pod shows as that field."""
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in entry else entry["value"]
        for entry in container["env"]
    }


def test_images() -> None:
    objects = render({"image.tag": "1.2.3", "trainerImage.digest": "sha256:" + "a" * 64})
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "ghcr.io/gputraining/operator:1.2.3"
    assert _environment(objects)["TRAINER_IMAGE"] == "ghcr.io/gputraining/trainer@sha256:" + "a" * 64
    assert _environment(render())["TRAINER_IMAGE"] == "ghcr.io/gputraining/trainer:0.1.0"


def test_settings_are_taken_by_the_operator() -> None:
    """Names and values of the environment are those that the operator reads."""
    from gputraining_operator.settings import load_settings

    values = {"logLevel": "DEBUG", "logFormat": "plain", "metricsPort": 9000, "pullConcurrency": 7}
    settings = load_settings(_environment(render(values | {"watchNamespaces": ["a"]})))
    assert (settings.log_level, settings.log_json, settings.metrics_port) == ("DEBUG", False, 9000)
    assert (settings.pull_concurrency, settings.watch_namespaces) == (7, ("a",))
    settings = load_settings(_environment(render()))
    assert settings.log_json
    assert settings.leader_election
    assert (settings.lease_name, settings.lease_namespace, settings.identity) == (
        "gputraining-operator",
        "metadata.namespace",
        "metadata.name",
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("replica", 2, "additional properties 'replica' not allowed"),
        ("replicas", 0, "minimum: got 0, want 1"),
        ("image.name", "x", "additional properties 'name' not allowed"),
        ("image.repository", "x:latest", "does not match pattern"),
        ("image.digest", "abc", "does not match pattern"),
        ("image.pullPolicy", "Sometimes", "value must be one of"),
        ("logLevel", "LOUD", "value must be one of"),
        ("metricsPort", 80, "minimum: got 80, want 1,024"),
        ("watchNamespaces", "a", "got string, want array"),
        ("watchNamespaces", ["A_b"], "does not match pattern"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(key: str, value: Any, text: str) -> None:
    result = helm("template", "gputraining", str(CHART), "--kube-version", KUBE_VERSION, *_set({key: value}))
    assert result.returncode != 0
    assert text in result.stderr


@pytest.mark.parametrize("namespaced", [False, True])
def test_api_server_takes_every_object(kube: KubeApi, namespace: str, namespaced: bool) -> None:
    values: Json = {
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "ml"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "serviceAccount.annotations": {"a": "b"},
    }
    for entry in render(values | ({"watchNamespaces": [namespace]} if namespaced else {}), namespace):
        path = PATHS[entry["kind"]].format(namespace=namespace)
        # Strict: an unknown field is refused. Nothing is stored.
        kube.apply(f"{path}/{entry['metadata']['name']}", entry, dry_run=True)


def test_pod_security_restricted(kube: KubeApi, namespace: str) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    kube.request("PATCH", f"/api/v1/namespaces/{namespace}", label, content_type="application/merge-patch+json")
    kube.apply(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/gputraining-operator",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "gputraining-operator"}},
    )
    template = one(render(namespace=namespace), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    kube.request("POST", path, pod, query={"dryRun": "All"})
    # The check checks: the same pod as root is refused.
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(Refused, match="violates PodSecurity"):
        kube.request("POST", path, pod, query={"dryRun": "All"})
