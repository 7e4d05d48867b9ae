"""Which resource is short on which nodes: what a waiting user wants to know, in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gputraining_operator.api import LABEL_NAME, Json
from gputraining_operator.spec import Spec

_NAMED_NODES: Final = 4


@dataclass(frozen=True)
class NodeView:
    """A node: labels, the taints that keep pods away, and its whole-number (extended) resources."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    schedulable: bool
    allocatable: Mapping[str, int]


@dataclass(frozen=True)
class Usage:
    """Extended resources that one pod holds on a node."""

    node: str
    training: str | None
    requests: Mapping[str, int]


@dataclass(frozen=True)
class ClusterCapacity:
    """The nodes and what their pods hold, at one moment."""

    nodes: tuple[NodeView, ...]
    usages: tuple[Usage, ...]


def parse_node(body: Json) -> NodeView:
    """Parse a node; taints that only discourage are left out."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return NodeView(
        name=meta["name"],
        labels=meta.get("labels") or {},
        taints=tuple(t for t in spec.get("taints") or () if t.get("effect") != "PreferNoSchedule"),
        schedulable=ready and not spec.get("unschedulable", False),
        allocatable=_extended(status.get("allocatable") or {}),
    )


def parse_usage(body: Json) -> Usage | None:
    """What a pod holds; None when it is on no node, has ended, or holds no extended resource."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if "nodeName" not in spec or status.get("phase") in ("Succeeded", "Failed"):
        return None
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, amount in _extended((container.get("resources") or {}).get("limits") or {}).items():
            total[name] = total.get(name, 0) + amount
    labels = body["metadata"].get("labels") or {}
    return Usage(spec["nodeName"], labels.get(LABEL_NAME), total) if total else None


def explain_gpu_shortage(spec: Spec, pending: int, capacity: ClusterCapacity) -> str | None:
    """Say why GPUs are short for this many pending pods; None when they are not what is missing.

    Affinity is not looked at: it can only make fewer nodes fit than are counted here.
    """
    resource, each = spec.gpu_resource_name, spec.gpus_per_worker
    if not each:
        return None
    having = [node for node in capacity.nodes if node.allocatable.get(resource, 0) > 0]
    need = f"{pending * each} × {resource}{_selector_text(spec)} needed"
    if not having:
        return f"waiting for GPUs: {need}, but no node of this cluster offers it; is its device plugin installed?"
    matching = [node for node in having if _fits(node, spec)]
    if not matching:
        return (
            f"waiting for GPUs: {need}, but none of the {len(having)} nodes that have it can be used "
            "(node selector, taints, cordoned or not ready)"
        )
    used = {node.name: _used(capacity, node.name, resource) for node in matching}
    free = {node.name: max(0, node.allocatable[resource] - used[node.name]) for node in matching}
    if sum(amount // each for amount in free.values()) >= pending:
        return None
    nodes = ", ".join(f"{n.name} {used[n.name]}/{n.allocatable[resource]} used" for n in matching[:_NAMED_NODES])
    more = f", {len(matching) - _NAMED_NODES} more" if len(matching) > _NAMED_NODES else ""
    per_pod = f" ({each} on one node)" if each > 1 else ""
    return (
        f"waiting for GPUs: {need}{per_pod}, {sum(free.values())} free on {_count(len(matching), 'matching node')} "
        f"({nodes}{more}){_holders(capacity, {n.name for n in matching}, resource)}"
    )


def explain_scheduler_message(message: str) -> str:
    """Put the scheduler's own message into fewer and plainer words."""
    text = re.split(r"\s*(?:preemption:|no new claims to deallocate)", message)[0].strip().rstrip(".,")
    text = text.removesuffix(". not found")  # the scheduler says it twice
    match = re.fullmatch(r"\d+/\d+ nodes are available: (.*)", text, re.DOTALL)
    if not match:
        return f"cannot be placed: {text}"
    parts = []
    for part in re.split(r", (?=\d)", match.group(1)):
        count = re.match(r"(\d+) (.*)", part, re.DOTALL)
        if not count:
            parts.append(part)
            continue
        nodes, why = _count(int(count.group(1)), "node"), count.group(2)
        short = re.fullmatch(r"Insufficient (\S+)", why)
        parts.append(f"{nodes} with too little {short.group(1)}" if short else f"{nodes}: {_plain(why)}")
    return f"cannot be placed: {', '.join(parts)}"


def _plain(why: str) -> str:
    return re.sub(r"^node\(s\) (had |didn't )?", lambda m: {"didn't ": "does not "}.get(m.group(1) or "", ""), why)


def _extended(amounts: Mapping[str, str]) -> dict[str, int]:
    """Only resources with a domain in their name: GPUs, MIG slices, network cards; always whole numbers."""
    return {name: int(text) for name, text in amounts.items() if "/" in name and str(text).isdigit()}


def _fits(node: NodeView, spec: Spec) -> bool:
    selector, tolerations = spec.scheduling.node_selector, spec.scheduling.tolerations
    return (
        node.schedulable
        and all(node.labels.get(key) == value for key, value in selector.items())
        and all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in node.taints)
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _used(capacity: ClusterCapacity, node: str, resource: str) -> int:
    return sum(usage.requests.get(resource, 0) for usage in capacity.usages if usage.node == node)


def _holders(capacity: ClusterCapacity, nodes: set[str], resource: str) -> str:
    holding = [u for u in capacity.usages if u.node in nodes and u.requests.get(resource)]
    trainings = sorted({usage.training for usage in holding if usage.training})
    others = sum(1 for usage in holding if not usage.training)
    parts = []
    if trainings:
        names = ", ".join(trainings[:_NAMED_NODES]) + (" …" if len(trainings) > _NAMED_NODES else "")
        parts.append(f"{'training' if len(trainings) == 1 else 'trainings'} {names}")
    if others:
        parts.append(_count(others, "other pod"))
    return f", held by {' and '.join(parts)}" if parts else ""


def _selector_text(spec: Spec) -> str:
    selector = spec.scheduling.node_selector
    return f" on nodes with {', '.join(f'{k}={v}' for k, v in sorted(selector.items()))}" if selector else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def parse_capacity(nodes: Iterable[Json], pods: Iterable[Json]) -> ClusterCapacity:
    """Parse the answers of the API server to "all nodes" and "all pods that run"."""
    usages = (parse_usage(pod) for pod in pods)
    return ClusterCapacity(tuple(parse_node(n) for n in nodes), tuple(u for u in usages if u is not None))
