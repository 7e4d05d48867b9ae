"""The two ends of a decision: all facts about one training, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputraining_operator.api import Json
from gputraining_operator.attempts import FormerJob
from gputraining_operator.capacity import ClusterCapacity
from gputraining_operator.events import EventToPost
from gputraining_operator.health import Health
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.spec import GpuTraining


@dataclass(frozen=True)
class CreateProblem:
    """Why the PyTorchJob could not be created. ``final`` means that trying again cannot help."""

    reason: str
    message: str
    final: bool = False


@dataclass(frozen=True)
class Observed:
    """All facts about one training at one moment.

    ``job`` and ``pods`` are those of the current attempt, gone ones included; ``records`` its last pulled ones by node
    rank.
    """

    training: GpuTraining
    job: JobView | None = None
    pods: tuple[PodView, ...] = ()
    former: tuple[FormerJob, ...] = ()
    records: Mapping[int, ProgressRecord] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    pull_problem: str | None = None
    create_problem: CreateProblem | None = None
    capacity: ClusterCapacity | None = None
    job_warning: str | None = None
    pod_warning: str | None = None


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: create, write the status, delete, post events.

    ``status`` is the whole status that should be; None leaves it as it is. ``failed_attempt`` is the reason why an
    attempt ended, when it just did. ``requeue_after`` is in seconds; None means that nothing is due by the clock.
    """

    create: Json | None = None
    status: Json | None = None
    delete_jobs: tuple[JobView, ...] = ()
    delete_training: bool = False
    events: tuple[EventToPost, ...] = ()
    failed_attempt: str | None = None
    requeue_after: float | None = None
