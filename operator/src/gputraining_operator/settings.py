"""Configuration of the operator: environment -> frozen dataclass, checked once at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(ValueError):
    """A setting of the operator is wrong; the text names it, what it got and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """How this operator runs.

    Attributes:
        trainer_image: image for trainings that name none.
        watch_namespaces: namespaces to serve; empty means all of the cluster.
        metrics_port: port of /metrics, /healthz and /readyz.
        reconcile_workers: how many trainings are reconciled at the same time.
        pull_concurrency: how many progress requests are in flight at the same time.
        resync_seconds: how often the caches are compared with the API server, in case a watch lost an event.
        leader_election: whether several replicas agree on one that acts (GPUTRAINING_LEADER_ELECTION, true or false).
        lease_name: name of their Lease (GPUTRAINING_LEASE_NAME).
        lease_namespace: its namespace, the operator's own (POD_NAMESPACE).
        identity: name of this replica in the Lease, its pod's (POD_NAME).
        log_level: name of a level of the logging module.
        log_json: one JSON object per line instead of text.
    """

    trainer_image: str
    watch_namespaces: tuple[str, ...] = ()
    metrics_port: int = 8080
    reconcile_workers: int = 32
    pull_concurrency: int = 64
    resync_seconds: int = 60
    leader_election: bool = False
    lease_name: str = ""
    lease_namespace: str = ""
    identity: str = ""
    log_level: str = "INFO"
    log_json: bool = False


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: a variable is missing or out of range.
    """
    image = environment.get("TRAINER_IMAGE", "")
    if not image:
        raise SettingsError("TRAINER_IMAGE: not set; give the image of the built-in trainer")
    election = _choice(environment, "GPUTRAINING_LEADER_ELECTION", "false", ("true", "false")) == "true"
    for name in ("POD_NAME", "POD_NAMESPACE"):
        if election and not environment.get(name):
            raise SettingsError(f"{name}: not set; GPUTRAINING_LEADER_ELECTION needs it (downward API)")
    return Settings(
        trainer_image=image,
        watch_namespaces=tuple(n for n in _split(environment.get("WATCH_NAMESPACES", ""))),
        metrics_port=_integer(environment, "METRICS_PORT", 8080, 1, 65535),
        reconcile_workers=_integer(environment, "RECONCILE_WORKERS", 32, 1, 1024),
        pull_concurrency=_integer(environment, "PULL_CONCURRENCY", 64, 1, 4096),
        resync_seconds=_integer(environment, "RESYNC_SECONDS", 60, 5, 86400),
        leader_election=election,
        lease_name=environment.get("GPUTRAINING_LEASE_NAME") or "gputraining-operator",
        lease_namespace=environment.get("POD_NAMESPACE", ""),
        identity=environment.get("POD_NAME", ""),
        log_level=_choice(environment, "LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
        log_json=_choice(environment, "LOG_FORMAT", "plain", ("plain", "json")) == "json",
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _integer(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingsError(f"{name}: got {text!r}; allowed is a whole number from {low} to {high}")
    return value


def _choice(environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = environment.get(name, "") or default
    if value not in allowed:
        raise SettingsError(f"{name}: got {value!r}; allowed are {', '.join(allowed)}")
    return value
