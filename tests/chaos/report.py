"""The table at the end, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tests.chaos.scenario import Result


def table(results: Sequence[Result], title: str) -> Table:
    """One line per scenario."""
    made = Table(title=title, title_justify="left")
    made.add_column("fault")
    for column in ("attempts", "lost steps", "to next step", "took"):
        made.add_column(column, justify="right")
    made.add_column("verdict")
    for result in results:
        made.add_row(
            result.fault,
            str(result.attempts),
            "–" if result.lost_steps is None else str(result.lost_steps),
            "–" if result.to_next_step is None else f"{result.to_next_step:.1f} s",
            f"{result.wall:.0f} s",
            verdict(result),
        )
    return made


def verdict(result: Result) -> Text:
    """Right, or what is wrong."""
    if not result.problems:
        return Text("✔ right", style="green")
    return Text("✘ " + "; ".join(problem.splitlines()[0] for problem in result.problems), style="bold red")


def summary(results: Sequence[Result], seconds: float) -> str:
    """The last line."""
    right = sum(not result.problems for result in results)
    lost = [result.lost_steps for result in results if result.lost_steps is not None]
    most = f", at most {max(lost)} steps lost" if lost else ""
    return f"{right} of {len(results)} right{most}, in {seconds / 60:.1f} min"


def write_json(path: Path, results: Sequence[Result], facts: Mapping[str, object]) -> None:
    """All figures for other programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {**facts, "scenarios": [asdict(result) | {"right": not result.problems} for result in results]}
    path.write_text(json.dumps(body, indent=2) + "\n")
