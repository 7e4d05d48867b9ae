"""From a data set to the batches of one rank, on the device: sampled, augmented, normalised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Subset

from gputraining_trainer.config import Process, TrainingConfig
from gputraining_trainer.data.order import Order, derive_seed
from gputraining_trainer.data.sets import Dataset, TensorSplit

Batch = tuple[torch.Tensor, torch.Tensor]
"""Normalised float images [B, C, H, W] (channels last) and labels [B], on the device."""


class Batches(Protocol):
    """The batches of one rank."""

    order: Order
    """Which samples come when."""
    parts: int
    """Batches of one step."""

    def train(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """This rank's share of an epoch, from where all ranks together have consumed so many samples.

        Each step is ``parts`` batches that have ``order.step_samples`` together; only the last may be smaller.
        """

    def test(self) -> Iterator[Batch]:
        """This rank's share of the test set; over all ranks every sample comes exactly once."""


def make_batches(dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> Batches:
    """Batches from memory where the data set is there, else from a DataLoader.

    Raises:
        ValueError: the training set has fewer samples than there are processes.
    """
    kind = TensorBatches if isinstance(dataset.train, TensorSplit) else LoaderBatches
    return kind(dataset, config, process, device)


class _Sharded:
    """What both kinds share: the order of the training set and the normalisation."""

    def __init__(self, dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> None:
        self._device = device
        self.order = Order(
            samples=len(dataset.train),
            seed=config.seed,
            rank=process.rank,
            world_size=process.world_size,
            wanted_step_samples=config.batch_size * config.gradient_accumulation_steps,
        )
        self._batch_size = min(config.batch_size, self.order.step_samples)
        self.parts = -(-self.order.step_samples // self._batch_size)
        self._test_indices = range(process.rank, len(dataset.test), process.world_size)
        self._mean = torch.tensor(dataset.mean, device=device).view(1, -1, 1, 1) * dataset.scale
        self._std = torch.tensor(dataset.std, device=device).view(1, -1, 1, 1) * dataset.scale

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        floats = images.to(self._device, torch.float32, non_blocking=True)
        return floats.sub_(self._mean).div_(self._std).contiguous(memory_format=torch.channels_last)


class TensorBatches(_Sharded):
    """A data set that lies on the device; batches are cut out and augmented there, all samples at once."""

    def __init__(self, dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> None:
        super().__init__(dataset, config, process, device)
        self._train = TensorSplit(dataset.train.images.to(device), dataset.train.labels.to(device))
        share = torch.tensor(self._test_indices)
        self._test = TensorSplit(dataset.test.images[share].to(device), dataset.test.labels[share].to(device))
        self._shift, self._flip = dataset.shift, dataset.flip
        self._random = torch.Generator(device=device)

    def train(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        size = self._batch_size
        for seed, indices in self.order.steps(epoch, consumed, self._device):
            # Drawn for the whole step, so that it does not matter into which batches it is cut.
            self._random.manual_seed(seed)
            offsets = draw_offsets(len(indices), self._shift, self._random) if self._shift else None
            turned = draw_turned(len(indices), self._random) if self._flip else None
            for start in range(0, len(indices), size):
                part = slice(start, start + size)
                images = self._train.images[indices[part]]
                if offsets is not None:
                    images = shifted(images, self._shift, offsets[:, part])
                if turned is not None:
                    images = mirrored(images, turned[part])
                yield self._normalised(images), self._train.labels[indices[part]]

    def test(self) -> Iterator[Batch]:
        size = max(self._batch_size, 256)
        for start in range(0, len(self._test), size):
            end = start + size
            yield self._normalised(self._test.images[start:end]), self._test.labels[start:end]


class LoaderBatches(_Sharded):
    """A data set that is read from files, by processes of their own when the settings ask for some."""

    def __init__(self, dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> None:
        super().__init__(dataset, config, process, device)
        workers = config.data_loader_workers
        options: dict[str, Any] = {
            # Its own, or each epoch would draw from the one that dropout draws from.
            "generator": torch.Generator(),
            "num_workers": workers,
            "pin_memory": device.type == "cuda",
            "persistent_workers": workers > 0,
            # Not "fork": this process has threads already.
            "multiprocessing_context": "forkserver" if workers else None,
        }
        self._keys = _Keys(self.order, self._batch_size)
        self._train_loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset.train, config.seed), batch_sampler=self._keys, **options
        )
        self._test_loader: DataLoader[Any] = DataLoader(
            Subset(dataset.test, self._test_indices), batch_size=self._batch_size, **options
        )

    def train(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        self._keys.position = epoch, consumed
        return self._moved(self._train_loader)

    def test(self) -> Iterator[Batch]:
        return self._moved(self._test_loader)

    def _moved(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        for images, labels in loader:
            yield self._normalised(images), labels.to(self._device, non_blocking=True)


class _Keys:
    """Batches of (epoch, sample) for a DataLoader. Its worker processes live on: they learn of the epoch so."""

    def __init__(self, order: Order, batch_size: int) -> None:
        self._order, self._batch_size = order, batch_size
        self.position = 1, 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, consumed = self.position
        for _, samples in self._order.steps(epoch, consumed):
            for part in torch.split(samples, self._batch_size):
                yield [(epoch, sample) for sample in part.tolist()]


class _Seeded(torch.utils.data.Dataset[Any]):
    """A data set whose random changes depend on the seed, epoch and sample alone, not on the process that reads it."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, sample = key
        with torch.random.fork_rng(devices=()):  # without workers this is the training's own process
            torch.default_generator.manual_seed(derive_seed(self._seed, epoch, sample))
            return self._dataset[sample]


def draw_offsets(count: int, limit: int, random: torch.Generator) -> torch.Tensor:
    """For each image how far it is moved down and to the right, counted from ``-limit``: int64 [2, count]."""
    return torch.randint(2 * limit + 1, (2, count), generator=random, device=random.device)


def shifted(images: torch.Tensor, limit: int, offsets: torch.Tensor) -> torch.Tensor:
    """Move each image [B, C, H, W] by its own offset of up to ``limit`` pixels; zeros come in at the edges."""
    count, channels, height, width = images.shape
    device = images.device
    padded = torch.nn.functional.pad(images, (limit,) * 4)
    rows = offsets[0].view(-1, 1) + torch.arange(height, device=device)
    columns = offsets[1].view(-1, 1) + torch.arange(width, device=device)
    sample = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
    return padded[sample, channel, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


def draw_turned(count: int, random: torch.Generator) -> torch.Tensor:
    """Which images are mirrored: half of them, bool [count]."""
    return torch.rand(count, generator=random, device=random.device) < 0.5


def mirrored(images: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Mirror the chosen images of [B, C, H, W]."""
    return torch.where(turned.view(-1, 1, 1, 1), images.flip(-1), images)
