"""The environment, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputraining_trainer.__main__ import torchrun_command
from gputraining_trainer.config import (
    CheckpointConfig,
    Config,
    ConfigError,
    Process,
    TrainingConfig,
    processes_per_node,
    read_config,
)


def test_empty_environment_trains_digits_alone() -> None:
    assert read_config({}) == Config()
    assert Config().training.dataset == "digits"
    assert Config().process == Process(rank=0, local_rank=0, world_size=1, local_world_size=1)


def test_every_variable_is_read() -> None:
    config = read_config(
        {
            "MODEL": "ResNet18",
            "DATASET_TYPE": "cifar10",
            "DATASET_PATH": "/data/cifar",
            "DATASET_DOWNLOAD": "true",
            "EPOCHS": "3",
            "BATCH_SIZE": "128",
            "LEARNING_RATE": "3e-4",
            "WEIGHT_DECAY": "0",
            "MIXED_PRECISION": "bf16",
            "GRADIENT_ACCUMULATION_STEPS": "4",
            "SEED": "7",
            "DATA_LOADER_WORKERS": "2",
            "OUTPUT_PATH": "/out",
            "CHECKPOINT_PATH": "/checkpoints/job",
            "CHECKPOINT_INTERVAL_SECONDS": "60",
            "CHECKPOINT_INTERVAL_STEPS": "500",
            "CHECKPOINT_RETAIN": "3",
            "CHECKPOINT_RESUME": "Required",
            "GPUTRAINING_UID": "0b7c",
            "GPUTRAINING_GRACE_SECONDS": "120",
            "GPUTRAINING_NAME": "job",
            "GPUTRAINING_ATTEMPT": "2",
            "GPUTRAINING_PROGRESS_PORT": "9500",
            "GPUTRAINING_REPORT_INTERVAL_SECONDS": "0.5",
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "job-master-0",
            "MASTER_PORT": "23456",
        }
    )
    assert config == Config(
        process=Process(rank=3, local_rank=1, world_size=4, local_world_size=2),
        training=TrainingConfig(
            model="resnet18",
            dataset="cifar10",
            dataset_path=Path("/data/cifar"),
            dataset_download=True,
            epochs=3,
            batch_size=128,
            learning_rate=3e-4,
            weight_decay=0.0,
            precision="BF16",
            gradient_accumulation_steps=4,
            seed=7,
            data_loader_workers=2,
            output_path=Path("/out"),
        ),
        checkpoint=CheckpointConfig(
            path=Path("/checkpoints/job"), interval_seconds=60.0, interval_steps=500, retain=3, resume="Required"
        ),
        uid="0b7c",
        grace_seconds=120.0,
        name="job",
        attempt=2,
        progress_port=9500,
        report_interval=0.5,
    )


@pytest.mark.parametrize(("text", "meant"), [("true", "Auto"), ("false", "FP32"), ("AUTO", "Auto"), ("", "Auto")])
def test_mixed_precision_also_understands_a_switch(text: str, meant: str) -> None:
    assert read_config({"MIXED_PRECISION": text}).training.precision == meant


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL", "vgg"),
        ("DATASET_TYPE", "imagenet"),
        ("EPOCHS", "0"),
        ("EPOCHS", "ten"),
        ("EPOCHS", "1.5"),
        ("EPOCHS", "٣"),
        ("BATCH_SIZE", "-1"),
        ("LEARNING_RATE", "0"),
        ("LEARNING_RATE", "nan"),
        ("LEARNING_RATE", "inf"),
        ("WEIGHT_DECAY", "-0.1"),
        ("MIXED_PRECISION", "fp8"),
        ("DATASET_DOWNLOAD", "maybe"),
        ("GPUTRAINING_PROGRESS_PORT", "70000"),
        ("SEED", "9" * 30),
        ("DATA_LOADER_WORKERS", "65"),
        ("CHECKPOINT_INTERVAL_SECONDS", "0"),
        ("CHECKPOINT_INTERVAL_STEPS", "0"),
        ("CHECKPOINT_RETAIN", "1"),
        ("CHECKPOINT_RESUME", "Always"),
        ("GPUTRAINING_GRACE_SECONDS", "-1"),
    ],
)
def test_wrong_values_are_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: got '.*', allowed: .+; fix: .+$") as caught:
        read_config({name: value})
    assert "\n" not in str(caught.value)
    assert value in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({"EPOCHS": "x", "MODEL": "y", "DATASET_TYPE": "mnist"})
    assert all(name in str(caught.value) for name in ("EPOCHS", "MODEL", "DATASET_PATH"))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"DATASET_TYPE": "imagefolder"}, r"^training.dataset.path \(DATASET_PATH\): got nothing"),
        (
            {"DATASET_TYPE": "digits", "DATASET_DOWNLOAD": "true"},
            r"^training.dataset.download \(DATASET_DOWNLOAD\): got 'true'",
        ),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR: got nothing"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK: got '2', allowed: 0 to 1"),
    ],
)
def test_combinations_that_cannot_work(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_config(environment)


def test_one_process_per_pod_starts_directly() -> None:
    assert processes_per_node({}) is None
    assert processes_per_node({"PET_NPROC_PER_NODE": "1"}) is None
    assert processes_per_node({"PET_NPROC_PER_NODE": "4", "LOCAL_RANK": "0"}) is None
    assert processes_per_node({"PET_NPROC_PER_NODE": "4"}) == "4"
    with pytest.raises(ConfigError, match=r"^PET_NPROC_PER_NODE: got '0', allowed"):
        processes_per_node({"PET_NPROC_PER_NODE": "0"})


def test_torchrun_gets_the_place_in_the_job() -> None:
    command = torchrun_command(
        {
            "PET_NNODES": "3",
            "PET_NODE_RANK": "2",
            "PET_MASTER_ADDR": "job-master-0",
            "PET_MASTER_PORT": "23456",
            "RANK": "2",
            "WORLD_SIZE": "12",
        },
        "4",
    )
    assert command[1:] == [
        *("-m", "gputraining_trainer.agent", "--nproc-per-node=4", "--max-restarts=0", "--nnodes=3", "--node-rank=2"),
        *("--master-addr=job-master-0", "--master-port=23456", "-m", "gputraining_trainer"),
    ]
    assert "--standalone" in torchrun_command({}, "2")
