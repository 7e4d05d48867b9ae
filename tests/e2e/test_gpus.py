"""GPUs: scheduled one per device, waited for with a reason, and seen through NVML."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.contract.kube import Json
from tests.e2e.world import UNTIL_STOPPED, World
from tests.mocknvml.build import build_mock_nvml


def gpu_script(world: World, name: str, workers: int) -> None:
    world.script(name, UNTIL_STOPPED, workers=workers, gpusPerWorker=1)


def test_one_worker_per_gpu_and_a_reason_to_wait(world: World, gpu_nodes: list[str]) -> None:
    gpu_script(world, "first", 2)
    world.wait_phase("first", "Running")
    pods = world.pods("first")
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods]
    assert limits == ["1", "1"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(gpu_nodes), "one worker on each node"

    gpu_script(world, "third", 1)
    message = world.wait_message("third", "0 free on 2 matching nodes")
    assert message.startswith("waiting for GPUs: 1 × nvidia.com/gpu needed")
    assert all(f"{node} 1/1 used" in message for node in gpu_nodes)
    assert message.endswith("held by training first")
    assert world.status("third")["phase"] == "Pending"
    assert [e["reason"] for e in world.events("third") if e["type"] == "Warning"] == ["InsufficientGpus"]

    world.delete("first")
    world.wait_phase("third", "Running")


def test_no_gpu_in_the_cluster_is_said(world: World) -> None:
    gpu_script(world, "alone", 1)
    world.wait_message("alone", "no node of this cluster offers it; is its device plugin installed?")


def test_gpu_figures_reach_the_status(world: World, gpu_nodes: list[str], tmp_path: Path) -> None:
    """The real pynvml in the real trainer image, against a small libnvidia-ml.so.1 built here."""
    library = build_mock_nvml(tmp_path)
    data = {library.name: base64.b64encode(library.read_bytes()).decode()}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nvml"}, "binaryData": data}
    world.kube.request("POST", world.path("configmaps"), config)
    world.train(
        "seen",
        workers=1,
        gpusPerWorker=1,
        training={"epochs": 1000},
        env=[{"name": "LD_LIBRARY_PATH", "value": "/mock"}, {"name": "MOCK_NVML_XID", "value": "79"}],
        volumes=[{"name": "nvml", "mountPath": "/mock", "configMap": "nvml"}],
    )

    def figures() -> Json | None:
        gpu: Json | None = world.status("seen").get("gpu")
        return gpu if gpu and {"utilizationPercent", "energyJoules", "xids"} <= gpu.keys() else None

    gpu = world.wait("GPU figures are in the status", figures, 120)
    assert gpu["source"] == "NVML"
    assert gpu["count"] >= 2
    assert 0 <= gpu["utilizationPercent"] <= 100
    assert gpu["memoryTotalBytes"] > gpu["memoryUsedBytes"] > 0
    assert gpu["maxTemperatureCelsius"] > 0
    assert any("lost" in error.lower() for error in gpu["errors"]), "the lost GPU is named"
    assert gpu["energyJoules"] > 0
    assert gpu["xids"] == [79]

    def faulty() -> Json | None:
        found = [c for c in world.status("seen")["conditions"] if c["type"] == "GpuUnhealthy"]
        return found[0] if found else None

    unhealthy = world.wait("the lost GPU makes a condition", faulty)
    assert (unhealthy["status"], unhealthy["reason"]) == ("True", "GpuFault")
    assert "GpuFault" in [event["reason"] for event in world.events("seen")]
    assert world.status("seen")["accounting"]["gpuSeconds"] > 0
