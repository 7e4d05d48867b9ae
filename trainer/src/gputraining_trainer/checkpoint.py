"""Checkpoints on disk: a folder for each, valid as a whole or not at all.

::

    step-0000000120/
        state.pt       what torch.save wrote; torch.load(..., weights_only=True) reads it
        manifest.json  what it is of, its size and checksum; written last, so without it nothing counts

A folder is written under a temporary name and renamed when all of it is on the disk. Several trainings may share a
place: each deletes only its own. A worker of an earlier attempt may live on where nobody can reach it: the newest
attempt leaves its number in the place, and an older one that finds it writes no more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from gputraining_trainer.config import ConfigError
from gputraining_trainer.output import sync_folder

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
STATE_FILE: Final = "state.pt"
MANIFEST_FILE: Final = "manifest.json"
_FOLDER: Final = re.compile(r"step-([0-9]{10,})(-[0-9a-z]+)?")
_READ_BYTES: Final = 1 << 20
_MAX_MANIFEST_BYTES: Final = 1 << 20


class BadCheckpointError(Exception):
    """It cannot be used. The text says why, as a clause."""


class SupersededError(Exception):
    """A newer attempt of the same training writes here: this one is over."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is of."""

    uid: str
    """Of the training that wrote it."""
    name: str
    step: int
    epoch: int
    total_steps: int
    fingerprint: Mapping[str, Any]
    """What must be the same for it to fit."""
    time: str
    """RFC 3339, UTC."""
    size: int = 0
    """Bytes of the state."""
    crc32: int = 0
    """Of the state."""

    def encode(self) -> bytes:
        """As JSON."""
        values = {"formatVersion": FORMAT_VERSION, **asdict(self)}
        values["totalSteps"] = values.pop("total_steps")
        return (json.dumps(values, indent=2) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """From JSON.

        Raises:
            BadCheckpointError: it is no manifest, or of another version.
        """
        try:
            values = json.loads(data)
            version = values.pop("formatVersion")
            if version != FORMAT_VERSION:
                raise BadCheckpointError(f"its format is version {version!r}, known is {FORMAT_VERSION}")
            manifest = cls(total_steps=values.pop("totalSteps"), **values)
            numbers = (manifest.step, manifest.epoch, manifest.total_steps, manifest.size, manifest.crc32)
            texts = (manifest.uid, manifest.name, manifest.time)
            if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
                raise TypeError("wrong types")
            if not isinstance(manifest.fingerprint, dict):
                raise TypeError("wrong types")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpointError(f"its {MANIFEST_FILE} cannot be understood ({error})") from error
        return manifest


@dataclass(frozen=True)
class Checkpoint:
    """One that is complete by its manifest; whether its state is sound is known when it is read."""

    path: Path
    manifest: Manifest


class Folder:
    """The checkpoints of one place, as seen by one training.

    Args:
        path: the place; there already.
        uid: of the training: what has another is not ours.
        retain: so many of our own are kept.
        attempt: number of the attempt that writes.
    """

    def __init__(self, path: Path, uid: str, retain: int = 2, attempt: int = 1) -> None:
        self.path = path
        self._uid = uid
        self._retain = retain
        self._attempt = attempt
        self._short_uid = re.sub(r"[^0-9a-z]", "", uid.lower())[:12] or "x"
        self._temporary = re.compile(rf"\.step-[0-9]+\.{self._short_uid}\.[0-9]+-[0-9]+\.(tmp|old)")
        self._mine = f"{self._short_uid}.{attempt}-{os.getpid()}"
        self._fence = path / f".attempt.{self._short_uid}"
        self._rejected: set[Path] = set()

    def find(self, fingerprint: Mapping[str, Any] | None = None) -> list[Checkpoint]:
        """What may be resumed from, best first: our own by step, then those of others by time.

        What is not complete, or of another model or data set than the fingerprint says, is logged and left out.

        Raises:
            OSError: the place cannot be read now: no reason to begin anew, and write over what is there.
            ConfigError: one of our own does not fit any more.
        """
        found = []
        for path in self._folders():
            try:
                manifest = read_manifest(path)
            except BadCheckpointError as error:
                log.warning("checkpoint %s is skipped: %s", path, error)
                continue
            differing = _differences(manifest.fingerprint, fingerprint or {})
            if not differing:
                found.append(Checkpoint(path, manifest))
            elif manifest.uid == self._uid:
                raise ConfigError(
                    f"checkpoint.path: got {path}, which this training wrote with other data: {differing}; allowed: "
                    "the data that it began with; fix: put the data back, or start a new training with another path"
                )
            else:
                log.warning("checkpoint %s is skipped: it is of something else: %s", path, differing)
        own = [checkpoint for checkpoint in found if checkpoint.manifest.uid == self._uid]
        others = [checkpoint for checkpoint in found if checkpoint.manifest.uid != self._uid]
        return [
            *sorted(own, key=lambda checkpoint: checkpoint.manifest.step, reverse=True),
            *sorted(others, key=lambda checkpoint: (checkpoint.manifest.time, checkpoint.manifest.step), reverse=True),
        ]

    def write(self, manifest: Manifest, write_state: Callable[[IO[bytes]], None]) -> Checkpoint:
        """Write a checkpoint, and delete those of our own that are no longer needed.

        Args:
            manifest: without size and checksum, which come from what is written.
            write_state: writes the state to a file.

        Raises:
            OSError: it could not be written; nothing of it stays.
            SupersededError: a newer attempt writes here; nothing of it stays.
        """
        self.check_current()
        temporary = self.path / f".step-{manifest.step:010d}.{self._mine}.tmp"
        self._remove(temporary)
        try:
            temporary.mkdir()
            with (temporary / STATE_FILE).open("wb") as raw:
                file = _Summed(raw)
                write_state(file)  # type: ignore[arg-type]
                if file.error:
                    raise file.error
                raw.flush()
                os.fsync(raw.fileno())
            manifest = replace(manifest, size=file.size, crc32=file.crc32)
            with (temporary / MANIFEST_FILE).open("wb") as raw:
                raw.write(manifest.encode())
                raw.flush()
                os.fsync(raw.fileno())
            sync_folder(temporary)
            self.check_current()  # writing can take long
            final = self._place(manifest.step)
            temporary.rename(final)
            sync_folder(self.path)
        except BaseException:
            self._remove(temporary)
            raise
        self._retire(manifest.step)
        return Checkpoint(final, manifest)

    def claim(self) -> None:
        """From now on earlier attempts write no more here.

        Raises:
            OSError: the place cannot be written to.
            SupersededError: a newer attempt writes here.
        """
        self.check_current()
        temporary = self.path / f".attempt.{self._mine}.tmp"
        temporary.write_text(str(self._attempt))
        temporary.replace(self._fence)

    def check_current(self) -> None:
        """Make sure that no newer attempt writes here.

        Raises:
            SupersededError: one does.
        """
        try:
            newest = int(self._fence.read_text())
        except (OSError, ValueError):
            return
        if newest > self._attempt:
            raise SupersededError(f"attempt {newest} of this training has taken over from attempt {self._attempt}")

    def reject(self, path: Path) -> None:
        """This checkpoint was found to be damaged: it may go when there are others."""
        self._rejected.add(path)

    def clean(self) -> None:
        """Remove what our earlier attempts left behind half-written."""
        for path in self._quiet_listing():
            if self._temporary.fullmatch(path.name):
                log.info("checkpoints: removing %s, left by an earlier attempt", path)
                self._remove(path)

    def _place(self, step: int) -> Path:
        """Where a checkpoint of this step goes: one of our own makes way, that of another stays."""
        for name in (f"step-{step:010d}", f"step-{step:010d}-{self._short_uid}"):
            path = self.path / name
            if path.exists() and self._is_own(path):
                self._discard(path)
            if not path.exists():
                return path
        raise FileExistsError(f"{path} is in the way and not of this training; fix: remove it")

    def _retire(self, step: int) -> None:
        """Keep the newest of our own up to this step, and drop those that were found to be damaged.

        One of a later step that nobody has found fault with is not understood, so it stays.
        """
        own = [(int(match[1]), path) for path in self._quiet_listing() if (match := _FOLDER.fullmatch(path.name))]
        own = [(number, path) for number, path in own if self._is_own(path)]
        sound = sorted((entry for entry in own if entry[0] <= step and entry[1] not in self._rejected), reverse=True)
        damaged = [path for _, path in own if path in self._rejected]
        for path in [path for _, path in sound[self._retain :]] + damaged:
            try:
                self._discard(path)
            except OSError as error:
                log.warning("checkpoint %s cannot be removed: %s", path, error)

    def _is_own(self, path: Path) -> bool:
        try:
            return read_manifest(path).uid == self._uid
        except (BadCheckpointError, OSError):
            return False

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint: under its name it is either whole or gone."""
        number = path.name.split("-")[1]
        old = self.path / f".step-{number}.{self._mine}.old"
        self._remove(old)
        path.rename(old)
        self._remove(old)

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # what is left is tried again by the next attempt
            shutil.rmtree(path)

    def _folders(self) -> list[Path]:
        return [path for path in self._listing() if _FOLDER.fullmatch(path.name)]

    def _listing(self) -> list[Path]:
        try:
            return sorted(self.path.iterdir())
        except FileNotFoundError:
            return []

    def _quiet_listing(self) -> list[Path]:
        try:
            return self._listing()
        except OSError as error:
            log.warning("checkpoints in %s cannot be listed: %s", self.path, error.strerror)
            return []


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        BadCheckpointError: there is none, or it cannot be understood.
        OSError: it cannot be read now.
    """
    try:
        with (path / MANIFEST_FILE).open("rb") as file:
            data = file.read(_MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise BadCheckpointError(f"it has no {MANIFEST_FILE}: it was never completed") from None
    return Manifest.decode(data)


def verify(checkpoint: Checkpoint) -> None:
    """Read the whole state, and compare it with the manifest.

    Raises:
        BadCheckpointError: it is not what was written.
        OSError: it cannot be read now.
    """
    size = checksum = 0
    try:
        with (checkpoint.path / STATE_FILE).open("rb") as file:
            while data := file.read(_READ_BYTES):
                size, checksum = size + len(data), zlib.crc32(data, checksum)
    except (FileNotFoundError, IsADirectoryError):
        raise BadCheckpointError(f"it has no {STATE_FILE}") from None
    if size != checkpoint.manifest.size:
        raise BadCheckpointError(f"its {STATE_FILE} has {size} bytes, {checkpoint.manifest.size} were written")
    if checksum != checkpoint.manifest.crc32:
        raise BadCheckpointError(f"its {STATE_FILE} is damaged: the checksum differs")


def now() -> str:
    """This moment as RFC 3339, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {theirs.get(name)!r}, here {value!r}" for name, value in ours.items() if theirs.get(name) != value
    )


class _Summed:
    """A file that knows size and checksum of what was written.

    An error is kept rather than raised: raised through torch.save it would become an opaque one of its own.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = self.crc32 = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        count = len(data)
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
            self.size, self.crc32 = self.size + count, zlib.crc32(data, self.crc32)
        return count

    def flush(self) -> None:
        """Nothing yet: the file is flushed once, at its end."""
