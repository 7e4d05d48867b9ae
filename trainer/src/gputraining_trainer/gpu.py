"""GPU telemetry through NVML, by device UUID, sampled by a thread of its own.

Every call may fail on its own: what a device does not support is absent from its reading, a device that is gone
carries ``error``. NVML can hang on a broken device, which then costs readings and never a training step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pynvml

from gputraining_trainer.report import MAX_GPUS, GpuReading, Report

T = TypeVar("T")

log = logging.getLogger(__name__)


class GpuSampler:
    """Reads the GPUs that this pod sees into a report, at a fixed interval, until closed."""

    def __init__(self, report: Report, interval: float) -> None:
        self._report = report
        self._interval = interval
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling. Does not wait for a call that hangs."""
        self._closed.set()
        self._thread.join(timeout=0.2)

    def _run(self) -> None:
        with _nvml() as ready:
            devices = visible_devices() if ready else ()
            if not devices:
                return  # no GPU, nothing to sample: the report has no GPUs then
            while True:
                self._report.gpus = tuple(read_device(device) for device in devices)
                if self._closed.wait(self._interval):
                    return


@dataclass(frozen=True)
class Device:
    """A GPU (or MIG slice): its identity, read once, and NVML's handle; no handle if it was lost from the start."""

    uuid: str
    model: str | None
    handle: Any | None
    error: str | None = None


def visible_devices(environment: dict[str, str] | None = None) -> tuple[Device, ...]:
    """The devices that CUDA will use here, by NVML's order (that of the PCI bus).

    The driver shows a container its own devices only; CUDA_VISIBLE_DEVICES can narrow that further, by index or by
    (the beginning of a) UUID. As in CUDA, the list ends at the first entry that names no device.
    """
    variables = os.environ if environment is None else environment
    devices = [_identify(index) for index in range(pynvml.nvmlDeviceGetCount())]
    devices = [slice_ for device in devices for slice_ in (_mig_slices(device) or [device])]
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(devices[:MAX_GPUS])
    chosen: list[Device] = []
    for entry in wanted.split(","):
        match = _find(devices, entry.strip())
        if match is None:
            break
        chosen.append(match)
    return tuple(chosen[:MAX_GPUS])


def read_device(device: Device) -> GpuReading:
    """Read one device now, call by call."""
    now = datetime.now(UTC)
    if device.handle is None:
        return GpuReading(device.uuid, now, device.model, error=device.error)
    calls = _Calls(device.handle)
    utilization = calls.read(lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    memory = calls.read(pynvml.nvmlDeviceGetMemoryInfo)
    milliwatts = calls.read(pynvml.nvmlDeviceGetPowerUsage)
    temperature = calls.read(lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return GpuReading(
        uuid=device.uuid,
        time=now,
        model=device.model,
        utilization_percent=utilization,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=float(temperature) if temperature is not None else None,
        error=calls.error,
    )


class _Calls:
    """Calls on one device: the unsupported ones give None, another failure ends them and is kept as the error."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.error: str | None = None

    def read(self, call: Callable[[Any], T]) -> T | None:
        if self.error is not None:
            return None
        try:
            return call(self._handle)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
            return None
        except pynvml.NVMLError as error:
            self.error = str(error)
            return None


@contextlib.contextmanager
def _nvml() -> Iterator[bool]:
    """NVML for the length of the block; False where there is no driver."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield False
        return
    except pynvml.NVMLError as error:
        log.warning("no GPU telemetry: NVML does not start (%s)", error)
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _identify(index: int) -> Device:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return Device(uuid=f"index-{index}", model=None, handle=None, error=str(error))
    calls = _Calls(handle)
    model = calls.read(lambda device: _text(pynvml.nvmlDeviceGetName(device)))
    return Device(uuid=uuid, model=model, handle=handle)


def _mig_slices(device: Device) -> list[Device]:
    """The MIG slices of a device that is partitioned; the figures of the whole device are not this pod's then."""
    slices: list[Device] = []
    if device.handle is None:
        return slices
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(device.handle)
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(device.handle) if current else 0
    except pynvml.NVMLError:
        return slices
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):  # unused places raise NotFound
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            slices.append(Device(_text(pynvml.nvmlDeviceGetUUID(handle)), device.model, handle))
    return slices


def _find(devices: Sequence[Device], entry: str) -> Device | None:
    if entry.isascii() and entry.isdigit():
        return devices[int(entry)] if int(entry) < len(devices) else None
    matches = [device for device in devices if entry and device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
