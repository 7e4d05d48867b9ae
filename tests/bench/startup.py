"""Time from apply to the first training step: a GpuTraining beside the very same PyTorchJob applied by hand.

Both are applied in turns on the same cluster, each in its own run, so that what else the machine does hits both alike.
The end of the first step is the time stamp that the container runtime gives to the trainer's log line about it, the
start is taken just before the request is sent: one clock, since all nodes are containers of this machine.

    python -m tests.bench.startup [--runs 10]
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from gputraining_operator.api import LABEL_NAME, Json
from gputraining_operator.render import render_job
from gputraining_operator.spec import parse_training
from hack.gotools import tool
from tests.contract.kube import API_VERSION, KIND, KubeApi
from tests.e2e.world import OPERATOR_NAMESPACE

T = TypeVar("T")

FIRST_STEP = "first step done"
SPEC: Json = {
    "workers": 2,
    "gpusPerWorker": 0,
    "training": {"epochs": 1, "outputPath": "/tmp/output"},
    "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}},
    "sharedMemory": {"sizeLimit": "64Mi"},
}


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    kube = KubeApi()
    image = trainer_image(kube)
    namespace = f"bench-{secrets.token_hex(3)}"
    kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    console = Console()
    seconds: dict[str, list[float]] = {KIND: [], "PyTorchJob": []}
    try:
        measure(kube, namespace, KIND, "warm-up", image)  # the nodes' page cache
        for run in range(runs):
            for kind in (KIND, "PyTorchJob") if run % 2 == 0 else ("PyTorchJob", KIND):
                took = measure(kube, namespace, kind, f"r{run}-{kind.lower()}", image)
                seconds[kind].append(took)
                console.print(f"run {run + 1:2} of {runs}  {kind:12} {took:6.2f} s")
    finally:
        kube.request("DELETE", f"/api/v1/namespaces/{namespace}")
    console.print(table(seconds))


def measure(kube: KubeApi, namespace: str, kind: str, name: str, image: str) -> float:
    """Applies one job, waits for its first step, removes it; the seconds in between."""
    training: Json = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": SPEC}
    if kind == KIND:
        group, plural, body = API_VERSION, "gputrainings", training
    else:
        group, plural, body = "kubeflow.org/v1", "pytorchjobs", bare_job(name, training, namespace, image)
    path = f"/apis/{group}/namespaces/{namespace}/{plural}"
    pod = f"{name}-1-master-0"
    started = datetime.now(UTC)
    kube.request("POST", path, body)
    ended = wait_for(lambda: first_step(kube, namespace, pod), f"{pod} takes its first step")
    kube.request("DELETE", f"{path}/{body['metadata']['name']}")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wait_for(lambda: not kube.request("GET", pods)["items"], "the pods are gone")
    return (ended - started).total_seconds()


def bare_job(name: str, training: Json, namespace: str, image: str) -> Json:
    """What a user would write by hand: our manifest without an owner, and unknown to the operator."""
    meta = {"namespace": namespace, "uid": "", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = render_job(parse_training(training | {"metadata": training["metadata"] | meta}), 1, image)
    del job["metadata"]["ownerReferences"], job["metadata"]["labels"]
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        # The name stays: by it the workers keep to nodes of their own, as those of the GpuTraining do.
        replica["template"]["metadata"]["labels"] = {LABEL_NAME: name}
    return job


def first_step(kube: KubeApi, namespace: str, pod: str) -> datetime | None:
    """When the container runtime saw the log line about the first step; None before."""
    context = ["--context", kube.context] if kube.context else []
    command = [tool("kubectl"), *context, "-n", namespace, "logs", "--timestamps", pod]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    stamps = [line.split(" ", 1)[0] for line in lines if FIRST_STEP in line]
    # Nanoseconds are more than Python reads.
    return datetime.fromisoformat(stamps[0][:26] + "+00:00") if stamps else None


def wait_for(condition: Callable[[], T | None], what: str) -> T:
    """Polls until the condition gives something true."""
    deadline = time.monotonic() + 180
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within 180 s: {what}")
        time.sleep(0.1)
    return found


def trainer_image(kube: KubeApi) -> str:
    """The image that the operator gives to trainings."""
    path = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/gputraining-operator"
    (container,) = kube.request("GET", path)["spec"]["template"]["spec"]["containers"]
    image: str = next(e["value"] for e in container["env"] if e["name"] == "TRAINER_IMAGE")
    return image


def table(seconds: dict[str, list[float]]) -> Table:
    """Median, spread and ratio."""
    result = Table(title=f"apply → first training step, {len(seconds[KIND])} runs each, in turns")
    for column in ("", "median", "min", "max"):
        result.add_column(column, justify="right" if column else "left")
    for kind, values in seconds.items():
        result.add_row(kind, *(f"{f(values):.2f} s" for f in (statistics.median, min, max)))
    ours, bare = statistics.median(seconds[KIND]), statistics.median(seconds["PyTorchJob"])
    result.add_row("difference", f"{ours - bare:+.2f} s")
    result.add_row("ratio", f"{ours / bare:.3f}")
    return result


if __name__ == "__main__":
    main()
