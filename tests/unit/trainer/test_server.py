"""The two pages, over real sockets."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gputraining_trainer.report import CheckpointNote, GpuReading, Report, State
from gputraining_trainer.server import ProgressServer
from tests.unit.trainer.conftest import Check


@pytest.fixture
def report() -> Report:
    report = Report(rank=0, world_size=2)
    report.update(
        state=State.TRAINING,
        epoch=2,
        total_epochs=4,
        step=30,
        total_steps=60,
        samples_per_second=100.0,
        remaining_seconds=12.0,
        checkpoint=CheckpointNote(20, datetime.fromtimestamp(1000, UTC), None),
        metrics={"loss": 0.5, "learningRate": 0.001, "accuracy": 0.75, "f1": 0.5},
    )
    report.gpus = (
        GpuReading("GPU-a", datetime.now(UTC), "NVIDIA X", 91.0, 10, 80, None, 60.0, 512.5, 2, 79),
        GpuReading("GPU-b", datetime.now(UTC), error="GPU is lost"),
    )
    return report


@pytest.fixture
def server(report: Report) -> Iterator[ProgressServer]:
    server = ProgressServer(report, 0, host="127.0.0.1")
    yield server
    server.close()


def fetch(server: ProgressServer, path: str) -> tuple[str, bytes]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


def test_progress_is_the_record_of_now(server: ProgressServer, report: Report, check_record: Check) -> None:
    content_type, body = fetch(server, "/progress")
    check_record(json.loads(body))
    assert content_type == "application/json"
    assert json.loads(body)["step"] == 30
    report.update(step=31)
    assert json.loads(fetch(server, "/progress?x=1")[1])["step"] == 31


def test_metrics_have_standard_names_and_units(server: ProgressServer) -> None:
    content_type, body = fetch(server, "/metrics")
    assert content_type.startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    expected = {
        ("gputraining_state", "Training"): 1.0,
        ("gputraining_state", "Failed"): 0.0,
        ("gputraining_rank",): 0.0,
        ("gputraining_world_size",): 2.0,
        ("gputraining_steps_total",): 30.0,
        ("gputraining_target_steps",): 60.0,
        ("gputraining_epoch",): 2.0,
        ("gputraining_target_epochs",): 4.0,
        ("gputraining_samples_per_second",): 100.0,
        ("gputraining_remaining_seconds",): 12.0,
        ("gputraining_checkpoint_step",): 20.0,
        ("gputraining_checkpoint_timestamp_seconds",): 1000.0,
        ("gputraining_gpu_energy_joules_total", "GPU-a", "NVIDIA X"): 512.5,
        ("gputraining_gpu_uncorrected_ecc_errors", "GPU-a", "NVIDIA X"): 2.0,
        ("gputraining_gpu_xid", "GPU-a", "NVIDIA X"): 79.0,
        ("gputraining_loss",): 0.5,
        ("gputraining_accuracy_ratio",): 0.75,
        ("gputraining_learning_rate",): 0.001,
        ("gputraining_metric", "f1"): 0.5,
        ("gputraining_gpu_up", "GPU-a", "NVIDIA X"): 1.0,
        ("gputraining_gpu_up", "", "GPU-b"): 0.0,
        ("gputraining_gpu_utilization_ratio", "GPU-a", "NVIDIA X"): 0.91,
        ("gputraining_gpu_memory_used_bytes", "GPU-a", "NVIDIA X"): 10.0,
        ("gputraining_gpu_memory_total_bytes", "GPU-a", "NVIDIA X"): 80.0,
        ("gputraining_gpu_temperature_celsius", "GPU-a", "NVIDIA X"): 60.0,
    }
    assert {key: samples.get(key) for key in expected} == pytest.approx(expected)
    assert not any(name == "gputraining_gpu_power_watts" for name, *_ in samples)  # not told, so absent


def test_metrics_of_a_report_that_knows_nothing() -> None:
    server = ProgressServer(Report(), 0, host="127.0.0.1")
    body = fetch(server, "/metrics")[1].decode()
    server.close()
    assert 'gputraining_state{state="Starting"} 1.0' in body
    assert "gputraining_steps_total" not in body


def test_other_paths_are_not_found(server: ProgressServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        fetch(server, "/etc/passwd")
    caught.value.close()


def test_a_broken_client_harms_nobody(server: ProgressServer) -> None:
    assert server.port is not None
    for request in (b"", b"\0\xff\r\n\r\n", b"GET /progress HTTP/1.1\r\n", b"BREW / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(request)
    assert json.loads(fetch(server, "/progress")[1])["version"] == 1


def test_a_port_in_use_costs_only_the_number(server: ProgressServer, caplog: pytest.LogCaptureFixture) -> None:
    assert server.port is not None
    second = ProgressServer(Report(rank=1, world_size=2), server.port, host="127.0.0.1")
    assert second.port not in {None, server.port}
    assert json.loads(fetch(second, "/progress")[1])["rank"] == 1
    assert f"port {server.port} is not to be had" in caplog.text
    second.close()


def test_no_port_at_all_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    server = ProgressServer(Report(), 0, host="192.0.2.1")  # an address that no machine has
    assert server.port is None
    assert "progress is not served" in caplog.text
    server.close()
