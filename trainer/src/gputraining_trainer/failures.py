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
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143


class DatasetNotFoundError(Exception):
    """The data set is not where it should be. One line: what was looked for, where, and the fix."""


class NonFiniteLossError(ArithmeticError):
    """The loss is NaN or infinite."""


# torch has classes for these, but a Gloo peer that goes away is a bare RuntimeError; and torch is not imported here.
_PEER_CLASSES: Final = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
_PEER_TEXT: Final = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|timeout|connect|socket)|connection (closed|reset) by",
    re.IGNORECASE | re.DOTALL,
)
_MEMORY_CLASSES: Final = frozenset({"OutOfMemoryError", "MemoryError"})
_MEMORY_TEXT: Final = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


def describe(error: BaseException, rank: int) -> tuple[Failure, int]:
    """The failure that an exception means, and the exit code of the process."""
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, ConfigError):
        return Failure("InvalidConfig", text), EXIT_CONFIG
    if isinstance(error, DatasetNotFoundError):
        return Failure("DatasetNotFound", text), EXIT_NO_DATASET
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    if isinstance(error, NonFiniteLossError):
        return Failure("NonFiniteLoss", text, trace), EXIT_FAILED
    classes = {cls.__name__ for cls in type(error).__mro__}
    if classes & _MEMORY_CLASSES or (isinstance(error, RuntimeError) and _MEMORY_TEXT.search(text)):
        message = f"rank {rank}: out of memory; fix: a smaller batchSize with more gradientAccumulationSteps ({text})"
        return Failure("OutOfMemory", message, trace), EXIT_FAILED
    if classes & _PEER_CLASSES or (isinstance(error, (RuntimeError, OSError)) and _PEER_TEXT.search(text)):
        message = f"rank {rank}: lost the connection to another worker; see the worker that failed first ({text})"
        return Failure("PeerLost", message, trace), EXIT_FAILED
    return Failure("UserCodeError", f"rank {rank}: {type(error).__name__}: {text}", trace), EXIT_FAILED
