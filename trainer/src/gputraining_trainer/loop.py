"""The training, from top to bottom."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch's world gives it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gputraining_trainer.config import TrainingConfig
from gputraining_trainer.data.batches import Batch, Batches
from gputraining_trainer.meter import Meter
from gputraining_trainer.parallel import Group
from gputraining_trainer.precision import Precision
from gputraining_trainer.report import Report, State

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """How a training ended. Loss and accuracy are of the last epoch, over all processes."""

    steps: int
    loss: float
    test_loss: float
    accuracy: float
    training_seconds: float
    samples_per_second: float | None


def train(
    model: nn.Module,
    batches: Batches,
    config: TrainingConfig,
    precision: Precision,
    group: Group,
    report: Report,
    report_interval: float,
) -> Result:
    """Train a model (as ``Group.distribute`` gives it) for all epochs, evaluating after each.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
    """
    module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    scaler = precision.make_scaler()
    accumulation = config.gradient_accumulation_steps
    steps_per_epoch = math.ceil(batches.train_length / accumulation)
    total_steps = steps_per_epoch * config.epochs
    report.update(epoch=0, total_epochs=config.epochs, step=0, total_steps=total_steps)
    meter = Meter(report, group, total_steps, report_interval)
    step = 0
    for epoch in range(1, config.epochs + 1):
        report.update(state=State.TRAINING, epoch=epoch)
        model.train()
        meter.start_epoch()
        micro_batches = batches.train(epoch)
        for first in range(0, batches.train_length, accumulation):
            parts = min(accumulation, batches.train_length - first)  # an epoch's last step may have fewer
            rate = cosine(config.learning_rate, step, total_steps)
            for param_group in optimizer.param_groups:
                param_group["lr"] = rate
            loss = accumulate_gradients(model, micro_batches, parts, precision, scaler)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            meter.note_step(step, parts * batches.batch_size, loss, rate)
        mean_loss = meter.end_epoch()

        report.update(state=State.EVALUATING)
        group.average_buffers(module)
        test_loss, accuracy = evaluate(module, batches, precision, group)
        report.update(metrics={"accuracy": accuracy, "testLoss": test_loss})
        meter.end_evaluation()
        log.info(
            "epoch %d/%d  step %d/%d  loss %.4f  test loss %.4f  accuracy %.4f  %.0f samples/s",
            *(epoch, config.epochs, step, total_steps, mean_loss, test_loss, accuracy, meter.samples_per_second or 0),
        )
    return Result(step, mean_loss, test_loss, accuracy, meter.training_seconds, meter.samples_per_second)


def cosine(base: float, step: int, total_steps: int) -> float:
    """The learning rate of a step (counted from 0): half a cosine from ``base`` down to nearly 0."""
    return base * 0.5 * (1 + math.cos(math.pi * step / total_steps))


def accumulate_gradients(
    model: nn.Module, micro_batches: Iterator[Batch], parts: int, precision: Precision, scaler: torch.amp.GradScaler
) -> torch.Tensor:
    """Forward and backward over ``parts`` equal batches; the gradients are those of one batch of all samples.

    Returns the mean loss, detached and still on the device.
    """
    total: torch.Tensor | None = None
    for part in range(parts):
        images, labels = next(micro_batches)
        with _gradient_exchange(model, wanted=part == parts - 1):
            with precision.autocast():
                loss = F.cross_entropy(model(images), labels) / parts
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None, "parts is at least 1"
    return total


def _gradient_exchange(model: nn.Module, *, wanted: bool) -> AbstractContextManager[Any]:
    """Between processes gradients are exchanged once per step: with the last part."""
    if wanted or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()


@torch.inference_mode()
def evaluate(module: nn.Module, batches: Batches, precision: Precision, group: Group) -> tuple[float, float]:
    """Mean loss and accuracy over the whole test set, each sample counted once whatever the number of processes."""
    module.eval()
    loss = torch.zeros((), device=group.device)
    correct = torch.zeros((), device=group.device)
    count = 0
    for images, labels in batches.test():
        with precision.autocast():
            logits = module(images)
        loss += F.cross_entropy(logits.float(), labels, reduction="sum")
        correct += (logits.argmax(dim=1) == labels).sum()
        count += len(labels)
    total_loss, total_correct, total = group.sum(loss, correct, float(count))
    return total_loss / max(total, 1), total_correct / max(total, 1)
