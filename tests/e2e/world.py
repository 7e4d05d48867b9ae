"""What the end-to-end tests do and look at: one namespace of a real cluster, conditions waited for, never slept for."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from urllib3.exceptions import HTTPError

from hack.gotools import tool
from hack.kindcluster import existing
from tests.contract.kube import API_VERSION, KIND, Json, KubeApi, Refused

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

SHARED = "shared"
"""Name of the claim, and folder of it in the pods, that `resumable` trainings write to."""
SHARED_STORAGE_CLASS = os.environ.get("E2E_SHARED_STORAGE_CLASS", "")
INTERVAL_STEPS = 50


def lacks_shared_storage() -> str:
    """Why volumes that all nodes can write to are not to be had; empty when they are. On kind they always are."""
    if existing() and not SHARED_STORAGE_CLASS:
        return "checkpoints need a ReadWriteMany volume: set E2E_SHARED_STORAGE_CLASS to a class that makes them"
    return ""


def resumable(epochs: int = 60) -> Json:
    """The spec of a training that is worth interrupting: two workers on two nodes, about 60 steps per second on one
    core each, and a checkpoint every INTERVAL_STEPS steps."""
    return {
        "workers": 2,
        "gpusPerWorker": 0,
        "training": {
            "epochs": epochs,  # of 22 steps
            "batchSize": 32,
            "learningRate": "0.003",
            "outputPath": f"/{SHARED}/output",
        },
        "volumes": [{"name": SHARED, "mountPath": f"/{SHARED}", "persistentVolumeClaim": SHARED}],
        "checkpoint": {"volume": SHARED, "intervalSteps": INTERVAL_STEPS},
        "terminationGracePeriodSeconds": 15,
    }


class World:
    """One namespace."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    @classmethod
    @contextlib.contextmanager
    def temporary(cls, kube: KubeApi, prefix: str = "e2e") -> Iterator[World]:
        """A fresh namespace that enforces Pod Security `restricted`; deleted afterwards."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        kube.request("POST", "/api/v1/namespaces", body)
        try:
            yield cls(kube, name)
        finally:
            with contextlib.suppress(Refused):  # a test may have deleted it itself
                kube.request("DELETE", f"/api/v1/namespaces/{name}")

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

    def claim(self, name: str = SHARED) -> None:
        """Makes a volume that the pods of all nodes can write to, and waits until it is there."""
        spec: Json = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        if SHARED_STORAGE_CLASS:
            spec["storageClassName"] = SHARED_STORAGE_CLASS
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        self.kube.request("POST", self.path("persistentvolumeclaims"), body)
        path = self.path(f"persistentvolumeclaims/{name}")
        self.wait(f"claim {name} is bound", lambda: self.kube.request("GET", path)["status"].get("phase") == "Bound")

    def set_run_policy(self, name: str, **fields: Any) -> None:
        """Changes fields of spec.runPolicy."""
        path = self.path(f"gputrainings/{name}", f"apis/{API_VERSION}")
        patch = {"spec": {"runPolicy": fields}}
        self.kube.request("PATCH", path, patch, content_type="application/merge-patch+json")

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

    def pod(self, name: str, rank: int) -> Json:
        """The pod of a rank in the attempt that runs."""
        pods = [pod for pod in self.pods(name) if "deletionTimestamp" not in pod["metadata"]]
        newest = max(int(pod["metadata"]["labels"]["gputraining.dev/attempt"]) for pod in pods)
        suffix = f"-{newest}-{'master-0' if rank == 0 else f'worker-{rank - 1}'}"
        (found,) = [pod for pod in pods if pod["metadata"]["name"] == f"{name}{suffix}"]
        return found

    def record(self, pod_name: str) -> Json:
        """What a worker says of itself at this moment, by way of the API server; empty when it does not answer."""
        path = self.path(f"pods/{pod_name}:9400/proxy/progress")
        try:
            return self.kube.request("GET", path, seconds=2)
        except (Refused, HTTPError):
            return {}

    def attempts(self, name: str) -> list[Json]:
        """The history of a training, oldest first."""
        found: list[Json] = self.status(name).get("attempts", [])
        return found

    def wait_step(self, name: str, step: int, seconds: float = 120) -> Json:
        """Waits until a training has done so many steps and has a checkpoint; its progress then."""

        def reached() -> Json | None:
            status = self.status(name)
            assert status.get("phase") not in TERMINAL, f"{name} has ended: {status.get('message')}"
            progress: Json = status.get("progress", {})
            return progress if progress.get("step", 0) >= step and "lastCheckpoint" in progress else None

        found: Json = self.wait(f"{name} is at step {step} and has a checkpoint", reached, seconds)
        return found

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
