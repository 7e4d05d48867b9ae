"""The report as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputraining_trainer.report import GpuReading, Report, State

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_OWN_METRICS: Final = {
    "loss": ("gputraining_loss", "Training loss, mean over the last report interval or epoch."),
    "accuracy": ("gputraining_accuracy_ratio", "Share of the test set that is classified rightly."),
    "testLoss": ("gputraining_test_loss", "Loss on the test set after the last epoch."),
    "learningRate": ("gputraining_learning_rate", "Learning rate of the last step."),
}
_GPU_LABELS: Final = ("uuid", "model")


def render(report: Report) -> bytes:
    """The metrics of this moment in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_ReportCollector(report))
    return generate_latest(registry)


class _ReportCollector(Collector):
    """Reads the report when scraped, so that training itself never touches a metric object."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def describe(self) -> Iterator[Metric]:
        # Named in advance: else registering would collect once more.
        yield GaugeMetricFamily("gputraining_state", "")

    def collect(self) -> Iterator[Metric]:
        progress = self._report.progress
        state = GaugeMetricFamily("gputraining_state", "1 for what the process does now.", labels=("state",))
        for name in State:
            state.add_metric((name.value,), float(name is progress.state))
        yield state
        yield _gauge("gputraining_rank", "Global rank of this process.", self._report.rank)
        yield _gauge("gputraining_world_size", "Processes in the job.", self._report.world_size)
        if progress.step is not None:
            yield CounterMetricFamily("gputraining_steps", "Optimizer steps done.", value=progress.step)
        for metric, text, value in (
            ("gputraining_target_steps", "Optimizer steps of the whole training.", progress.total_steps),
            ("gputraining_epoch", "Epoch being trained, counted from 1.", progress.epoch),
            ("gputraining_target_epochs", "Epochs of the whole training.", progress.total_epochs),
            ("gputraining_samples_per_second", "Throughput of all ranks together.", progress.samples_per_second),
            (
                "gputraining_local_step_seconds",
                "This process's own part of a step: waiting for data and the forward pass.",
                progress.local_step_seconds,
            ),
            ("gputraining_remaining_seconds", "Estimated time to the end of training.", progress.remaining_seconds),
        ):
            if value is not None:
                yield _gauge(metric, text, value)
        checkpoint = progress.checkpoint
        if checkpoint is not None and checkpoint.step is not None:
            yield _gauge("gputraining_checkpoint_step", "Optimizer steps in the last checkpoint.", checkpoint.step)
        if checkpoint is not None and checkpoint.time is not None:
            text = "When the last checkpoint was complete, in Unix time."
            yield _gauge("gputraining_checkpoint_timestamp_seconds", text, checkpoint.time.timestamp())
        yield from _metric_families(dict(progress.metrics))
        yield from _gpu_families(self._report.gpus)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _metric_families(metrics: dict[str, float]) -> Iterator[Metric]:
    for key, (name, text) in _OWN_METRICS.items():
        if key in metrics:
            yield _gauge(name, text, metrics.pop(key))
    if metrics:
        family = GaugeMetricFamily("gputraining_metric", "Metrics of the training's own.", labels=("name",))
        for key, value in metrics.items():
            family.add_metric((key,), value)
        yield family


def _gpu_families(gpus: tuple[GpuReading, ...]) -> Iterator[Metric]:
    if not gpus:
        return
    up = GaugeMetricFamily("gputraining_gpu_up", "1 if the GPU could be read.", labels=_GPU_LABELS)
    utilization = GaugeMetricFamily(
        "gputraining_gpu_utilization_ratio", "Share of time in which some kernel ran.", labels=_GPU_LABELS
    )
    used = GaugeMetricFamily("gputraining_gpu_memory_used_bytes", "GPU memory in use.", labels=_GPU_LABELS)
    total = GaugeMetricFamily("gputraining_gpu_memory_total_bytes", "GPU memory in all.", labels=_GPU_LABELS)
    power = GaugeMetricFamily("gputraining_gpu_power_watts", "Power drawn.", labels=_GPU_LABELS)
    temperature = GaugeMetricFamily("gputraining_gpu_temperature_celsius", "Temperature.", labels=_GPU_LABELS)
    energy = CounterMetricFamily("gputraining_gpu_energy_joules", "Energy drawn since the start.", labels=_GPU_LABELS)
    ecc = GaugeMetricFamily(
        "gputraining_gpu_uncorrected_ecc_errors", "Uncorrected memory errors since the last reset.", labels=_GPU_LABELS
    )
    xid = GaugeMetricFamily("gputraining_gpu_xid", "Last critical error code of the driver.", labels=_GPU_LABELS)
    families: tuple[GaugeMetricFamily | CounterMetricFamily, ...]
    families = (up, utilization, used, total, power, temperature, energy, ecc, xid)
    for gpu in gpus:
        labels = (gpu.uuid, gpu.model or "")
        up.add_metric(labels, float(gpu.error is None))
        for family, value, scale in (
            (utilization, gpu.utilization_percent, 0.01),
            (used, gpu.memory_used_bytes, 1),
            (total, gpu.memory_total_bytes, 1),
            (power, gpu.power_watts, 1),
            (temperature, gpu.temperature_celsius, 1),
            (energy, gpu.energy_joules, 1),
            (ecc, gpu.uncorrected_ecc_errors, 1),
            (xid, gpu.xid, 1),
        ):
            if value is not None:
                family.add_metric(labels, value * scale)
    yield from (family for family in families if family.samples)
