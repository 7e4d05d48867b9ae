"""The copy of a training's state that is written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Snapshot:
    """One copy of a state in the CPU's memory, which is allocated once and used again."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._copy: dict[str, Any] = {}
        self._copied: torch.cuda.Event | None = None

    def take(self, state: Mapping[str, Any]) -> None:
        """Copy nested dicts, lists and tensors. Tensors of a GPU are copied by it, after what it is doing now and
        before what it is told next."""
        self._copied = None
        self._copy = self._copy_of(state, ())
        if self._on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def ready(self) -> dict[str, Any]:
        """The copy, when it is complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy

    def _copy_of(self, value: Any, key: tuple[Any, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            buffer = self._buffers.get(key)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
                self._buffers[key] = buffer
            return buffer.copy_(value.detach(), non_blocking=value.is_cuda)
        if isinstance(value, Mapping):
            return {name: self._copy_of(part, (*key, name)) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._copy_of(part, (*key, number)) for number, part in enumerate(value)]
        return value
