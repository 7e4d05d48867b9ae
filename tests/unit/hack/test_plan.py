"""Every way's graph is sound, and each goal is reached by it."""

import pytest

from hack import images, plan
from hack.facts import Way
from hack.steps import only_for, ordered

BUILT = images.Images("localhost/gputraining/operator:a", "localhost/gputraining/trainer:b")


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("lacking", [[], ["helm"]])
def test_the_steps_can_be_ordered_and_every_goal_reached(
    monkeypatch: pytest.MonkeyPatch, way: Way, lacking: list[str]
) -> None:
    monkeypatch.setattr("hack.gotools.missing_host_tools", lambda: lacking)
    steps = ordered(plan.steps(way, BUILT))
    for wanted in plan.goals(way).values():
        assert only_for(steps, wanted)


def test_the_stock_way_compiles_nothing_when_the_tools_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hack.gotools.missing_host_tools", lambda: [])
    names = {step.name for step in plan.steps(Way.STOCK, BUILT)}
    assert not names & {"go", "debian-trixie", "node-image", "training-operator-build", "pod-network"}


def test_downloads_and_the_base_images_do_not_wait_for_the_compiler() -> None:
    steps = plan.steps(Way.BUILT, BUILT)
    for name in ("debian-trixie", "debian-bookworm", "cpu-base", "python-base", "operator-image", "trainer-image"):
        assert "tools" not in {step.name for step in only_for(steps, [name])}


def test_a_cluster_of_the_users_own_without_a_registry_gets_the_released_images() -> None:
    steps = plan.steps(Way.EXISTING, None)
    names = {step.name for step in only_for(steps, ["operator"])}
    assert names <= {"go", "tools", "cluster", "operator"}


def test_every_step_that_uses_the_network_says_what_to_do_when_it_fails() -> None:
    for step in plan.steps(Way.BUILT, BUILT):
        if step.usual >= 15:
            assert step.advice or step.needs, step.name
