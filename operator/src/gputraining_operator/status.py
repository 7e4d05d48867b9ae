"""The status of a GpuTraining: conditions, phase, progress, GPU figures and the values of the printer columns. Pure.

Numbers that jitter are rounded, so that a status is only written when it says something new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gputraining_operator.api import Condition, Json
from gputraining_operator.observed import PodView
from gputraining_operator.progress import JobGpus, ProgressRecord, fold_gpus, leading_record
from gputraining_operator.spec import Spec
from gputraining_operator.times import format_duration, format_time, parse_time

_MEBIBYTE: Final = 2**20
_MAX_MESSAGE: Final = 1024
_MAX_GPU_ERRORS: Final = 16
_MAX_INT64: Final = 2**63 - 1
_ORDER: Final = (
    Condition.ACCEPTED,
    Condition.RUNNING,
    Condition.SUSPENDED,
    Condition.PROGRESS_STALLED,
    Condition.GPU_UNDERUTILIZED,
    Condition.GPU_UNHEALTHY,
    Condition.STRAGGLER_DETECTED,
    Condition.COMPLETE,
    Condition.FAILED,
)


@dataclass(frozen=True)
class ConditionUpdate:
    """A condition as it should be now."""

    type: str
    status: bool
    reason: str
    message: str = ""


def set_conditions(
    old: Sequence[Json], updates: Sequence[ConditionUpdate], generation: int, now: datetime
) -> list[Json]:
    """Merge updates into the conditions; ``lastTransitionTime`` only moves when the status flips."""
    conditions = {condition["type"]: condition for condition in old}
    for update in updates:
        before = conditions.get(update.type)
        status = "True" if update.status else "False"
        kept = before is not None and before["status"] == status
        conditions[update.type] = {
            "type": update.type,
            "status": status,
            "reason": update.reason,
            "message": clip(update.message),
            "observedGeneration": generation,
            "lastTransitionTime": before["lastTransitionTime"] if before and kept else format_time(now),
        }
    return [conditions[kind] for kind in _ORDER if kind in conditions]


def find_condition(status: Json, kind: str) -> Json | None:
    """The condition of this type, or None."""
    return next((c for c in status.get("conditions") or () if c["type"] == kind), None)


def is_true(status: Json, kind: str) -> bool:
    """Whether the condition of this type is True."""
    condition = find_condition(status, kind)
    return condition is not None and condition["status"] == "True"


def worker_counts(spec: Spec, pods: Sequence[PodView]) -> Json:
    """How many workers there should be, run (or have ended well), and have failed."""
    return {
        "desired": spec.workers,
        "ready": min(spec.workers, sum(1 for pod in pods if pod.running or pod.succeeded)),
        "failed": sum(1 for pod in pods if pod.failed),
    }


def progress_status(
    old: Json | None, records: Mapping[int, ProgressRecord], *, same_attempt: bool = True, complete: bool = False
) -> Json | None:
    """Progress of the job from its leading record.

    Within one attempt it is never older than, and never behind, what was reported before; another attempt starts again
    from its checkpoint. The last checkpoint is kept until a newer one is reported.
    """
    record = leading_record(records)
    if record is None or (record.step is None and not record.metrics and record.epoch is None):
        return _completed(old) if complete else old
    before = (old if same_attempt else None) or {}
    if before and not complete and parse_time(before["lastUpdateTime"]) > record.time:
        return old
    progress: Json = {}
    if record.step is not None and record.total_steps:
        percent = min(99, 100 * record.step // record.total_steps)
        progress["percent"] = max(percent, before.get("percent", 0))
    for key, value in (
        ("epoch", record.epoch),
        ("totalEpochs", record.total_epochs),
        ("step", record.step),
        ("totalSteps", record.total_steps),
        ("restoredStep", record.restored_step),
    ):
        if value is not None:
            progress[key] = value
    if record.estimated_remaining_seconds is not None and not complete:
        progress["estimatedRemainingSeconds"] = round_eta(record.estimated_remaining_seconds)
    if record.samples_per_second is not None:
        progress["samplesPerSecond"] = significant(record.samples_per_second, 3)
    if record.metrics:
        progress["metrics"] = [{"name": name, "value": significant(value, 4)} for name, value in record.metrics]
    if record.step is not None:
        stands = "lastStepTime" in before and before.get("step") == record.step
        progress["lastStepTime"] = before["lastStepTime"] if stands else format_time(record.time)
    checkpoint = _last_checkpoint(old, records)
    if checkpoint:
        progress["lastCheckpoint"] = checkpoint
    if record.checkpoint_error is not None:
        progress["checkpointError"] = clip(record.checkpoint_error)
    progress["lastUpdateTime"] = format_time(record.time)
    return _completed(progress) if complete else progress


def _last_checkpoint(old: Json | None, records: Mapping[int, ProgressRecord]) -> Json | None:
    """The newest checkpoint that any worker tells of, else the one known before."""
    told = [
        {"step": record.checkpoint_step, "time": format_time(record.checkpoint_time)}
        for record in records.values()
        if record.checkpoint_step is not None and record.checkpoint_time is not None
    ]
    known: Json | None = (old or {}).get("lastCheckpoint")
    return max([*told, *([known] if known else [])], key=lambda checkpoint: str(checkpoint["time"]), default=None)


def _completed(progress: Json | None) -> Json | None:
    if progress is None:
        return None
    done = {key: value for key, value in progress.items() if key != "estimatedRemainingSeconds"}
    return done | {"percent": 100}


def gpu_status(records: Mapping[int, ProgressRecord]) -> Json | None:
    """GPU figures of the job; None on CPU, and what no device tells is absent, never 0."""
    gpus = fold_gpus(records.values())
    if gpus is None:
        return None
    figures: Json = {
        "source": "NVML",
        "model": clip(gpus.model) if gpus.model else None,
        "count": gpus.count,
        "utilizationPercent": _rounded(gpus.utilization_percent),
        "memoryUsedBytes": _whole_mebibytes(gpus),
        "memoryTotalBytes": _int64(gpus.memory_total_bytes),
        "powerWatts": _rounded(gpus.power_watts),
        "maxTemperatureCelsius": _rounded(gpus.max_temperature_celsius),
        "energyJoules": _rounded(gpus.energy_joules),
        "uncorrectedEccErrors": _int64(gpus.uncorrected_ecc_errors),
        "xids": list(gpus.xids[:_MAX_GPU_ERRORS]) or None,
        "lastSampleTime": format_time(gpus.last_sample) if gpus.last_sample else None,
        "errors": [clip(error) for error in gpus.errors[:_MAX_GPU_ERRORS]] or None,
    }
    return {key: value for key, value in figures.items() if value is not None}


def summary(workers: Json, progress: Json | None) -> Json:
    """Values for the printer columns of ``kubectl get``: short strings for people, nothing else reads them."""
    values: dict[str, str] = {"workers": f"{workers['ready']}/{workers['desired']}"}
    if progress:
        if "percent" in progress:
            values["progress"] = f"{progress['percent']}%"
        if "estimatedRemainingSeconds" in progress:
            values["eta"] = format_duration(progress["estimatedRemainingSeconds"])
        for key, total in (("epoch", "totalEpochs"), ("step", "totalSteps")):
            if key in progress:
                values[key] = f"{progress[key]}/{progress[total]}" if total in progress else str(progress[key])
        loss = metric(progress, "loss")
        if loss:
            values["loss"] = loss
        if "samplesPerSecond" in progress:
            values["throughput"] = f"{progress['samplesPerSecond']}/s"
    return values


def metric(progress: Json | None, name: str) -> str | None:
    """The latest value of a metric, as written in the status."""
    return next((m["value"] for m in (progress or {}).get("metrics") or () if m["name"] == name), None)


def running_message(progress: Json | None, record: ProgressRecord | None, pull_problem: str | None) -> str:
    """What a running training does now."""
    preparing = {
        "Starting": "the trainer is starting",
        "Rendezvous": "the workers are connecting to each other",
        "Loading": "loading the data",
    }
    if record is not None and record.state in preparing:
        return preparing[record.state]
    if progress is None:
        return f"running; no progress known yet ({pull_problem})" if pull_problem else "running; no progress known yet"
    parts = []
    if "epoch" in progress and "totalEpochs" in progress:
        parts.append(f"epoch {progress['epoch']} of {progress['totalEpochs']}")
    elif "step" in progress:
        parts.append(f"step {grouped(progress['step'])}")
    parts += [f"{name} {metric(progress, name)}" for name in ("loss", "accuracy") if metric(progress, name)]
    if "samplesPerSecond" in progress:
        parts.append(f"{grouped(progress['samplesPerSecond'])} samples/s")
    if "checkpointError" in progress:
        parts.append(f"checkpoints fail: {progress['checkpointError']}")
    return ", ".join(parts) or "running"


def output_location(spec: Spec, model_path: str | None) -> str | None:
    """Where the result lies: ``<claim>:<path in it>`` on a claim, else the path inside the pod; None for own scripts
    that do not say."""
    path = model_path or (spec.training.output_path if spec.training else None)
    if path is None:
        return None
    mounted = [v for v in spec.volumes if path == v.mount_path or path.startswith(v.mount_path.rstrip("/") + "/")]
    volume = max(mounted, key=lambda v: len(v.mount_path), default=None)
    if volume is None or volume.claim is None:
        return path
    inside = "/".join(part for part in (volume.sub_path, path[len(volume.mount_path.rstrip("/")) :].strip("/")) if part)
    return f"{volume.claim}:/{inside}"


def output_is_lasting(spec: Spec) -> bool:
    """Whether the built-in trainer's output outlives the pods."""
    return ":" in (output_location(spec, None) or "") if spec.training else True


def significant(value: float, digits: int) -> str:
    """A number with so many significant digits, written without an exponent where it is of everyday size."""
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -6 <= exponent <= 15:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - exponent
    text = f"{round(value, decimals):.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def round_eta(seconds: float) -> int:
    """Round a remaining time as finely as anybody cares: 1 s under a minute, 5 s under 10 min, 1 min beyond an hour."""
    grain = 1 if seconds < 60 else 5 if seconds < 600 else 10 if seconds < 3600 else 60
    return math.ceil(seconds / grain) * grain


def grouped(number: int | str) -> str:
    """A number with its thousands set off: 12,000."""
    text = str(number)
    return f"{int(text):,}" if text.isdigit() else text


def clip(text: str) -> str:
    """Cut a message to what the CRD allows."""
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _whole_mebibytes(gpus: JobGpus) -> int | None:
    used = gpus.memory_used_bytes
    return None if used is None else _int64(used // _MEBIBYTE * _MEBIBYTE)


def _int64(value: int | None) -> int | None:
    """A sum of figures that pods made up can be beyond what the API server takes."""
    return None if value is None else min(value, _MAX_INT64)
