"""Running other programs: output to a log file, errors that say what to do, and a way to stop them all."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

TAIL_LINES = 40


class UserError(Exception):
    """Something that the user can mend; its text is all that is shown."""


class CommandError(Exception):
    """A program ended with an error. `str()` is the command and the end of its output."""

    def __init__(self, command: str, code: int, output: str) -> None:
        super().__init__(f"{command}\nended with {code}:\n{output}")
        self.command, self.code, self.output = command, code, output


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a file, or an empty string when there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def output(*command: str | Path, timeout: float = 60, env: Mapping[str, str] | None = None) -> str | None:
    """Standard output of a quick question to a program, or None when it fails, is missing or takes too long."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


class Processes:
    """The programs that run now, so that a failed step (or Ctrl-C) can stop the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(process)
            if self.stopping:
                _terminate(process)

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """Terminates every running program and each one that starts from now on."""
        with self._lock:
            self.stopping = True
            for process in self._running:
                _terminate(process)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    # Each program leads its own process group: `go build` and debootstrap have children of their own.
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGTERM)


class Context:
    """What a step runs with: its log file and the registry of running programs."""

    def __init__(self, log: Path, processes: Processes | None = None) -> None:
        self.log = log
        self.processes = processes or Processes()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def say(self, text: str) -> None:
        """Writes a line to the log."""
        with self.log.open("a") as file:
            file.write(text + "\n")

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | Path | None = None,
        timeout: float | None = None,
    ) -> str:
        """Runs a program to its end; returns its standard output, which the log holds too, with standard error.

        stdin: a text, or the path of a file. Raises CommandError when it fails or outlives `timeout` seconds.
        """
        words = [str(part) for part in command]
        self.say(f"$ {shlex.join(words)}")
        with self.log.open("ab") as log:
            source = stdin.open("rb") if isinstance(stdin, Path) else None
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=source or (subprocess.DEVNULL if stdin is None else subprocess.PIPE),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise CommandError(words[0], 127, f"{words[0]} is not installed") from error
            finally:
                if source:
                    source.close()
            self.processes.add(process)
            try:
                out, _ = process.communicate(stdin.encode() if isinstance(stdin, str) else None, timeout=timeout)
            except subprocess.TimeoutExpired:
                _terminate(process)
                out, _ = process.communicate()
                log.write(f"[stopped after {timeout} s]\n".encode())
            finally:
                self.processes.remove(process)
            log.write(out)
        if process.returncode != 0:
            raise CommandError(shlex.join(words), process.returncode, tail(self.log))
        return out.decode(errors="replace")

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str, interval: float = 0.5) -> None:
        """Polls until the condition holds. Raises TimeoutError that names `what` after `seconds`, or when stopped."""
        end = time.monotonic() + seconds
        while not condition():
            if self.processes.stopping or time.monotonic() > end:
                raise TimeoutError(f"{what} took longer than {seconds:.0f} s")
            time.sleep(interval)
