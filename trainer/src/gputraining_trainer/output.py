"""What a training leaves behind: the weights and a description of the run, each there wholly or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from gputraining_trainer.config import ConfigError

MODEL_FILE: Final = "trained-model.pth"
METADATA_FILE: Final = "training_metadata.json"


def check_output(folder: Path) -> None:
    """Make the folder, and make sure before training that files can be written there.

    Raises:
        ConfigError: they cannot.
    """
    check_writable(folder, "training.outputPath (OUTPUT_PATH)")


def check_writable(folder: Path, field: str, *, worked_before: bool = False) -> None:
    """Make a folder, and make sure that files can be written there.

    Args:
        folder: the folder.
        field: which setting names it.
        worked_before: an earlier attempt wrote there, so that the setting is right, and the trouble may pass.

    Raises:
        ConfigError: they cannot.
        OSError: they cannot now.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if worked_before:
            raise
        raise ConfigError(
            f"{field}: got '{folder}' ({error.strerror}), allowed: a folder that uid {os.getuid()} can write to; "
            f"fix: {_writable_fix(error.errno)}"
        ) from error


def _writable_fix(number: int | None) -> str:
    if number == errno.EROFS:
        return "mount a volume there, not readOnly: the container's own file system cannot be written to"
    if number in {errno.ENOSPC, errno.EDQUOT}:
        return "make room on the volume, or take a larger one"
    if number in {errno.EACCES, errno.EPERM}:
        return "a volume whose files belong to the pod's fsGroup, or the right owner for the folder"
    return "mount a volume there that can be written to"


def write_model(folder: Path, state: Mapping[str, Any]) -> Path:
    """Write the weights (tensors by name, on the CPU); gives the absolute path."""
    import torch

    return _write(folder / MODEL_FILE, lambda file: torch.save(dict(state), file))


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> Path:
    """Write the description of the run; gives the absolute path."""
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    return _write(folder / METADATA_FILE, lambda file: file.write(text.encode()))


def _write(path: Path, fill: Callable[[IO[bytes]], Any]) -> Path:
    path = path.absolute()
    with _temporary_beside(path) as (temporary, file):
        fill(file)
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)
    sync_folder(path.parent)
    return path


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # mkstemp's 0600 would hide the model from whoever fetches it
            yield temporary, file
    finally:
        temporary.unlink(missing_ok=True)  # gone already after the rename


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable. Some network file systems cannot, and need not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
