"""The process's last word: a progress record in the container's termination log, for the operator to read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gputraining_trainer.config import DEFAULT_TERMINATION_LOG

MAX_BYTES: Final = 4096
"""What Kubernetes keeps of a termination message."""
_GPU_ACCOUNT: Final = ("uuid", "energyJoules", "uncorrectedEccErrors", "xid", "error")


def encode_final(record: Mapping[str, Any]) -> bytes:
    """The record as JSON of at most 4096 bytes.

    What does not fit goes in this order: the oldest lines of the traceback, what the GPUs did last (what they cost and
    what is wrong with them stays), the metrics, the GPUs, the end of the message. State, counters and the error's type
    always fit.
    """
    kept = json.loads(json.dumps(record))  # a deep copy
    over = _size(kept) - MAX_BYTES
    error = kept.get("error", {})
    if over > 0 and "traceback" in error:
        error["traceback"] = _less(error["traceback"][::-1], over)[::-1]
        if not error["traceback"]:
            del error["traceback"]
        over = _size(kept) - MAX_BYTES
    if over > 0 and "gpus" in kept:
        kept["gpus"] = [{name: gpu[name] for name in _GPU_ACCOUNT if name in gpu} for gpu in kept["gpus"]]
        over = _size(kept) - MAX_BYTES
    for name in ("metrics", "gpus"):
        if over > 0 and kept.pop(name, None) is not None:
            over = _size(kept) - MAX_BYTES
    if over > 0 and "message" in error:
        error["message"] = _less(error["message"], over)
    return _encode(kept)


def write_final(path: Path, record: Mapping[str, Any]) -> bool:
    """Write the last word; False where there is no file that can be written.

    Processes of one pod share the file: the first real cause stays, a word that is only a consequence (a lost peer,
    a stop from outside) never replaces another.
    """
    if path == DEFAULT_TERMINATION_LOG and not path.exists():
        return False  # not in Kubernetes
    with contextlib.suppress(OSError):
        # In place, since Kubernetes mounts the file itself: a rename would not be seen.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            previous = _decode(file.read())
            if previous is not None and (_is_cause(previous) or not _is_cause(record)):
                return True
            file.seek(0)
            file.write(encode_final(record))
            file.truncate()
        return True
    return False


def _is_cause(record: Mapping[str, Any]) -> bool:
    error = record.get("error")
    return isinstance(error, dict) and error.get("type") != "PeerLost"


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _encode(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


def _less(text: str, over: int) -> str:
    """The text without as much of its end as takes ``over`` bytes in JSON."""
    end = len(text)
    while over > 0 and end > 0:
        end -= 1
        over -= len(json.dumps(text[end], ensure_ascii=False).encode("utf-8", errors="replace")) - 2
    return text[:end]


def _size(record: Mapping[str, Any]) -> int:
    return len(_encode(record))
