"""The operator's own Prometheus metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputraining_operator.api import Phase
from gputraining_operator.store import Store

_FAST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_PHASES = (Phase.PENDING, Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED, Phase.COMPLETE, Phase.FAILED)


class Metrics:
    """All metrics of one operator process, in a registry of its own.

    Attributes:
        leads: whether this replica leads; one that stands by does not tell of trainings, so that sums are right.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series each, that nobody reads
        self.registry = CollectorRegistry()
        self.reconciles = Histogram(
            "gputraining_operator_reconcile_duration_seconds",
            "Time from taking a training off the queue until its plan is carried out.",
            buckets=_FAST_BUCKETS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "gputraining_operator_reconcile_errors_total",
            "Reconciles that will be tried again.",
            registry=self.registry,
        )
        self.status_writes = Counter(
            "gputraining_operator_status_writes_total", "Statuses written.", registry=self.registry
        )
        self.pulls = Histogram(
            "gputraining_operator_pull_duration_seconds",
            "Time to pull the progress of one pod.",
            buckets=_FAST_BUCKETS,
            registry=self.registry,
        )
        self.pull_failures = Counter(
            "gputraining_operator_pull_failures_total", "Pods that gave no usable progress.", registry=self.registry
        )
        self.api_requests = Counter(
            "gputraining_operator_api_requests_total",
            "Requests to the Kubernetes API, without watches; status 0 means no answer.",
            ("verb", "resource", "status"),
            registry=self.registry,
        )
        self.failures = Counter(
            "gputraining_failures_total", "Trainings that failed, by reason.", ("reason",), registry=self.registry
        )
        self.attempts = Counter("gputraining_attempts_total", "Attempts started.", registry=self.registry)
        self.attempt_failures = Counter(
            "gputraining_attempt_failures_total", "Attempts that ended badly, by reason.", ("reason",),
            registry=self.registry,
        )  # fmt: skip
        self.leads: Callable[[], bool] = lambda: True
        leader = Gauge(
            "gputraining_operator_leader", "1 if this replica leads, 0 if it stands by.", registry=self.registry
        )
        leader.set_function(lambda: float(self.leads()))

    def observe_request(self, verb: str, resource: str, status: int) -> None:
        """Count a request to the API server."""
        self.api_requests.labels(verb, resource, str(status)).inc()

    def watch(self, store: Store, queue_length: Callable[[], int]) -> None:
        """Export what the store and the queue hold at the time of each scrape."""
        self.registry.register(_StoreCollector(store, queue_length, lambda: self.leads()))


class _StoreCollector(Collector):
    def __init__(self, store: Store, queue_length: Callable[[], int], leads: Callable[[], bool]) -> None:
        self._store = store
        self._queue_length = queue_length
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        if not self._leads():
            return
        phases = Tally(t.status.get("phase", Phase.PENDING) for t in self._store.trainings())
        trainings = GaugeMetricFamily("gputraining_trainings", "GpuTrainings by phase.", labels=["phase"])
        for phase in _PHASES:
            trainings.add_metric([phase], phases[phase])
        yield trainings
        gpus = sum(
            t.spec.workers * t.spec.gpus_per_worker
            for t in self._store.trainings()
            if t.status.get("phase") == Phase.RUNNING
        )
        yield GaugeMetricFamily("gputraining_allocated_gpus", "GPUs that running trainings hold.", value=gpus)
        yield GaugeMetricFamily(
            "gputraining_operator_queue_length", "Trainings that wait to be reconciled.", value=self._queue_length()
        )
