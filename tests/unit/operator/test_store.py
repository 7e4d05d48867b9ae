"""The operator's memory: the newest state wins, foreign children do not count, listings correct it."""

from __future__ import annotations

from dataclasses import replace

from gputraining_operator.api import Json
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
    (found,) = store.jobs(KEY)
    assert [pod.rank for pod in store.pods(KEY, found)] == [0, 1]
    assert store.pods(KEY, None) == ()


def test_foreign_children_with_our_labels_do_not_count() -> None:
    store = Store()
    store.put_training(training())
    store.put_job(replace(job(), owner_uid="somebody-else"))
    assert store.jobs(KEY) == ()
    store.put_job(job(resourceVersion="20"))
    store.put_pod(replace(running_pod(0), owner_uid=None))
    assert store.pods(KEY, store.jobs(KEY)[0]) == ()


def test_a_pod_with_nonsense_in_its_labels_is_read_all_the_same() -> None:
    body = pod_body(1)
    body["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "²x"
    assert parse_pod(body).rank == 0


def test_jobs_come_by_attempt() -> None:
    store = filled()
    store.put_job(job(attempt=3))
    store.put_job(job(attempt=2))
    assert [found.attempt for found in store.jobs(KEY)] == [1, 2, 3]


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
    assert store.jobs(KEY) == ()


def test_what_was_deleted_is_kept_as_it_was_seen_last_while_the_training_goes_on() -> None:
    store = filled()
    store.drop_pod(running_pod(0))
    assert [(pod.rank, pod.gone) for pod in store.pods(KEY, job())] == [(0, True), (1, False)]
    store.drop_job(job())
    assert [found.gone for found in store.jobs(KEY)] == [True]
    store.drop_training(KEY, "uid-training")
    assert store.training(KEY) is None
    store.put_training(training(uid="uid-training-2"))
    assert store.jobs(KEY) == ()


def test_what_is_gone_is_forgotten_at_the_end_of_the_training() -> None:
    store = filled()
    store.drop_pod(running_pod(0))
    store.put_training(training(status={"phase": "Complete"}, resourceVersion="99"))
    assert [pod.rank for pod in store.pods(KEY, job())] == [1]
    store.drop_pod(running_pod(1))
    assert store.pods(KEY, job()) == ()


def test_attempts_long_over_are_forgotten_but_not_while_their_pods_live() -> None:
    def history(number: int) -> Json:
        return {"attempts": [{"number": n, "endTime": "2026-11-21T10:00:00Z"} for n in range(1, number + 1)]}

    store = filled()
    store.drop_job(job())
    store.drop_pod(running_pod(0))
    store.put_training(training(status=history(2), resourceVersion="20"))
    assert len(store.jobs(KEY)) == 1
    store.drop_pod(running_pod(1))
    store.put_training(training(status=history(1), resourceVersion="21"))
    assert len(store.jobs(KEY)) == 1, "the former one is kept"
    store.put_training(training(status=history(2), resourceVersion="22"))
    assert store.jobs(KEY) == ()


def test_when_a_pod_was_deleted_is_kept() -> None:
    store = filled()
    for version in (20, 30, 40):
        store.put_pod(replace(running_pod(0), deleting=True, resource_version=version, deletion_version=version))
    store.drop_pod(replace(running_pod(0), deleting=True, resource_version=50, deletion_version=50))
    assert store.pods(KEY, job())[0].deletion_version == 20


def test_what_was_deleted_never_comes_back() -> None:
    store = filled()
    listing = Listing([training()], 5), Listing([job()], 5), Listing([running_pod(0), running_pod(1)], 5)
    store.drop_pod(running_pod(0))
    store.put_pod(running_pod(0))
    store.take_in(*listing)
    assert [pod.gone for pod in store.pods(KEY, job())] == [True, False]
    store.drop_training(KEY, "uid-training")
    store.put_training(training())  # a late answer to a write
    store.take_in(*listing)
    assert store.training(KEY) is None


def take_in(store: Store, version: int, *pods: PodView, trainings: int = 1) -> set[tuple[str, str]]:
    return store.take_in(
        Listing([training()] * trainings, version), Listing([job()], version), Listing(list(pods), version)
    )


def test_listings_bring_what_was_missed_and_remove_what_is_gone() -> None:
    store = filled()
    assert take_in(store, 100, running_pod(0), running_pod(1)) == set()
    assert take_in(store, 100, running_pod(1)) == {KEY}
    assert [(pod.rank, pod.gone) for pod in store.pods(KEY, job())] == [(0, True), (1, False)]
    assert take_in(store, 100, running_pod(1)) == set()
    assert take_in(store, 100, running_pod(1), trainings=0) == {KEY}
    assert store.training(KEY) is None


def test_what_is_newer_than_a_listing_stays() -> None:
    store = filled()
    take_in(store, 5)
    assert len(store.pods(KEY, job())) == 2
