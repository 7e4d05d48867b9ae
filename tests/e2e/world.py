"""What the end-to-end tests do and look at: one namespace of a real cluster, conditions waited for, never slept for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

from hack.gotools import tool
from tests.contract.kube import API_VERSION, KIND, Json, KubeApi

OPERATOR_NAMESPACE = "gputraining-system"
TERMINAL = ("Complete", "Failed")

# The smallest requests that leave room for everything else on a laptop.
SMALL: Json = {
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
    "sharedMemory": {"sizeLimit": "64Mi"},
    "monitoring": {"intervalSeconds": 1},
}


# Runs until it is told to stop. A plain sleep as process 1 would ignore SIGTERM and be killed 30 s later.
UNTIL_STOPPED = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM]); s.sigwait([s.SIGTERM])"


class World:
    """One namespace."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    def path(self, resource: str, group: str = "api/v1") -> str:
        """The URL path of a namespaced resource."""
        return f"/{group}/namespaces/{self.namespace}/{resource}"

    def train(self, name: str, **spec: Any) -> Json:
        """Applies a GpuTraining."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": SMALL | spec,
        }
        return self.kube.apply(self.path(f"gputrainings/{name}", f"apis/{API_VERSION}"), body)

    def script(self, name: str, code: str, **spec: Any) -> Json:
        """Applies a GpuTraining that runs a piece of Python in the trainer image, on CPU unless told otherwise."""
        return self.train(name, **({"gpusPerWorker": 0, "command": ["python3", "-c", code]} | spec))

    def training(self, name: str) -> Json:
        """The GpuTraining as it is now."""
        return self.kube.request("GET", self.path(f"gputrainings/{name}", f"apis/{API_VERSION}"))

    def status(self, name: str) -> Json:
        """Its status; empty before the operator's first write."""
        status: Json = self.training(name).get("status", {})
        return status

    def delete(self, name: str) -> None:
        """Deletes a GpuTraining."""
        self.kube.request("DELETE", self.path(f"gputrainings/{name}", f"apis/{API_VERSION}"))

    def jobs(self) -> list[Json]:
        """All PyTorchJobs of the namespace."""
        items: list[Json] = self.kube.request("GET", self.path("pytorchjobs", "apis/kubeflow.org/v1"))["items"]
        return items

    def pods(self, name: str | None = None) -> list[Json]:
        """All pods of the namespace, or those of one training, master first."""
        query = {"labelSelector": f"gputraining.dev/name={name}"} if name else {}
        items: list[Json] = self.kube.request("GET", self.path("pods"), query=query)["items"]
        return sorted(items, key=lambda pod: str(pod["metadata"]["name"]))

    def events(self, name: str) -> list[Json]:
        """The events about a training, oldest first."""
        query = {"fieldSelector": f"involvedObject.kind={KIND},involvedObject.name={name}"}
        items: list[Json] = self.kube.request("GET", self.path("events"), query=query)["items"]
        return sorted(items, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 90) -> Any:
        """Polls until the condition gives something true, and returns that; tells the state of the world otherwise."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.tell()}"
            time.sleep(0.1)
        return found

    def wait_phase(self, name: str, *phases: str, seconds: float = 180) -> Json:
        """Waits for a phase; stops early at an end that is not among those wanted."""

        def reached() -> Json | None:
            status = self.status(name)
            phase = status.get("phase")
            wrong_end = phase in TERMINAL and phase not in phases
            assert not wrong_end, f"{name} is {phase}: {status.get('message')}\n{self.tell()}"
            return status if phase in phases else None

        found: Json = self.wait(f"{name} is {' or '.join(phases)}", reached, seconds)
        return found

    def wait_message(self, name: str, part: str, seconds: float = 60) -> str:
        """Waits until the status message says so."""

        def said() -> str:
            message: str = self.status(name).get("message", "")
            return message if part in message else ""

        found: str = self.wait(f"the message of {name} says {part!r}", said, seconds)
        return found

    def tell(self) -> str:
        """What the namespace looks like, for the report of a failed test."""
        context = ["--context", self.kube.context] if self.kube.context else []
        kubectl = [tool("kubectl"), *context, "-n", self.namespace]
        commands = (["get", "gput,pytorchjobs,pods", "-o", "wide"], ["get", "events", "--sort-by=.lastTimestamp"])
        texts = [subprocess.run([*kubectl, *c], capture_output=True, text=True, check=False) for c in commands]
        return "\n".join(text.stdout[-4000:] + text.stderr[-500:] for text in texts)


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())}
