"""Telemetry through the real pynvml, against a mock of NVIDIA's library (tests/mocknvml)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gputraining_trainer.gpu import GpuSampler, read_device, visible_devices
from gputraining_trainer.report import Report
from tests.mocknvml.build import build_mock_nvml
from tests.unit.trainer.conftest import Check
from tests.unit.trainer.launch import wait_for

GIB = 2**30


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    # Loaded once under its name, it is what pynvml finds when it asks for libnvidia-ml.so.1.
    return ctypes.CDLL(str(build_mock_nvml(tmp_path_factory.mktemp("nvml"))))


@pytest.fixture
def nvml(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    assert library
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pynvml.nvmlInit()
    yield monkeypatch
    pynvml.nvmlShutdown()


def test_each_device_tells_what_it_can(nvml: pytest.MonkeyPatch) -> None:
    first, no_power, lost = (read_device(device) for device in visible_devices())
    assert (first.uuid, first.model, first.error) == ("GPU-00000000-mock", "NVIDIA Mock 80GB", None)
    assert (first.utilization_percent, first.power_watts, first.temperature_celsius) == (90.0, 300.0, 60.0)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (GIB, 80 * GIB)
    assert no_power.error is None
    assert no_power.power_watts is None  # not supported: absent, the rest is there
    assert (no_power.utilization_percent, no_power.temperature_celsius) == (80.0, 61.0)
    assert lost.error == "GPU is lost"
    assert (lost.uuid, lost.utilization_percent, lost.memory_used_bytes) == ("GPU-00000002-mock", None, None)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),  # the list ends at what names no device, as in CUDA
        ("GPU-00000001", [1]),
        ("GPU-0000000", []),  # names more than one
        ("-1", []),
    ],
)
def test_only_devices_that_cuda_uses_here(nvml: pytest.MonkeyPatch, variable: str | None, expected: list[int]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert [device.uuid for device in visible_devices(environment)] == [f"GPU-0000000{i}-mock" for i in expected]


def test_a_gpu_that_gets_lost_carries_the_error(nvml: pytest.MonkeyPatch, tmp_path: Path, check_record: Check) -> None:
    gone = tmp_path / "gone"
    nvml.setenv("MOCK_NVML_LOST_FILE", str(gone))
    report = Report()
    sampler = GpuSampler(report, 0.01)
    wait_for(lambda: len(report.gpus) == 3, "the first sample")
    assert [gpu.error for gpu in report.gpus] == [None, None, None]
    check_record(report.record())
    gone.touch()
    wait_for(lambda: any(gpu.error for gpu in report.gpus), "the lost GPU")
    sampler.close()
    assert [gpu.error for gpu in report.gpus] == [None, None, "GPU is lost"]
    entry = report.record()["gpus"][2]
    check_record(report.record())
    assert sorted(entry) == ["error", "model", "time", "uuid"]  # no figure is made up


def test_a_driver_without_devices_means_no_gpus(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("MOCK_NVML_COUNT", "0")
    report = Report()
    GpuSampler(report, 0.01).close()
    assert report.gpus == ()
    assert "gpus" not in report.record()


def test_energy_counts_from_the_start_and_only_devices_with_ecc_tell_errors(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("MOCK_NVML_ECC", "3")
    first, no_power, lost = visible_devices()
    assert read_device(first).energy_joules == 2.0
    assert read_device(first).energy_joules == 4.0
    assert read_device(first).uncorrected_ecc_errors == 3
    other = read_device(no_power)
    assert (other.energy_joules, other.uncorrected_ecc_errors, other.error) == (None, None, None)
    assert read_device(lost).energy_joules is None


def test_a_critical_error_code_is_told(nvml: pytest.MonkeyPatch, check_record: Check) -> None:
    nvml.setenv("MOCK_NVML_XID", "79")
    report = Report()
    sampler = GpuSampler(report, 0.01)
    wait_for(lambda: any(gpu.xid for gpu in report.gpus), "the error code")
    sampler.close()
    assert [gpu.xid for gpu in report.gpus] == [79, None, None]
    check_record(report.record())
