"""From an exception to what the job's owner is told: a type of the contract, one line, an exit code."""

from __future__ import annotations

import re
import traceback
from typing import Final

from gputraining_trainer.config import ConfigError
from gputraining_trainer.report import MAX_TRACEBACK, Failure, one_line

EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 64
EXIT_NO_DATASET: Final = 66
EXIT_NO_CHECKPOINT: Final = 67
EXIT_PREEMPTED: Final = 75
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143


class DatasetNotFoundError(Exception):
    """The data set is not where it should be. One line: what was looked for, where, and the fix."""


class CheckpointNotFoundError(Exception):
    """Training has to begin from a checkpoint, and there is none. One line: what was looked for, where, and the fix."""


class NonFiniteLossError(ArithmeticError):
    """The loss is NaN or infinite."""


class Terminated(Exception):  # noqa: N818 - it is no error
    """Training was told to stop, and what it did since the last checkpoint is lost."""


class Preempted(Exception):  # noqa: N818 - it is no error
    """Training was told to stop, and all that it did until here is in a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


# torch has classes for these, but a Gloo peer that goes away is a bare RuntimeError; and torch is not imported here.
_PEER_CLASSES: Final = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
_PEER_TEXT: Final = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|timeout|connect|socket)|connection (closed|reset) by",
    re.IGNORECASE | re.DOTALL,
)
# NCCL's own trouble: a GPU, driver or network of this worker. What it says of the others is a lost peer.
_NCCL_TEXT: Final = re.compile(
    r"unhandled (system|cuda) error|internal error|invalid (usage|argument)"
    r"|nccl(UnhandledCuda|System|Internal|Invalid\w+)Error",
    re.IGNORECASE,
)
_NCCL_PEER_TEXT: Final = re.compile(
    r"remote process|ncclRemoteError|peer|timed? ?out|timeout|connection (closed|reset|refused)", re.IGNORECASE
)
_MEMORY_CLASSES: Final = frozenset({"OutOfMemoryError", "MemoryError"})
_MEMORY_TEXT: Final = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_MEMORY_FIGURES: Final = (
    ("wanted", re.compile(r"tried to allocate (\d[\d.]* (?:[KMGT]i?B|bytes))", re.IGNORECASE)),
    ("of", re.compile(r"total capacity of (\d[\d.]* [KMGT]i?B)", re.IGNORECASE)),
    ("free", re.compile(r"(\d[\d.]* [KMGT]i?B|0 bytes) is free", re.IGNORECASE)),
)


def describe(error: BaseException, rank: int, batch: str = "") -> tuple[Failure, int]:
    """The failure that an exception means, and the exit code of the process.

    Args:
        error: the exception.
        rank: of this process.
        batch: the batch size in words, for a failure that it is the cause of.
    """
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, ConfigError):
        return Failure("InvalidConfig", text), EXIT_CONFIG
    if isinstance(error, DatasetNotFoundError):
        return Failure("DatasetNotFound", text), EXIT_NO_DATASET
    if isinstance(error, CheckpointNotFoundError):
        return Failure("CheckpointNotFound", text), EXIT_NO_CHECKPOINT
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    if isinstance(error, NonFiniteLossError):
        return Failure("NonFiniteLoss", text, trace), EXIT_FAILED
    classes = {cls.__name__ for cls in type(error).__mro__}
    if classes & _MEMORY_CLASSES or (isinstance(error, RuntimeError) and _MEMORY_TEXT.search(text)):
        return Failure("OutOfMemory", _out_of_memory(text, rank, batch), trace), EXIT_FAILED
    if classes & _PEER_CLASSES and _NCCL_TEXT.search(text) and not _NCCL_PEER_TEXT.search(text):
        message = f"rank {rank}: NCCL failed on this worker; fix: look at its GPUs, driver and network ({text})"
        return Failure("NcclError", message, trace), EXIT_FAILED
    if classes & _PEER_CLASSES or (isinstance(error, (RuntimeError, OSError)) and _PEER_TEXT.search(text)):
        message = f"rank {rank}: lost the connection to another worker; see the worker that failed first ({text})"
        return Failure("PeerLost", message, trace), EXIT_FAILED
    return Failure("UserCodeError", f"rank {rank}: {type(error).__name__}: {text}", trace), EXIT_FAILED


def _out_of_memory(text: str, rank: int, batch: str) -> str:
    figures = [f"{name} {found[1]}" for name, pattern in _MEMORY_FIGURES if (found := pattern.search(text))]
    told = ", ".join(part for part in (batch, *figures) if part)
    return (
        f"rank {rank}: out of memory{f' ({told})' if told else ''}; fix: a smaller training.batchSize with more "
        f"gradientAccumulationSteps, or training.onOutOfMemory: ReduceBatchSize ({text})"
    )
