"""What the operator keeps of the objects it watches: the few facts that decisions need, not the whole objects.

Five thousand jobs fit into little memory this way, and decisions do not depend on the shape of foreign APIs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gputraining_operator.api import (
    CONTAINER,
    LABEL_ATTEMPT,
    LABEL_NAME,
    LABEL_REPLICA_INDEX,
    LABEL_REPLICA_TYPE,
    Json,
)
from gputraining_operator.times import parse_time


@dataclass(frozen=True)
class JobView:
    """A PyTorchJob. ``gone``: it is deleted, and this is how it was seen last."""

    namespace: str
    name: str
    uid: str
    resource_version: int
    owner_uid: str | None
    training_name: str
    created: datetime
    deleting: bool
    attempt: int = 1
    suspended: bool = False
    conditions: dict[str, Json] = field(default_factory=dict)
    gone: bool = False

    def condition(self, kind: str) -> Json | None:
        """The condition of this type if it is True."""
        condition = self.conditions.get(kind)
        return condition if condition and condition.get("status") == "True" else None

    @property
    def succeeded(self) -> bool:
        """Whether the training-operator calls the job done."""
        return self.condition("Succeeded") is not None

    @property
    def failed(self) -> bool:
        """Whether the training-operator has given the job up."""
        return self.condition("Failed") is not None

    @property
    def finished(self) -> bool:
        """Whether the training-operator has given its verdict."""
        return self.succeeded or self.failed


@dataclass(frozen=True)
class Disruption:
    """Why Kubernetes took a pod away (its condition DisruptionTarget)."""

    reason: str
    message: str


@dataclass(frozen=True)
class Termination:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    finished: datetime | None


@dataclass(frozen=True)
class PodView:
    """A pod of a training. ``gone``: it is deleted, and this is how it was seen last.

    ``deletion_time`` is the moment by which a pod that is being deleted has to be gone: its grace is over then.
    ``deletion_version`` is the resourceVersion at which its deletion was first seen, which tells who was deleted first.
    """

    namespace: str
    name: str
    uid: str
    resource_version: int
    owner_uid: str | None
    training_name: str
    rank: int
    phase: str
    created: datetime
    deleting: bool
    ip: str | None = None
    node: str | None = None
    reason: str = ""
    message: str = ""
    unschedulable: str | None = None
    init_running: bool = False
    started: datetime | None = None
    waiting_reason: str = ""
    waiting_message: str = ""
    image: str = ""
    termination: Termination | None = None
    scheduled: datetime | None = None
    deletion_time: datetime | None = None
    deletion_version: int = 0
    disruption: Disruption | None = None
    gone: bool = False

    @property
    def running(self) -> bool:
        """Whether the training container runs now."""
        return self.phase == "Running" and self.started is not None and self.termination is None and not self.gone

    @property
    def over(self) -> bool:
        """Whether the training container will never run again."""
        return self.gone or self.termination is not None or self.phase in ("Succeeded", "Failed")

    @property
    def succeeded(self) -> bool:
        """Whether the pod has ended well."""
        return self.phase == "Succeeded"

    @property
    def failed(self) -> bool:
        """Whether the pod has ended badly."""
        return self.phase == "Failed"


def parse_job(body: Json) -> JobView:
    """Parse a PyTorchJob as the API server gives it."""
    meta = body["metadata"]
    by_type = {condition["type"]: condition for condition in (body.get("status") or {}).get("conditions") or ()}
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=int(meta.get("resourceVersion") or 0),
        owner_uid=controller_uid(meta),
        training_name=(meta.get("labels") or {}).get(LABEL_NAME, ""),
        created=parse_time(meta["creationTimestamp"]),
        deleting="deletionTimestamp" in meta,
        attempt=_number((meta.get("labels") or {}).get(LABEL_ATTEMPT, "")) or 1,
        suspended=_job_suspended(body.get("spec") or {}, by_type),
        conditions=by_type,
    )


def parse_pod(body: Json) -> PodView:
    """Parse a pod as the API server gives it."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = meta.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    main = _container_status(status.get("containerStatuses"))
    init = [_waiting(s) for s in status.get("initContainerStatuses") or ()]
    state = main.get("state") or {}
    # An init container whose image cannot be pulled holds the pod just as well.
    waiting = next((w for w in init if w.get("reason") not in (None, "PodInitializing")), None) or _waiting(main)
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=int(meta.get("resourceVersion") or 0),
        owner_uid=controller_uid(meta),
        training_name=labels.get(LABEL_NAME, ""),
        rank=_rank(labels),
        phase=status.get("phase", "Pending"),
        created=parse_time(meta["creationTimestamp"]),
        deleting="deletionTimestamp" in meta,
        ip=status.get("podIP"),
        node=spec.get("nodeName"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        unschedulable=_unschedulable(conditions),
        init_running=any("running" in (s.get("state") or {}) for s in status.get("initContainerStatuses") or ()),
        started=_optional_time((state.get("running") or {}).get("startedAt")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        image=next((c.get("image", "") for c in spec.get("containers") or () if c.get("name") == CONTAINER), ""),
        termination=_termination(state.get("terminated")),
        scheduled=_scheduled(conditions),
        deletion_time=_optional_time(meta.get("deletionTimestamp")),
        deletion_version=int(meta.get("resourceVersion") or 0) if "deletionTimestamp" in meta else 0,
        disruption=_disruption(conditions),
    )


def _job_suspended(spec: Json, conditions: Json) -> bool:
    """Whether the job is suspended, or was just resumed and the training-operator has not begun to act."""
    wanted = bool((spec.get("runPolicy") or {}).get("suspend"))
    return wanted or (conditions.get("Suspended") or {}).get("status") == "True"


def controller_uid(meta: Json) -> str | None:
    """Uid of the controlling owner, or None."""
    owners = meta.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _container_status(statuses: list[Json] | None) -> Json:
    return next((s for s in statuses or () if s.get("name") == CONTAINER), {})


def _waiting(status: Json) -> Json:
    waiting: Json = (status.get("state") or {}).get("waiting") or {}
    return waiting


def _rank(labels: Json) -> int:
    """Node rank: the master is 0, worker i is i + 1. Anybody may label a pod with anything: nonsense is rank 0."""
    index = _number(labels.get(LABEL_REPLICA_INDEX, ""))
    return 0 if labels.get(LABEL_REPLICA_TYPE) == "master" or index is None else index + 1


def _number(label: str) -> int | None:
    return int(label) if label.isascii() and label.isdigit() else None


def _unschedulable(conditions: Json) -> str | None:
    condition = conditions.get("PodScheduled") or {}
    if condition.get("status") != "False":
        return None
    message: str = condition.get("message") or condition.get("reason") or "no node fits"
    return message


def _scheduled(conditions: Json) -> datetime | None:
    condition = conditions.get("PodScheduled") or {}
    return _optional_time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _disruption(conditions: Json) -> Disruption | None:
    condition = conditions.get("DisruptionTarget") or {}
    if condition.get("status") != "True":
        return None
    return Disruption(condition.get("reason") or "", condition.get("message") or "")


def _optional_time(text: str | None) -> datetime | None:
    return parse_time(text) if text else None


def _termination(terminated: Json | None) -> Termination | None:
    if terminated is None:
        return None
    return Termination(
        exit_code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        finished=_optional_time(terminated.get("finishedAt")),
    )
