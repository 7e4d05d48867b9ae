"""Why a training does not run yet, in plain words. Pure: facts in, one reason and one line out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gputraining_operator.api import Reason
from gputraining_operator.capacity import ClusterCapacity, explain_gpu_shortage, explain_scheduler_message
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.spec import Spec
from gputraining_operator.times import format_duration

IMAGE_MISSING_GRACE: Final = timedelta(minutes=2)
"""How long a registry may say that there is no such image: it could be on its way there."""

_NO_SUCH_IMAGE: Final = ("not found", "manifest unknown", "name unknown", "does not exist")
_STUCK: Final = timedelta(seconds=10)
_PULL_ERRORS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG_ERRORS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})

# Their messages say for how long.
TELLS_AGE: Final = frozenset({Reason.STARTING_CONTAINERS, Reason.WAITING_FOR_MASTER, Reason.IMAGE_PULL_FAILED})

SCHEDULING_GRACE: Final = timedelta(seconds=5)
"""A scheduler's first "no" is often over in a moment: a volume is being made, a pod just ending. No reason to warn."""

# These need somebody to act, so they are worth a Warning event; the rest passes by itself.
NEEDS_ACTION: Final = frozenset(
    {
        Reason.TRAINING_OPERATOR_MISSING,
        Reason.NAME_TAKEN,
        Reason.POD_CREATION_FAILED,
        Reason.UNSCHEDULABLE,
        Reason.INSUFFICIENT_GPUS,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_ERROR,
        Reason.VOLUME_FAILED,
    }
)


@dataclass(frozen=True)
class Waiting:
    """What a training waits for: a reason of `api.Reason` and a line for people."""

    reason: str
    message: str


def explain_waiting(
    spec: Spec,
    job: JobView,
    pods: Sequence[PodView],
    capacity: ClusterCapacity | None,
    job_warning: str | None,
    pod_warning: str | None,
    now: datetime,
) -> Waiting:
    """Name the first thing that keeps the workers from running.

    Args:
        spec: what was asked for.
        job: the PyTorchJob.
        pods: its pods, as far as they exist.
        capacity: nodes and what is used on them, if it was looked up.
        job_warning: text of the newest warning event on the PyTorchJob, if any.
        pod_warning: text of the newest warning about a volume of a pod that is stuck, if any.
        now: the time, UTC.
    """
    if job.suspended:
        queue = spec.scheduling.queue_name
        text = f"waiting for Kueue to admit it in queue {queue}" if queue else "the PyTorchJob is suspended by somebody"
        return Waiting(Reason.QUEUED, text)
    return (
        _image(pods, now)
        or _container_config(pods)
        or _unschedulable(spec, pods, capacity, now)
        or _pod_creation(spec, pods, job_warning)
        or _volumes(pods, pod_warning, now)
        or _starting(pods, now)
    )


def image_is_missing(pods: Sequence[PodView], now: datetime) -> str | None:
    """What is wrong when an image will never come: its name is impossible, or its registry keeps saying that there is
    no such image. None while waiting makes sense."""
    for pod in pods:
        said = pod.waiting_message.lower()
        missing = pod.waiting_reason in _PULL_ERRORS and any(text in said for text in _NO_SUCH_IMAGE)
        if pod.waiting_reason == "InvalidImageName" or (missing and now - pod.created >= IMAGE_MISSING_GRACE):
            waiting = _image([pod], now)
            return waiting.message if waiting else None
    return None


def _image(pods: Sequence[PodView], now: datetime) -> Waiting | None:
    for pod in pods:
        if pod.waiting_reason in _PULL_ERRORS:
            detail = _first_line(pod.waiting_message) or pod.waiting_reason
            age = format_duration((now - pod.created).total_seconds())
            image = "" if pod.image in detail else f" {pod.image}"
            advice = "check the name, the tag and imagePullSecrets"
            text = f"cannot pull the image{image} on {_where(pod)} (for {age}): {detail}; {advice}"
            return Waiting(Reason.IMAGE_PULL_FAILED, text)
    return None


