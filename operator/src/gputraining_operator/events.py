"""What is told to the user at each transition: events, and the closing message. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gputraining_operator.api import Condition, Json, Reason
from gputraining_operator.observed import JobView
from gputraining_operator.spec import GpuTraining, Spec
from gputraining_operator.status import find_condition, grouped, metric, output_is_lasting
from gputraining_operator.times import format_duration
from gputraining_operator.waiting import NEEDS_ACTION, Waiting


@dataclass(frozen=True)
class EventToPost:
    """A Kubernetes event about the training."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def started_events(training: GpuTraining, job: JobView | None) -> tuple[EventToPost, ...]:
    """Events for an attempt that exists but is not in the status yet; none later."""
    if job is None or training.status.get("attempt") == job.attempt:
        return ()
    spec = training.spec
    devices = f" × {spec.gpus_per_worker} {spec.gpu_resource_name}" if spec.gpus_per_worker else " on CPU"
    count = "1 worker" if spec.workers == 1 else f"{spec.workers} workers"
    started = EventToPost(
        "Normal", Reason.ATTEMPT_STARTED, f"attempt {job.attempt}: {count}{devices}, PyTorchJob {job.name}"
    )
    if output_is_lasting(spec) or spec.training is None or job.attempt > 1:
        return (started,)
    path = spec.training.output_path
    text = f"no PersistentVolumeClaim is mounted at {path}: the trained model will be gone with the pod"
    return (started, EventToPost("Warning", Reason.NO_OUTPUT_VOLUME, text))


def waiting_events(training: GpuTraining, waiting: Waiting) -> tuple[EventToPost, ...]:
    """A warning when the training has come to wait for something that needs a person."""
    before = find_condition(training.status, Condition.RUNNING)
    if waiting.reason not in NEEDS_ACTION or (before and before["reason"] == waiting.reason):
        return ()
    return (EventToPost("Warning", waiting.reason, waiting.message),)


def restored_events(status: Json, job: JobView, progress: Json | None) -> tuple[EventToPost, ...]:
    """Where a new attempt continues, and what was lost: told once, when it is first known."""
    restored = (progress or {}).get("restoredStep")
    attempts = {attempt["number"]: attempt for attempt in status.get("attempts") or ()}
    if restored is None or attempts.get(job.attempt, {}).get("restoredStep") == restored:
        return ()
    text = f"attempt {job.attempt} continues at step {grouped(restored)}"
    before = max((a["lastStep"] for n, a in attempts.items() if n < job.attempt and "lastStep" in a), default=None)
    if before is not None:
        lost = max(0, before - restored)
        text += f" ({grouped(lost)} {'step' if lost == 1 else 'steps'} lost)"
    return (EventToPost("Normal", Reason.RESTORED, text),)


def checkpoint_events(old: Json | None, progress: Json | None) -> tuple[EventToPost, ...]:
    """A warning when checkpoints can no longer be written, once per cause."""
    error = (progress or {}).get("checkpointError")
    if error is None or error == (old or {}).get("checkpointError"):
        return ()
    return (EventToPost("Warning", Reason.CHECKPOINT_FAILED, f"no checkpoint could be written: {error}"),)


def all_workers(spec: Spec) -> str:
    """The workers of a training as the subject of a sentence."""
    return "the worker" if spec.workers == 1 else f"all {spec.workers} workers"


def complete_message(spec: Spec, progress: Json | None, seconds: float, location: str | None) -> str:
    """The closing line of a training that succeeded: what was done, how well, at what cost, and where it lies."""
    parts = []
    if progress and "totalEpochs" in progress:
        epochs = "1 epoch" if progress["totalEpochs"] == 1 else f"{grouped(progress['totalEpochs'])} epochs"
        parts.append(f"{epochs} in {format_duration(seconds)}")
    else:
        parts.append(f"done in {format_duration(seconds)}")
    accuracy = metric(progress, "accuracy")
    if accuracy:
        parts.append(f"accuracy {accuracy}")
    gpus = spec.workers * spec.gpus_per_worker
    if gpus:
        parts.append(f"{gpus * seconds / 3600:.2f} GPU-hours")
    if location and output_is_lasting(spec):
        parts.append(f"model at {location}")
    elif location:
        parts.append(f"model not kept: no PersistentVolumeClaim at {location}")
    return ", ".join(parts)
