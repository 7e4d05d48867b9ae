"""What this process says about itself: a plain object that the training loop writes into and a thread serves.

No lock is needed: the loop is the only writer of ``progress``, the telemetry thread the only one of ``gpus``, both
replace a whole value at once, and the reader takes whichever value is there. So reporting never blocks a step.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
MAX_METRICS: Final = 32
MAX_GPUS: Final = 16
MAX_MESSAGE: Final = 1024
MAX_TRACEBACK: Final = 3072
MAX_PATH: Final = 512
MAX_CHECKPOINT_ERROR: Final = 512
MAX_NUMBER: Final = 1e15
_METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}", re.ASCII)


class State(StrEnum):
    """What the process does now."""

    STARTING = "Starting"
    RENDEZVOUS = "Rendezvous"
    LOADING = "Loading"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    SAVING = "Saving"
    PREEMPTED = "Preempted"
    """Stopped by SIGTERM, with a checkpoint to go on from."""
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True)
class CheckpointNote:
    """The last complete checkpoint, and why the last one that was tried could not be written."""

    step: int | None = None
    time: datetime | None = None
    error: str | None = None


@dataclass(frozen=True)
class Failure:
    """Why training failed: a type of the contract, one line for people, the end of the traceback."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Progress:
    """One moment of the training. None: not known (yet).

    ``local_step_seconds`` is this worker's own part of a step: waiting for data and the forward pass, without exchange
    with others. It tells a slow worker, which DDP hides by making the whole step equally long for all.
    """

    state: State = State.STARTING
    epoch: int | None = None
    total_epochs: int | None = None
    step: int | None = None
    total_steps: int | None = None
    restored_step: int | None = None
    checkpoint: CheckpointNote | None = None
    local_step_seconds: float | None = None
    remaining_seconds: float | None = None
    samples_per_second: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    model_path: str | None = None
    duration_seconds: float | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment. None: the device does not tell.

    ``energy_joules`` counts from the start of this process, ``uncorrected_ecc_errors`` from the last reset of the
    driver; ``xid`` is the last critical error code of the driver seen by this process.
    """

    uuid: str
    time: datetime
    model: str | None = None
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    energy_joules: float | None = None
    uncorrected_ecc_errors: int | None = None
    xid: int | None = None
    error: str | None = None


class Report:
    """The live report of one process."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        self.progress = Progress()
        self.gpus: tuple[GpuReading, ...] = ()

    def update(self, *, metrics: Mapping[str, float] | None = None, **changes: Any) -> None:
        """Change some fields of the progress; ``metrics`` are merged, all else replaced."""
        if metrics:
            changes["metrics"] = {**self.progress.metrics, **metrics}
        self.progress = replace(self.progress, **changes)

    def record(self) -> dict[str, Any]:
        """The progress record of this moment (crds/progress.schema.json)."""
        progress = self.progress
        return _known(
            version=VERSION,
            state=progress.state.value,
            time=_time(datetime.now(UTC)),
            rank=self.rank,
            worldSize=self.world_size,
            epoch=progress.epoch,
            totalEpochs=progress.total_epochs,
            step=progress.step,
            totalSteps=progress.total_steps,
            restoredStep=progress.restored_step,
            checkpoint=_checkpoint(progress.checkpoint) if progress.checkpoint else None,
            localStepSeconds=_number(progress.local_step_seconds, digits=6),
            estimatedRemainingSeconds=_number(progress.remaining_seconds),
            samplesPerSecond=_number(progress.samples_per_second),
            metrics=_metrics(progress.metrics) or None,
            gpus=[_gpu(reading) for reading in self.gpus[:MAX_GPUS]] or None,
            result=_result(progress) if progress.state is State.COMPLETE else None,
            error=_error(progress.failure) if progress.failure else None,
        )


def process_age() -> float:
    """Seconds since this process was started by the kernel, so that the interpreter's own start counts too."""
    try:
        # The second field is the name of the program in parentheses; the start time is the 20th after it.
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        ticks = int(after_name.split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux: count from this module's import
        return time.monotonic() - _IMPORTED


_IMPORTED: Final = time.monotonic()


def one_line(text: str) -> str:
    """The text with all runs of white space as one blank."""
    return " ".join(text.split())


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: float | None, low: float = 0.0, high: float = MAX_NUMBER, digits: int = 3) -> float | None:
    """A figure that the contract can carry; one that is no finite number is not known."""
    if value is None or not math.isfinite(value):
        return None
    return round(min(max(float(value), low), high), digits)


def _path(path: str | None) -> str | None:
    return path if path is None or len(path) <= MAX_PATH else None


def _metrics(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no NaN: values that are not finite are spelled out. Names outside the contract are left out."""
    kept = [(name, float(value)) for name, value in metrics.items() if _METRIC_NAME.fullmatch(name)]
    return {name: _metric(value) for name, value in kept[:MAX_METRICS]}


def _metric(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.6g}")


def _result(progress: Progress) -> dict[str, Any]:
    return _known(modelPath=_path(progress.model_path), durationSeconds=_number(progress.duration_seconds))


def _checkpoint(note: CheckpointNote) -> dict[str, Any] | None:
    return (
        _known(
            step=note.step,
            time=_time(note.time) if note.time else None,
            error=one_line(note.error)[:MAX_CHECKPOINT_ERROR] if note.error else None,
        )
        or None
    )


def _error(failure: Failure) -> dict[str, Any]:
    return _known(
        type=failure.type,
        message=one_line(failure.message)[:MAX_MESSAGE],
        traceback=failure.traceback[-MAX_TRACEBACK:] or None,
    )


def _gpu(reading: GpuReading) -> dict[str, Any]:
    return _known(
        uuid=reading.uuid[:128],
        model=reading.model[:128] if reading.model else None,
        utilizationPercent=_number(reading.utilization_percent, high=100.0),
        memoryUsedBytes=reading.memory_used_bytes,
        memoryTotalBytes=reading.memory_total_bytes,
        powerWatts=_number(reading.power_watts),
        temperatureCelsius=_number(reading.temperature_celsius, -100.0, 300.0),
        energyJoules=_number(reading.energy_joules),
        uncorrectedEccErrors=reading.uncorrected_ecc_errors,
        xid=reading.xid,
        time=_time(reading.time),
        error=one_line(reading.error)[:256] if reading.error else None,
    )
