"""One training process, from its environment to its exit code."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gputraining_trainer import __version__
from gputraining_trainer.config import Config, ConfigError, Process, read_config, read_termination_log
from gputraining_trainer.data.files import find_files
from gputraining_trainer.failures import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_TERMINATED,
    Preempted,
    Terminated,
    describe,
)
from gputraining_trainer.gpu import GpuSampler
from gputraining_trainer.output import MODEL_FILE, check_output, check_writable, write_metadata, write_model
from gputraining_trainer.report import Failure, Report, State, process_age
from gputraining_trainer.server import ProgressServer
from gputraining_trainer.signals import Stop, on_terminate
from gputraining_trainer.startup import defer_compiler_import
from gputraining_trainer.termination import write_final

if TYPE_CHECKING:  # torch takes seconds to import: it comes after the pod answers
    import torch

    from gputraining_trainer.checkpointing import Checkpoints
    from gputraining_trainer.data.sets import Dataset
    from gputraining_trainer.loop import Result
    from gputraining_trainer.parallel import Group
    from gputraining_trainer.precision import Precision

log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 60.0
"""How long a failed training waits for the checkpoint that is being written."""

_kept: list[object] = []
"""What lives until the process ends. Destroying a DistributedDataParallel, and with it the process group, can deadlock
(seen with torch 2.6 and Gloo: one process in about a hundred never came back to write its last word)."""


def main(environment: Mapping[str, str]) -> int:
    """Run one process of a training; gives its exit code."""
    logging.basicConfig(
        stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO, force=True
    )
    report = Report()
    termination_log = read_termination_log(environment)
    try:
        config = read_config(environment)
        report = Report(config.process.rank, config.process.world_size)
        stop = Stop(config.grace_seconds, lambda: _terminate(report, termination_log))
        on_terminate(stop.request)
    except ConfigError as error:
        return fail(error, report, termination_log)
    try:
        _run(config, report, stop, lambda error: _tell(error, report, termination_log, _batch(config)))
    except KeyboardInterrupt:
        log.info("interrupted")
        return EXIT_INTERRUPTED
    except Preempted as done:
        report.update(state=State.PREEMPTED)
        write_final(termination_log, report.record())
        log.warning("stopped by SIGTERM at step %d: to be resumed from its checkpoint", done.step)
        return EXIT_PREEMPTED
    except Terminated:
        return _terminated(report, termination_log)
    except Exception as error:  # noqa: BLE001 - whatever it is, the job's owner is told
        if stop.wanted and describe(error, report.rank)[0].type in {"PeerLost", "NcclError"}:
            return _terminated(report, termination_log)  # the others were told to stop, too, and are gone already
        return fail(error, report, termination_log, _batch(config))
    write_final(termination_log, report.record())
    return 0


def _batch(config: Config) -> str:
    training = config.training
    return f"batchSize {training.batch_size} x {training.gradient_accumulation_steps} accumulated"


def _tell(error: BaseException, report: Report, termination_log: Path, batch: str) -> tuple[Failure, int]:
    """Leave the last word of a failure; gives it, and the exit code."""
    failure, code = describe(error, report.rank, batch)
    report.update(state=State.FAILED, failure=failure)
    write_final(termination_log, report.record())
    return failure, code


def fail(error: BaseException, report: Report, termination_log: Path, batch: str = "") -> int:
    """Tell of a failure: on stderr and as the last word; gives the exit code."""
    failure, code = _tell(error, report, termination_log, batch)
    if failure.traceback:
        traceback.print_exception(error)
    print(f"{failure.type}: {failure.message}", file=sys.stderr, flush=True)
    return code


def _terminate(report: Report, termination_log: Path) -> None:
    """End at once, from whatever the main thread is doing."""
    os._exit(_terminated(report, termination_log))


def _terminated(report: Report, termination_log: Path) -> int:
    """The last word after SIGTERM. The state stays as it was: nothing failed here."""
    write_final(termination_log, report.record())
    log.warning("stopped by SIGTERM at step %s", report.progress.step or 0)
    return EXIT_TERMINATED


def _run(config: Config, report: Report, stop: Stop, tell: Callable[[Exception], object]) -> None:
    process, training = config.process, config.training
    if process.rank != 0:
        logging.getLogger().setLevel(logging.WARNING)  # rank 0 tells the common story
    if process.local_rank == 0:  # one voice per pod
        ProgressServer(report, config.progress_port)
        GpuSampler(report, config.report_interval)
    if not training.dataset_download:
        find_files(training)
    if process.rank == 0:
        check_output(training.output_path)
        if config.checkpoint:
            check_writable(
                config.checkpoint.path,
                "checkpoint.volume, checkpoint.path (CHECKPOINT_PATH)",
                worked_before=config.attempt > 1,
            )
    limit_threads(process)

    import torch

    defer_compiler_import()
    from gputraining_trainer.data import sets
    from gputraining_trainer.data.batches import make_batches
    from gputraining_trainer.loop import train
    from gputraining_trainer.models import make_model
    from gputraining_trainer.parallel import choose_device, joined
    from gputraining_trainer.precision import choose_precision

    device = choose_device(process)
    precision = choose_precision(training.precision, device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(training.seed)  # the same on all ranks: they start from the same weights
    report.update(state=State.RENDEZVOUS)
    with joined(process, device) as group:
        report.update(state=State.LOADING)
        if training.dataset_download:
            _download_once(config, group)
        dataset = sets.load(training)
        batches = make_batches(dataset, training, process, device)
        model = group.distribute(make_model(training.model, dataset.channels, dataset.classes, dataset.image_size))
        _kept.append(model)
        log.info(
            "training %s on %s: %d processes, %s, %s, batch %d x %d x %d accumulated",
            *(training.model, dataset.name, process.world_size, device_name(device), precision.name),
            *(training.batch_size, process.world_size, training.gradient_accumulation_steps),
        )
        checkpoints = _checkpoints(config, dataset, group, stop, report)
        try:
            result = train(model, batches, training, precision, group, report, config.report_interval, checkpoints)
        except Exception as error:
            if checkpoints and not isinstance(error, (Preempted, Terminated)):
                if not stop.wanted:
                    tell(error)  # first: whoever is waited for may be killed
                checkpoints.wait(CLOSE_SECONDS)  # what is being written was sound
            raise
        report.update(state=State.SAVING)
        if group.is_main:
            if checkpoints:
                checkpoints.check_current()
            _save(config, group, dataset, model, result, precision)
        if checkpoints:
            checkpoints.finish()
    report.update(
        state=State.COMPLETE,
        remaining_seconds=0.0,
        model_path=str((training.output_path / MODEL_FILE).absolute()),
        duration_seconds=process_age(),
    )
    log.info("complete: accuracy %.4f, %s in %.1f s", result.accuracy, report.progress.model_path, process_age())


def _checkpoints(config: Config, dataset: Dataset, group: Group, stop: Stop, report: Report) -> Checkpoints | None:
    """What writes the checkpoints; None where there is no place for them."""
    from gputraining_trainer.checkpointing import Checkpoints

    if config.checkpoint is None:
        return None
    fingerprint = {
        "model": config.training.model,
        "dataset": dataset.name,
        "classes": dataset.classes,
        "trainingSamples": len(dataset.train),
        "image": [dataset.channels, dataset.image_size],
    }
    return Checkpoints(config, config.checkpoint, fingerprint, group, stop, report)


def _save(
    config: Config, group: Group, dataset: Dataset, model: torch.nn.Module, result: Result, precision: Precision
) -> None:
    import torch

    module: torch.nn.Module = getattr(model, "module", model)
    state = {name: value.cpu().contiguous() for name, value in module.state_dict().items()}
    folder, settings = config.training.output_path, asdict(config.training)
    path = write_model(folder, state)
    metadata: dict[str, Any] = {
        "name": config.name,
        "attempt": config.attempt,
        "model": {"path": str(path), "parameters": sum(parameter.numel() for parameter in module.parameters())},
        "config": {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()},
        "dataset": {
            "name": dataset.name,
            "classes": dataset.classes,
            "trainingSamples": len(dataset.train),
            "testSamples": len(dataset.test),
        },
        "accuracy": result.accuracy,
        "loss": result.loss,
        "testLoss": result.test_loss,
        "epochs": config.training.epochs,
        "steps": result.steps,
        "samplesPerSecond": result.samples_per_second,
        "durationSeconds": {"total": process_age(), "training": result.training_seconds},
        "worldSize": config.process.world_size,
        "device": device_name(group.device),
        "precision": precision.name,
        "versions": {
            "gputraining-trainer": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda if group.device.type == "cuda" else None,
        },
    }
    write_metadata(folder, metadata)


def _download_once(config: Config, group: Group) -> None:
    """Rank 0 first, then one process of each other worker: on a shared volume they find the files there already."""
    from gputraining_trainer.data.sets import download

    process = config.process
    if process.rank == 0:
        download(config.training)
    group.barrier()
    if process.rank != 0 and process.local_rank == 0:
        download(config.training)
    group.barrier()


def device_name(device: torch.device) -> str:
    """The device in words: "cpu", or the GPU's model."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def limit_threads(process: Process) -> None:
    """Tell the math libraries, before they are loaded, how many threads this process may use.

    OMP_NUM_THREADS stands. Else the container's CPU limit is shared by the pod's processes; without a limit half of
    the machine, since other workers of the job may run on it too.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return
    limit = cpu_limit(Path("/sys/fs/cgroup"))
    if limit is None:
        limit = float(len(os.sched_getaffinity(0)))
        if process.world_size > process.local_world_size:
            limit /= 2
    os.environ["OMP_NUM_THREADS"] = str(max(1, math.floor(limit / process.local_world_size)))


def cpu_limit(cgroup: Path) -> float | None:
    """The CPUs that the container may use at once by its cgroup (version 2 or 1); None without a limit."""
    for quota, period in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = (cgroup / quota).read_text().split()
            if period is not None:
                words += (cgroup / period).read_text().split()
            if words[0] in {"max", "-1"}:
                return None
            return int(words[0]) / int(words[1])
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue
    return None
