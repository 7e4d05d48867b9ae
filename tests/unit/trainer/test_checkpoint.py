"""The folder of checkpoints: what counts as one, what is kept, what a fault leaves behind."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import random
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from gputraining_trainer.checkpoint import (
    MANIFEST_FILE,
    STATE_FILE,
    BadCheckpointError,
    Checkpoint,
    Folder,
    Manifest,
    SupersededError,
    read_manifest,
    verify,
)
from gputraining_trainer.config import ConfigError
from gputraining_trainer.output import check_writable

FINGERPRINT = {"model": "smallcnn", "dataset": "digits", "image": [1, 8]}
STATE = bytes(range(256)) * 64


def manifest(step: int, uid: str = "mine", time: str = "2026-11-21T10:00:00.000Z") -> Manifest:
    return Manifest(uid, "name", step, 1, 1000, FINGERPRINT, time)


def write(file: IO[bytes]) -> None:
    file.write(STATE)


def write_little(file: IO[bytes]) -> None:
    file.write(b"little")


def written(folder: Path, *steps: int, uid: str = "mine", retain: int = 10) -> list[Checkpoint]:
    place = Folder(folder, uid, retain)
    return [place.write(manifest(step, uid), write) for step in steps]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_what_was_written(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, 120)[0]
    assert checkpoint.path == tmp_path / "step-0000000120"
    assert names(checkpoint.path) == [MANIFEST_FILE, STATE_FILE]
    verify(checkpoint)
    assert read_manifest(checkpoint.path) == replace(manifest(120), size=len(STATE), crc32=checkpoint.manifest.crc32)
    told = json.loads((checkpoint.path / MANIFEST_FILE).read_text())
    assert (told["formatVersion"], told["uid"], told["step"], told["totalSteps"]) == (1, "mine", 120, 1000)


def test_the_newest_comes_first_and_ones_own_before_those_of_others(tmp_path: Path) -> None:
    written(tmp_path, 5, 9, 7)
    written(tmp_path, 500, uid="other")
    found = Folder(tmp_path, "mine").find(FINGERPRINT)
    assert [(checkpoint.manifest.uid, checkpoint.manifest.step) for checkpoint in found] == [
        *(("mine", 9), ("mine", 7), ("mine", 5), ("other", 500))
    ]


def test_the_newest_of_ones_own_are_kept_and_nothing_of_others_is_touched(tmp_path: Path) -> None:
    (tmp_path / "step-0000000001").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".step-0000000009.other.tmp").mkdir()
    written(tmp_path, 2, 3, uid="other")
    written(tmp_path, 3, 4, 6, 8, retain=2)
    assert names(tmp_path) == [
        *(".step-0000000009.other.tmp", "notes.txt", "step-0000000001", "step-0000000002", "step-0000000003"),
        *("step-0000000006", "step-0000000008"),
    ]
    assert read_manifest(tmp_path / "step-0000000003").uid == "other"


def test_what_was_found_to_be_damaged_goes_when_there_is_another(tmp_path: Path) -> None:
    _, damaged = written(tmp_path, 100, 200)
    place = Folder(tmp_path, "mine", 2)
    place.reject(damaged.path)
    assert names(tmp_path) == ["step-0000000100", "step-0000000200"]
    place.write(manifest(150), write)
    assert names(tmp_path) == ["step-0000000100", "step-0000000150"]


def test_what_nobody_found_fault_with_is_not_thrown_away_for_earlier_steps(tmp_path: Path) -> None:
    written(tmp_path, 100, 200)
    written(tmp_path, 3, 6, 9, retain=2)
    assert names(tmp_path) == [f"step-{step:010d}" for step in (6, 9, 100, 200)]


def test_a_place_that_cannot_be_read_now_is_no_empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = written(tmp_path, 7)
    for trouble in ("iterdir", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, trouble, stale)
            with pytest.raises(OSError, match="Stale file handle"):
                Folder(tmp_path, "mine").find(FINGERPRINT)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", stale)
        with pytest.raises(OSError, match="Stale file handle"):
            verify(kept)


def stale(*_: object, **__: object) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_an_attempt_that_was_superseded_writes_no_more(tmp_path: Path) -> None:
    old, new = Folder(tmp_path, "mine", attempt=1), Folder(tmp_path, "mine", attempt=2)
    old.claim()
    old.write(manifest(310), write)

    def overtaken(file: IO[bytes]) -> None:
        new.claim()
        write(file)

    with pytest.raises(SupersededError, match="attempt 2 of this training has taken over from attempt 1"):
        old.write(manifest(320), overtaken)
    with pytest.raises(SupersededError):
        old.write(manifest(330), write)
    with pytest.raises(SupersededError):
        old.claim()
    new.write(manifest(320), write)
    assert [entry.manifest.step for entry in new.find(FINGERPRINT)] == [320, 310]
    assert names(tmp_path) == [".attempt.mine", "step-0000000310", "step-0000000320"]
    Folder(tmp_path, "other", attempt=1).check_current()


def test_ones_own_that_does_not_fit_any_more_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    written(tmp_path, 7)
    with pytest.raises(ConfigError, match="wrote with other data: dataset 'digits', here 'mnist'; allowed"):
        Folder(tmp_path, "mine").find({**FINGERPRINT, "dataset": "mnist"})
    assert Folder(tmp_path, "other").find({**FINGERPRINT, "dataset": "mnist"}) == []


def test_the_place_of_another_is_not_taken(tmp_path: Path) -> None:
    written(tmp_path, 7, uid="other")
    for _ in range(2):
        assert written(tmp_path, 7)[0].path.name == "step-0000000007-mine"
    assert [checkpoint.manifest.uid for checkpoint in Folder(tmp_path, "mine").find()] == ["mine", "other"]


@pytest.mark.parametrize("seed", range(8))
def test_a_truncated_or_changed_one_is_found_out(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sound, damaged = written(tmp_path, 1, 2)
    path = damaged.path / dice.choice([STATE_FILE, MANIFEST_FILE])
    data = bytearray(path.read_bytes())
    place = dice.randrange(len(data) - 1)  # the last byte of a manifest is the end of its line
    if seed % 2 or path.name == MANIFEST_FILE:
        del data[place:]
    else:
        data[place] ^= 1
    path.write_bytes(data)

    usable = []
    for checkpoint in Folder(tmp_path, "mine").find(FINGERPRINT):
        try:
            verify(checkpoint)
        except BadCheckpointError:
            continue
        usable.append(checkpoint)
    assert usable == [sound]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"formatVersion": 2}, "its format is version 2, known is 1"),
        ({"step": "12"}, "its manifest.json cannot be understood"),
        (
            {"fingerprint": {**FINGERPRINT, "model": "resnet18"}, "uid": "other"},
            "it is of something else: model 'resnet18', here 's",
        ),
        ({"fingerprint": None}, "its manifest.json cannot be understood"),
        ({"more": 1}, "its manifest.json cannot be understood"),
        (None, "it has no manifest.json: it was never completed"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    tmp_path: Path, change: dict[str, object] | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = written(tmp_path, 3)[0].path / MANIFEST_FILE
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert Folder(tmp_path, "mine").find(FINGERPRINT) == []
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"checkpoint {path.parent} is skipped: {told}")


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert Folder(tmp_path / "absent", "mine").find() == []


def test_what_an_earlier_attempt_left_half_written_is_cleaned(tmp_path: Path) -> None:
    mine = (".step-0000000005.mine.1-77.tmp", ".step-0000000004.mine.12-3.old")
    for name in (*mine, ".step-0000000005.yours.1-77.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / STATE_FILE).write_bytes(b"half")
    Folder(tmp_path, "mine").clean()
    assert names(tmp_path) == [".step-0000000005.yours.1-77.tmp"]


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 KiB: writing fails as on a full disk. Only around the write: where pytest's own output
    goes to a file, it would fail as well."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_leaves_nothing_and_costs_nothing(tmp_path: Path) -> None:
    place = Folder(tmp_path, "mine", 2)
    place.write(manifest(1), write_little)
    with pytest.raises(OSError, match="File too large"), small_files():
        place.write(manifest(2), write)
    assert names(tmp_path) == ["step-0000000001"]


def test_torch_gets_through_a_write_that_fails(tmp_path: Path) -> None:
    import torch

    with pytest.raises(OSError, match="File too large"), small_files():
        Folder(tmp_path, "mine").write(manifest(1), lambda file: torch.save({"x": torch.zeros(10_000)}, file))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(30, "Read-only file system"), "fix: mount a volume there, not readOnly"),
        (OSError(13, "Permission denied"), "fix: a volume whose files belong to the pod's fsGroup"),
        (OSError(28, "No space left on device"), "fix: make room on the volume"),
    ],
)
def test_why_a_folder_cannot_be_written_to_is_told_apart(
    tmp_path: Path, error: OSError, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ConfigError) as caught:
        check_writable(tmp_path, "checkpoint.volume, checkpoint.path (CHECKPOINT_PATH)")
    start = f"checkpoint.volume, checkpoint.path (CHECKPOINT_PATH): got '{tmp_path}' ({error.strerror}), allowed: "
    assert str(caught.value).startswith(start)
    assert fix in str(caught.value)
