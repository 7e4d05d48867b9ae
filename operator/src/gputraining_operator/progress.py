"""What training pods say about themselves: parsed, validated, and folded into one picture of the job.

The contract is ``crds/progress.schema.json``. The parser is written out by hand, since it runs for every pod at every
interval; a property test holds it equal to the schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gputraining_operator.times import parse_time

MAX_BODY_BYTES: Final = 65536
MAX_INTEGER: Final = 2**53 - 1
MAX_NUMBER: Final = 1e15
MAX_METRICS: Final = 32
MAX_GPUS: Final = 16

STATES: Final = frozenset(
    {"Starting", "Rendezvous", "Loading", "Training", "Evaluating", "Saving", "Preempted", "Complete", "Failed"}
)
ERROR_TYPES: Final = frozenset(
    {
        "InvalidConfig",
        "DatasetNotFound",
        "OutOfMemory",
        "NonFiniteLoss",
        "PeerLost",
        "UserCodeError",
        "CheckpointNotFound",
        "NcclError",
    }
)
_NON_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}")


class ProgressError(ValueError):
    """A body is no progress record; the text says which property is wrong and how."""


@dataclass(frozen=True)
class GpuSample:
    """One GPU as its pod sees it. None: the device does not tell.

    ``energy_joules`` counts from the start of the pod's process, ``uncorrected_ecc_errors`` from the device's last
    reset; ``xid`` is the last critical error code of the driver that the process saw.
    """

    uuid: str
    model: str | None = None
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    energy_joules: float | None = None
    uncorrected_ecc_errors: int | None = None
    xid: int | None = None
    time: datetime | None = None
    error: str | None = None


@dataclass(frozen=True)
class TrainingError:
    """Why training failed, by the trainer's own word."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class ProgressRecord:
    """One pod's progress. Counters are of the job, throughput is of all ranks together.

    ``local_step_seconds`` is this worker's own part of a step, without exchange with others.
    """

    state: str
    time: datetime
    rank: int | None = None
    world_size: int | None = None
    epoch: int | None = None
    total_epochs: int | None = None
    step: int | None = None
    total_steps: int | None = None
    restored_step: int | None = None
    checkpoint_step: int | None = None
    checkpoint_time: datetime | None = None
    checkpoint_error: str | None = None
    local_step_seconds: float | None = None
    estimated_remaining_seconds: float | None = None
    samples_per_second: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    model_path: str | None = None
    duration_seconds: float | None = None
    error: TrainingError | None = None


@dataclass(frozen=True)
class JobGpus:
    """All GPUs of a job: means, sums and maxima over the devices that tell."""

    count: int
    model: str | None
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    max_temperature_celsius: float | None
    energy_joules: float | None
    uncorrected_ecc_errors: int | None
    xids: tuple[int, ...]
    last_sample: datetime | None
    errors: tuple[str, ...]


def parse_record(body: bytes | str) -> ProgressRecord:
    """Parse and validate a progress record.

    Raises:
        ProgressError: the body is too large, no JSON, or does not fit the contract.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ProgressError(f"body: more than {MAX_BODY_BYTES} bytes")
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProgressError(f"body: no JSON ({error})") from None
    reader = _Reader(data, "")
    if "version" not in reader.values or isinstance(data["version"], bool) or data["version"] != 1:
        raise ProgressError("version: must be 1")
    result, checkpoint = reader.object("result"), reader.object("checkpoint")
    return ProgressRecord(
        state=reader.choice("state", STATES),
        time=reader.required_time("time"),
        rank=reader.integer("rank"),
        world_size=reader.integer("worldSize", low=1),
        epoch=reader.integer("epoch"),
        total_epochs=reader.integer("totalEpochs", low=1),
        step=reader.integer("step"),
        total_steps=reader.integer("totalSteps", low=1),
        restored_step=reader.integer("restoredStep"),
        checkpoint_step=checkpoint.integer("step") if checkpoint else None,
        checkpoint_time=checkpoint.time("time") if checkpoint else None,
        checkpoint_error=checkpoint.text("error", 512) if checkpoint else None,
        local_step_seconds=reader.number("localStepSeconds"),
        estimated_remaining_seconds=reader.number("estimatedRemainingSeconds"),
        samples_per_second=reader.number("samplesPerSecond"),
        metrics=_metrics(reader.object("metrics")),
        gpus=tuple(_gpu(item, f"gpus[{i}]") for i, item in enumerate(reader.array("gpus", MAX_GPUS))),
        model_path=result.text("modelPath", 512) if result else None,
        duration_seconds=result.number("durationSeconds") if result else None,
        error=_error(reader.object("error")),
    )


def fold_gpus(records: Iterable[ProgressRecord]) -> JobGpus | None:
    """Fold the GPUs of many pods into one figure each; None when no pod has any.

    A GPU that two pods share (time slicing) counts once. Utilization is the mean over the devices; memory, power,
    energy and ECC errors are sums, the temperature is that of the hottest, the sample time that of the oldest sample.
    """
    gpus = {gpu.uuid: gpu for record in records for gpu in record.gpus}
    if not gpus:
        return None
    devices = [gpus[uuid] for uuid in sorted(gpus)]
    utilization = _known(gpu.utilization_percent for gpu in devices)
    used = _known(gpu.memory_used_bytes for gpu in devices)
    total = _known(gpu.memory_total_bytes for gpu in devices)
    power = _known(gpu.power_watts for gpu in devices)
    temperature = _known(gpu.temperature_celsius for gpu in devices)
    energy = _known(gpu.energy_joules for gpu in devices)
    ecc = _known(gpu.uncorrected_ecc_errors for gpu in devices)
    times = _known(gpu.time for gpu in devices)
    models = sorted({gpu.model for gpu in devices if gpu.model})
    return JobGpus(
        count=len(devices),
        model=", ".join(models) or None,
        utilization_percent=sum(utilization) / len(utilization) if utilization else None,
        memory_used_bytes=sum(used) if used else None,
        memory_total_bytes=sum(total) if total else None,
        power_watts=sum(power) if power else None,
        max_temperature_celsius=max(temperature, default=None),
        energy_joules=sum(energy) if energy else None,
        uncorrected_ecc_errors=sum(ecc) if ecc else None,
        xids=tuple(sorted(set(_known(gpu.xid for gpu in devices)))),
        last_sample=min(times, default=None),
        errors=tuple(f"{gpu.uuid}: {gpu.error}" for gpu in devices if gpu.error),
    )


def leading_record(records: Mapping[int, ProgressRecord]) -> ProgressRecord | None:
    """The record that speaks for the job: the lowest rank's that is known. Keys are node ranks."""
    return records[min(records)] if records else None


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


