"""The kind cluster: created, woken again after its engine was away, connected, removed."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack import dockerimages, gotools, layers, pins
from hack.paths import REPO
from hack.shell import CommandError, Context, UserError, output

CONFIG = REPO / "kind-config.yaml"
NODES = tuple(f"{pins.CLUSTER_NAME}-{role}" for role in ("control-plane", "worker", "worker2"))
WORKERS = NODES[1:]
VOLUMES = "/var/local-path-provisioner"  # in the nodes; on the host as below, see kind-config.yaml
VOLUMES_ON_HOST = Path("/var/tmp/gputraining-demo-volumes")


@dataclass(frozen=True)
class Node:
    """One container of the cluster as Docker sees it."""

    name: str
    running: bool
    image: str
    started: str  # as Kubernetes writes times: 2026-11-21T10:00:04Z


def kubeconfig() -> Path:
    """The kubeconfig that kind writes and everything here reads: the first of KUBECONFIG, else ~/.kube/config."""
    first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(first) if first else Path.home() / ".kube" / "config"


def existing() -> bool:
    """Whether the user asked for a cluster of their own."""
    return os.environ.get("E2E_USE_EXISTING_CLUSTER", "") not in ("", "0")


def context_arguments() -> list[str]:
    """Arguments of kubectl that choose the cluster: ours by name, or the current one of an existing cluster."""
    return [] if existing() else ["--context", pins.KUBE_CONTEXT]


def kubectl(*arguments: str | Path, timeout: float = 30) -> str | None:
    """Output of a quick kubectl command on the cluster, None when it fails."""
    return output(gotools.tool("kubectl"), *context_arguments(), *arguments, timeout=timeout)


def kubectl_run(context: Context, *arguments: str | Path, stdin: str | Path | None = None) -> str:
    """Runs kubectl on the cluster in a step. Raises CommandError."""
    return context.run(gotools.tool("kubectl"), *context_arguments(), *arguments, stdin=stdin)


def kubectl_json(*arguments: str) -> Any:
    """An object read by kubectl, or None when there is none."""
    text = kubectl(*arguments, "-o", "json")
    return json.loads(text) if text else None


def nodes() -> list[Node]:
    """The containers of our cluster, running or not."""
    ids = (output("docker", "ps", "-aq", "--filter", f"label=io.x-k8s.kind.cluster={pins.CLUSTER_NAME}") or "").split()
    form = "{{.Name}}\t{{.State.Running}}\t{{.Config.Image}}\t{{.State.StartedAt}}"
    lines = (output("docker", "inspect", "-f", form, *ids) or "").splitlines() if ids else []
    return sorted((parsed_node(line) for line in lines), key=lambda node: node.name)


def parsed_node(line: str) -> Node:
    """A node from a line of docker inspect: name, whether it runs, image, start; separated by tabs."""
    name, running, image, started = line.split("\t")
    return Node(name.removeprefix("/"), running == "true", image, f"{started[:19]}Z")


def complete(found: Sequence[Node], image: str) -> bool:
    """Whether these are exactly the nodes that we want, made of that image (given with or without a digest)."""
    wanted = image.split("@")[0]
    return {node.name for node in found} == set(NODES) and all(node.image.split("@")[0] == wanted for node in found)


def ready_nodes() -> int:
    """How many nodes are Ready, by the API server; 0 when it does not answer."""
    listed = kubectl_json("get", "nodes", "--request-timeout=5s")
    if not listed:
        return 0
    conditions = [condition for node in listed["items"] for condition in node["status"]["conditions"]]
    return sum(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def up_done(image: str) -> str | None:
    """For a step: every node runs and is Ready."""
    found = nodes()
    return _detail() if complete(found, image) and well(found) else None


def up(context: Context, image: str) -> str:
    """Brings the cluster up: starts stopped nodes, replaces what is half-made or of another image, creates it."""
    found = nodes()
    if found and complete(found, image) and _wake(context, found):
        return _detail()
    if found:
        context.say("the nodes there are not usable: they are made anew")
        context.run(gotools.tool("kind"), "delete", "cluster", "--name", pins.CLUSTER_NAME)
    kubeconfig().parent.mkdir(parents=True, exist_ok=True)
    context.run(
        gotools.tool("kind"), "create", "cluster", "--config", CONFIG, "--image", image, "--wait", "180s", cwd=REPO
    )
    context.wait_until(lambda: well(nodes()), 120, "readiness of all nodes")
    return _detail()


def reach(context: Context) -> str:
    """Asks a cluster of the user's own for its version. Raises UserError when it does not answer."""
    try:
        said = json.loads(kubectl_run(context, "version", "-o", "json", "--request-timeout=10s"))
        return f"the cluster of KUBECONFIG, Kubernetes {said['serverVersion']['gitVersion']}"
    except (CommandError, KeyError) as error:
        raise UserError("E2E_USE_EXISTING_CLUSTER is set, but the cluster of KUBECONFIG does not answer") from error


