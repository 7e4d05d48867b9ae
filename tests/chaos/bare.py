"""The same kill on a bare PyTorchJob as people write it: restartPolicy OnFailure, nobody who looks at the whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.bench.startup import bare_job, trainer_image
from tests.chaos.run import NAME, first_step
from tests.contract.kube import API_VERSION, KIND, Json, KubeApi
from tests.e2e import faults
from tests.e2e.world import INTERVAL_STEPS, SMALL, World, resumable

PATIENCE = 120


@dataclass(frozen=True)
class Bare:
    """How a bare PyTorchJob came through: seconds to its next step (None: never within PATIENCE), and what was seen."""

    to_next_step: float | None
    lost_steps: int | None
    seen: str


def kill_in_bare_job(kube: KubeApi, rank: int = 1) -> Bare:
    """Trains the same with the same image and checkpoints, kills a rank, waits for the next step."""
    with World.temporary(kube, "chaos") as world:
        world.claim()
        training: Json = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": NAME},
            "spec": SMALL | resumable(20 * INTERVAL_STEPS),
        }
        job = bare_job(NAME, training, world.namespace, trainer_image(kube))
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            replica["restartPolicy"] = "OnFailure"
        kube.request("POST", world.path("pytorchjobs", "apis/kubeflow.org/v1"), job)
        master = f"{NAME}-1-master-0"
        world.wait("the bare job trains", lambda: world.record(master).get("step", 0) >= 3 * INTERVAL_STEPS)
        pod = kube.request("GET", world.path(f"pods/{master if rank == 0 else f'{NAME}-1-worker-{rank - 1}'}"))
        before, struck = world.record(master)["step"], datetime.now(UTC)
        faults.kill(pod)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            stamp = first_step(world, master)
            if stamp is not None and stamp > struck + timedelta(seconds=0.5):
                restored = world.record(master).get("restoredStep", 0)
                return Bare((stamp - struck).total_seconds(), before - restored, "both containers started again")
            time.sleep(0.5)
        restarts = {
            p["metadata"]["name"]: p["status"]["containerStatuses"][0]["restartCount"] for p in world.pods(NAME)
        }
        return Bare(None, None, f"never within {PATIENCE} s: survivors hang (restarts: {restarts})")
