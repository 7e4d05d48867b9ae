"""Loss, speed and remaining time of a running training, looked at only now and then."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from typing import Final

import torch

from gputraining_trainer.failures import NonFiniteLossError
from gputraining_trainer.parallel import Group
from gputraining_trainer.report import Report, process_age

log = logging.getLogger(__name__)

STEP_LINE_SECONDS: Final = 10.0
MAX_TIMED_FORWARDS: Final = 256


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


class LocalTime:
    """What a step costs this process by itself: waiting for data, and the forward passes.

    Between processes each step takes equally long, since they wait for each other; this tells who is slow. On a GPU
    events are timed, which nothing waits for; of many forward passes in one window only the first are.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.clear()

    def clear(self) -> None:
        """A new window begins."""
        self._data_seconds = self._forward_seconds = 0.0
        self._forwards = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        """Around fetching a batch."""
        start = time.perf_counter()
        yield
        self._data_seconds += time.perf_counter() - start

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around a forward pass."""
        self._forwards += 1
        if not self._on_gpu:
            start = time.perf_counter()
            yield
            self._forward_seconds += time.perf_counter() - start
            return
        if len(self._events) >= MAX_TIMED_FORWARDS:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def per_step(self, steps: int) -> float:
        """Mean seconds per step of the window. On a GPU all its work must be done by now."""
        forward = self._forward_seconds
        if self._events:
            timed = sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
            forward = timed / len(self._events) * self._forwards
        return (self._data_seconds + forward) / steps


class Meter:
    """Follows the steps of one training and writes to the report at its interval.

    Losses are summed on the device and read once per report, since reading one waits for all work in flight.
    """

    def __init__(
        self, report: Report, group: Group, total_steps: int, report_interval: float, first_step: int = 1
    ) -> None:
        self._report, self._group = report, group
        self._total_steps = total_steps
        self._first_step = first_step
        self.local_time = LocalTime(group.device)
        self._report_interval = report_interval
        self._throughput = Rate()  # samples over time spent in steps
        self._pace = Rate(fade_seconds=60.0)  # steps over all time: evaluation delays the end too
        self._start = self._last_line = time.monotonic()
        self._window_loss = self._window_finite = torch.zeros((), device=group.device)
        self._clear_window()
        self._epoch_loss, self._epoch_steps = 0.0, 0
        self._step, self._learning_rate = first_step - 1, 0.0

    @property
    def training_seconds(self) -> float:
        """Time since training began, evaluations included."""
        return time.monotonic() - self._start

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of all processes together; None before the second step."""
        return self._throughput.per_second

    def start_epoch(self, steps: int = 0, mean_loss: float = 0.0) -> None:
        """An epoch's first step comes next, or the first after so many of such a loss."""
        self._epoch_loss, self._epoch_steps = mean_loss * steps, steps
        self._clear_window()

    def epoch_loss(self) -> torch.Tensor:
        """The losses of this process's steps in this epoch added up, on the device."""
        return self._window_loss + self._epoch_loss

    def note_step(self, step: int, samples: int, loss: torch.Tensor, learning_rate: float) -> None:
        """A step was done: ``samples`` of this process, ``loss`` still on the device. Reports if it is time to.

        Raises:
            NonFiniteLossError: found when reporting.
        """
        self._step, self._learning_rate = step, learning_rate
        self._report.update(step=step)  # whatever ends this process, its last word says how far it came
        self._window_steps += 1
        self._window_samples += samples
        self._window_loss = self._window_loss + loss
        self._window_finite = self._window_finite + self._window_loss.isfinite()
        if step == self._first_step or time.monotonic() - self._window_start >= self._report_interval:
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
        self._window_loss = self._window_finite = torch.zeros((), device=self._group.device)
        self.local_time.clear()

    def _close_window(self) -> None:
        total = float(self._window_loss)  # waits for the device, so that the time below is that of finished work
        loss = total / self._window_steps
        seconds = time.monotonic() - self._window_start
        if self._step > self._first_step:  # the first step also warms everything up: it tells nothing about the others
            self._throughput.add(self._window_samples * self._group.process.world_size, seconds)
            self._pace.add(self._window_steps, seconds)
        finite = int(self._window_finite)
        if finite < self._window_steps:
            self._fail(self._step - self._window_steps + finite + 1, loss)
        self._report.update(
            local_step_seconds=self.local_time.per_step(self._window_steps),
            samples_per_second=self._throughput.per_second,
            remaining_seconds=self._remaining(),
            metrics={"loss": loss, "learningRate": self._learning_rate},
        )
        self._epoch_loss += total
        self._epoch_steps += self._window_steps
        self._log_step(loss)
        self._clear_window()

    def _fail(self, step: int, loss: float) -> None:
        """The loss was no longer finite after ``step``, where the report stops: it says where, whenever it is made."""
        self._report.update(step=step, metrics={"loss": loss, "learningRate": self._learning_rate})
        raise NonFiniteLossError(
            f"rank {self._group.process.rank}: the loss is {loss} at step {step} of {self._total_steps}; "
            "fix: a smaller learningRate, precision FP32, or a look at the data"
        )

    def _remaining(self) -> float | None:
        pace = self._pace.per_second
        return (self._total_steps - self._step) / pace if pace else None

    def _log_step(self, loss: float) -> None:
        if self._step == self._first_step:
            log.info("first step done %.1f s after the start of the process, loss %.4f", process_age(), loss)
        elif time.monotonic() - self._last_line >= STEP_LINE_SECONDS:
            self._last_line = time.monotonic()
            log.info(
                "step %d/%d  loss %.4f  learning rate %.2g  %.0f samples/s  %.0f s left",
                *(self._step, self._total_steps, loss, self._learning_rate),
                *(self._throughput.per_second or 0, self._remaining() or 0),
            )
