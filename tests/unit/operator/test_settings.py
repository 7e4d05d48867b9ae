"""Settings of the operator: defaults, and errors that say what to do."""

from __future__ import annotations

import pytest

from gputraining_operator.settings import SettingsError, load_settings


def test_defaults() -> None:
    settings = load_settings({"TRAINER_IMAGE": "x"})
    assert (settings.watch_namespaces, settings.metrics_port, settings.log_json) == ((), 8080, False)


def test_namespaces_are_split() -> None:
    assert load_settings({"TRAINER_IMAGE": "x", "WATCH_NAMESPACES": "a, b,"}).watch_namespaces == ("a", "b")


def test_leader_election_is_off_outside_of_the_chart() -> None:
    assert not load_settings({"TRAINER_IMAGE": "x"}).leader_election


def test_leader_election_knows_its_lease_and_itself() -> None:
    pod = {"POD_NAME": "operator-1", "POD_NAMESPACE": "system", "GPUTRAINING_LEASE_NAME": "mine"}
    settings = load_settings({"TRAINER_IMAGE": "x", "GPUTRAINING_LEADER_ELECTION": "true"} | pod)
    assert settings.leader_election
    assert (settings.identity, settings.lease_namespace, settings.lease_name) == ("operator-1", "system", "mine")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRAINER_IMAGE", "", "TRAINER_IMAGE: not set"),
        ("METRICS_PORT", "http", "METRICS_PORT: got 'http'; allowed is a whole number from 1 to 65535"),
        ("PULL_CONCURRENCY", "0", "PULL_CONCURRENCY: got '0'"),
        ("GPUTRAINING_LEADER_ELECTION", "true", "POD_NAME: not set; GPUTRAINING_LEADER_ELECTION needs it"),
        ("GPUTRAINING_LEADER_ELECTION", "yes", "GPUTRAINING_LEADER_ELECTION: got 'yes'; allowed are true, false"),
        ("LOG_LEVEL", "LOUD", "LOG_LEVEL: got 'LOUD'; allowed are DEBUG, INFO"),
    ],
)
def test_errors_name_the_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"TRAINER_IMAGE": "x"} | {variable: value})
    assert str(caught.value).startswith(message)
