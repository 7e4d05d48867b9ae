"""The fault matrix. What spoils the nodes or the API server for others comes last."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from hack.kindcluster import WORKERS
from tests.chaos.run import EPOCHS, FILES, NAME, Run, pause_here
from tests.chaos.scenario import NONE_LOST, Expected, Scenario
from tests.contract.kube import Json, is_gone
from tests.e2e import faults
from tests.e2e.world import INTERVAL_STEPS, SHARED, resumable

SMALL_DISK_NODE = WORKERS[0]
SMALL_DISK_FOLDER = "/var/gputraining-small-disk"

# The synthetic data set takes 1.2 GB with a batch of 512, 0.75 GB with 256.
LARGE_BATCH: Final[Json] = {
    "workers": 1,
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "920Mi"}},
}
LARGE_TRAINING: Final[Json] = {
    "dataset": {"name": "synthetic"},
    "epochs": 1,
    "batchSize": 512,
    "outputPath": f"/{SHARED}/output",
}
# The most that is allowed: the weights grow ten thousandfold in each step.
ABSURD_RATES: Final[Json] = {"learningRate": "100", "weightDecay": "100"}


# Workers


def kill_rank_0(run: Run) -> None:
    run.kill(0)


def kill_rank_1(run: Run) -> None:
    run.kill(1)


def delete_pod(run: Run) -> None:
    run.strike(faults.delete_pod, run.kube, run.pod(run.rng.choice((0, 1))))


def evict(run: Run) -> None:
    run.strike(faults.evict, run.kube, run.pod(run.rng.choice((0, 1))))


def suspend_twice(run: Run) -> None:
    """Each time at a random step."""
    run.suspend()
    run.resume()
    run.wait_next_attempt()
    run.reach(0.5, 0.8)
    run.suspend()
    run.resume()


# Operators


def kill_operator_in_each_phase(run: Run) -> None:
    """Running, between two attempts, suspending, suspended, resumed: each at a random moment."""
    faults.kill_operator(run.kube)
    run.reach(0.4, 0.6)
    run.kill(1)
    pause_here(run.rng.uniform(0, 2))
    faults.kill_operator(run.kube)
    run.wait_next_attempt()
    run.reach(0.7, 0.9)
    run.world.set_run_policy(NAME, suspend=True)
    pause_here(run.rng.uniform(0, 2))
    faults.kill_operator(run.kube)
    run.wait_phase("Suspended")
    faults.kill_operator(run.kube)
    run.resume()
    pause_here(run.rng.uniform(0, 2))
    faults.kill_operator(run.kube)


def operator_is_killed_when_it_is_applied(run: Run) -> None:
    """Before the operator has seen it, or just then."""
    run.undo.callback(run.kube.wait, "the operator is well", lambda: faults.operator_is_well(run.kube), 60)
    faults.kill_operator(run.kube)


def restart_training_operator(run: Run) -> None:
    """Its pod is killed; nobody watches the job for some seconds."""

    def kill() -> None:
        for pod in faults.training_operator_pods(run.kube):
            faults.delete_pod(run.kube, pod, grace_seconds=0)

    run.undo.callback(run.kube.wait, "the training-operator is well", lambda: training_operator_is_well(run), 60)
    run.strike(kill)


def training_operator_is_well(run: Run) -> bool:
    """Whether it has a pod, and that is ready."""
    pods = faults.training_operator_pods(run.kube)
    return bool(pods) and all(faults.pod_is_ready(pod) for pod in pods)


def delete_namespace_without_operator(run: Run) -> None:
    """Nothing that we made may hold it up: no finalizers."""
    with faults.operator_away(run.kube):
        run.strike(run.kube.request, "DELETE", f"/api/v1/namespaces/{run.world.namespace}")
        path = f"/api/v1/namespaces/{run.world.namespace}"
        run.kube.wait("the namespace is gone", lambda: is_gone(run.kube, path), 120)


# Memory, numbers, files


def batch_was_halved(run: Run) -> Iterable[str]:
    """One reduction, the effective batch as before."""
    if (got := run.status().get("training")) != {"batchSize": 256, "gradientAccumulationSteps": 2}:
        yield f"status.training is {got}"


def truncate_checkpoint(run: Run) -> None:
    """The newest one, at a random byte, while no pod runs."""
    run.suspend()
    state = faults.checkpoints(FILES, run.checkpoints)[-1] / "state.pt"
    faults.truncate(FILES, state, run.rng.randrange(faults.size_of(FILES, state)))
    run.resume()


def put_foreign_checkpoint(run: Run) -> None:
    """Somebody else's with a higher step, of another model; then a kill, so that one is looked for."""
    newest = faults.checkpoints(FILES, run.checkpoints)[-1]
    uid = run.world.training(NAME)["metadata"]["uid"]
    foreign = newest.with_name("step-0000999999")
    faults.on_node(FILES, "cp", "-a", str(newest), str(foreign))
    manifest = str(foreign / "manifest.json")
    changes = ("s/smallcnn/resnet18/", f"s/{uid}/somebody-else/", 's/"step": [0-9]*/"step": 999999/')
    faults.on_node(FILES, "sed", "-i", *(part for change in changes for part in ("-e", change)), manifest)
    run.kill(1)


