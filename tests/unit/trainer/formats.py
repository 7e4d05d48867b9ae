"""Small data sets in the real file formats."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gputraining_trainer.data.files import CIFAR10_TRAIN_FILES, MNIST_FILES


def idx_bytes(values: torch.Tensor) -> bytes:
    """A tensor of bytes in IDX format."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.numpy().tobytes()


def write_mnist(folder: Path, *, zipped: bool = False) -> dict[str, torch.Tensor]:
    """Twenty training and ten test images of 28 × 28; gives what was written, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(1)
    written = {}
    for name in MNIST_FILES:
        count = 20 if name.startswith("train") else 10
        shape, high = ((count, 28, 28), 256) if "images" in name else ((count,), 10)
        written[name] = torch.randint(high, shape, generator=random).to(torch.uint8)
        data = idx_bytes(written[name])
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return written


def write_cifar10(folder: Path) -> dict[str, np.ndarray]:
    """Four images in each of the six batches; gives the pixels, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    written = {}
    for name in (*CIFAR10_TRAIN_FILES, "test_batch"):
        written[name] = random.integers(256, size=(4, 3072), dtype=np.uint8)
        batch = {
            b"batch_label": name.encode(),
            b"labels": [0, 1, 2, 9],
            b"data": written[name],
            b"filenames": [b"a.png", b"b.png", b"c.png", b"d.png"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return written


def write_imagefolder(folder: Path, test_name: str = "val", classes: tuple[str, ...] = ("cat", "dog")) -> None:
    """Six training and two test pictures per class, of different sizes and modes."""
    for part, count in (("train", 6), (test_name, 2)):
        for shade, name in enumerate(classes):
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                mode, colour = ("L", 200 * shade) if number % 2 else ("RGB", (200 * shade, 10, 10))
                Image.new(mode, (40 + number, 32), colour).save(place / f"{number}.png")
