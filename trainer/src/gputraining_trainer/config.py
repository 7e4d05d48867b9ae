"""Settings of one training process: environment variables -> frozen dataclasses, validated once.

Nothing here imports torch: the settings are read, and wrong ones refused, before the slow imports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

MODELS: Final = ("smallcnn", "resnet18", "resnet34", "resnet50")
DATASETS: Final = ("digits", "mnist", "cifar10", "imagefolder", "synthetic")
DATASETS_WITH_FILES: Final = frozenset({"mnist", "cifar10", "imagefolder"})
DOWNLOADABLE: Final = frozenset({"mnist", "cifar10"})
PRECISIONS: Final = ("Auto", "FP32", "FP16", "BF16")
RESUME_POLICIES: Final = ("IfAvailable", "Never", "Required")

DEFAULT_TERMINATION_LOG: Final = Path("/dev/termination-log")

_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})
# MIXED_PRECISION was a switch before it was a choice: manifests that say true or false keep working.
_PRECISION_SWITCH: Final = dict.fromkeys(_TRUE, "Auto") | dict.fromkeys(_FALSE, "FP32")


class ConfigError(ValueError):
    """The environment does not describe a training. The text is one line: what, got, allowed, fix."""


@dataclass(frozen=True)
class Process:
    """This process's place in the job."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


@dataclass(frozen=True)
class TrainingConfig:
    """What to train and how. ``batch_size`` counts samples per process and micro-step."""

    model: str = "smallcnn"
    dataset: str = "digits"
    dataset_path: Path | None = None
    dataset_download: bool = False
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 0.001
    weight_decay: float = 0.01
    precision: str = "Auto"
    gradient_accumulation_steps: int = 1
    seed: int = 0
    data_loader_workers: int = 0
    output_path: Path = Path("output")


@dataclass(frozen=True)
class CheckpointConfig:
    """Where and when checkpoints are written, and whether training begins from one."""

    path: Path
    interval_seconds: float = 300.0
    interval_steps: int | None = None
    retain: int = 2
    resume: str = "IfAvailable"


@dataclass(frozen=True)
class Config:
    """Everything that the environment says."""

    process: Process = Process()
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig | None = None
    name: str = "local"
    uid: str = "local"
    """Of the training: all its attempts have the same, another training of the same name has another."""
    attempt: int = 1
    grace_seconds: float = 30.0
    """From SIGTERM until the pod is killed."""
    progress_port: int = 9400
    report_interval: float = 1.0
    """Seconds between two reports."""


def processes_per_node(environment: Mapping[str, str]) -> str | None:
    """How many processes torchrun has to start here; None where this process itself is the one.

    Raises:
        ConfigError: PET_NPROC_PER_NODE is neither a number nor a word that torchrun knows.
    """
    value = environment.get("PET_NPROC_PER_NODE", "").strip()
    if value in {"", "1"} or "LOCAL_RANK" in environment:
        return None
    if value not in {"auto", "gpu", "cpu"} and not (value.isascii() and value.isdigit() and int(value) > 1):
        raise ConfigError(
            f"PET_NPROC_PER_NODE: got {value!r}, allowed: a whole number of at least 1, auto, gpu or cpu; "
            "fix: set the number of GPUs of the pod"
        )
    return value


def read_termination_log(environment: Mapping[str, str]) -> Path:
    """Where the last word goes; needed also when the rest of the environment is wrong."""
    return Path(environment.get("GPUTRAINING_TERMINATION_LOG", "").strip() or DEFAULT_TERMINATION_LOG)


def read_config(environment: Mapping[str, str]) -> Config:
    """Read and validate the whole environment.

    Raises:
        ConfigError: with every wrong variable, in one line.
    """
    env = _Environment(environment)
    training = TrainingConfig(
        model=env.choice("MODEL", MODELS, "smallcnn"),
        dataset=env.choice("DATASET_TYPE", DATASETS, "digits"),
        dataset_path=env.path("DATASET_PATH", None),
        dataset_download=env.switch("DATASET_DOWNLOAD", False),
        epochs=env.integer("EPOCHS", 10, 1, 1_000_000),
        batch_size=env.integer("BATCH_SIZE", 64, 1, 1_000_000),
        learning_rate=env.number("LEARNING_RATE", 0.001, low=0.0, low_excluded=True),
        weight_decay=env.number("WEIGHT_DECAY", 0.01, low=0.0),
        precision=env.choice("MIXED_PRECISION", PRECISIONS, "Auto", _PRECISION_SWITCH),
        gradient_accumulation_steps=env.integer("GRADIENT_ACCUMULATION_STEPS", 1, 1, 100_000),
        seed=env.integer("SEED", 0, 0, 2**53 - 1),
        data_loader_workers=env.integer("DATA_LOADER_WORKERS", 0, 0, 64),
        output_path=env.path("OUTPUT_PATH", Path("output")) or Path("output"),
    )
    config = Config(
        process=_read_process(env),
        training=training,
        checkpoint=_read_checkpoint(env),
        name=env.text("GPUTRAINING_NAME", "local"),
        uid=env.text("GPUTRAINING_UID", "local"),
        attempt=env.integer("GPUTRAINING_ATTEMPT", 1, 1, 2**31),
        grace_seconds=env.number("GPUTRAINING_GRACE_SECONDS", 30.0, low=0.0, high=3600.0),
        progress_port=env.integer("GPUTRAINING_PROGRESS_PORT", 9400, 0, 65535),
        report_interval=env.number("GPUTRAINING_REPORT_INTERVAL_SECONDS", 1.0, low=0.01, high=3600.0),
    )
    if training.dataset in DATASETS_WITH_FILES and training.dataset_path is None:
        env.problems.append(
            f"training.dataset.path (DATASET_PATH): got nothing, allowed: a folder, which {training.dataset} needs; "
            "fix: set the folder of the data set"
        )
    if training.dataset_download and training.dataset not in DOWNLOADABLE:
        env.problems.append(
            f"training.dataset.download (DATASET_DOWNLOAD): got 'true' with {training.dataset}, "
            f"allowed: with {' or '.join(sorted(DOWNLOADABLE))}; fix: remove it"
        )
    if env.problems:
        raise ConfigError(" | ".join(env.problems))
    return config


