"""What takes a training's workers away, and how it goes on: attempts, checkpoints, suspension, limits that hold."""

from __future__ import annotations

import pytest

from hack.kindcluster import WORKERS
from tests.contract.kube import Json, KubeApi
from tests.e2e import faults
from tests.e2e.world import INTERVAL_STEPS, SHARED, UNTIL_STOPPED, World, conditions, resumable

EPOCHS = 40
# Of `training.onOutOfMemory`: the synthetic data set takes 1.2 GB with a batch of 512, 0.75 GB with 256.
LARGE_BATCH: Json = {
    "workers": 1,
    "gpusPerWorker": 0,
    "training": {"dataset": {"name": "synthetic"}, "epochs": 1, "batchSize": 512, "outputPath": "/tmp/output"},
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "920Mi"}},
}


@pytest.fixture(scope="module")
def undisturbed(kube: KubeApi, shared_storage: None) -> list[Json]:
    """The figures at the end of a training that nothing interrupts."""
    with World.temporary(kube) as world:
        world.claim()
        world.train("steady", **resumable(EPOCHS))
        metrics: list[Json] = world.wait_phase("steady", "Complete")["progress"]["metrics"]
        return metrics


def assert_ended_as(status: Json, undisturbed: list[Json]) -> None:
    """The interruption left no trace in what was learned."""
    assert status["progress"]["metrics"] == undisturbed
    assert status["progress"]["percent"] == 100


@faults.needs_kind
def test_kill_9_of_one_worker_starts_all_of_them_again_from_the_checkpoint(
    world: World, undisturbed: list[Json]
) -> None:
    world.claim()
    world.train("killed", **resumable(EPOCHS))
    before = world.wait_step("killed", 3 * INTERVAL_STEPS)
    faults.kill(world.pod("killed", 1))

    status = world.wait_phase("killed", "Complete")

    first, second = status["attempts"]
    assert (first["reason"], first["worker"], first["exitCode"]) == ("Killed", 1, 137)
    assert first["countsAgainstBackoffLimit"]
    assert status["countedFailures"] == 1
    assert first["lastStep"] >= before["step"]
    assert second["restoredStep"] > 0
    assert first["lastStep"] - second["restoredStep"] <= INTERVAL_STEPS
    assert_ended_as(status, undisturbed)
    reasons = [event["reason"] for event in world.events("killed")]
    assert [r for r in reasons if r in ("AttemptStarted", "Killed", "Complete")] == [
        "AttemptStarted",
        "Killed",
        "AttemptStarted",
        "Complete",
    ]


def test_an_evicted_worker_loses_no_step_and_costs_no_retry(world: World, undisturbed: list[Json]) -> None:
    world.claim()
    world.train("evicted", **resumable(EPOCHS), runPolicy={"backoffLimit": 0})
    world.wait_step("evicted", 2 * INTERVAL_STEPS)
    faults.evict(world.kube, world.pod("evicted", 1))

    status = world.wait_phase("evicted", "Complete")

    first, second = status["attempts"]
    assert (first["reason"], first["worker"], first["exitCode"]) == ("Evicted", 1, 75)
    assert not first["countsAgainstBackoffLimit"]
    assert status.get("countedFailures", 0) == 0
    assert second["restoredStep"] == first["lastStep"]
    assert_ended_as(status, undisturbed)


@faults.needs_kind
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(world: World, undisturbed: list[Json]) -> None:
    world.claim()
    world.train("damaged", **resumable(EPOCHS))
    world.wait_step("damaged", 3 * INTERVAL_STEPS)
    world.set_run_policy("damaged", suspend=True)
    at = world.wait_phase("damaged", "Suspended")["progress"]["lastCheckpoint"]["step"]
    node = WORKERS[0]
    state = faults.checkpoints(node, faults.volume_folder(world, SHARED))[-1] / "state.pt"
    faults.truncate(node, state, faults.size_of(node, state) // 2)
    world.set_run_policy("damaged", suspend=False)

    status = world.wait_phase("damaged", "Complete")

    assert 0 < at - status["attempts"][-1]["restoredStep"] <= INTERVAL_STEPS
    assert_ended_as(status, undisturbed)


def test_suspending_frees_the_pods_and_resuming_goes_on_where_it_was(world: World, shared_storage: None) -> None:
    world.claim()
    world.train("paused", **resumable(20))
    world.wait_step("paused", INTERVAL_STEPS)
    world.set_run_policy("paused", suspend=True)
    status = world.wait_phase("paused", "Suspended")
    assert conditions(status)["Suspended"] == ("True", "Suspended")
    assert not [pod for pod in world.pods("paused") if pod["status"]["phase"] == "Running"]
    (first,) = status["attempts"]
    assert not first["countsAgainstBackoffLimit"]

    world.set_run_policy("paused", suspend=False)

    status = world.wait_phase("paused", "Complete")
    assert status["attempts"][1]["restoredStep"] == first["lastStep"]
    assert conditions(status)["Suspended"][0] == "False"
    assert status["suspendedSeconds"] >= 0


def test_the_backoff_limit_holds_and_the_history_stays(world: World) -> None:
    code = "import os, sys\nif os.environ['RANK'] == '1': sys.exit('no data for me')\n" + UNTIL_STOPPED
    world.script("failing", code, workers=2, runPolicy={"backoffLimit": 1})
    status = world.wait_phase("failing", "Failed")
    assert conditions(status)["Failed"] == ("True", "UserCodeError")
    assert "no data for me" in status["message"]
    assert "backoffLimit of 1" in status["message"]
    assert [(a["number"], a["reason"], a["exitCode"], a["worker"]) for a in status["attempts"]] == [
        (1, "UserCodeError", 1, 1),
        (2, "UserCodeError", 1, 1),
    ]
    assert status["countedFailures"] == 2


def test_out_of_memory_halves_the_batch_when_asked_to(world: World) -> None:
    spec = LARGE_BATCH | {"training": LARGE_BATCH["training"] | {"onOutOfMemory": "ReduceBatchSize"}}
    world.train("large", **spec, runPolicy={"backoffLimit": 0})
    status = world.wait_phase("large", "Complete")
    assert status["training"] == {"batchSize": 256, "gradientAccumulationSteps": 2}
    assert [(a.get("reason"), a["batchSize"], a["gradientAccumulationSteps"]) for a in status["attempts"]] == [
        ("OutOfMemory", 512, 1),
        ("TrainingSucceeded", 256, 2),
    ]
    assert status.get("countedFailures", 0) == 0


def test_what_is_never_scheduled_fails_at_its_deadline_and_says_why(world: World) -> None:
    nowhere = {"nodeSelector": {"gputraining.dev/no-such": "node"}}
    world.script("nowhere", "pass", scheduling=nowhere, runPolicy={"pendingDeadlineSeconds": 8})
    status = world.wait_phase("nowhere", "Failed", seconds=60)
    assert conditions(status)["Failed"] == ("True", "PendingDeadlineExceeded")
    assert "pendingDeadlineSeconds" in status["message"]
    assert "node" in status["message"]
    assert "selector" in status["message"]
    world.wait("its pods are gone", lambda: not world.pods())
