"""What the operator keeps of the objects it watches: the few facts that decisions need, not the whole objects.

Five thousand jobs fit into little memory this way, and decisions do not depend on the shape of foreign APIs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gputraining_operator.api import CONTAINER, LABEL_NAME, LABEL_REPLICA_INDEX, LABEL_REPLICA_TYPE, Json
from gputraining_operator.times import parse_time


@dataclass(frozen=True)
class JobView:
    """A PyTorchJob."""

    namespace: str
    name: str
    uid: str
    resource_version: int
    owner_uid: str | None
    training_name: str
    created: datetime
    deleting: bool
    conditions: dict[str, Json] = field(default_factory=dict)

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


@dataclass(frozen=True)
class Termination:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    finished: datetime | None


@dataclass(frozen=True)
class PodView:
    """A pod of a training."""

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

    @property
    def running(self) -> bool:
        """Whether the training container runs now."""
        return self.phase == "Running" and self.started is not None and self.termination is None

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
    conditions = (body.get("status") or {}).get("conditions") or ()
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=int(meta.get("resourceVersion") or 0),
        owner_uid=controller_uid(meta),
        training_name=(meta.get("labels") or {}).get(LABEL_NAME, ""),
        created=parse_time(meta["creationTimestamp"]),
        deleting="deletionTimestamp" in meta,
        conditions={condition["type"]: condition for condition in conditions},
    )


def parse_pod(body: Json) -> PodView:
    """Parse a pod as the API server gives it."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = meta.get("labels") or {}
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
        unschedulable=_unschedulable(status.get("conditions") or ()),
        init_running=any("running" in (s.get("state") or {}) for s in status.get("initContainerStatuses") or ()),
        started=_optional_time((state.get("running") or {}).get("startedAt")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        image=next((c.get("image", "") for c in spec.get("containers") or () if c.get("name") == CONTAINER), ""),
        termination=_termination(state.get("terminated")),
    )


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
    index = labels.get(LABEL_REPLICA_INDEX, "")
    if labels.get(LABEL_REPLICA_TYPE) == "master" or not (index.isascii() and index.isdigit()):
        return 0
    return int(index) + 1


def _unschedulable(conditions: list[Json] | tuple[()]) -> str | None:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message: str = condition.get("message") or condition.get("reason") or "no node fits"
            return message
    return None


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