def _read_checkpoint(env: _Environment) -> CheckpointConfig | None:
    path = env.path("CHECKPOINT_PATH", None)
    steps = env.integer("CHECKPOINT_INTERVAL_STEPS", 0, 1, 2**53 - 1)
    config = CheckpointConfig(
        path=path or Path(),
        interval_seconds=env.number("CHECKPOINT_INTERVAL_SECONDS", 300.0, low=0.01, high=86_400.0),
        interval_steps=steps or None,
        retain=env.integer("CHECKPOINT_RETAIN", 2, 2, 100),
        resume=env.choice("CHECKPOINT_RESUME", RESUME_POLICIES, "IfAvailable"),
    )
    return config if path else None


def _read_process(env: _Environment) -> Process:
    world_size = env.integer("WORLD_SIZE", 1, 1, 1_000_000)
    rank = env.integer("RANK", 0, 0, 1_000_000)
    local_world_size = env.integer("LOCAL_WORLD_SIZE", 1, 1, 1024)
    local_rank = env.integer("LOCAL_RANK", 0, 0, 1023)
    if rank >= world_size and not env.problems:
        env.problems.append(
            f"RANK: got '{rank}', allowed: 0 to {world_size - 1} since WORLD_SIZE is {world_size}; "
            "fix: let torchrun or PyTorchJob set both"
        )
    if world_size > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not env.values.get(name):
                env.problems.append(
                    f"{name}: got nothing, allowed: the address of rank 0, since WORLD_SIZE is {world_size}; "
                    "fix: let torchrun or PyTorchJob set it"
                )
    return Process(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


class _Environment:
    """Typed access to variables. Wrong ones are noted in ``problems`` and read as their default; empty means unset."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.problems: list[str] = []

    def _parsed(self, name: str, default: T, parse: Callable[[str], T], allowed: str, example: object) -> T:
        text = self.values.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            shown = text if len(text) <= 60 else text[:57] + "..."
            self.problems.append(f"{name}: got {shown!r}, allowed: {allowed}; fix: for example {name}={example}")
            return default

    def text(self, name: str, default: str) -> str:
        return self.values.get(name, "").strip() or default

    def path(self, name: str, default: Path | None) -> Path | None:
        text = self.values.get(name, "").strip()
        return Path(text) if text else default

    def choice(self, name: str, allowed: tuple[str, ...], default: str, also: Mapping[str, str] | None = None) -> str:
        words = {word.lower(): word for word in allowed} | dict(also or {})

        def parse(text: str) -> str:
            if text.lower() not in words:
                raise ValueError(text)
            return words[text.lower()]

        return self._parsed(name, default, parse, ", ".join(allowed), default)

    def switch(self, name: str, default: bool) -> bool:
        def parse(text: str) -> bool:
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError(text)
            return text.lower() in _TRUE

        return self._parsed(name, default, parse, "true or false", str(default).lower())

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        def parse(text: str) -> int:
            if not re.fullmatch(r"\+?[0-9]{1,18}", text) or not low <= int(text) <= high:
                raise ValueError(text)
            return int(text)

        return self._parsed(name, default, parse, f"a whole number from {low} to {high}", max(default, low))

    def number(self, name: str, default: float, *, low: float, high: float = 1e9, low_excluded: bool = False) -> float:
        def parse(text: str) -> float:
            value = float(text)
            if not math.isfinite(value) or not low <= value <= high or (low_excluded and value == low):
                raise ValueError(text)
            return value

        bound = "above" if low_excluded else "of at least"
        return self._parsed(name, default, parse, f"a number {bound} {low:g} and at most {high:g}", default)
