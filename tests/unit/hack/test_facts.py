"""Which way to a cluster follows from what is there."""

from dataclasses import replace

import pytest

from hack.engine import bounding_set, lacks_sys_resource, missing_packages
from hack.facts import Facts, Way, decide, suitable, version_in
from hack.shell import UserError

BARE = Facts(use_existing=False, docker=False, registry=False, root=True, debian=True)


@pytest.mark.parametrize(
    ("facts", "way"),
    [
        (replace(BARE, use_existing=True, root=False, debian=False), Way.EXISTING),
        (BARE, Way.BUILT),
        (replace(BARE, docker=True), Way.BUILT),
        (replace(BARE, registry=True), Way.STOCK),  # the engine is installed, its images come from the registry
        (replace(BARE, docker=True, registry=True, root=False, debian=False), Way.STOCK),
        (replace(BARE, docker=True, root=False, node_image="kindest/node:v1.35.0"), Way.STOCK),
        (replace(BARE, docker=True, registry=True, node_image="localhost/gputraining/node:v1"), Way.BUILT),
    ],
)
def test_the_way_that_is_taken(facts: Facts, way: Way) -> None:
    assert decide(facts) is way


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(BARE, root=False), "no Docker engine answers.*or run as root"),
        (replace(BARE, debian=False), "no Docker engine answers"),
        (replace(BARE, root=False, registry=True), "no Docker engine answers"),
        (replace(BARE, docker=True, root=False), "no container registry answers.*run as root"),
        (replace(BARE, docker=True, debian=False), "no container registry answers.*Debian or Ubuntu"),
    ],
)
def test_no_way_says_what_to_do(facts: Facts, said: str) -> None:
    with pytest.raises(UserError, match=said):
        decide(facts)


@pytest.mark.parametrize(
    ("tool", "text", "good"),
    [
        ("go", "go version go1.26.8 linux/amd64", True),
        ("go", "go version go1.19.8 linux/amd64", False),
        ("kind", "kind v0.33.0 go1.26.8 linux/amd64", True),
        ("kind", "kind v0.17.0 go1.19.4 linux/amd64", False),
        ("kubectl", "Client Version: v1.35.4\nKustomize Version: v5.7.1", True),
        ("kubectl", "Client Version: v1.32.4-dispatcher", False),
        ("helm", "v3.20.2+g8fb76d6", True),
        ("helm", "v4.0.1+g12500dd", True),
        ("helm", "v2.17.0", False),
        ("helm", None, False),
        ("helm", "no version here", False),
    ],
)
def test_a_tool_on_path_is_judged_by_its_version(tool: str, text: str | None, good: bool) -> None:
    assert suitable(tool, text) is good


def test_versions_are_found_in_text() -> None:
    assert version_in("go1.26 x") == (1, 26, 0)
    assert version_in("") is None


def test_a_missing_capability_is_seen_in_proc_status() -> None:
    status = "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000000\n"
    assert bounding_set(status) == "000001fffeffffff"
    assert lacks_sys_resource("000001fffeffffff")
    assert not lacks_sys_resource("000001ffffffffff")


def test_packages_that_were_removed_count_as_missing() -> None:
    listing = "docker.io installed\niptables config-files\njq installed\n"
    assert missing_packages(listing) == ["iptables", "debootstrap", "debian-archive-keyring", "busybox-static"]
