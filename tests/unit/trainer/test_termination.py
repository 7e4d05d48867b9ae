"""The last word: what is kept of it, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gputraining_trainer.config import read_termination_log
from gputraining_trainer.termination import MAX_BYTES, encode_final, write_final


def record(state: str = "Training", **rest: Any) -> dict[str, Any]:
    return {"version": 1, "state": state, "time": "2026-11-21T10:00:00.000Z", "step": 7, **rest}


def failed(kind: str, traceback: str = "") -> dict[str, Any]:
    return record("Failed", error={"type": kind, "message": "why", "traceback": traceback})


def test_the_old_end_of_a_traceback_goes_first() -> None:
    lines = "".join(f"line {number}\n" for number in range(1000))
    gpus = [{"uuid": "GPU-1"}]
    final = encode_final(
        record("Failed", gpus=gpus, error={"type": "UserCodeError", "message": "m", "traceback": lines})
    )
    kept = json.loads(final)
    assert MAX_BYTES - 10 <= len(final) <= MAX_BYTES
    assert kept["error"]["traceback"].endswith("line 999\n")
    assert lines.endswith(kept["error"]["traceback"])
    assert kept["gpus"] == gpus


def test_what_the_gpus_cost_stays_longer_than_what_they_did() -> None:
    gpus = [{"uuid": f"GPU-{n}", "model": "x" * 128, "energyJoules": 5.0, "error": "e" * 99} for n in range(16)]
    kept = json.loads(encode_final(record(gpus=gpus)))
    assert kept["gpus"] == [{"uuid": f"GPU-{n}", "energyJoules": 5.0, "error": "e" * 99} for n in range(16)]


def test_wide_characters_count_by_their_bytes() -> None:
    error = {"type": "UserCodeError", "message": "𝄞" * 1024, "traceback": "é\u0001" * 1500}
    final = encode_final(record("Failed", error=error, metrics={f"m{number}": 1.5 for number in range(32)}))
    assert len(final) <= MAX_BYTES
    assert json.loads(final)["error"]["message"].startswith("𝄞" * 500)


def test_a_lone_surrogate_does_no_harm() -> None:
    final = encode_final(record("Failed", error={"type": "UserCodeError", "message": "\ud800", "traceback": ""}))
    assert json.loads(final.decode("utf-8"))["error"]["message"] == "?"


def test_the_first_cause_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    assert write_final(path, failed("PeerLost"))
    assert write_final(path, failed("OutOfMemory", "x" * 3000))  # the cause replaces the consequence
    assert write_final(path, failed("PeerLost"))
    assert write_final(path, record())
    assert write_final(path, failed("UserCodeError"))
    assert json.loads(path.read_bytes())["error"]["type"] == "OutOfMemory"


def test_a_shorter_word_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("no record " * 300)
    assert write_final(path, record())
    assert json.loads(path.read_bytes()) == record()


def test_nowhere_to_write_is_no_error(tmp_path: Path) -> None:
    assert not write_final(tmp_path, record())  # a folder
    assert not write_final(tmp_path / "no" / "log", record())
    assert read_termination_log({}) == Path("/dev/termination-log")
    assert not Path("/dev/termination-log").exists()
    assert not write_final(Path("/dev/termination-log"), record())
    assert not Path("/dev/termination-log").exists()
