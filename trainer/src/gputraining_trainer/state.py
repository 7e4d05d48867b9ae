"""The state of a training between two steps: where it is, what it has changed, and how a checkpoint brings it back."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gputraining_trainer.checkpoint import STATE_FILE, BadCheckpointError
from gputraining_trainer.parallel import Group, float_buffers


@dataclass(frozen=True)
class Position:
    """Where a training is: between two steps."""

    step: int = 0
    """Steps done."""
    epoch: int = 1
    consumed: int = 0
    """Samples of this epoch that all ranks together have consumed."""
    epoch_steps: int = 0
    """Steps done in this epoch."""
    epoch_loss: float = 0.0
    """Mean loss over them, and over the ranks."""
    total_steps: int = 0
    """Of the whole training, as it was then."""
    rate_step: int = 0
    """From this step on the learning rate runs along its curve, ..."""
    rate_share: float = 0.0
    """... from this share of the curve to its end at the last step."""


@dataclass(frozen=True)
class Trained:
    """What a training changes, and a checkpoint holds."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


def load_state(path: Path, module: nn.Module | None = None) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU.

    Args:
        path: of the checkpoint.
        module: what the weights have to fit into.

    Raises:
        BadCheckpointError: it cannot be read, or does not fit.
    """
    try:
        state: dict[str, Any] = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
        Position(**state["position"])
        shapes = {name: value.shape for name, value in state["model"].items()}
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, pickle.PickleError) as error:
        raise BadCheckpointError(f"its {STATE_FILE} cannot be loaded ({type(error).__name__}: {error})") from error
    if module is not None and shapes != {name: value.shape for name, value in module.state_dict().items()}:
        raise BadCheckpointError("its weights do not fit the model")
    return state


def restore(state: Mapping[str, Any], trained: Trained, group: Group) -> None:
    """Load a state. Buffers that differ between ranks come back to each as they were; other ranks get the mean."""
    trained.module.load_state_dict(state["model"])
    rows = state["buffers"]
    same = state["world_size"] == group.process.world_size
    row = rows[group.process.rank] if same else rows.double().mean(dim=0)
    buffers = float_buffers(trained.module)
    for buffer, values in zip(buffers, torch.split(row, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))
    settings = trained.optimizer.state_dict()["param_groups"]  # those of this training, not of the one before
    trained.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": settings})
    if state["scaler"] and trained.scaler.is_enabled():
        trained.scaler.load_state_dict(state["scaler"])
