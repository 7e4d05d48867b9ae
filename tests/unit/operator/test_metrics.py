"""The operator's metrics: what trainings there are, and who tells of them."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest

from gputraining_operator.metrics import Metrics
from gputraining_operator.store import Store
from tests.unit.operator.builders import training


def metrics_of(*phases: str) -> Metrics:
    store = Store()
    for i, phase in enumerate(phases):
        store.put_training(training(status={"phase": phase}, name=f"t{i}", uid=f"u{i}"))
    metrics = Metrics()
    metrics.watch(store, lambda: 3)
    return metrics


def test_trainings_are_counted_by_phase() -> None:
    metrics = metrics_of("Running", "Running", "Restarting", "Suspended")
    counted = {
        phase: metrics.registry.get_sample_value("gputraining_trainings", {"phase": phase})
        for phase in ("Pending", "Running", "Restarting", "Suspended", "Complete", "Failed")
    }
    assert counted == {"Pending": 0, "Running": 2, "Restarting": 1, "Suspended": 1, "Complete": 0, "Failed": 0}
    assert metrics.registry.get_sample_value("gputraining_allocated_gpus") == 2
    assert metrics.registry.get_sample_value("gputraining_operator_leader") == 1


def test_a_replica_that_stands_by_does_not_count_them_a_second_time() -> None:
    metrics = metrics_of("Running")
    metrics.leads = lambda: False
    text = generate_latest(metrics.registry).decode()
    assert "gputraining_operator_leader 0.0" in text
    assert "gputraining_trainings{" not in text


def test_attempts() -> None:
    metrics = metrics_of()
    metrics.attempts.inc()
    metrics.attempt_failures.labels("NodeLost").inc()
    assert metrics.registry.get_sample_value("gputraining_attempts_total") == 1
    assert metrics.registry.get_sample_value("gputraining_attempt_failures_total", {"reason": "NodeLost"}) == 1
