"""The operator's memory of the cluster: views of the watched objects, indexed by training. No I/O.

Writes and watches reach it in any order, so an object only replaces an older one (by resourceVersion, which is
comparable for objects of one kind), and what was deleted never comes back. Only children whose owner uid matches are
given out: a pod or PyTorchJob that merely carries our labels counts for nothing.

A deleted child of a training that still goes on is kept as it was seen last (``gone``): its last words tell how the
attempt ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from gputraining_operator.api import TERMINAL_PHASES
from gputraining_operator.attempts import current_number
from gputraining_operator.observed import JobView, PodView
from gputraining_operator.spec import GpuTraining

Key = tuple[str, str]
"""Namespace and name of a GpuTraining."""


class _Child(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def training_name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> int: ...
    @property
    def gone(self) -> bool: ...


T = TypeVar("T")
C = TypeVar("C", bound=_Child)


@dataclass(frozen=True)
class Listing(Generic[T]):
    """All objects of a kind at one resourceVersion."""

    items: Sequence[T]
    resource_version: int


class Store:
    """Trainings by key; their jobs and pods by training key and uid."""

    def __init__(self) -> None:
        self._trainings: dict[Key, GpuTraining] = {}
        self._jobs: dict[Key, dict[str, JobView]] = {}
        self._pods: dict[Key, dict[str, PodView]] = {}
        # Uids of trainings and children dropped since the last listing: one that was made before must not revive them.
        self._dropped: set[str] = set()

    def trainings(self) -> Iterator[GpuTraining]:
        """All known trainings."""
        return iter(tuple(self._trainings.values()))

    def training(self, key: Key) -> GpuTraining | None:
        """The training of this key, or None."""
        return self._trainings.get(key)

    def jobs(self, key: Key) -> tuple[JobView, ...]:
        """The PyTorchJobs that the training owns, gone ones included, by attempt."""
        training = self._trainings.get(key)
        if training is None:
            return ()
        owned = (job for job in self._jobs.get(key, {}).values() if job.owner_uid == training.uid)
        return tuple(sorted(owned, key=lambda job: (job.attempt, job.created, job.resource_version)))

    def pods(self, key: Key, job: JobView | None) -> tuple[PodView, ...]:
        """The pods that this PyTorchJob owns, gone ones included, by rank and age."""
        if job is None:
            return ()
        owned = (pod for pod in self._pods.get(key, {}).values() if pod.owner_uid == job.uid)
        return tuple(sorted(owned, key=lambda pod: (pod.rank, pod.created, pod.resource_version)))

    def put_training(self, training: GpuTraining) -> Key:
        """Remember a training unless a newer state of it is known."""
        key = (training.namespace, training.name)
        known = self._trainings.get(key)
        if training.uid in self._dropped:
            return key
        # A new uid under the old name is another object, whatever its version.
        if known is None or known.uid != training.uid or training.resource_version >= known.resource_version:
            self._trainings[key] = training
        if self._goes_on(key):
            self._forget_attempts_before(key, current_number(self._trainings[key].status) - 1)
        else:
            self._forget_gone(key)
        return key

    def put_job(self, job: JobView) -> Key:
        """Remember a PyTorchJob unless a newer state of it is known."""
        return self._put(self._jobs, job)

    def put_pod(self, pod: PodView) -> Key:
        """Remember a pod unless a newer state of it is known."""
        return self._put(self._pods, self._with_deletion(pod))

    def drop_training(self, key: Key, uid: str) -> None:
        """Forget a training, unless its name belongs to another one by now."""
        self._dropped.add(uid)
        known = self._trainings.get(key)
        if known is not None and known.uid == uid:
            del self._trainings[key]
            self._forget_gone(key)

    def drop_job(self, job: JobView) -> Key:
        """A PyTorchJob is deleted."""
        return self._drop(self._jobs, replace(job, gone=True))

    def drop_pod(self, pod: PodView) -> Key:
        """A pod is deleted."""
        return self._drop(self._pods, replace(self._with_deletion(pod), gone=True))

    def take_in(self, trainings: Listing[GpuTraining], jobs: Listing[JobView], pods: Listing[PodView]) -> set[Key]:
        """Take in full listings: put what they hold, drop what they lack. Returns the keys that changed.

        What is newer than a listing was learned after it was made, and stays; what was deleted since stays deleted.
        """
        changed: set[Key] = set()
        listed = {(t.namespace, t.name) for t in trainings.items}
        for key, known in tuple(self._trainings.items()):
            if key not in listed and known.resource_version <= trainings.resource_version:
                self.drop_training(key, known.uid)
                changed.add(key)
        for training in trainings.items:
            key = (training.namespace, training.name)
            if training.uid not in self._dropped and self._trainings.get(key) != training:
                self.put_training(training)
                changed.add(key)
        changed |= self._take_in(self._jobs, jobs) | self._take_in(self._pods, pods)
        self._dropped.clear()
        return changed

    def _with_deletion(self, pod: PodView) -> PodView:
        """The pod with the version at which its deletion was first seen, not last."""
        known = self._pods.get((pod.namespace, pod.training_name), {}).get(pod.uid)
        if known is None or not known.deletion_version:
            return pod
        return replace(pod, deletion_version=min(known.deletion_version, pod.deletion_version or pod.resource_version))

    def _goes_on(self, key: Key) -> bool:
        training = self._trainings.get(key)
        return training is not None and training.status.get("phase") not in TERMINAL_PHASES

    def _forget_attempts_before(self, key: Key, attempt: int) -> None:
        """Forget what is gone of earlier attempts: how they ended is in the status."""
        for job in [job for job in self._jobs.get(key, {}).values() if job.gone and job.attempt < attempt]:
            pods = [pod for pod in self._pods.get(key, {}).values() if pod.owner_uid == job.uid]
            if all(pod.gone for pod in pods):
                self._remove(self._jobs, job)
                for pod in pods:
                    self._remove(self._pods, pod)

    def _put(self, index: dict[Key, dict[str, C]], child: C) -> Key:
        key = (child.namespace, child.training_name)
        known = index.get(key, {}).get(child.uid)
        if child.uid in self._dropped or (known is not None and known.gone):
            return key
        if known is None or child.resource_version >= known.resource_version:
            index.setdefault(key, {})[child.uid] = child
        return key

    def _drop(self, index: dict[Key, dict[str, C]], child: C) -> Key:
        key = (child.namespace, child.training_name)
        self._dropped.add(child.uid)
        if self._goes_on(key):
            index.setdefault(key, {})[child.uid] = child
        else:
            self._remove(index, child)
        return key

    def _forget_gone(self, key: Key) -> None:
        for index in (self._jobs, self._pods):
            for child in [child for child in index.get(key, {}).values() if child.gone]:
                self._remove(cast(dict[Key, dict[str, Any]], index), child)

    def _remove(self, index: dict[Key, dict[str, C]], child: C) -> None:
        key = (child.namespace, child.training_name)
        children = index.get(key, {})
        children.pop(child.uid, None)
        if not children:
            index.pop(key, None)

    def _take_in(self, index: dict[Key, dict[str, C]], listing: Listing[C]) -> set[Key]:
        changed: set[Key] = set()
        listed = {child.uid for child in listing.items}
        for children in tuple(index.values()):
            for child in tuple(children.values()):
                if child.uid not in listed and not child.gone and child.resource_version <= listing.resource_version:
                    changed.add(self._drop(index, cast(C, replace(cast(Any, child), gone=True))))
        for child in listing.items:
            known = index.get((child.namespace, child.training_name), {}).get(child.uid)
            if child.uid not in self._dropped and known != child and not (known is not None and known.gone):
                changed.add(self._put(index, child))
        return changed
