"""The training, from top to bottom."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch's world gives it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gputraining_trainer.checkpointing import Checkpoints
from gputraining_trainer.config import TrainingConfig
from gputraining_trainer.data.batches import Batch, Batches
from gputraining_trainer.data.order import Order, derive_seed
from gputraining_trainer.meter import LocalTime, Meter
from gputraining_trainer.parallel import Group
from gputraining_trainer.precision import Precision
from gputraining_trainer.report import Report, State
from gputraining_trainer.state import Position, Trained

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
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Train a model (as ``Group.distribute`` gives it) for all epochs, evaluating after each.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        CheckpointNotFoundError: training has to begin from a checkpoint, and there is none.
        Preempted, Terminated: training was told to stop, and did.
    """
    module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    scaler = precision.make_scaler()
    trained = Trained(module, optimizer, scaler)
    order = batches.order
    start = checkpoints.resume(trained, lambda at: steps_left(at, order, config.epochs) <= 0) if checkpoints else None
    start = settle(start or Position(), order, config.epochs)
    step, total_steps = start.step, start.total_steps
    report.update(epoch=start.epoch if step else 0, total_epochs=config.epochs, step=step, total_steps=total_steps)
    meter = Meter(report, group, total_steps, report_interval, first_step=step + 1)
    if checkpoints:
        checkpoints.begin()
    mean_loss = test_loss = accuracy = math.nan
    for epoch in range(start.epoch, config.epochs + 1):
        position = start if epoch == start.epoch else replace(start, epoch=epoch, consumed=0, epoch_steps=0)
        report.update(state=State.TRAINING, epoch=epoch)
        model.train()
        meter.start_epoch(position.epoch_steps, position.epoch_loss)
        micro_batches = batches.train(epoch, position.consumed)
        for done in range(1, order.steps_left(position.consumed) + 1):
            rate = cosine(config.learning_rate, curve_share(start, step))
            for param_group in optimizer.param_groups:
                param_group["lr"] = rate
            seed_dropout(derive_seed(config.seed, epoch, step, order.rank), group.device)
            loss = accumulate_gradients(
                model, micro_batches, batches.parts, order.step_samples, precision, scaler, meter.local_time
            )
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            meter.note_step(step, order.step_samples, loss, rate)
            if checkpoints:
                consumed = position.consumed + done * order.step_samples * order.world_size
                here = replace(position, step=step, consumed=consumed, epoch_steps=position.epoch_steps + done)
                checkpoints.after_step(here, trained, meter.epoch_loss)
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


def steps_left(position: Position, order: Order, epochs: int) -> int:
    """Steps from a position to the end of training; 0 or less: there are none."""
    if position.epoch > epochs:
        return 0
    return order.steps_left(position.consumed) + (epochs - position.epoch) * order.steps_left()


def settle(position: Position, order: Order, epochs: int) -> Position:
    """Plan the rest of training from a position.

    Where nothing changed nothing changes. With another number of processes, batch size or number of epochs there are
    other steps left than planned: then the learning rate goes on from the share of all samples that is done.
    """
    total_steps = position.step + steps_left(position, order, epochs)
    if position.step == 0 or total_steps == position.total_steps:
        return replace(position, total_steps=total_steps)
    share = (position.epoch - 1 + position.consumed / order.samples) / epochs
    return replace(position, total_steps=total_steps, rate_step=position.step, rate_share=share)


def curve_share(start: Position, step: int) -> float:
    """How far along its curve the learning rate of a step (counted from 0) is: from 0 to just below 1."""
    share = (step - start.rate_step) / (start.total_steps - start.rate_step)
    return start.rate_share + (1 - start.rate_share) * share


def cosine(base: float, share: float) -> float:
    """The learning rate at a share of training: half a cosine from ``base`` at 0 down to 0 at 1."""
    return base * 0.5 * (1 + math.cos(math.pi * share))


def seed_dropout(seed: int, device: torch.device) -> None:
    """Set the generator that the model's own randomness draws from."""
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    generator.manual_seed(seed)


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Iterator[Batch],
    parts: int,
    samples: int,
    precision: Precision,
    scaler: torch.amp.GradScaler,
    local_time: LocalTime,
) -> torch.Tensor:
    """Forward and backward over ``parts`` batches of together ``samples``; the gradients are those of one batch of all.

    Returns the mean loss, detached and still on the device.
    """
    total: torch.Tensor | None = None
    for part in range(parts):
        with local_time.data():
            images, labels = next(micro_batches)
        with _gradient_exchange(model, wanted=part == parts - 1):
            with local_time.forward(), precision.autocast():
                loss = F.cross_entropy(model(images), labels) * (len(labels) / samples)
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
