"""Readers of the file formats: IDX (MNIST, the embedded digits) and the pickled batches of CIFAR-10.

They give what the files hold, byte for byte: images as uint8 tensors [N, C, H, W], labels as int64 tensors [N].
"""

from __future__ import annotations

import gzip
import importlib
import math
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

_IDX_UBYTE: Final = 8
# Only what the pickles of CIFAR-10 are made of, so that a file cannot name any other code to be run.
_CIFAR_GLOBALS: Final = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def read_idx(path: Path) -> torch.Tensor:
    """Read an IDX file of unsigned bytes, plain or gzipped: uint8 tensor of the shape that its header tells.

    Raises:
        ValueError: the file is no such file, or ends too early.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = bytearray(file.read())
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _IDX_UBYTE:
        raise ValueError(f"{path}: no IDX file of unsigned bytes; fix: fetch it again")
    header = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:header]) if len(data) >= header else ()
    if not shape or len(data) != header + math.prod(shape):
        raise ValueError(f"{path}: {len(data)} bytes do not fit its header; fix: fetch it again, it is truncated")
    return torch.frombuffer(data, dtype=torch.uint8, offset=header).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [N, 1, H, W] and labels [N] of two IDX files."""
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        raise ValueError(f"{images} and {labels} do not belong together: {list(pixels.shape)}, {list(classes.shape)}")
    return pixels.unsqueeze(1), classes.long()


def read_cifar10(paths: Sequence[Path]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [N, 3, 32, 32] and labels [N] of batches in CIFAR-10's "python" format."""
    images, labels = [], []
    for path in paths:
        try:
            with path.open("rb") as file:
                batch = _CifarUnpickler(file, encoding="bytes").load()
            images.append(torch.from_numpy(batch[b"data"]).reshape(-1, 3, 32, 32))
            labels.append(torch.tensor(batch[b"labels"]))
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path}: no batch of CIFAR-10 ({error}); fix: fetch it again") from error
    return torch.cat(images), torch.cat(labels)


class _CifarUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CIFAR_GLOBALS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        if name == "_reconstruct":  # numpy 2 moved it and warns about the old place
            module = "numpy._core.multiarray" if importlib.util.find_spec("numpy._core") else "numpy.core.multiarray"
        return getattr(importlib.import_module(module), name)
