"""The operator's memory of the cluster: views of the watched objects, indexed by training. No I/O.

Writes and watches reach it in any order, so an object only replaces an older one (by resourceVersion, which is
comparable for objects of one kind). Only children whose owner uid matches are given out: a pod or PyTorchJob that
merely carries our labels counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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

    def trainings(self) -> Iterator[GpuTraining]:
        """All known trainings."""
        return iter(tuple(self._trainings.values()))

    def training(self, key: Key) -> GpuTraining | None:
        """The training of this key, or None."""
        return self._trainings.get(key)

    def job(self, key: Key, name: str) -> JobView | None:
        """The PyTorchJob of this name that the training owns, or None."""
        training = self._trainings.get(key)
        if training is None:
            return None
        owned = (job for job in self._jobs.get(key, {}).values() if job.owner_uid == training.uid)
        return next((job for job in owned if job.name == name and not job.deleting), None)

    def pods(self, key: Key, job: JobView | None) -> tuple[PodView, ...]:
        """The pods that this PyTorchJob owns, by rank."""
        if job is None:
            return ()
        owned = (pod for pod in self._pods.get(key, {}).values() if pod.owner_uid == job.uid)
        return tuple(sorted(owned, key=lambda pod: pod.rank))

    def put_training(self, training: GpuTraining) -> Key:
        """Remember a training unless a newer state of it is known."""
        key = (training.namespace, training.name)
        known = self._trainings.get(key)
        # A new uid under the old name is another object, whatever its version.
        if known is None or known.uid != training.uid or training.resource_version >= known.resource_version:
            self._trainings[key] = training
        return key

    def put_job(self, job: JobView) -> Key:
        """Remember a PyTorchJob unless a newer state of it is known."""
        return _put(self._jobs, job)

    def put_pod(self, pod: PodView) -> Key:
        """Remember a pod unless a newer state of it is known."""
        return _put(self._pods, pod)

    def drop_training(self, key: Key, uid: str) -> None:
        """Forget a training, unless its name belongs to another one by now."""
        known = self._trainings.get(key)
        if known is not None and known.uid == uid:
            del self._trainings[key]

    def drop_job(self, job: JobView) -> Key:
        """Forget a PyTorchJob."""
        return _drop(self._jobs, job)

    def drop_pod(self, pod: PodView) -> Key:
        """Forget a pod."""
        return _drop(self._pods, pod)

    def take_in(self, trainings: Listing[GpuTraining], jobs: Listing[JobView], pods: Listing[PodView]) -> set[Key]:
        """Take in full listings: put what they hold, forget what they lack. Returns the keys that changed.

        What is newer than a listing was learned after it was made, and stays.
        """
        changed: set[Key] = set()
        listed = {(t.namespace, t.name) for t in trainings.items}
        for key, known in tuple(self._trainings.items()):
            if key not in listed and known.resource_version <= trainings.resource_version:
                del self._trainings[key]
                changed.add(key)
        for training in trainings.items:
            key = (training.namespace, training.name)
            if self._trainings.get(key) != training:
                self.put_training(training)
                changed.add(key)
        return changed | _take_in(self._jobs, jobs) | _take_in(self._pods, pods)


def _put(index: dict[Key, dict[str, C]], child: C) -> Key:
    key = (child.namespace, child.training_name)
    children = index.setdefault(key, {})
    known = children.get(child.uid)
    if known is None or child.resource_version >= known.resource_version:
        children[child.uid] = child
    return key


def _drop(index: dict[Key, dict[str, C]], child: C) -> Key:
    key = (child.namespace, child.training_name)
    children = index.get(key, {})
    children.pop(child.uid, None)
    if not children:
        index.pop(key, None)
    return key


def _take_in(index: dict[Key, dict[str, C]], listing: Listing[C]) -> set[Key]:
    changed: set[Key] = set()
    listed = {child.uid for child in listing.items}
    for children in tuple(index.values()):
        for child in tuple(children.values()):
            if child.uid not in listed and child.resource_version <= listing.resource_version:
                changed.add(_drop(index, child))
    for child in listing.items:
        if index.get((child.namespace, child.training_name), {}).get(child.uid) != child:
            changed.add(_put(index, child))
    return changed