class _Reader:
    """Typed access to the properties of one JSON object; absent ones are None, wrong ones raise."""

    def __init__(self, values: Any, path: str) -> None:
        if not isinstance(values, dict):
            raise ProgressError(f"{path or 'body'}: must be an object")
        self.values: dict[str, Any] = values
        self.path = f"{path}." if path else ""

    def _wrong(self, key: str, want: str) -> ProgressError:
        return ProgressError(f"{self.path}{key}: must be {want}")

    def integer(self, key: str, *, low: int = 0) -> int | None:
        if key not in self.values:
            return None
        value = self.values[key]
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not low <= value <= MAX_INTEGER:
            raise self._wrong(key, f"a whole number of at least {low}")
        return int(value)

    def number(self, key: str, *, low: float = 0, high: float = MAX_NUMBER) -> float | None:
        if key not in self.values:
            return None
        value = self.values[key]
        # NaN cannot get here (no JSON), an overflowing literal becomes infinite and fails the range.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self._wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, limit: int) -> str | None:
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, str) or len(value) > limit:
            raise self._wrong(key, f"a string of at most {limit} characters")
        # JSON can spell half a surrogate pair, which nothing can write again.
        return value.encode("utf-8", "replace").decode()

    def required_text(self, key: str, limit: int) -> str:
        value = self.text(key, limit)
        if value is None:
            raise self._wrong(key, "given")
        return value

    def choice(self, key: str, allowed: frozenset[str]) -> str:
        value = self.required_text(key, 64)
        if value not in allowed:
            raise self._wrong(key, f"one of {', '.join(sorted(allowed))}")
        return value

    def time(self, key: str) -> datetime | None:
        text = self.text(key, 40)
        if text is None:
            return None
        try:
            return parse_time(text)
        except (ValueError, OverflowError):
            raise self._wrong(key, "an RFC 3339 time") from None

    def required_time(self, key: str) -> datetime:
        value = self.time(key)
        if value is None:
            raise self._wrong(key, "given")
        return value

    def object(self, key: str) -> _Reader | None:
        return _Reader(self.values[key], f"{self.path}{key}") if key in self.values else None

    def array(self, key: str, limit: int) -> list[Any]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or len(value) > limit:
            raise self._wrong(key, f"a list of at most {limit} items")
        return value


def _metrics(reader: _Reader | None) -> tuple[tuple[str, float], ...]:
    if reader is None:
        return ()
    if len(reader.values) > MAX_METRICS:
        raise ProgressError(f"metrics: must have at most {MAX_METRICS} entries")
    metrics = []
    for name, value in reader.values.items():
        if not _METRIC_NAME.fullmatch(name):
            raise ProgressError("metrics: a name must match [A-Za-z][A-Za-z0-9_./-]* and have at most 63 characters")
        if isinstance(value, str) and value in _NON_FINITE:
            metrics.append((name, float(value)))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            metrics.append((name, _finite_or_infinite(value)))
        else:
            raise ProgressError(f"metrics.{name}: must be a number, or one of {', '.join(sorted(_NON_FINITE))}")
    return tuple(metrics)


def _finite_or_infinite(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer literal beyond the range of a double
        return math.copysign(math.inf, value)


def _gpu(item: Any, path: str) -> GpuSample:
    reader = _Reader(item, path)
    return GpuSample(
        uuid=reader.required_text("uuid", 128),
        model=reader.text("model", 128),
        utilization_percent=reader.number("utilizationPercent", high=100),
        memory_used_bytes=reader.integer("memoryUsedBytes"),
        memory_total_bytes=reader.integer("memoryTotalBytes"),
        power_watts=reader.number("powerWatts"),
        temperature_celsius=reader.number("temperatureCelsius", low=-100, high=300),
        energy_joules=reader.number("energyJoules"),
        uncorrected_ecc_errors=reader.integer("uncorrectedEccErrors"),
        xid=reader.integer("xid"),
        time=reader.time("time"),
        error=reader.text("error", 256),
    )


def _error(reader: _Reader | None) -> TrainingError | None:
    if reader is None:
        return None
    return TrainingError(
        type=reader.choice("type", ERROR_TYPES),
        message=reader.required_text("message", 1024),
        traceback=reader.text("traceback", 3072) or "",
    )