def _detail() -> str:
    return f"kind {pins.CLUSTER_NAME}, {len(NODES)} nodes"


def settled(found: Sequence[Node], pods: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the API server knows how kube-system's pods are since their nodes started, and they are well.

    After a restart it shows what was before, Ready nodes and running containers, until the kubelets have reported.
    """
    started = {node.name: node.started for node in found}
    for pod in pods:
        for container in pod["status"].get("containerStatuses", []):
            since = container["state"].get("running", {}).get("startedAt", "")
            # Times of one form and zone compare as texts.
            if not container["ready"] or since < started.get(pod["spec"]["nodeName"], ""):
                return False
    return bool(pods)


def well(found: Sequence[Node]) -> bool:
    """Whether all nodes run, are Ready, and so are the pods of kube-system."""
    if not all(node.running for node in found) or ready_nodes() != len(NODES):
        return False
    pods = kubectl_json("-n", "kube-system", "get", "pods", "--request-timeout=5s")
    return bool(pods) and settled(found, pods["items"])


def _wake(context: Context, found: Sequence[Node]) -> bool:
    """Starts stopped nodes; whether the cluster is well in the end."""
    try:
        if stopped := [node.name for node in found if not node.running]:
            context.run("docker", "start", *stopped)
        context.run(gotools.tool("kind"), "export", "kubeconfig", "--name", pins.CLUSTER_NAME)
        context.wait_until(lambda: well(nodes()), 150, "readiness of the restarted nodes")
    except (CommandError, TimeoutError) as error:
        context.say(str(error))
        return False
    return True


def routes(nodes_listed: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """For each node its own pod subnet, and (subnet, address) of every other node. nodes_listed: Node objects."""
    known = {
        node["metadata"]["name"]: (
            node["spec"]["podCIDR"],
            next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"),
        )
        for node in nodes_listed
    }
    return {name: (own, [where for other, where in known.items() if other != name]) for name, (own, _) in known.items()}


def connect(context: Context) -> str:
    """The pod network of our own node image: each node's bridge gets its subnet, and a route to every other's.

    Cheap and repeatable; runs at every `cluster up`, because a restarted node forgets its routes.
    """
    listed = kubectl_json("get", "nodes")
    for name, (own, others) in routes(listed["items"] if listed else []).items():
        script = [f'sed -i \'s#"subnet":"[^"]*"#"subnet":"{own}"#\' /etc/cni/net.d/10-bridge.conflist']
        script += [f"ip route replace {subnet} via {address}" for subnet, address in others]
        context.run("docker", "exec", name, "sh", "-ec", "\n".join(script))
    return "routes between the nodes' pod subnets"


def down(context: Context) -> bool:
    """Removes the cluster and its volumes; whether there was one."""
    found = nodes()
    for node in found:
        if node.running:
            # All nodes mount the same folder. As root of the node: the pods' files belong to many users.
            output("docker", "exec", node.name, "find", VOLUMES, "-mindepth", "1", "-delete", timeout=60)
            break
    if found:
        context.run(gotools.tool("kind"), "delete", "cluster", "--name", pins.CLUSTER_NAME)
    if VOLUMES_ON_HOST.exists():
        with contextlib.suppress(OSError):  # empty by now, but Docker made it: without root it stays
            VOLUMES_ON_HOST.rmdir()
    return bool(found)


def images_on(node: str) -> set[str]:
    """References of the images that a node has."""
    return set((output("docker", "exec", node, "ctr", "-n", "k8s.io", "images", "ls", "-q") or "").split())


def normalized(reference: str) -> str:
    """An image reference as containerd writes it: debian:x -> docker.io/library/debian:x."""
    first, _, rest = reference.partition("/")
    if not rest:
        return f"docker.io/library/{reference}"
    return reference if "." in first or ":" in first or first == "localhost" else f"docker.io/{reference}"


def lacking(reference: str) -> list[str]:
    """The workers that do not have an image."""
    return [node for node in WORKERS if normalized(reference) not in images_on(node)]


def load_done(reference: str) -> str | None:
    """For a step: every worker has the image."""
    return None if lacking(reference) else reference


def load(context: Context, reference: str) -> str:
    """Copies an image from the engine to the workers that lack it."""
    targets = lacking(reference)
    if all(node.image.startswith("localhost/") for node in nodes()):
        sent = layers.send(context, reference, normalized(reference), targets)
        return f"{reference}, {sent} layers to {len(targets)} workers"
    with dockerimages.scratch() as folder:
        # kind writes the archive to TMPDIR; /tmp may be small or in memory.
        context.run(
            gotools.tool("kind"), "load", "docker-image", "--name", pins.CLUSTER_NAME, "--nodes", ",".join(targets),
            reference, env={"TMPDIR": str(folder)},
        )  # fmt: skip
    return f"{reference} to {len(targets)} workers"
