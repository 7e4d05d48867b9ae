"""Starts the operator: ``python -m gputraining_operator``, configured by the environment (see `settings`)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

import kopf

from gputraining_operator.handlers import Operator, register
from gputraining_operator.settings import Settings, SettingsError, load_settings

EXIT_RESTART: Final = 3
"""The operator wants to be started again; the log says why."""


def main() -> int:
    """Run until a signal, or until it has to start anew; returns the exit code."""
    try:
        settings = load_settings(os.environ)
    except SettingsError as error:
        print(f"gputraining-operator: {error}", file=sys.stderr)
        return 64
    configure_logging(settings)
    registry = kopf.OperatorRegistry()
    operator = Operator(settings)
    register(registry, operator)
    kopf_settings = kopf.OperatorSettings()
    # A namespaced installation may not list CRDs and namespaces.
    kopf_settings.scanning.disabled = bool(settings.watch_namespaces)
    asyncio.run(
        kopf.operator(
            registry=registry,
            settings=kopf_settings,
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            stop_flag=operator.restart,
        )
    )
    return EXIT_RESTART if operator.restart.is_set() else 0


def configure_logging(settings: Settings) -> None:
    """Send all logs to stderr in the chosen form; kopf's per-object chatter only when debugging."""
    kopf.configure(
        debug=settings.log_level == "DEBUG",
        log_format=kopf.LogFormat.JSON if settings.log_json else kopf.LogFormat.FULL,
    )
    logging.getLogger().setLevel(settings.log_level)
    if settings.log_level != "DEBUG":
        logging.getLogger("kopf").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