def _container_config(pods: Sequence[PodView]) -> Waiting | None:
    for pod in pods:
        if pod.waiting_reason in _CONFIG_ERRORS:
            detail = _first_line(pod.waiting_message) or pod.waiting_reason
            return Waiting(Reason.CONTAINER_CONFIG_ERROR, f"worker {pod.rank} cannot start on {_where(pod)}: {detail}")
    return None


def _unschedulable(
    spec: Spec, pods: Sequence[PodView], capacity: ClusterCapacity | None, now: datetime
) -> Waiting | None:
    pending = [pod for pod in pods if pod.unschedulable is not None and pod.node is None]
    if not pending:
        return None
    message = pending[0].unschedulable or ""
    if all(now - pod.created < SCHEDULING_GRACE for pod in pending):
        return Waiting(Reason.SCHEDULING, _workers(pending, explain_scheduler_message(message)))
    if f"Insufficient {spec.gpu_resource_name}" in message:
        shortage = explain_gpu_shortage(spec, len(pending), capacity) if capacity else None
        return Waiting(Reason.INSUFFICIENT_GPUS, shortage or _workers(pending, explain_scheduler_message(message)))
    return Waiting(Reason.UNSCHEDULABLE, _workers(pending, explain_scheduler_message(message)))


def _pod_creation(spec: Spec, pods: Sequence[PodView], job_warning: str | None) -> Waiting | None:
    if len(pods) >= spec.workers:
        return None
    if job_warning:
        return Waiting(Reason.POD_CREATION_FAILED, f"pods cannot be created: {_first_line(job_warning)}")
    missing = spec.workers - len(pods)
    text = f"waiting for the training-operator to create {missing} of {spec.workers} pods"
    return Waiting(Reason.CREATING_PODS, text)


def _volumes(pods: Sequence[PodView], pod_warning: str | None, now: datetime) -> Waiting | None:
    stuck = next((pod for pod in pods if is_stuck(pod, now)), None)
    if stuck is None or not pod_warning:
        return None
    return Waiting(
        Reason.VOLUME_FAILED, f"worker {stuck.rank} cannot start on {_where(stuck)}: {_first_line(pod_warning)}"
    )


def is_stuck(pod: PodView, now: datetime) -> bool:
    """Whether a pod has been on its node for some time without a container, and without saying why."""
    waits = pod.phase == "Pending" and pod.node is not None and pod.started is None and not pod.init_running
    return waits and not pod.over and now - (pod.scheduled or pod.created) > _STUCK


def _starting(pods: Sequence[PodView], now: datetime) -> Waiting:
    starting = [pod for pod in pods if not pod.running and not pod.succeeded and not pod.failed]
    if not starting:
        return Waiting(Reason.STARTING_CONTAINERS, "waiting for the containers")
    age = format_duration(max((now - pod.created).total_seconds() for pod in starting))
    inits = [pod for pod in starting if pod.init_running]
    if len(inits) == len(starting):
        return Waiting(Reason.WAITING_FOR_MASTER, _workers(inits, f"waiting for the address of worker 0 ({age})"))
    nodes = ", ".join(sorted({pod.node for pod in starting if pod.node})) or "their nodes"
    return Waiting(
        Reason.STARTING_CONTAINERS,
        _workers(starting, f"starting on {nodes}: pulling the image, mounting volumes ({age})"),
    )


def _workers(pods: Sequence[PodView], text: str) -> str:
    ranks = sorted(pod.rank for pod in pods)
    if len(ranks) == 1:
        return f"worker {ranks[0]} {text}"
    contiguous = ranks == list(range(ranks[0], ranks[-1] + 1))
    listed = f"{ranks[0]}–{ranks[-1]}" if contiguous and len(ranks) > 2 else ", ".join(map(str, ranks))
    return f"workers {listed} {text}"


def _where(pod: PodView) -> str:
    return f"node {pod.node}" if pod.node else f"worker {pod.rank}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:400] if text.strip() else ""
