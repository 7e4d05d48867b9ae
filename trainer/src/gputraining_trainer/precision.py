"""Which number format the matrix work runs in: bf16 where the device really has it, fp16 on older GPUs, else fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from gputraining_trainer.config import ConfigError

_FORMATS: Final = {"FP32": None, "FP16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Precision:
    """The format in use. fp16 has a small range, so its gradients are scaled; the others need no scaler."""

    name: str
    device_type: str
    dtype: torch.dtype | None

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for forward passes."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler, which passes everything through unless the format needs it."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype is torch.float16)


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Settle ``Auto`` for the device.

    Raises:
        ConfigError: the GPU cannot do what was asked for.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    name = _automatic(capability) if wanted == "Auto" else wanted
    if name == "BF16" and capability is not None and capability < (8, 0):
        raise ConfigError(
            f"training.precision (MIXED_PRECISION): got 'BF16', allowed: Auto, FP32, FP16, since "
            f"{torch.cuda.get_device_name(device)} has no bf16; fix: set precision to Auto"
        )
    return Precision(name, device.type, _FORMATS[name])


def _automatic(capability: tuple[int, int] | None) -> str:
    """By CUDA compute capability; None is a CPU. Before 7.0 fp16 has no tensor cores and brings little."""
    if capability is None or capability < (7, 0):
        return "FP32"
    return "BF16" if capability >= (8, 0) else "FP16"
