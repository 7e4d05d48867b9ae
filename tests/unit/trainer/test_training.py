"""Whole trainings: real processes, Gloo between them, files and last words at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from gputraining_trainer.config import Process, TrainingConfig
from gputraining_trainer.data import sets
from gputraining_trainer.data.batches import make_batches
from gputraining_trainer.loop import evaluate
from gputraining_trainer.models import make_model
from gputraining_trainer.parallel import Group
from gputraining_trainer.precision import choose_precision
from tests.mocknvml.build import build_mock_nvml
from tests.unit.trainer.conftest import Check, Launch
from tests.unit.trainer.formats import write_cifar10
from tests.unit.trainer.launch import TrainerProcess, free_port, pair, wait_for

ENDLESS = {"EPOCHS": "100000"}


def start_pair(launch: Launch, **settings: str) -> tuple[TrainerProcess, TrainerProcess]:
    port = free_port()
    return launch(pair(port, 0, **settings)), launch(pair(port, 1, **settings))


def test_two_workers_train_to_the_end(launch: Launch, check_record: Check) -> None:
    workers = start_pair(launch, EPOCHS="8", BATCH_SIZE="32", LEARNING_RATE="0.003", GRADIENT_ACCUMULATION_STEPS="2")
    live: list[dict[str, Any]] = []

    def poll() -> bool:
        live.extend(record for worker in workers if (record := worker.progress()))
        return workers[0].process.poll() is not None

    wait_for(poll, "the end of the training")
    assert [worker.wait() for worker in workers] == [0, 0], workers[0].log() + workers[1].log()

    for record in live:
        check_record(record)
    for rank in (0, 1):
        steps = [record.get("step", 0) for record in live if record["rank"] == rank]
        assert steps == sorted(steps)
    assert {"Starting", "Training"} <= {record["state"] for record in live}

    finals = [worker.final() for worker in workers]
    for rank, final in enumerate(finals):
        check_record(final)
        assert (final["state"], final["rank"], final["worldSize"]) == ("Complete", rank, 2)
        # 1433 samples, 716 per rank, 11 steps of 64
        assert (final["step"], final["totalSteps"], final["epoch"]) == (88, 88, 8)
        assert final["estimatedRemainingSeconds"] == 0
        assert final["samplesPerSecond"] > 0
    assert finals[0]["metrics"]["accuracy"] == finals[1]["metrics"]["accuracy"] > 0.95
    assert finals[0]["metrics"]["loss"] == finals[1]["metrics"]["loss"]

    output = workers[0].output
    assert sorted(path.name for path in output.iterdir()) == ["trained-model.pth", "training_metadata.json"]
    assert not workers[1].output.exists()  # rank 0 writes
    assert finals[0]["result"]["modelPath"] == str(output / "trained-model.pth")
    metadata = json.loads((output / "training_metadata.json").read_text())
    assert (metadata["worldSize"], metadata["device"], metadata["precision"]) == (2, "cpu", "FP32")
    assert metadata["versions"]["torch"] == torch.__version__
    assert metadata["config"]["epochs"] == 8
    assert metadata["durationSeconds"]["total"] >= metadata["durationSeconds"]["training"] > 0

    # The weights are those of the plain model, and as good as was said: on all test samples, by one process.
    model = make_model("smallcnn", 1, 10, 8)
    model.load_state_dict(torch.load(output / "trained-model.pth", weights_only=True))
    cpu, config = torch.device("cpu"), TrainingConfig()
    batches = make_batches(sets.load(config), config, Process(), cpu)
    _, accuracy = evaluate(model, batches, choose_precision("FP32", cpu), Group(Process(), cpu))
    assert accuracy == metadata["accuracy"]
    assert round(accuracy, 5) == round(finals[0]["metrics"]["accuracy"], 5)

    log = workers[0].log()
    assert "first step done" in log
    assert all(f"epoch {epoch}/8  step {11 * epoch}/88  loss " in log for epoch in range(1, 9))
    assert "epoch" not in workers[1].log()


def test_alone_without_any_environment(tmp_path: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR") if name in os.environ}
    subprocess.run(
        [sys.executable, "-m", "gputraining_trainer"], cwd=tmp_path, env=kept, check=True, capture_output=True
    )
    assert (tmp_path / "output" / "trained-model.pth").stat().st_mode & 0o777 == 0o644
    assert json.loads((tmp_path / "output" / "training_metadata.json").read_text())["accuracy"] > 0.95


def test_torchrun_is_started_where_workers_have_several_processes(launch: Launch, check_record: Check) -> None:
    port = free_port()
    nodes = [
        launch(pair(port, rank, PET_NPROC_PER_NODE="2", WORLD_SIZE="4", EPOCHS="1", PET_MASTER_PORT=str(port)))
        for rank in range(2)
    ]
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log() + nodes[1].log()
    for node in nodes:
        check_record(node.final())
        assert (node.final()["state"], node.final()["worldSize"]) == ("Complete", 4)
    assert (nodes[0].output / "trained-model.pth").exists()


def test_torchrun_by_hand(launch: Launch) -> None:
    worker = launch({"EPOCHS": "1"}, torchrun=2)
    assert worker.wait() == 0, worker.log()
    assert worker.final()["worldSize"] == 2


def test_a_wrong_environment_ends_at_once(launch: Launch, check_record: Check) -> None:
    for environment in ({"EPOCHS": "ten"}, {"EPOCHS": "ten", "PET_NPROC_PER_NODE": "2"}):
        worker = launch(environment)
        assert worker.wait() == 64
        final = worker.final()
        check_record(final)
        assert final["state"] == "Failed"
        assert final["error"]["type"] == "InvalidConfig"
        assert final["error"]["message"].startswith("EPOCHS: got 'ten', allowed: a whole number from 1 to ")
        assert worker.log().count("\n") == 1  # one line, no traceback


def test_an_output_that_cannot_be_written_is_told_before_training(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    worker = launch({"OUTPUT_PATH": str(tmp_path / "file" / "out")})
    assert worker.wait() == 64
    assert worker.final()["error"]["message"].startswith("training.outputPath (OUTPUT_PATH): got '")


def test_a_missing_data_set_ends_at_once(launch: Launch, check_record: Check, tmp_path: Path) -> None:
    worker = launch({"DATASET_TYPE": "mnist", "DATASET_PATH": str(tmp_path / "absent")})
    assert worker.wait() == 66
    final = worker.final()
    check_record(final)
    assert final["error"]["type"] == "DatasetNotFound"
    assert final["error"]["message"].startswith(f"mnist: {tmp_path}/absent does not exist; fix: ")


def test_a_damaged_data_set_fails_with_the_traceback(launch: Launch, check_record: Check, tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_4").write_bytes(b"no pickle")
    worker = launch({"DATASET_TYPE": "cifar10", "DATASET_PATH": str(tmp_path)})
    assert worker.wait() == 1
    final = worker.final()
    check_record(final)
    assert final["error"]["type"] == "UserCodeError"
    assert "data_batch_4: no batch of CIFAR-10" in final["error"]["message"]
    assert "read_cifar10" in final["error"]["traceback"]
    assert "Traceback (most recent call last)" in worker.log()


def test_sigterm_ends_quickly_and_leaves_the_state_as_it_was(launch: Launch, check_record: Check) -> None:
    worker = launch(ENDLESS)
    step = worker.wait_for_step(5)["step"]
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 143
    final = worker.final()
    check_record(final)
    assert final["state"] in {"Training", "Evaluating"}
    assert "error" not in final
    assert final["step"] >= step


def test_sigterm_is_heard_while_waiting_for_a_peer(launch: Launch) -> None:
    worker = launch(pair(free_port(), 0))  # the other one never comes
    worker.wait_for_record(lambda record: record["state"] == "Rendezvous", "the rendezvous")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 143
    assert worker.final()["state"] == "Rendezvous"


def test_the_survivor_of_a_killed_worker_says_so(launch: Launch, check_record: Check) -> None:
    survivor, victim = start_pair(launch, **ENDLESS)
    survivor.wait_for_step(3)
    victim.process.kill()
    assert survivor.wait() == 1
    final = survivor.final()
    check_record(final)
    assert (final["state"], final["error"]["type"]) == ("Failed", "PeerLost"), survivor.log()
    assert final["step"] >= 3
    assert "Traceback" in final["error"]["traceback"]


def test_gpus_are_reported_and_metrics_served(launch: Launch, check_record: Check, tmp_path: Path) -> None:
    build_mock_nvml(tmp_path)
    worker = launch({**ENDLESS, "LD_LIBRARY_PATH": str(tmp_path)})
    record = worker.wait_for_step(1)
    check_record(record)
    assert [gpu.get("error") for gpu in record["gpus"]] == [None, None, "GPU is lost"]
    assert ["powerWatts" in gpu for gpu in record["gpus"]] == [True, False, False]
    metrics = (worker.get("/metrics") or b"").decode()
    assert 'gputraining_gpu_utilization_ratio{model="NVIDIA Mock 80GB",uuid="GPU-00000000-mock"} 0.9' in metrics
    assert 'gputraining_state{state="Training"} 1.0' in metrics
    assert worker.get("/nothing") is None
