"""The operator's memory: the newest state wins, foreign children do not count, listings correct it."""

from __future__ import annotations

from dataclasses import replace

from gputraining_operator.observed import PodView, parse_pod
from gputraining_operator.store import Listing, Store
from tests.unit.operator.builders import job, pod_body, running_pod, starting_pod, training

KEY = ("team-a", "digits")


def filled() -> Store:
    store = Store()
    store.put_training(training())
    store.put_job(job())
    store.put_pod(running_pod(1))
    store.put_pod(running_pod(0))
    return store


def test_children_are_found_by_owner_and_sorted_by_rank() -> None:
    store = filled()
    found = store.job(KEY, "digits-1")
    assert found is not None
    assert [pod.rank for pod in store.pods(KEY, found)] == [0, 1]
    assert store.job(KEY, "digits-2") is None
    assert store.pods(KEY, None) == ()


def test_foreign_children_with_our_labels_do_not_count() -> None:
    store = Store()
    store.put_training(training())
    store.put_job(replace(job(), owner_uid="somebody-else"))
    assert store.job(KEY, "digits-1") is None
    store.put_job(job(resourceVersion="20"))
    store.put_pod(replace(running_pod(0), owner_uid=None))
    assert store.pods(KEY, store.job(KEY, "digits-1")) == ()


def test_a_pod_with_nonsense_in_its_labels_is_read_all_the_same() -> None:
    body = pod_body(1)
    body["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "²x"
    assert parse_pod(body).rank == 0


def test_a_job_that_is_being_deleted_is_no_job() -> None:
    store = filled()
    store.put_job(job(deletionTimestamp="2026-11-21T10:00:00Z", resourceVersion="30"))
    assert store.job(KEY, "digits-1") is None


def test_older_states_do_not_replace_newer_ones() -> None:
    store = filled()
    store.put_training(training(resourceVersion="50", status={"phase": "Running"}))
    store.put_training(training(resourceVersion="49", status={"phase": "Pending"}))
    known = store.training(KEY)
    assert known is not None
    assert known.status == {"phase": "Running"}
    store.put_pod(replace(starting_pod(0), resource_version=1))
    assert store.pods(KEY, job())[0].running


def test_a_new_training_of_the_same_name_replaces_the_old_one() -> None:
    store = filled()
    store.put_training(training(uid="uid-new", resourceVersion="1"))
    store.drop_training(KEY, "uid-training")
    known = store.training(KEY)
    assert known is not None
    assert known.uid == "uid-new"
    assert store.job(KEY, "digits-1") is None


def test_dropping() -> None:
    store = filled()
    store.drop_pod(running_pod(0))
    assert [pod.rank for pod in store.pods(KEY, job())] == [1]
    store.drop_job(job())
    assert store.job(KEY, "digits-1") is None
    store.drop_training(KEY, "uid-training")
    assert store.training(KEY) is None


def take_in(store: Store, version: int, *pods: PodView, trainings: int = 1) -> set[tuple[str, str]]:
    return store.take_in(
        Listing([training()] * trainings, version), Listing([job()], version), Listing(list(pods), version)
    )


def test_listings_bring_what_was_missed_and_remove_what_is_gone() -> None:
    store = filled()
    assert take_in(store, 100, running_pod(0), running_pod(1)) == set()
    assert take_in(store, 100, running_pod(1)) == {KEY}
    assert [pod.rank for pod in store.pods(KEY, job())] == [1]
    assert take_in(store, 100, running_pod(1), trainings=0) == {KEY}
    assert store.training(KEY) is None


def test_what_is_newer_than_a_listing_stays() -> None:
    store = filled()
    take_in(store, 5)
    assert len(store.pods(KEY, job())) == 2