def foreign_checkpoint_stays(run: Run) -> Iterable[str]:
    """It is not ours to delete."""
    if run.checkpoints / "step-0000999999" not in faults.checkpoints(FILES, run.checkpoints):
        yield "the foreign checkpoint was deleted"


def make_folder_read_only(run: Run) -> None:
    """For a while: writing fails, training goes on."""
    folder = str(run.checkpoints)
    run.strike(faults.on_node, FILES, "sh", "-ec", f"chown root {folder}; chmod 0555 {folder}")
    run.wait_event("CheckpointFailed")
    faults.on_node(FILES, "chown", "1000", folder)
    faults.on_node(FILES, "chmod", "0755", folder)


def mount_small_disk(run: Run) -> None:
    """A file system of 32 MiB for the checkpoints (of 5 MB each), on the node that all workers are bound to."""
    folder = SMALL_DISK_FOLDER
    mount = f"mkdir -p {folder} && mount -t tmpfs -o size=32m,mode=0777 none {folder}"
    run.undo.callback(faults.on_node, SMALL_DISK_NODE, "sh", "-c", f"umount --lazy {folder}; rmdir {folder}")
    faults.on_node(SMALL_DISK_NODE, "sh", "-ec", mount)
    name = f"{run.world.namespace}-small"
    spec = {
        "capacity": {"storage": "32Mi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "none",
        "hostPath": {"path": folder},
        "claimRef": {"namespace": run.world.namespace, "name": "small"},
    }
    volume: Json = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    run.kube.request("POST", "/api/v1/persistentvolumes", volume)
    run.undo.callback(run.kube.request, "DELETE", f"/api/v1/persistentvolumes/{name}")
    wanted = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "32Mi"}},
        "storageClassName": "none",
        "volumeName": name,
    }
    claim: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "small"}, "spec": wanted}
    run.kube.request("POST", run.world.path("persistentvolumeclaims"), claim)


SMALL_DISK: Final[Json] = {
    "checkpoint": {"volume": "small", "intervalSteps": INTERVAL_STEPS},
    "volumes": [
        {"name": SHARED, "mountPath": f"/{SHARED}", "persistentVolumeClaim": SHARED},
        {"name": "small", "mountPath": "/small", "persistentVolumeClaim": "small"},
    ],
    "scheduling": {"nodeSelector": {"kubernetes.io/hostname": SMALL_DISK_NODE}},
}


def fill_disk(run: Run) -> None:
    """Not a byte is left, for a while; then a kill, so that what was whole is needed."""
    big = f"{SMALL_DISK_FOLDER}/big"
    run.strike(faults.on_node, SMALL_DISK_NODE, "sh", "-c", f"dd if=/dev/zero of={big} bs=64k 2>/dev/null; true")
    run.wait_event("CheckpointFailed")
    saved = run.checkpoint_step()
    faults.on_node(SMALL_DISK_NODE, "rm", big)
    run.wait("checkpoints are written again", lambda: run.checkpoint_step() > saved, 30)
    run.kill(1)


# Nodes and the API server


def restart_kubelet(run: Run) -> None:
    run.strike(faults.restart_kubelet, run.node(1))


def drain(run: Run) -> None:
    """The node of rank 1, with all that runs there."""
    node = run.node(1)
    run.undo.callback(faults.uncordon, run.kube, node)
    run.strike(faults.drain, run.kube, node)


def api_server_away(run: Run) -> None:
    """For a minute; the training needs it for nothing."""
    node, address = run.node(0), f"http://{run.pod(0)['status']['podIP']}:9400/progress"

    def step() -> int:
        return int(json.loads(faults.on_node(node, "curl", "--silent", "--max-time", "2", address))["step"])

    run.strike(lambda: None)
    with faults.api_server_away(run.kube):
        run.mark()
        before = step()
        run.wait("it goes on without the API server", lambda: step() > before, 10)
        run.advanced()
        pause_here(60)


def pause_node(run: Run, seconds: float | None) -> None:
    """The node of a worker, one that does not run the training-operator: the new workers need that."""
    busy = {pod["spec"]["nodeName"] for pod in faults.training_operator_pods(run.kube)}
    (node,) = {run.node(0), run.node(1)} - busy
    run.undo.callback(run.kube.wait, f"{node} is ready", lambda: faults.is_ready(run.kube, node), 120)
    run.undo.callback(faults.unpause, node)
    run.strike(faults.pause, node)
    if seconds is not None:
        pause_here(seconds)
        faults.unpause(node)


