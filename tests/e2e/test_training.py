"""A training from apply to its end: the story that its status tells."""

from __future__ import annotations

import yaml

from tests.contract.kube import API_VERSION, EXAMPLES, Json, is_gone
from tests.e2e.world import UNTIL_STOPPED, World, conditions

DIGITS: Json = {
    "workers": 2,
    "gpusPerWorker": 0,
    "training": {"epochs": 20, "batchSize": 32, "learningRate": "0.003"},
    "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
}


def test_digits_train_to_completion_and_progress_only_grows(world: World, shared_storage: None) -> None:
    world.claim("out")
    volumes = [{"name": "out", "mountPath": "/output", "persistentVolumeClaim": "out"}]
    world.train("digits", **DIGITS, volumes=volumes)

    percents: list[int] = []
    messages: set[str] = set()

    def ended() -> Json | None:
        status = world.status("digits")
        percent = status.get("progress", {}).get("percent")
        if percent is not None and (not percents or percent != percents[-1]):
            percents.append(percent)
        messages.add(status.get("message", ""))
        return status if status.get("phase") in ("Complete", "Failed") else None

    status = world.wait("digits ends", ended, seconds=300)

    assert status["phase"] == "Complete", status["message"]
    assert percents == sorted(percents)
    assert len([percent for percent in percents if percent < 100]) >= 3, f"live progress was seen: {percents}"
    assert any(message.startswith("epoch ") for message in messages)
    metrics = {metric["name"]: float(metric["value"]) for metric in status["progress"]["metrics"]}
    assert metrics["accuracy"] >= 0.97
    assert status["progress"]["percent"] == 100
    assert status["progress"]["step"] == status["progress"]["totalSteps"]
    assert status["outputPath"] == "out:/trained-model.pth"
    assert status["workers"] == {"desired": 2, "ready": 2, "failed": 0}
    assert "gpu" not in status, "no GPU figures on CPU, not even 0"
    assert conditions(status) == {
        "Accepted": ("True", "Rendered"),
        "Running": ("False", "Finished"),
        "Complete": ("True", "TrainingSucceeded"),
    }
    assert [event["reason"] for event in world.events("digits")] == ["AttemptStarted", "Running", "Complete"]
    assert [job["metadata"]["name"] for job in world.jobs()] == ["digits-1"]
    assert len({pod["spec"]["nodeName"] for pod in world.pods("digits")}) == 2, "the workers sat on different nodes"


def test_a_script_of_ones_own_that_reports_nothing_runs_and_completes(world: World) -> None:
    world.script("own", "print('hello')")
    status = world.wait_phase("own", "Complete")
    assert status["message"].startswith("done in ")
    assert "progress" not in status


def test_the_example_of_a_distributed_script_runs_as_it_is(world: World) -> None:
    config, example = yaml.safe_load_all((EXAMPLES / "own-script.yaml").read_text())
    world.kube.request("POST", world.path("configmaps"), config)
    world.train("own-script", **example["spec"])
    world.wait_phase("own-script", "Complete")


def test_a_failing_script_says_who_and_why(world: World) -> None:
    code = "import os, sys\nif os.environ['RANK'] == '1': sys.exit('no data for me')\n" + UNTIL_STOPPED
    world.script("broken", code, workers=2, runPolicy={"backoffLimit": 0})
    status = world.wait_phase("broken", "Failed")
    assert status["message"] == "worker 1: ended with exit code 1: no data for me"
    assert conditions(status)["Failed"] == ("True", "UserCodeError")
    world.wait("the survivor is stopped", lambda: all(p["status"]["phase"] != "Running" for p in world.pods("broken")))


def test_a_missing_data_set_is_named(world: World) -> None:
    dataset = {"name": "mnist", "path": "/data/mnist"}
    world.train("no-data", gpusPerWorker=0, training={"dataset": dataset})
    status = world.wait_phase("no-data", "Failed")
    assert conditions(status)["Failed"] == ("True", "DatasetNotFound")
    assert "/data/mnist" in status["message"]


def test_an_image_that_cannot_be_pulled_is_named_while_it_waits(world: World) -> None:
    world.script("no-image", "pass", image="localhost/no/such-image:1", imagePullPolicy="IfNotPresent")
    message = world.wait_message("no-image", "cannot pull the image")
    assert "localhost/no/such-image:1" in message
    assert world.status("no-image")["phase"] == "Pending"
    assert "ImagePullFailed" in [event["reason"] for event in world.events("no-image")]


def test_a_missing_secret_is_named_while_it_waits(world: World) -> None:
    world.script("no-secret", "pass", envFrom=[{"secretRef": {"name": "wandb"}}])
    assert 'secret "wandb" not found' in world.wait_message("no-secret", "cannot start")


def test_the_deadline_stops_a_training_and_frees_its_pods(world: World) -> None:
    world.script("endless", UNTIL_STOPPED, runPolicy={"activeDeadlineSeconds": 5})
    status = world.wait_phase("endless", "Failed")
    assert conditions(status)["Failed"] == ("True", "DeadlineExceeded")
    world.wait("job and pods are gone", lambda: not world.jobs() and not world.pods())


def test_a_finished_training_goes_when_its_time_is_over(world: World) -> None:
    world.script("brief", "pass", runPolicy={"ttlSecondsAfterFinished": 3})
    path = world.path("gputrainings/brief", f"apis/{API_VERSION}")
    world.wait("brief is deleted", lambda: is_gone(world.kube, path), 120)
    world.wait("its children too", lambda: not world.jobs() and not world.pods())


def test_deletion_leaves_nothing(world: World) -> None:
    world.script("gone", UNTIL_STOPPED, workers=2)
    world.wait_phase("gone", "Running")
    assert not world.training("gone")["metadata"].get("finalizers")
    world.delete("gone")
    services = world.path("services")
    world.wait(
        "nothing is left",
        lambda: not world.jobs() and not world.pods() and not world.kube.request("GET", services)["items"],
    )


def test_a_foreign_job_of_the_same_name_is_left_alone(world: World) -> None:
    pod = {"containers": [{"name": "pytorch", "image": "localhost/none:1"}]}
    replicas = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}}
    foreign = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mine-1", "namespace": world.namespace},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    created = world.kube.request("POST", world.path("pytorchjobs", "apis/kubeflow.org/v1"), foreign)
    world.script("mine", "pass")
    assert "exists that is not this training's" in world.wait_message("mine", "mine-1")
    (job,) = world.jobs()
    assert job["metadata"]["uid"] == created["metadata"]["uid"]
    assert not job["metadata"].get("ownerReferences")
