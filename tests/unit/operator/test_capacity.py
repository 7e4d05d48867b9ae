"""What a waiting user is told about nodes and resources."""

from __future__ import annotations

from typing import Any

import pytest

from gputraining_operator.api import LABEL_NAME, Json
from gputraining_operator.capacity import (
    ClusterCapacity,
    explain_gpu_shortage,
    explain_scheduler_message,
    parse_capacity,
)
from gputraining_operator.spec import Spec, parse_spec

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int, *, ready: bool = True, labels: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {}),
        },
    }


def holder(where: str, gpus: int, training: str | None = None, phase: str = "Running") -> Json:
    return {
        "metadata": {"labels": {LABEL_NAME: training} if training else {}},
        "spec": {"nodeName": where, "containers": [{"resources": {"limits": {GPU: str(gpus), "cpu": "1"}}}]},
        "status": {"phase": phase},
    }


def capacity(*objects: Json) -> ClusterCapacity:
    nodes = [o for o in objects if "allocatable" in o["status"]]
    return parse_capacity(nodes, [o for o in objects if o not in nodes])


def spec(**fields: Any) -> Spec:
    return parse_spec({"training": {}, "gpusPerWorker": 1} | fields)


def test_full_nodes_are_named_with_who_holds_them() -> None:
    found = capacity(node("a", 1), node("b", 1), node("c", 0), holder("a", 1, "bert"), holder("b", 1, "llm"))
    assert explain_gpu_shortage(spec(), 1, found) == (
        "waiting for GPUs: 1 × nvidia.com/gpu needed, 0 free on 2 matching nodes (a 1/1 used, b 1/1 used), "
        "held by trainings bert, llm"
    )


def test_ended_pods_hold_nothing() -> None:
    assert explain_gpu_shortage(spec(), 1, capacity(node("a", 1), holder("a", 1, phase="Succeeded"))) is None


def test_no_node_offers_the_resource() -> None:
    text = explain_gpu_shortage(spec(), 2, capacity(node("a", 0)))
    assert text == (
        "waiting for GPUs: 2 × nvidia.com/gpu needed, but no node of this cluster offers it; "
        "is its device plugin installed?"
    )


@pytest.mark.parametrize(
    "unusable",
    [
        node("a", 1, unschedulable=True),
        node("a", 1, ready=False),
        node("a", 1, taints=[{"key": "gpu", "effect": "NoSchedule"}]),
    ],
)
def test_unusable_nodes_do_not_match(unusable: Json) -> None:
    assert "none of the 1 nodes that have it can be used" in (explain_gpu_shortage(spec(), 1, capacity(unusable)) or "")


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
    ],
)
def test_tolerated_taints_and_selected_labels_match(toleration: Json) -> None:
    tainted = node("a", 1, labels={"type": "a100"}, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    wanted = spec(scheduling={"tolerations": [toleration], "nodeSelector": {"type": "a100"}})
    text = explain_gpu_shortage(wanted, 2, capacity(tainted, node("b", 4)))
    assert text == (
        "waiting for GPUs: 2 × nvidia.com/gpu on nodes with type=a100 needed, 1 free on 1 matching node (a 0/1 used)"
    )


def test_fragmentation_counts_as_shortage() -> None:
    found = capacity(node("a", 4), node("b", 4), holder("a", 2), holder("b", 1))
    text = explain_gpu_shortage(spec(gpusPerWorker=4), 1, found)
    assert text is not None
    assert "4 × nvidia.com/gpu needed (4 on one node), 5 free on 2 matching nodes" in text
    assert text.endswith("held by 2 other pods")


def test_cpu_jobs_never_wait_for_gpus() -> None:
    assert explain_gpu_shortage(spec(gpusPerWorker=0), 1, capacity()) is None


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "2 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are available: 1 is not helpful.",
            "cannot be placed: 1 node: untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "2 nodes with too little cpu",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
            "cannot be placed: 3 nodes: does not match Pod's node affinity/selector",
        ),
        (
            '0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/3 nodes are available.',
            'cannot be placed: persistentvolumeclaim "data" not found',
        ),
        ("no nodes at all", "cannot be placed: no nodes at all"),
    ],
)
def test_scheduler_messages_become_plain(message: str, plain: str) -> None:
    assert explain_scheduler_message(message) == plain
