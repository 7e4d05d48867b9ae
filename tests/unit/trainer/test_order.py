"""Which samples a step takes, wherever training goes on from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gputraining_trainer.data.order import Order, derive_seed, epoch_order


def orders(samples: int, world: int, step_samples: int, seed: int = 0) -> list[Order]:
    return [Order(samples, seed, rank, world, step_samples) for rank in range(world)]


@given(
    samples=st.integers(8, 300),
    legs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=5),
    epoch=st.integers(1, 3),
)
def test_what_is_consumed_is_a_prefix_however_often_the_number_of_processes_changes(
    samples: int, legs: list[tuple[int, int, int]], epoch: int
) -> None:
    consumed, seen = 0, []
    for world, step_samples, steps in legs:
        ranks = orders(samples, world, step_samples)
        size = ranks[0].step_samples
        shares = [list(order.steps(epoch, consumed)) for order in ranks]
        assert {len(share) for share in shares} == {ranks[0].steps_left(consumed)}
        done = min(steps, len(shares[0]))
        taken = [sample for share in shares for _, part in share[:done] for sample in part.tolist()]
        assert len(taken) == done * size * world
        seen += taken
        consumed += len(taken)
        assert sorted(seen) == sorted(epoch_order(samples, 0, epoch)[:consumed].tolist())
    assert len(set(seen)) == len(seen)


@given(st.integers(1, 500), st.integers(1, 8), st.integers(1, 64), st.integers(1, 6))
def test_steps_per_epoch_do_not_depend_on_how_a_step_is_cut(samples: int, world: int, size: int, parts: int) -> None:
    if samples < world:
        return
    order = Order(samples, 0, 0, world, size * parts)
    assert order.steps_left() == max(samples // world // (size * parts), 1)
    assert len(list(order.steps(1))) == order.steps_left()


def test_going_on_gives_the_steps_that_would_have_come() -> None:
    order = Order(100, 7, 1, 3, 4)
    whole = list(order.steps(2))
    rest = list(order.steps(2, consumed=2 * 4 * 3))
    assert [seed for seed, _ in whole[2:]] == [seed for seed, _ in rest]
    assert all(torch.equal(left, right) for (_, left), (_, right) in zip(whole[2:], rest, strict=True))


def test_the_randomness_of_each_step_is_its_own() -> None:
    seeds = [
        seed
        for run in (0, 1)
        for epoch in (1, 2)
        for order in orders(64, 2, 8, seed=run)
        for seed, _ in order.steps(epoch)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 2) == derive_seed(1, 2) != derive_seed(12)


def test_fewer_samples_than_processes_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match=r"^3 training samples for 4 processes; fix: fewer workers$"):
        Order(3, 0, 0, 4, 1)
