"""A small world to reconcile in: an API server, the training-operator, kubelets, people, and the operator's memory.

Objects are played as the real ones behave, in the few facts that decisions need. The operator may be away, restart and
forget, or die between two of its writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gputraining_operator.api import TERMINAL_PHASES, Json
from gputraining_operator.attempts import FormerJob, current_number
from gputraining_operator.decision import Observed, Plan
from gputraining_operator.observed import JobView, PodView, parse_job
from gputraining_operator.progress import ProgressRecord
from gputraining_operator.reconcile import reconcile
from tests.unit.operator.builders import (
    TRAINER_IMAGE,
    at,
    ended_pod,
    job_body,
    running_pod,
    starting_pod,
    training,
)

GRACE = 30


@dataclass
class World:
    """One training and all that belongs to it."""

    spec: Json
    now: float = 0.0
    status: Json | None = None
    jobs: dict[int, JobView] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    seen_jobs: dict[int, JobView] = field(default_factory=dict)
    seen_pods: dict[str, PodView] = field(default_factory=dict)
    step: int = 0
    checkpoint: int = 0
    next_uid: int = 0
    created: list[int] = field(default_factory=list)
    deleted_training: bool = False

    @property
    def phase(self) -> str:
        return str((self.status or {}).get("phase", ""))

    @property
    def over(self) -> bool:
        return self.phase in TERMINAL_PHASES

    def pods_of(self, job: JobView) -> list[PodView]:
        return [pod for pod in self.pods.values() if pod.owner_uid == job.uid]

    def live_pods(self) -> list[PodView]:
        return [pod for pod in self.pods.values() if not pod.over]

    # The cluster's part.

    def training_operator(self) -> None:
        """Makes missing pods, gives verdicts, cleans up after them."""
        for job in list(self.jobs.values()):
            if job.deleting or job.suspended:
                continue
            pods = self.pods_of(job)
            if not job.finished:
                failed = [pod for pod in pods if pod.failed]
                succeeded = [pod for pod in pods if pod.rank == 0 and pod.succeeded]
                if failed or succeeded:
                    kind = "Failed" if failed else "Succeeded"
                    condition = {"type": kind, "status": "True", "lastTransitionTime": at(self.now).isoformat()}
                    self.jobs[job.attempt] = job = replace(job, conditions={kind: condition | {"message": kind}})
            if job.finished:
                for pod in pods:
                    self.delete_pod(pod)
                continue
            for rank in range(self.spec.get("workers", 1)):
                if not any(pod.rank == rank for pod in pods):
                    self.next_uid += 1
                    uid = f"pod-{self.next_uid}"
                    pod = replace(starting_pod(rank), uid=uid, owner_uid=job.uid, created=at(self.now))
                    self.pods[uid] = pod

    def kubelet(self) -> None:
        """Starts containers, lets the training advance, ends deleted pods, and collects what is deleted."""
        for uid, pod in list(self.pods.items()):
            if pod.deleting and not pod.over:
                code = 75 if pod.running else 137
                self.pods[uid] = replace(
                    ended_pod(pod.rank, code, ended=self.now), uid=uid, owner_uid=pod.owner_uid, created=pod.created,
                    deleting=True, deletion_time=pod.deletion_time, disruption=pod.disruption,
                )  # fmt: skip
                self.checkpoint = self.step
            elif pod.deleting:
                del self.pods[uid]
            elif pod.phase == "Pending":
                running = running_pod(pod.rank)
                self.pods[uid] = replace(running, uid=uid, owner_uid=pod.owner_uid, created=pod.created)
        for number, job in list(self.jobs.items()):
            if job.deleting:
                for pod in self.pods_of(job):
                    self.delete_pod(pod)
                if not self.pods_of(job):
                    del self.jobs[number]

    def advance(self) -> None:
        """The workers take a step, if all of them run."""
        for job in self.jobs.values():
            running = [pod for pod in self.pods_of(job) if pod.running]
            if len(running) == self.spec.get("workers", 1):
                self.step += 1

    def finish(self) -> None:
        """The workers end well, if all of them run or have ended well."""
        for job in self.jobs.values():
            pods = self.pods_of(job)
            if len([pod for pod in pods if pod.running or pod.succeeded]) == self.spec.get("workers", 1):
                for pod in pods:
                    self.end(pod, 0)

    def end(self, pod: PodView, code: int, reason: str = "") -> None:
        ended = ended_pod(pod.rank, code, reason=reason, ended=self.now)
        self.pods[pod.uid] = replace(
            ended, uid=pod.uid, owner_uid=pod.owner_uid, created=pod.created, deleting=pod.deleting,
            deletion_time=pod.deletion_time,
        )  # fmt: skip

    def delete_pod(self, pod: PodView) -> None:
        if not pod.deleting and not pod.over:
            self.pods[pod.uid] = replace(pod, deleting=True, deletion_time=at(self.now + GRACE))

    # The operator's part.

    def watch(self) -> None:
        """The operator hears of everything; what is deleted it keeps as it was seen last."""
        for number, job in self.seen_jobs.items():
            if number not in self.jobs:
                self.seen_jobs[number] = replace(job, gone=True)
        for uid, pod in self.seen_pods.items():
            if uid not in self.pods:
                self.seen_pods[uid] = replace(pod, gone=True)
        self.seen_jobs |= self.jobs
        self.seen_pods |= self.pods

    def forget(self) -> None:
        """The operator starts anew: it knows what is there, and nothing of what was."""
        self.seen_jobs, self.seen_pods = dict(self.jobs), dict(self.pods)

    def observed(self, **facts: Any) -> Observed:
        number = current_number(self.status or {})
        job = self.seen_jobs.get(number)

        def pods_of(owner: JobView) -> tuple[PodView, ...]:
            owned = (pod for pod in self.seen_pods.values() if pod.owner_uid == owner.uid)
            return tuple(sorted(owned, key=lambda pod: pod.rank))

        records = {}
        if job is not None and any(pod.running for pod in pods_of(job)):
            records[0] = ProgressRecord(
                "Training", at(self.now), step=self.step, total_steps=1_000_000,
                checkpoint_step=self.checkpoint, checkpoint_time=at(self.now),
            )  # fmt: skip
        former = tuple(FormerJob(old, pods_of(old)) for n, old in sorted(self.seen_jobs.items()) if n < number)
        return Observed(
            training(self.spec, self.status), job, pods_of(job) if job else (), former, records=records, **facts
        )

    def decide(self) -> Plan:
        return reconcile(self.observed(), TRAINER_IMAGE, at(self.now))

    def reconcile(self, writes: int = 99) -> Plan:
        """Decide once and carry out, dying after so many writes."""
        plan = self.decide()
        if plan.create is not None and writes > 0:
            writes -= 1
            name = plan.create["metadata"]["name"]
            number = int(name.rsplit("-", 1)[1])
            if number not in self.jobs:
                body = job_body(attempt=number, creationTimestamp=at(self.now).isoformat())
                body["spec"] = plan.create["spec"]
                self.next_uid += 1
                self.jobs[number] = parse_job(body | {"metadata": body["metadata"] | {"uid": f"job-{self.next_uid}"}})
                self.created.append(number)
            self.watch()
            plan = self.decide()
        if plan.delete_training:
            self.deleted_training = True
        if plan.status is not None and writes > 0:
            writes -= 1
            self.status = plan.status
        for job in plan.delete_jobs:
            if writes > 0 and job.attempt in self.jobs:
                writes -= 1
                self.jobs[job.attempt] = replace(self.jobs[job.attempt], deleting=True)
        return plan
