"""What is there, and which of the three ways to a cluster follows from it. Deciding is pure; looking is at the end."""

import os
import re
import shutil
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum

from hack import engine, pins
from hack.shell import UserError, output


class Way(Enum):
    """How the cluster comes to be."""

    EXISTING = "the cluster of KUBECONFIG"
    STOCK = "kind with images from container registries"
    BUILT = "kind with everything built from package registries"


@dataclass(frozen=True)
class Facts:
    """What was observed. node_image: of the cluster's nodes where some exist, running or not."""

    use_existing: bool
    docker: bool
    registry: bool
    root: bool
    debian: bool
    node_image: str | None = None


def decide(facts: Facts) -> Way:
    """The way to a cluster. Raises UserError, saying what to do, when there is none."""
    if facts.use_existing:
        return Way.EXISTING
    can_install = facts.root and facts.debian
    if not facts.docker and not can_install:
        raise UserError(
            "no Docker engine answers: start it, see that `docker info` works for this user"
            + (", or run as root to have it installed" if facts.debian else "")
        )
    if facts.node_image:
        # A cluster stays what it was made as, also when a registry comes or goes in between.
        return Way.BUILT if facts.node_image.startswith("localhost/") else Way.STOCK
    if facts.registry:
        return Way.STOCK
    if not can_install:
        raise UserError(
            "no container registry answers; building the images from packages instead needs "
            + ("root: run as root" if facts.debian else "Debian or Ubuntu with root")
        )
    return Way.BUILT


def version_in(text: str | None) -> tuple[int, int, int] | None:
    """The first x.y.z (or x.y) in a program's version line, or None."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def suitable(tool: str, version_text: str | None) -> bool:
    """Whether a program found on PATH will do, judged by what it says of its version."""
    version = version_in(version_text)
    if version is None:
        return False
    match tool:
        case "go":
            return version >= pins.GO_MINIMUM
        case "kind":
            return version >= pins.KIND_MINIMUM
        case "helm":
            return version >= pins.HELM_MINIMUM
        case "kubectl":
            return version[0] == 1 and version[1] in pins.KUBECTL_MINORS
    raise ValueError(f"no rule for {tool}")


def registry_answers() -> bool:
    """Whether every registry that the stock way pulls from answers within a short time."""
    for address in pins.REGISTRY_PROBES:
        try:
            urllib.request.urlopen(address, timeout=4, context=ssl.create_default_context())
        except urllib.error.HTTPError as error:
            if error.code != 401:  # 401 asks for a token: a registry is there
                return False
        except OSError:
            return False
    return True


def node_image() -> str | None:
    """Image of the cluster's control-plane node, also of a stopped one."""
    name = f"{pins.CLUSTER_NAME}-control-plane"
    return (output("docker", "inspect", "-f", "{{.Config.Image}}", name, timeout=10) or "").strip() or None


def observe() -> Facts:
    """Looks at this machine; asks the registries only when their answer matters."""
    existing = os.environ.get("E2E_USE_EXISTING_CLUSTER", "") not in ("", "0")
    docker = not existing and engine.answers()
    if not existing and not docker:
        # The engine of an earlier session may hold a cluster: only a running engine can tell.
        docker = engine.revive()
    nodes = node_image() if docker else None
    return Facts(
        use_existing=existing,
        docker=docker,
        registry=not existing and not nodes and registry_answers(),
        root=os.geteuid() == 0,
        debian=shutil.which("apt-get") is not None,
        node_image=nodes,
    )
