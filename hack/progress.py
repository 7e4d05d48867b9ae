"""What a GpuTraining's status says, as texts for people. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hack.console import seconds_text


@dataclass(frozen=True)
class View:
    """The part of a GpuTraining that the demo shows."""

    phase: str
    percent: int
    text: str

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in ("Complete", "Failed")


def metric(status: Mapping[str, Any], name: str) -> str | None:
    """A metric's value as the status has it, a string, or None."""
    metrics = status.get("progress", {}).get("metrics", [])
    return next((str(entry["value"]) for entry in metrics if entry["name"] == name), None)


def view(training: Mapping[str, Any]) -> View:
    """Phase, percent and one line of detail: figures while it trains, else the operator's message."""
    status = training.get("status", {})
    progress = status.get("progress", {})
    phase = status.get("phase", "Pending")
    if "epoch" not in progress:
        return View(phase, 0, status.get("message", "waiting for the operator"))
    parts = [f"epoch {progress['epoch']}/{progress['totalEpochs']}" if "totalEpochs" in progress else ""]
    parts += [f"{name} {value}" for name in ("loss", "accuracy") if (value := metric(status, name))]
    if rate := progress.get("samplesPerSecond"):
        parts.append(f"{float(rate):,.0f} samples/s")
    if phase == "Running" and (left := progress.get("estimatedRemainingSeconds")) is not None:
        parts.append(f"{seconds_text(left)} left")
    return View(phase, progress.get("percent", 0), "  ".join(part for part in parts if part))


def worth_a_line(before: View | None, now: View) -> bool:
    """Whether a log should get a line: another phase, another 10 percent, or another reason to wait."""
    if before is None or (before.phase, before.percent // 10) != (now.phase, now.percent // 10):
        return True
    return now.percent == 0 and _without_times(before.text) != _without_times(now.text)


def _without_times(text: str) -> str:
    return re.sub(r"\(?\d+m?\d*s\)?", "", text)


def duration(status: Mapping[str, Any]) -> float | None:
    """Seconds from startTime to completionTime, or None while one is missing."""
    try:
        begin, end = (datetime.fromisoformat(status[key]) for key in ("startTime", "completionTime"))
    except KeyError:
        return None
    return (end - begin).total_seconds()


def closing(status: Mapping[str, Any]) -> str:
    """How a complete training ended, in one line."""
    parts = []
    if (spent := duration(status)) is not None:
        parts.append(f"in {seconds_text(spent)}")
    if accuracy := metric(status, "accuracy"):
        parts.append(f"accuracy {accuracy}")
    if path := status.get("outputPath"):
        parts.append(f"model in volume {path}")
    return ", ".join(parts)


def claim_of(output_path: str) -> tuple[str, str] | None:
    """(claim, path in it) of a status.outputPath like "digits-out:/model.pth"; None when it is a path in the pod."""
    claim, colon, path = output_path.partition(":")
    return (claim, path.lstrip("/")) if colon and not claim.startswith("/") else None
