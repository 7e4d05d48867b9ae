"""Settings of the operator: defaults, and errors that say what to do."""

from __future__ import annotations

import pytest

from gputraining_operator.settings import SettingsError, load_settings


def test_defaults() -> None:
    settings = load_settings({"TRAINER_IMAGE": "x"})
    assert (settings.watch_namespaces, settings.metrics_port, settings.log_json) == ((), 8080, False)


def test_namespaces_are_split() -> None:
    assert load_settings({"TRAINER_IMAGE": "x", "WATCH_NAMESPACES": "a, b,"}).watch_namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINER_IMAGE", "", "TRAINER_IMAGE: not set"),
        ("METRICS_PORT", "http", "METRICS_PORT: got 'http'; allowed is a whole number from 1 to 65535"),
        ("PULL_CONCURRENCY", "0", "PULL_CONCURRENCY: got '0'"),
        ("LOG_LEVEL", "LOUD", "LOG_LEVEL: got 'LOUD'; allowed are DEBUG, INFO"),
    ],
)
def test_errors_name_the_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"TRAINER_IMAGE": "x"} | {variable: value})
    assert str(caught.value).startswith(message)
