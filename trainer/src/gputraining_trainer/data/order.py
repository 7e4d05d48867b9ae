"""Which samples a step takes: a function of the seed, the epoch and what was consumed, never of what ran before.

The order of an epoch is one permutation of the training set. What all ranks together have consumed is a prefix of it,
and the ranks deal out the rest like cards: so training can go on from any position, with any number of processes, and
no sample comes twice in an epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


def derive_seed(*parts: int) -> int:
    """A seed of 63 bits, the same for the same numbers, unrelated for others."""
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch: a permutation of all samples, int64 [samples]."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derive_seed(seed, epoch)))


@dataclass(frozen=True)
class Order:
    """The part of one rank in each epoch: its samples, in steps of equal size.

    Raises:
        ValueError: there are fewer samples than processes.
    """

    samples: int
    """In the training set."""
    seed: int
    rank: int
    world_size: int
    wanted_step_samples: int
    """Samples per process and step; an epoch that has fewer is one step."""

    def __post_init__(self) -> None:
        if self.samples < self.world_size:
            raise ValueError(f"{self.samples} training samples for {self.world_size} processes; fix: fewer workers")

    @property
    def step_samples(self) -> int:
        """Samples that a step really takes on each rank."""
        return min(self.wanted_step_samples, self.samples // self.world_size)

    def steps_left(self, consumed: int = 0) -> int:
        """Steps until the end of an epoch of which all ranks together have consumed so many samples.

        What does not fill a step on every rank is left out: other samples each time.
        """
        return (self.samples - consumed) // self.world_size // self.step_samples

    def steps(
        self, epoch: int, consumed: int = 0, device: torch.device | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """For each step that is left: a seed for its randomness, and this rank's samples, int64 [step_samples]."""
        mine = epoch_order(self.samples, self.seed, epoch)[consumed:][self.rank :: self.world_size].to(device)
        size = self.step_samples
        for step in range(self.steps_left(consumed)):
            position = consumed + step * size * self.world_size
            yield derive_seed(self.seed, epoch, position, self.rank), mine[step * size : (step + 1) * size]
