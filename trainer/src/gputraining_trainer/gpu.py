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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import pynvml

from gputraining_trainer.report import MAX_GPUS, GpuReading, Report

T = TypeVar("T")

log = logging.getLogger(__name__)

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68})
"""Faults of the program, not of the device, as NVIDIA's device plugin sees it (k8s-device-plugin,
internal/rm/health.go; https://docs.nvidia.com/deploy/xid-errors/)."""
_EVENT_WAIT_MILLISECONDS: Final = 1000


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
            xids = XidWatch(devices, self._closed)
            while True:
                readings = (read_device(device) for device in devices)
                self._report.gpus = tuple(replace(reading, xid=xids.last.get(reading.uuid)) for reading in readings)
                if self._closed.wait(self._interval):
                    return


class XidWatch:
    """Listens for the driver's critical error codes, in a thread of its own, since waiting for them blocks.

    ``last`` has the last one of each device by UUID. Devices that tell none (MIG slices, for example) are left out.
    """

    def __init__(self, devices: Sequence[Device], closed: threading.Event) -> None:
        self.last: dict[str, int] = {}
        self._devices = [device for device in devices if device.handle is not None]
        self._closed = closed
        threading.Thread(target=self._run, name="gpu-xids", daemon=True).start()

    def _run(self) -> None:
        with _nvml() as ready, contextlib.suppress(pynvml.NVMLError):
            if ready:
                self._listen(pynvml.nvmlEventSetCreate())

    def _listen(self, events: Any) -> None:
        try:
            listening = [device for device in self._devices if _register(device, events)]
            while listening and not self._closed.is_set():
                with contextlib.suppress(pynvml.NVMLError_Timeout):
                    event = pynvml.nvmlEventSetWait_v2(events, _EVENT_WAIT_MILLISECONDS)
                    self._note(event)
        except pynvml.NVMLError as error:
            log.warning("error codes of the GPUs are no longer listened for (%s)", error)
        finally:
            pynvml.nvmlEventSetFree(events)

    def _note(self, event: Any) -> None:
        xid = int(event.eventData)
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError and xid not in APPLICATION_XIDS:
            uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
            log.error("GPU %s: the driver reports XID %d", uuid, xid)
            self.last[uuid] = xid


def _register(device: Device, events: Any) -> bool:
    try:
        pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except pynvml.NVMLError:
        return False
    return True


@dataclass(frozen=True)
class Device:
    """A GPU (or MIG slice): its identity, read once, and NVML's handle; no handle if it was lost from the start.

    ``energy_start`` is the device's energy counter in millijoules when it was first seen.
    """

    uuid: str
    model: str | None
    handle: Any | None
    error: str | None = None
    energy_start: int | None = None


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
    millijoules = calls.read(pynvml.nvmlDeviceGetTotalEnergyConsumption) if device.energy_start is not None else None
    ecc_errors = calls.read(
        lambda handle: int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    )
    return GpuReading(
        uuid=device.uuid,
        time=now,
        model=device.model,
        utilization_percent=utilization,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=float(temperature) if temperature is not None else None,
        energy_joules=max(0, millijoules - (device.energy_start or 0)) / 1000 if millijoules is not None else None,
        uncorrected_ecc_errors=ecc_errors,
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
    energy = calls.read(pynvml.nvmlDeviceGetTotalEnergyConsumption)
    return Device(uuid=uuid, model=model, handle=handle, energy_start=energy)


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
