"""From a data set to the batches of one rank, on the device: sampled, augmented, normalised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from gputraining_trainer.config import Process, TrainingConfig
from gputraining_trainer.data.sets import Dataset, TensorSplit

Batch = tuple[torch.Tensor, torch.Tensor]
"""Normalised float images [B, C, H, W] (channels last) and labels [B], on the device."""


class Batches(Protocol):
    """The batches of one rank."""

    train_length: int
    """Batches of one epoch, the same for every rank."""
    batch_size: int
    """Samples in each of them: all training batches are equally large."""

    def train(self, epoch: int) -> Iterator[Batch]:
        """This rank's share of the training set, in the order of that epoch."""

    def test(self) -> Iterator[Batch]:
        """This rank's share of the test set; over all ranks every sample comes exactly once."""


def make_batches(dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> Batches:
    """Batches from memory where the data set is there, else from a DataLoader.

    Raises:
        ValueError: the training set has fewer samples than there are processes.
    """
    if len(dataset.train) < process.world_size:
        raise ValueError(
            f"{dataset.name}: {len(dataset.train)} training samples for {process.world_size} processes; "
            "fix: fewer workers"
        )
    kind = TensorBatches if isinstance(dataset.train, TensorSplit) else LoaderBatches
    return kind(dataset, config, process, device)


class _Sharded:
    """What both kinds share: the sampler of the training set and the normalisation."""

    def __init__(self, dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> None:
        self._device = device
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            dataset.train,
            num_replicas=process.world_size,
            rank=process.rank,
            shuffle=True,
            seed=config.seed,
        )
        samples = len(self._sampler)
        self.batch_size = min(config.batch_size, samples)
        self.train_length = samples // self.batch_size  # the rest of an epoch waits: other samples in each epoch
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
        self._seed, self._rank = config.seed, process.rank
        self._random = torch.Generator(device=device)

    def train(self, epoch: int) -> Iterator[Batch]:
        self._sampler.set_epoch(epoch)
        # A stream per seed, epoch and rank: an epoch can be repeated on its own.
        self._random.manual_seed(((self._seed * 1_000_003 + epoch) * 100_003 + self._rank) % 2**63)
        indices = torch.tensor(list(self._sampler), device=self._device)
        for index in torch.split(indices, self.batch_size)[: self.train_length]:
            images = self._train.images[index]
            if self._shift:
                images = shifted(images, self._shift, self._random)
            if self._flip:
                images = mirrored(images, self._random)
            yield self._normalised(images), self._train.labels[index]

    def test(self) -> Iterator[Batch]:
        size = max(self.batch_size, 256)
        for start in range(0, len(self._test), size):
            end = start + size
            yield self._normalised(self._test.images[start:end]), self._test.labels[start:end]


class LoaderBatches(_Sharded):
    """A data set that is read from files, by processes of their own when the settings ask for some."""

    def __init__(self, dataset: Dataset, config: TrainingConfig, process: Process, device: torch.device) -> None:
        super().__init__(dataset, config, process, device)
        workers = config.data_loader_workers
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": workers,
            "pin_memory": device.type == "cuda",
            "persistent_workers": workers > 0,
            # Not "fork": this process has threads already.
            "multiprocessing_context": "forkserver" if workers else None,
        }
        self._train_loader: DataLoader[Any] = DataLoader(
            dataset.train, sampler=self._sampler, drop_last=True, **options
        )
        self._test_loader: DataLoader[Any] = DataLoader(Subset(dataset.test, self._test_indices), **options)

    def train(self, epoch: int) -> Iterator[Batch]:
        self._sampler.set_epoch(epoch)
        return self._moved(self._train_loader)

    def test(self) -> Iterator[Batch]:
        return self._moved(self._test_loader)

    def _moved(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        for images, labels in loader:
            yield self._normalised(images), labels.to(self._device, non_blocking=True)


def shifted(images: torch.Tensor, limit: int, random: torch.Generator) -> torch.Tensor:
    """Move each image [B, C, H, W] by its own random offset of up to ``limit`` pixels; zeros come in at the edges."""
    count, channels, height, width = images.shape
    device = images.device
    padded = torch.nn.functional.pad(images, (limit,) * 4)
    offsets = torch.randint(2 * limit + 1, (2, count, 1), generator=random, device=device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = offsets[1] + torch.arange(width, device=device)
    sample = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
    return padded[sample, channel, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


def mirrored(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Mirror half of the images [B, C, H, W], chosen at random."""
    chosen = torch.rand(len(images), generator=random, device=images.device) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)
