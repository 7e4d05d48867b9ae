"""The controller carries plans out: against an API server that is played here, with its refusals and races."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gputraining_operator.api import Json
from gputraining_operator.cluster import ApiError, Cluster
from gputraining_operator.controller import Controller
from gputraining_operator.metrics import Metrics
from gputraining_operator.store import Store
from tests.unit.operator.builders import TRAINER_IMAGE, at, ended_pod, job_body, training, training_body

KEY = ("team-a", "digits")


class PlayedCluster(Cluster):
    """Answers from memory; ``refusals`` are raised, in order, by the next creations."""

    def __init__(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.statuses: list[Json] = []
        self.deleted: list[tuple[str, int]] = []
        self.events: list[Json] = []
        self.refusals: list[ApiError] = []
        self.status_error: ApiError | None = None
        self.status_attempts = 0

    async def create_job(self, body: Json) -> Json:
        if self.refusals:
            raise self.refusals.pop(0)
        name = body["metadata"]["name"]
        if name in self.jobs:
            raise ApiError(409, "AlreadyExists", f"{name} exists")
        self.jobs[name] = job_body(attempt=int(name.rsplit("-", 1)[1]))
        return self.jobs[name]

    async def delete_job(self, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        assert foreground, "a job that is gone must have taken its pods along"
        self.deleted.append((name, len(self.statuses)))
        self.jobs.pop(name, None)

    async def get_job(self, namespace: str, name: str) -> Json:
        return self.jobs[name]

    async def apply_status(self, namespace: str, name: str, resource_version: int, status: Json) -> Json:
        self.status_attempts += 1
        if self.status_error:
            raise self.status_error
        self.statuses.append(status)
        return training_body(status=status, resourceVersion=str(100 + len(self.statuses)))

    async def create_event(self, namespace: str, body: Json) -> None:
        self.events.append(body)


@asynccontextmanager
async def controller_on(cluster: PlayedCluster) -> AsyncIterator[Controller]:
    controller = Controller(cluster, Store(), Metrics(), TRAINER_IMAGE, clock=lambda: at(1))
    controller.store.put_training(training())
    controller.queue.add(KEY)
    worker = asyncio.ensure_future(controller.run_worker())
    try:
        yield controller
    finally:
        worker.cancel()
        controller.queue.close()
        await asyncio.gather(worker, return_exceptions=True)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the played API has no events to wait for)
            await asyncio.sleep(0.01)


async def test_a_new_training_is_created_and_told_in_one_go() -> None:
    cluster = PlayedCluster()
    async with controller_on(cluster) as controller:
        await until(lambda: cluster.events)
        assert list(cluster.jobs) == ["digits-1"]
        assert [status["phase"] for status in cluster.statuses] == ["Pending"]
        known = controller.store.training(KEY)
        assert known is not None
        assert known.status == cluster.statuses[0]
    reasons = [event["reason"] for event in cluster.events]
    assert reasons[0] == "AttemptStarted"


async def test_a_missing_training_operator_is_told_and_tried_again_until_it_is_there() -> None:
    cluster = PlayedCluster()
    cluster.refusals = [ApiError(404, "NotFound", "the server could not find the requested resource")] * 2
    async with controller_on(cluster):
        await until(lambda: cluster.jobs)
        await until(lambda: len(cluster.statuses) == 2)
    assert cluster.statuses[0]["conditions"][0]["reason"] == "TrainingOperatorMissing"
    assert cluster.statuses[1]["conditions"][0]["reason"] == "Rendered"


async def test_a_refusal_for_good_ends_it() -> None:
    cluster = PlayedCluster()
    cluster.refusals = [ApiError(422, "Invalid", "spec.x: bad")]
    async with controller_on(cluster):
        await until(lambda: cluster.statuses)
    assert (cluster.statuses[0]["phase"], cluster.statuses[0]["message"]) == (
        "Failed",
        "the PyTorchJob was refused: spec.x: bad",
    )


async def test_our_own_job_that_a_lost_answer_left_behind_is_taken_up() -> None:
    cluster = PlayedCluster()
    cluster.jobs["digits-1"] = job_body()
    async with controller_on(cluster):
        await until(lambda: cluster.statuses)
    assert cluster.statuses[0]["jobName"] == "digits-1"


async def test_a_foreign_job_of_that_name_is_left_alone_and_told() -> None:
    cluster = PlayedCluster()
    cluster.jobs["digits-1"] = job_body(ownerReferences=[])
    async with controller_on(cluster):
        await until(lambda: cluster.statuses)
    assert "exists that is not this training's" in cluster.statuses[0]["message"]


async def test_a_training_deleted_meanwhile_is_forgotten() -> None:
    cluster = PlayedCluster()
    cluster.status_error = ApiError(404, "NotFound", "gone")
    async with controller_on(cluster) as controller:
        await until(lambda: controller.store.training(KEY) is None)
    assert cluster.events == []


async def test_a_status_that_cannot_be_written_is_tried_again_with_growing_delays() -> None:
    cluster = PlayedCluster()
    cluster.status_error = ApiError(500, "InternalError", "no")
    async with controller_on(cluster):
        await until(lambda: cluster.status_attempts >= 2)
        before = cluster.status_attempts
        await asyncio.sleep(1)
        assert cluster.status_attempts - before <= 2, "0.25 s, 0.5 s, 1 s ... and not at once"
        cluster.status_error = None
        await until(lambda: cluster.statuses)


async def test_a_failed_attempt_is_told_before_its_job_is_deleted_and_the_next_one_follows() -> None:
    cluster = PlayedCluster()
    async with controller_on(cluster) as controller:
        await until(lambda: cluster.statuses)
        controller.store.put_pod(ended_pod(0, 137))
        controller.queue.add(KEY)
        await until(lambda: cluster.deleted)
        assert cluster.deleted == [("digits-1", 2)], "after the second status"
        assert cluster.statuses[1]["attempts"][0]["reason"] == "Killed"
        assert cluster.statuses[1]["phase"] == "Restarting"
        (first,) = controller.store.jobs(KEY)
        controller.store.drop_job(first)
        controller.clock = lambda: at(60)
        controller.queue.add(KEY)
        await until(lambda: "digits-2" in cluster.jobs)
        await until(lambda: len(cluster.statuses) == 3)
    assert cluster.statuses[2]["attempt"] == 2
    assert controller.findings(training()).job_uid == "uid-job-2"


async def test_an_unexpected_error_is_logged_counted_and_tried_again() -> None:
    cluster = PlayedCluster()
    cluster.refusals = [RuntimeError("boom")]  # type: ignore[list-item]
    async with controller_on(cluster):
        await until(lambda: cluster.jobs)
