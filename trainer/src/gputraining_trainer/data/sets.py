"""The data sets, as two halves of images and labels with what is needed to feed a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch's world gives it

from gputraining_trainer.config import TrainingConfig
from gputraining_trainer.data.files import Split, find_files
from gputraining_trainer.data.readers import read_cifar10, read_idx_pair

DIGITS: Final = Path(__file__).parent / "digits"
DIGITS_TEST_SHARE: Final = 5  # one of so many of each class is for the test
IMAGE_SIZE: Final = 224


@dataclass(frozen=True)
class TensorSplit:
    """A set that fits into memory: uint8 images [N, C, H, W] and int64 labels [N]."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A classification data set. Pixels are normalised as ``(value / scale - mean) / std``."""

    name: str
    classes: int
    channels: int
    image_size: int
    train: Any
    """A TensorSplit, or a map-style torch data set of (uint8 image [C, H, W], label)."""
    test: Any
    """Of the same kind."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    shift: int = 0
    """Training images are moved by up to so many pixels each way."""
    flip: bool = False
    """Training images are mirrored half of the time."""


def load(config: TrainingConfig) -> Dataset:
    """Load the data set that the settings name.

    Raises:
        DatasetNotFoundError: its files are not there.
        ValueError: its files are damaged.
    """
    if config.dataset == "digits":
        return _digits()
    if config.dataset == "synthetic":
        return _synthetic()
    files = find_files(config)
    assert files is not None, "all others have files"
    if config.dataset == "mnist":
        return _mnist(files)
    return _cifar10(files) if config.dataset == "cifar10" else _imagefolder(files)


def download(config: TrainingConfig) -> None:
    """Fetch the files of mnist or cifar10 into the data set's folder, where they are not there already."""
    import torchvision

    fetch = torchvision.datasets.MNIST if config.dataset == "mnist" else torchvision.datasets.CIFAR10
    fetch(root=str(config.dataset_path), download=True)


def _digits() -> Dataset:
    """1797 real handwritten digits of 8 × 8 pixels, values 0..16; every fifth of each class is for the test."""
    images, labels = read_idx_pair(DIGITS / "images-idx3-ubyte.gz", DIGITS / "labels-idx1-ubyte.gz")
    is_test = torch.zeros(len(images), dtype=torch.bool)
    for digit in range(10):
        is_test[(labels == digit).nonzero().flatten()[::DIGITS_TEST_SHARE]] = True
    return Dataset(
        name="digits",
        classes=10,
        channels=1,
        image_size=8,
        train=TensorSplit(images[~is_test], labels[~is_test]),
        test=TensorSplit(images[is_test], labels[is_test]),
        mean=(0.305,),
        std=(0.376,),
        scale=16.0,
        shift=1,
    )


def _mnist(files: Split) -> Dataset:
    train, test = read_idx_pair(*files.train), read_idx_pair(*files.test)
    return Dataset(
        name="mnist",
        classes=10,
        channels=1,
        image_size=train[0].shape[-1],
        train=TensorSplit(*train),
        test=TensorSplit(*test),
        mean=(0.1307,),
        std=(0.3081,),
        shift=2,
    )


def _cifar10(files: Split) -> Dataset:
    return Dataset(
        name="cifar10",
        classes=10,
        channels=3,
        image_size=32,
        train=TensorSplit(*read_cifar10(files.train)),
        test=TensorSplit(*read_cifar10(files.test)),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        shift=4,
        flip=True,
    )


def _synthetic() -> Dataset:
    """Ten smooth random patterns of 3 × 32 × 32 under noise: always the same, and learnable."""
    random = torch.Generator().manual_seed(20)
    patterns = F.interpolate(torch.randn(10, 3, 4, 4, generator=random), size=32, mode="bilinear", align_corners=False)

    def split(count: int) -> TensorSplit:
        labels = torch.randint(10, (count,), generator=random)
        noisy = patterns[labels] + 0.5 * torch.randn(count, 3, 32, 32, generator=random)
        return TensorSplit((128 + 40 * noisy).clamp_(0, 255).to(torch.uint8), labels)

    return Dataset(
        name="synthetic",
        classes=10,
        channels=3,
        image_size=32,
        train=split(4096),
        test=split(1024),
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
    )


def _imagefolder(files: Split) -> Dataset:
    from torchvision import datasets, transforms

    def folder(path: Path, *steps: Any) -> Any:
        try:
            return datasets.ImageFolder(str(path), transforms.Compose([*steps, transforms.PILToTensor()]))
        except FileNotFoundError as error:  # a class folder without images, or no class folder
            raise ValueError(f"imagefolder: {error}; fix: one folder per class with images in it") from error

    train = folder(files.train[0], transforms.RandomResizedCrop(IMAGE_SIZE), transforms.RandomHorizontalFlip())
    test = folder(files.test[0], transforms.Resize(IMAGE_SIZE * 8 // 7), transforms.CenterCrop(IMAGE_SIZE))
    if train.classes != test.classes:
        differing = ", ".join(sorted(set(train.classes) ^ set(test.classes))[:5])
        raise ValueError(
            f"imagefolder: {files.train[0]} and {files.test[0]} have different classes ({differing}); "
            "fix: the same folders in both"
        )
    return Dataset(
        name="imagefolder",
        classes=len(train.classes),
        channels=3,
        image_size=IMAGE_SIZE,
        train=train,
        test=test,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
