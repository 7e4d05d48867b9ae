"""Loss, speed and remaining time of a running training, looked at only now and then."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

import torch

from gputraining_trainer.failures import NonFiniteLossError
from gputraining_trainer.parallel import Group
from gputraining_trainer.report import Report, process_age

log = logging.getLogger(__name__)

STEP_LINE_SECONDS: Final = 10.0


class Rate:
    """A smoothed rate: amounts per second of the given time, in which older measurements fade away.

    Args:
        fade_seconds: after so much measured time a measurement weighs 1/e.
    """

    def __init__(self, fade_seconds: float = 30.0) -> None:
        self._fade_seconds = fade_seconds
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Note that ``amount`` was done in ``seconds``."""
        keep = math.exp(-seconds / self._fade_seconds)
        self._amount = self._amount * keep + amount
        self._seconds = self._seconds * keep + seconds

    @property
    def per_second(self) -> float | None:
        """The smoothed rate; None before the first measurement."""
        return self._amount / self._seconds if self._seconds > 0 else None


class Meter:
    """Follows the steps of one training and writes to the report at its interval.

    Losses are summed on the device and read once per report, since reading one waits for all work in flight.
    """

    def __init__(self, report: Report, group: Group, total_steps: int, report_interval: float) -> None:
        self._report, self._group = report, group
        self._total_steps = total_steps
        self._report_interval = report_interval
        self._throughput = Rate()  # samples over time spent in steps
        self._pace = Rate(fade_seconds=60.0)  # steps over all time: evaluation delays the end too
        self._start = self._last_line = time.monotonic()
        self._window_loss: torch.Tensor | None = None
        self._clear_window()
        self._epoch_loss, self._epoch_steps = 0.0, 0
        self._step, self._learning_rate = 0, 0.0

    @property
    def training_seconds(self) -> float:
        """Time since training began, evaluations included."""
        return time.monotonic() - self._start

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of all processes together; None before the second step."""
        return self._throughput.per_second

    def start_epoch(self) -> None:
        """An epoch's first step comes next."""
        self._epoch_loss, self._epoch_steps = 0.0, 0
        self._clear_window()

    def note_step(self, step: int, samples: int, loss: torch.Tensor, learning_rate: float) -> None:
        """A step was done: ``samples`` of this process, ``loss`` still on the device. Reports if it is time to.

        Raises:
            NonFiniteLossError: found when reporting.
        """
        self._step, self._learning_rate = step, learning_rate
        self._window_steps += 1
        self._window_samples += samples
        self._window_loss = loss if self._window_loss is None else self._window_loss + loss
        if step == 1 or time.monotonic() - self._window_start >= self._report_interval:
            self._close_window()

    def end_epoch(self) -> float:
        """The epoch's steps are done: reports, and gives their mean loss over all processes."""
        if self._window_steps:
            self._close_window()
        loss, steps = self._group.sum(self._epoch_loss, float(self._epoch_steps))
        mean = loss / steps
        self._report.update(metrics={"loss": mean})
        return mean

    def end_evaluation(self) -> None:
        """The evaluation after an epoch is done."""
        self._pace.add(0, time.monotonic() - self._window_start)
        self._report.update(remaining_seconds=self._remaining())

    def _clear_window(self) -> None:
        self._window_start = time.monotonic()
        self._window_steps = self._window_samples = 0
        self._window_loss = None

    def _close_window(self) -> None:
        assert self._window_loss is not None, "a window has a step"
        total = float(self._window_loss)  # waits for the device, so that the time below is that of finished work
        loss = total / self._window_steps
        seconds = time.monotonic() - self._window_start
        if self._step > 1:  # the first step also warms everything up: it tells nothing about the others
            self._throughput.add(self._window_samples * self._group.process.world_size, seconds)
            self._pace.add(self._window_steps, seconds)
        self._report.update(
            step=self._step,
            samples_per_second=self._throughput.per_second,
            remaining_seconds=self._remaining(),
            metrics={"loss": loss, "learningRate": self._learning_rate},
        )
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"rank {self._group.process.rank}: the loss is {loss} at step {self._step} of {self._total_steps}; "
                "fix: a smaller learningRate, precision FP32, or a look at the data"
            )
        self._epoch_loss += total
        self._epoch_steps += self._window_steps
        self._log_step(loss)
        self._clear_window()

    def _remaining(self) -> float | None:
        pace = self._pace.per_second
        return (self._total_steps - self._step) / pace if pace else None

    def _log_step(self, loss: float) -> None:
        if self._step == 1:
            log.info("first step done %.1f s after the start of the process, loss %.4f", process_age(), loss)
        elif time.monotonic() - self._last_line >= STEP_LINE_SECONDS:
            self._last_line = time.monotonic()
            log.info(
                "step %d/%d  loss %.4f  learning rate %.2g  %.0f samples/s  %.0f s left",
                *(self._step, self._total_steps, loss, self._learning_rate),
                *(self._throughput.per_second or 0, self._remaining() or 0),
            )