SCENARIOS: Final = (
    Scenario("kill-rank-0", "kill -9 of rank 0", Expected(ended=("Killed",), counted=1), kill_rank_0),
    Scenario("kill-rank-1", "kill -9 of rank 1", Expected(ended=("Killed",), counted=1), kill_rank_1),
    Scenario("delete-pod", "a pod is deleted", Expected(ended=("PodDeleted",), max_lost=NONE_LOST), delete_pod),
    Scenario("evict", "a pod is evicted (API)", Expected(ended=("Evicted",), max_lost=NONE_LOST), evict),
    Scenario(
        "suspend-resume",
        "suspended and resumed twice",
        Expected(ended=("Suspended", "Suspended"), max_lost=NONE_LOST),
        suspend_twice,
        when=(0.1, 0.4),
    ),
    Scenario(
        "operator-killed",
        "operator killed in each phase, and rank 1",
        # With no operator there the training-operator may remove the killed pod before anybody has seen how it ended.
        Expected(ended=("Killed or PeerLost", "Suspended"), counted=1, same_model=False),
        kill_operator_in_each_phase,
        spec={"training": resumable(3 * EPOCHS)["training"]},  # another operator may take half a minute to take over
        prepare=operator_is_killed_when_it_is_applied,
    ),
    Scenario("training-operator", "training-operator restarted", Expected(), restart_training_operator),
    Scenario(
        "out-of-memory",
        "out of memory, onOutOfMemory: Fail",
        Expected(phase="Failed", failed="OutOfMemory", says="512", same_model=False),
        spec=LARGE_BATCH | {"training": LARGE_TRAINING},
    ),
    Scenario(
        "reduce-batch",
        "out of memory, ReduceBatchSize",
        Expected(ended=("OutOfMemory",), same_model=False),
        spec=LARGE_BATCH | {"training": LARGE_TRAINING | {"onOutOfMemory": "ReduceBatchSize"}},
        check=batch_was_halved,
    ),
    Scenario(
        "nan",
        "loss becomes NaN, twice at one step",
        Expected(phase="Failed", ended=("NonFiniteLoss",), counted=2, failed="NonFiniteLoss", same_model=False),
        spec={"training": resumable(EPOCHS)["training"] | ABSURD_RATES},
    ),
    Scenario(
        "no-dataset",
        "dataset path missing",
        Expected(phase="Failed", failed="DatasetNotFound", says="/data/mnist", same_model=False),
        spec={"training": {"dataset": {"name": "mnist", "path": "/data/mnist"}}},
    ),
    Scenario(
        "no-image",
        "image missing, pendingDeadlineSeconds: 15",
        Expected(phase="Failed", failed="PendingDeadlineExceeded", says="localhost/no/such-image:1", same_model=False),
        spec={"image": "localhost/no/such-image:1", "runPolicy": {"pendingDeadlineSeconds": 15}},
    ),
    Scenario(
        "truncated-checkpoint",
        "checkpoint cut off at a random byte",
        Expected(ended=("Suspended",)),
        truncate_checkpoint,
    ),
    Scenario(
        "foreign-checkpoint",
        "foreign checkpoint, then kill -9",
        Expected(ended=("Killed",), counted=1),
        put_foreign_checkpoint,
        check=foreign_checkpoint_stays,
    ),
    Scenario(
        "read-only-checkpoints",
        "checkpoint folder read-only for a while",
        Expected(events=("CheckpointFailed",)),
        make_folder_read_only,
    ),
    Scenario(
        "disk-full",
        "disk full for a while, then kill -9",
        Expected(ended=("Killed",), counted=1, events=("CheckpointFailed",)),
        fill_disk,
        spec=SMALL_DISK,
        prepare=mount_small_disk,
    ),
    Scenario(
        "namespace-deleted",
        "namespace deleted, no operator",
        Expected(phase="", same_model=False),
        delete_namespace_without_operator,
    ),
    Scenario("kubelet", "kubelet restarted", Expected(), restart_kubelet),
    Scenario("drain", "kubectl drain of a node", Expected(ended=("Evicted",), max_lost=NONE_LOST), drain),
    Scenario("api-server", "no API server for 60 s", Expected(), api_server_away, when=(0.05, 0.12)),
    Scenario("pause-60", "a node hangs for 60 s", Expected(), lambda run: pause_node(run, 60)),
    Scenario(
        "node-lost",
        "a node is gone for good",
        Expected(ended=("NodeLost",)),
        lambda run: pause_node(run, None),
        seconds=300,
    ),
)
