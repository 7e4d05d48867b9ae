"""Real trainer processes for tests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 240.0
"""Far more than any step takes: importing torch alone takes a while on a busy machine."""
KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "USE_LIBUV", "COVERAGE_PROCESS_START")


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition gives something true, and return that."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_SECONDS:.0f} s: {what}")


class TrainerProcess:
    """``python -m gputraining_trainer`` (or torchrun of it) in an environment of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str], torchrun: int | None = None) -> None:
        folder.mkdir()
        self.output = folder / "output"
        self.final_path = folder / "termination-log"
        self.final_path.touch()
        self.port = free_port()
        self._log = folder / "log"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}"] if torchrun else []
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "gputraining_trainer"],
                cwd=folder,
                env={
                    **{name: os.environ[name] for name in KEPT if name in os.environ},
                    "OMP_NUM_THREADS": "1",
                    "OUTPUT_PATH": str(self.output),
                    "GPUTRAINING_PROGRESS_PORT": str(self.port),
                    "GPUTRAINING_REPORT_INTERVAL_SECONDS": "0.1",
                    "GPUTRAINING_TERMINATION_LOG": str(self.final_path),
                    # What a version of torch deprecates must show here, not at the users'.
                    "PYTHONWARNINGS": "error::FutureWarning,error::UserWarning",
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        """All that it has written so far."""
        return self._log.read_text(errors="replace")

    def wait(self) -> int:
        """Wait for the end; gives the exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def final(self) -> dict[str, Any]:
        """The last word."""
        record: dict[str, Any] = json.loads(self.final_path.read_bytes())
        return record

    def get(self, path: str) -> bytes | None:
        """Fetch a page of the progress server; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                body: bytes = answer.read()
                return body
        except (OSError, http.client.HTTPException):  # not there yet, or it ended in the middle of the answer
            return None

    def progress(self) -> dict[str, Any] | None:
        """The live record; None if the server does not answer."""
        body = self.get("/progress")
        return json.loads(body) if body else None

    def wait_for_record(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Wait until the live record fulfils a condition, and return it."""

        def fulfilled() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.log()
            record = self.progress()
            return record if record and condition(record) else None

        record: dict[str, Any] = wait_for(fulfilled, what)
        return record

    def wait_for_step(self, step: int) -> dict[str, Any]:
        """Wait until the live record has reached a step."""
        return self.wait_for_record(lambda record: record.get("step", 0) >= step, f"step {step}")

    def kill(self) -> None:
        """End it and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_SECONDS)


def pair(port: int, rank: int, **settings: str) -> dict[str, str]:
    """The environment of one of two workers, as PyTorchJob injects it."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": str(rank),
        **settings,
    }
