"""Where the files of a data set lie. No torch here: a data set that is missing is told before the slow imports."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputraining_trainer.config import DATASETS_WITH_FILES, TrainingConfig
from gputraining_trainer.failures import DatasetNotFoundError

MNIST_FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_TRAIN_FILES: Final = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_TEST_FILES: Final = ("test_batch",)


@dataclass(frozen=True)
class Split:
    """Files (or one folder) of the training and of the test set."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]


def find_files(config: TrainingConfig) -> Split | None:
    """The files of the data set; None for those that need none.

    Raises:
        DatasetNotFoundError: something is missing or cannot be read.
    """
    if config.dataset not in DATASETS_WITH_FILES:
        return None
    root = config.dataset_path
    assert root is not None, "checked by read_config"
    try:
        if not root.is_dir():
            kind = "is no folder" if root.exists() else "does not exist"
            raise DatasetNotFoundError(f"{config.dataset}: {root} {kind}; {_fix(config)}")
        if config.dataset == "mnist":
            files = _find_mnist(root)
        elif config.dataset == "cifar10":
            files = _find_cifar10(root)
        else:
            files = _find_imagefolder(root)
        if files is None:
            raise DatasetNotFoundError(f"{config.dataset}: {_missing(config.dataset, root)}; {_fix(config)}")
        for path in files.train + files.test:
            if not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    except PermissionError as error:
        raise DatasetNotFoundError(
            f"{config.dataset}: {error.filename} may not be read by uid {os.getuid()}; "
            "fix: make the files of the volume readable for this user"
        ) from error
    return files


def _find_mnist(root: Path) -> Split | None:
    for folder in (root, root / "raw", root / "MNIST" / "raw"):  # the last is torchvision's layout
        paths = [_first_file((folder / name, folder / f"{name}.gz")) for name in MNIST_FILES]
        found = tuple(path for path in paths if path is not None)
        if len(found) == len(MNIST_FILES):
            return Split(train=found[:2], test=found[2:])
    return None


def _find_cifar10(root: Path) -> Split | None:
    for folder in (root, root / "cifar-10-batches-py"):
        train = tuple(folder / name for name in CIFAR10_TRAIN_FILES)
        test = tuple(folder / name for name in CIFAR10_TEST_FILES)
        if all(path.is_file() for path in train + test):
            return Split(train, test)
    return None


def _find_imagefolder(root: Path) -> Split | None:
    train, test = root / "train", next((root / name for name in ("val", "test") if (root / name).is_dir()), None)
    if test is None or not train.is_dir():
        return None
    return Split((train,), (test,))


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _missing(dataset: str, root: Path) -> str:
    if dataset == "mnist":
        return f"no {', '.join(MNIST_FILES)} (or .gz) in {root}, {root}/raw or {root}/MNIST/raw"
    if dataset == "cifar10":
        return f"no {_range(CIFAR10_TRAIN_FILES)} and {CIFAR10_TEST_FILES[0]} in {root} or {root}/cifar-10-batches-py"
    return f"no folders train and val (or test), with one folder per class in each, in {root}"


def _range(names: Sequence[str]) -> str:
    return f"{names[0]}..{names[-1].rpartition('_')[2]}"


def _fix(config: TrainingConfig) -> str:
    fix = "fix: mount the volume that holds it there, or correct training.dataset.path (DATASET_PATH)"
    return (
        fix
        if config.dataset == "imagefolder"
        else f"{fix}, or set training.dataset.download (DATASET_DOWNLOAD) to true"
    )
