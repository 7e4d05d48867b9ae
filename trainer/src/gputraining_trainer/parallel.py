"""The job's processes: joining them, and what they compute together. One process alone needs no process group."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from gputraining_trainer.config import ConfigError, Process

T = TypeVar("T")

RENDEZVOUS_TIMEOUT: Final = timedelta(hours=1)
"""How long to wait for the others to start: image pulls differ by many minutes, and deadlines are the operator's."""
COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
"""How long one exchange may take once all are there. A peer that dies is noticed at once, one that hangs only so."""

# Newer versions of torch call it otherwise, and warn about the old name.
_SYNC_BUFFERS: Final = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


@dataclass(frozen=True)
class Group:
    """The processes that train together, and this one's device."""

    process: Process
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the files and the log."""
        return self.process.rank == 0

    def distribute(self, model: nn.Module) -> nn.Module:
        """The model on the device; with several processes wrapped so that gradients are averaged over them."""
        model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.process.world_size == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            # Running statistics are averaged once before they are used (average_buffers), not sent in each step.
            **cast(Any, {_SYNC_BUFFERS: False}),
        )

    def sum(self, *values: torch.Tensor | float) -> list[float]:
        """Each value added up over all processes, in double precision."""
        total = torch.stack([torch.as_tensor(value, device=self.device).double().detach() for value in values])
        if self.process.world_size > 1:
            dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def average_buffers(self, module: nn.Module) -> None:
        """Make the floating-point buffers (batch norm's running statistics) the mean over all processes."""
        buffers = float_buffers(module)
        if self.process.world_size == 1 or not buffers:
            return
        flat = torch.cat([buffer.flatten() for buffer in buffers])
        dist.all_reduce(flat)
        flat /= self.process.world_size
        for buffer, mean in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """The rows [n] of all processes as [world size, n], on the device; nothing waits for it on a GPU."""
        rows = row.new_zeros(self.process.world_size, len(row))
        rows[self.process.rank] = row
        if self.process.world_size > 1:
            dist.all_reduce(rows)  # each backend has it
        return rows

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.process.world_size > 1:
            dist.barrier(device_ids=[self.process.local_rank] if self.device.type == "cuda" else None)


def float_buffers(module: nn.Module) -> list[torch.Tensor]:
    """The buffers that differ between processes: batch norm's running statistics."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


class Control:
    """What the processes agree on beside the training: over Gloo, between CPUs, so that no GPU waits for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._group: dist.ProcessGroup | None = None
        if process.world_size > 1:
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))
        self._flags: torch.Tensor | None = None
        self._exchange: Any = None

    @property
    def delay(self) -> int:
        """Steps from raising a flag until all know of it."""
        return 0 if self._group is None else 1

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Exchange flags, beside the next step, and give what those of the call before came to: on all processes the
        same, true where any process raised it. A process alone gets its own at once."""
        if self._group is None:
            return flags
        agreed = self._finish() or (False,) * len(flags)
        self._flags = torch.tensor(flags, dtype=torch.int32)
        self._exchange = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def close(self) -> None:
        """Wait for what is still being exchanged."""
        self._finish()

    def from_main(self, value: T | None = None) -> T:
        """What rank 0 gives here, on all processes."""
        values: list[Any] = [value]
        if self._group is not None:
            dist.broadcast_object_list(values, src=0, group=self._group, device=torch.device("cpu"))
        result: T = values[0]
        return result

    def part(self) -> None:
        """Wait until all processes are here, in order to end: one that is gone already is no error."""
        if self._group is not None:
            with contextlib.suppress(RuntimeError):
                dist.barrier(group=self._group)

    def _finish(self) -> tuple[bool, ...] | None:
        if self._exchange is None or self._flags is None:
            return None
        self._exchange.wait()
        self._exchange = None
        return tuple(bool(flag) for flag in self._flags.tolist())


def choose_device(process: Process) -> torch.device:
    """This process's GPU, or the CPU where there is none.

    Raises:
        ConfigError: more processes than GPUs.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if process.local_rank >= count:
        raise ConfigError(
            f"LOCAL_RANK: got '{process.local_rank}', allowed: 0 to {count - 1} since this pod sees {count} GPUs; "
            "fix: as many processes per worker as GPUs"
        )
    device = torch.device("cuda", process.local_rank)
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def joined(process: Process, device: torch.device) -> Iterator[Group]:
    """The group of all processes of the job, for the length of the block: NCCL between GPUs, Gloo between CPUs."""
    if process.world_size == 1:
        yield Group(process, device)
        return
    store, rank, world_size = next(rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
    cuda = device.type == "cuda"
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device if cuda else None,
    )
    yield Group(process, device)
    # Only after success: with a peer gone the clean way would wait for it, and the process ends anyway.
    dist.barrier(device_ids=[process.local_rank] if cuda else None)
    dist.destroy_process_group()
