"""How progress looks: live lines in a terminal, plain lines elsewhere (CI), and where the time went."""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hack.shell import CommandError, tail
from hack.steps import Outcome, Step, StepFailedError

NAME_WIDTH = 22
DETAIL_WIDTH = 74


def seconds_text(seconds: float) -> str:
    """0.4 s, 23 s, 7 min 36 s."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def finished_line(name: str, detail: str, seconds: float | None, mark: str = "✔") -> str:
    """One line of progress: ✔ cluster   kind gputraining-demo, 3 nodes   23 s."""
    time_part = "" if seconds is None else seconds_text(seconds)
    return f"{mark} {name:<{NAME_WIDTH}} {detail:<{DETAIL_WIDTH}} {time_part:>12}".rstrip()


def started_line(step: Step) -> str:
    """What a step does now and how long that usually takes."""
    usual = f" (usually {seconds_text(step.usual)})" if step.usual >= 3 else ""
    return f"… {step.name:<{NAME_WIDTH}} {step.what}{usual}"


def time_rows(outcomes: Sequence[Outcome], least: float = 0.5) -> list[tuple[str, str]]:
    """(name, time) of the steps that took time, longest first."""
    slow = sorted((o for o in outcomes if o.seconds >= least), key=lambda o: -o.seconds)
    return [(outcome.step.name, seconds_text(outcome.seconds)) for outcome in slow]


def failure_text(failure: StepFailedError) -> str:
    """What failed, the end of its log, and what to do."""
    cause = failure.cause
    if isinstance(cause, CommandError):
        body = f"{tail(failure.log)}\n(exit status {cause.code})"
    else:
        body = str(cause) or type(cause).__name__
    advice = f"\nWhat to do: {failure.step.advice}" if failure.step.advice else ""
    log = f"\nWhole log: {failure.log}" if failure.log.exists() else ""
    return f"✘ {failure.step.name}: {failure.step.what}\n{body}{log}{advice}"


class Display:
    """Shows a run of steps; a context manager. `console` is for lines of one's own."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Step, float]] = {}
        self._begin = time.monotonic()
        self._live: Live | None = None
        self._there: list[str] = []

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self.console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def started(self, step: Step) -> None:
        """A step began to do something."""
        with self._lock:
            self._running[step.name] = (step, time.monotonic())
        if not self._live:
            self.line(started_line(step))

    def ended(self, outcome: Outcome) -> None:
        """A step ended well."""
        with self._lock:
            self._running.pop(outcome.step.name, None)
        if outcome.fresh:
            self.line(finished_line(outcome.step.name, outcome.detail, outcome.seconds))
        else:
            self._there.append(outcome.step.name)

    def summary(self) -> None:
        """One line for all that was there already since the last summary."""
        if self._there:
            steps = "1 step" if len(self._there) == 1 else f"{len(self._there)} steps"
            self.line(finished_line("there already", f"{steps} had nothing to do", None))
        self._there.clear()

    def line(self, text: str) -> None:
        """Prints a line above the live part."""
        style = {"✔": "green", "✘": "bold red", "…": "dim"}.get(text[:1], "")
        self.console.print(Text.assemble((text[:1], style), text[1:]))

    def where_the_time_went(self, outcomes: Sequence[Outcome], more: Sequence[tuple[str, float]] = ()) -> None:
        """A table of the steps that took time. Steps overlap: the total is less than their sum."""
        rows = time_rows(outcomes) + [(name, seconds_text(seconds)) for name, seconds in more]
        if not rows:
            return
        table = Table(title="Where the time went (steps overlap)", title_justify="left", box=None, pad_edge=False)
        table.add_column("step", min_width=NAME_WIDTH)
        table.add_column("time", justify="right")
        for name, spent in rows:
            table.add_row(name, spent)
        table.add_row("total", seconds_text(time.monotonic() - self._begin), style="bold")
        self.console.print(table)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        with self._lock:
            running = list(self._running.values())
        for step, since in running:
            usual = f"of usually {seconds_text(step.usual)}" if step.usual >= 3 else ""
            spent = seconds_text(time.monotonic() - since)
            table.add_row(Text("…", "cyan"), step.name, Text(step.what, "dim"), spent, Text(usual, "dim"))
        return table
