"""Checkpoints of a running training: when they are due, taken beside the steps, and gone on from.

Nothing of it stops a step: the state is copied to the CPU's memory (on a GPU in the stream of the steps, so that only
the copy is waited for), and a thread writes the copy. Only rank 0 writes; all ranks read.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from gputraining_trainer.checkpoint import (
    BadCheckpointError,
    Checkpoint,
    Folder,
    Manifest,
    SupersededError,
    now,
    read_manifest,
    verify,
)
from gputraining_trainer.config import CheckpointConfig, Config
from gputraining_trainer.failures import CheckpointNotFoundError, Preempted, Terminated
from gputraining_trainer.parallel import Control, Group, float_buffers
from gputraining_trainer.report import CheckpointNote, Report
from gputraining_trainer.signals import Stop
from gputraining_trainer.snapshot import Snapshot
from gputraining_trainer.state import Position, Trained, load_state, restore

log = logging.getLogger(__name__)

VISIBLE_SECONDS: Final = 20.0
"""How long a network file system may take to show one worker what another sees."""


class Checkpoints:
    """Writes and finds the checkpoints of one training. Made on all processes."""

    def __init__(
        self,
        config: Config,
        checkpoint: CheckpointConfig,
        fingerprint: Mapping[str, Any],
        group: Group,
        stop: Stop,
        report: Report,
    ) -> None:
        self._config, self._checkpoint = config, checkpoint
        self._fingerprint = dict(fingerprint)
        self._group, self._stop, self._report = group, stop, report
        self._folder = Folder(checkpoint.path, config.uid, checkpoint.retain, config.attempt)
        self._control = Control(group.process)
        self._snapshot = Snapshot(group.device)
        self._writing: threading.Thread | None = None
        self._outcome: Checkpoint | SupersededError | str = ""
        """Of the thread: what it wrote, or why not. Taken over by the training's thread, the report's only writer."""
        self._last_time, self._last_step = time.monotonic(), 0
        self._asked = False
        """A checkpoint is due as soon as all know of it."""
        self._written_step: int | None = None

    def resume(self, trained: Trained, is_finished: Callable[[Position], bool]) -> Position | None:
        """Load what training goes on from; None to begin anew.

        Args:
            trained: what the checkpoint is loaded into.
            is_finished: whether nothing is left to be trained from a position.

        Raises:
            CheckpointNotFoundError: there is none, and there must be; or this process cannot see it.
        """
        found: tuple[Checkpoint, dict[str, Any]] | None = None
        failure: str | None = None
        if self._group.is_main:
            self._claim()
            try:
                found = self._choose(trained, is_finished)
            except CheckpointNotFoundError as error:
                failure = str(error)
        told = (found[0].path.name if found else None, failure)
        name, failure = self._control.from_main(told)
        if failure:
            raise CheckpointNotFoundError(failure)
        if name is None:
            return None
        checkpoint, state = found or self._load_chosen(name)
        restore(state, trained, self._group)
        position = Position(**state["position"])
        self._last_step = position.step
        manifest = checkpoint.manifest
        self._report.update(
            restored_step=position.step,
            metrics=state["metrics"],
            checkpoint=CheckpointNote(manifest.step, _moment(manifest.time), None),
        )
        whose = "" if manifest.uid == self._config.uid else f" of another training ({manifest.name}, {manifest.uid})"
        log.info("resumed from %s%s: step %d, epoch %d", checkpoint.path, whose, position.step, position.epoch)
        world = self._group.process.world_size
        if state["world_size"] != world:
            log.info(
                "%d processes go on where %d stopped: the rest of epoch %d is shared out anew",
                *(world, state["world_size"], position.epoch),
            )
        return position

    def begin(self) -> None:
        """The first step comes next: from now on SIGTERM means to stop with a checkpoint."""
        self._last_time = time.monotonic()
        self._stop.heeded = True

    def after_step(self, position: Position, trained: Trained, epoch_loss: Callable[[], torch.Tensor]) -> None:
        """Agree on what to do after a step, and do it.

        Args:
            position: where training is; its loss is not looked at.
            trained: the state.
            epoch_loss: gives this process's losses of the epoch added up, on the device.

        Raises:
            Preempted: training was told to stop, and the checkpoint is written.
        """
        self._take_outcome()
        stop, due = self._control.agree(self._stop.wanted, self._ask(position))
        if stop:
            self._end(position, trained, epoch_loss())
        elif due or position.step == position.total_steps:  # the last one is due without a word
            self.wait()
            self._save(position, trained, epoch_loss())

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the checkpoint that is being written, at most so long."""
        if self._writing is not None:
            self._writing.join(seconds)
        self._take_outcome()

    def finish(self) -> None:
        """Training is done, on all processes."""
        self._control.close()
        self.wait()

    def check_current(self) -> None:
        """Make sure, on rank 0, that no newer attempt has taken over.

        Raises:
            Terminated: one has.
        """
        try:
            self._folder.check_current()
        except SupersededError as error:
            log.error("%s: this one ends", error)
            raise Terminated from error

    def _claim(self) -> None:
        self.check_current()
        self._folder.claim()
        self._folder.clean()

    def _ask(self, position: Position) -> bool:
        """Whether rank 0 asks for a checkpoint. While one is asked for or being written the next has to wait."""
        if not self._group.is_main or self._asked or self._writing is not None:
            return False
        step = position.step + self._control.delay  # when the others will know of it
        every = self._checkpoint.interval_steps
        self._asked = time.monotonic() - self._last_time >= self._checkpoint.interval_seconds or (
            every is not None and step // every > self._last_step // every
        )
        return self._asked

    def _save(self, position: Position, trained: Trained, epoch_loss: torch.Tensor) -> None:
        """Take the state, on all processes; on rank 0 a thread writes it."""
        self._last_time, self._last_step, self._asked = time.monotonic(), position.step, False
        buffers = float_buffers(trained.module)
        row = torch.cat([*(buffer.detach().flatten() for buffer in buffers), epoch_loss.view(1)])
        rows = self._group.gather(row)
        if not self._group.is_main:
            return
        process, training = self._group.process, self._config.training
        state = {
            "position": asdict(position),
            "world_size": process.world_size,
            "batch_size": training.batch_size,
            "gradient_accumulation_steps": training.gradient_accumulation_steps,
            "metrics": dict(self._report.progress.metrics),
            "model": trained.module.state_dict(),
            "optimizer": trained.optimizer.state_dict(),
            "scaler": trained.scaler.state_dict(),
            "rows": rows,
        }
        try:
            self._snapshot.take(state)
        except RuntimeError as error:  # no memory for the copy: training has enough, and goes on
            self._outcome = f"step {position.step}: its copy does not fit into memory ({error})"
            self._tell_outcome()
            return
        self._writing = threading.Thread(target=self._write, args=(position,), name="checkpoint", daemon=True)
        self._writing.start()

    def _end(self, position: Position, trained: Trained, epoch_loss: torch.Tensor) -> NoReturn:
        """Write the last checkpoint, on rank 0, and part when it is on the disk."""
        self._stop.request()  # those who were not told themselves have no longer than the others
        self._report.update(step=position.step)
        self.wait()
        self._save(position, trained, epoch_loss)
        self.wait()
        written = self._control.from_main(self._written_step == position.step)
        self._control.part()
        if not written:
            raise Terminated
        self._report.update(checkpoint=CheckpointNote(position.step, datetime.now(UTC), None))
        raise Preempted(position.step)

    def _write(self, position: Position) -> None:
        """The thread of one checkpoint."""
        started = time.monotonic()
        try:
            state = self._snapshot.ready()
            rows = state.pop("rows").double()
            state["buffers"] = rows[:, :-1].to(torch.float32)
            position = replace(position, epoch_loss=float(rows[:, -1].mean()) / max(position.epoch_steps, 1))
            state["position"] = asdict(position)
            if not math.isfinite(position.epoch_loss) or not _is_finite(state["model"]):
                self._outcome = f"step {position.step}: loss or weights are not finite, so it is not worth keeping"
                return
            manifest = Manifest(
                uid=self._config.uid,
                name=self._config.name,
                step=position.step,
                epoch=position.epoch,
                total_steps=position.total_steps,
                fingerprint=self._fingerprint,
                time=now(),
            )
            written = self._folder.write(manifest, lambda file: torch.save(state, file))
        except SupersededError as error:
            self._outcome = error
            return
        except Exception as error:  # noqa: BLE001 - training goes on without it, whatever it was
            self._outcome = f"step {position.step}: {_reason(error, self._checkpoint.path)}"
            return
        log.info("checkpoint %s written in %.1f s", written.path, time.monotonic() - started)
        self._outcome = written

    def _take_outcome(self) -> None:
        """Report what became of the last checkpoint, once its thread has ended."""
        if self._writing is None or self._writing.is_alive():
            return
        self._writing = None
        self._tell_outcome()

    def _tell_outcome(self) -> None:
        if isinstance(self._outcome, SupersededError):
            log.error("%s: this one ends", self._outcome)
            raise Terminated
        if isinstance(self._outcome, Checkpoint):
            manifest = self._outcome.manifest
            self._written_step = manifest.step
            self._report.update(checkpoint=CheckpointNote(manifest.step, _moment(manifest.time), None))
            return
        log.warning("no checkpoint of %s; the next one is tried in time", self._outcome)
        before = self._report.progress.checkpoint or CheckpointNote(None, None, None)
        self._report.update(checkpoint=replace(before, error=self._outcome))

    def _choose(
        self, trained: Trained, is_finished: Callable[[Position], bool]
    ) -> tuple[Checkpoint, dict[str, Any]] | None:
        """What rank 0 goes on from: the newest that is sound, within the policy."""
        policy, first, place = self._checkpoint.resume, self._config.attempt == 1, self._checkpoint.path
        found = [] if policy == "Never" and first else self._folder.find(self._fingerprint)
        why = f"{place} holds no checkpoint that fits this training"
        finished: set[str] = set()
        for checkpoint in found:
            uid = checkpoint.manifest.uid
            is_own = uid == self._config.uid
            if (policy == "Never" and not is_own) or uid in finished:
                continue
            try:
                verify(checkpoint)
                state = load_state(checkpoint.path, trained.module)
            except BadCheckpointError as error:
                log.warning("checkpoint %s is skipped: %s", checkpoint.path, error)
                self._folder.reject(checkpoint.path)
                continue
            position = Position(**state["position"])
            if position.epoch > self._config.training.epochs or (not is_own and is_finished(position)):
                why = f"{checkpoint.path} is of training {checkpoint.manifest.name}, which finished"
                finished.add(uid)
                continue
            return checkpoint, state
        if finished:
            log.info("%s: training begins anew", why)
        if policy == "Required" and first:
            raise CheckpointNotFoundError(
                f"checkpoint.resume: got 'Required', but {why}; fix: let checkpoint.volume and checkpoint.path "
                "(CHECKPOINT_PATH) name the place of one, or set checkpoint.resume to IfAvailable"
            )
        return None

    def _load_chosen(self, name: str) -> tuple[Checkpoint, dict[str, Any]]:
        """What rank 0 chose, as soon as it is to be seen here."""
        path, deadline = self._checkpoint.path / name, time.monotonic() + VISIBLE_SECONDS
        while True:
            try:
                checkpoint = Checkpoint(path, read_manifest(path))
                verify(checkpoint)
                return checkpoint, load_state(path)
            except (BadCheckpointError, OSError) as error:
                if time.monotonic() > deadline:
                    # Once it could be seen by all, so that it can be again: only a first attempt fails for good.
                    kind = CheckpointNotFoundError if self._config.attempt == 1 else RuntimeError
                    raise kind(
                        f"rank {self._group.process.rank}: {path}, which rank 0 resumes from, cannot be used here: "
                        f"{error}; fix: a checkpoint.volume that all workers share (ReadWriteMany)"
                    ) from error
            time.sleep(0.5)


def _is_finite(tensors: Mapping[str, torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _reason(error: Exception, place: Path) -> str:
    if isinstance(error, OSError):
        hint = {
            errno.ENOSPC: "; fix: a larger checkpoint.volume, or a smaller checkpoint.retain",
            errno.EDQUOT: "; fix: a larger quota, or a smaller checkpoint.retain",
            errno.EROFS: "; fix: the volume has become read-only: look at its node and storage",
            errno.EACCES: "; fix: the folder must stay writable for the pod's user",
        }
        return f"{place}: {error.strerror}{hint.get(error.errno or 0, '')}"
    return f"{type(error).__name__}: {error}"
